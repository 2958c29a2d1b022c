"""Composition root of this code location: the environment becomes ports and a policy, once in each thread.

Nothing is built while definitions load. A thread keeps what it built, so that a sensor that ticks every few seconds
does not connect anew each time; threads share nothing, since not every client library would bear it.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from orchestration.apply import Reconciliation, reconcile_once
from orchestration.observe import Observation, observe
from orchestration.planning import Plan, Policy
from orchestration.planning.planner import plan
from orchestration.ports import Ports
from orchestration.settings import Settings
from orchestration.wiring import build_ports, exclusively, live_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """What every sensor, job and asset of this location works with."""

    ports: Ports
    policy: Policy
    settings: Settings

    def observe(self) -> Observation:
        """One snapshot, now."""
        return observe(self.ports, now=_now(), expected_brokers=self.settings.canary.expected_cluster_size)

    def plan(self) -> tuple[Observation, Plan]:
        """What would be done now."""
        observation = self.observe()
        return observation, plan(observation.snapshot, self.policy, observation.snapshot.observed_at)

    def reconcile(self) -> Reconciliation:
        """Observe, plan, apply."""
        expected = self.settings.canary.expected_cluster_size
        return reconcile_once(self.ports, self.policy, _now(), expected_brokers=expected)

    def exclusively(self) -> AbstractContextManager[None]:
        """While one reconciliation changes something, others wait."""
        return exclusively(self.settings)


class ControlPlaneResource(dg.ConfigurableResource[ControlPlane]):
    """The ports and the policy, from the environment (`SLUICE_*`, `KAFKA_*`)."""

    def create_resource(self, context: dg.InitResourceContext) -> ControlPlane:  # noqa: ARG002  # Dagster's signature
        return from_environment()


_of_this_thread = threading.local()


def from_environment() -> ControlPlane:
    """The control plane of this thread. Raises `ConfigError`, which names every wrong variable."""
    settings = Settings.from_env(os.environ)
    known: ControlPlane | None = getattr(_of_this_thread, "control_plane", None)
    if known is None or known.settings != settings:
        known = ControlPlane(ports=build_ports(settings), policy=live_policy(settings), settings=settings)
        _of_this_thread.control_plane = known
    return known


def _now() -> datetime:
    # Whole seconds, as documents and annotations keep them.
    return datetime.now(UTC).replace(microsecond=0)
