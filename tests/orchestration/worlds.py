"""A small world behind the three ports, all fakes, and what tests do to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from orchestration.apply import reconcile_once
from orchestration.planning import CanaryDeployment, CanaryPolicy, Policy
from orchestration.ports import Ports
from tests.fakes.kafka import FakeKafkaCluster
from tests.fakes.registry import FakeRegistry
from tests.fakes.workloads import FakeWorkloads

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
POLICY = Policy(
    bootstrap_servers="127.0.0.1:9092",
    channel_source="/registry",
    canary=CanaryPolicy(deployment=CanaryDeployment(image="sluice/canary")),
)


def channel(name="orders", namespace="shop", *, annotations=None, **spec):
    return {
        "apiVersion": "messaging.knative.dev/v1beta1",
        "kind": "KafkaChannel",
        "metadata": {"namespace": namespace, "name": name, "annotations": annotations or {}},
        "spec": {"numPartitions": 2, "subscribers": [subscriber()], **spec},
    }


def subscriber(uid="u1", generation=1):
    return {"uid": uid, "generation": generation, "subscriberUri": f"http://{uid}.shop.svc.cluster.local/"}


class World:
    """Registry, workloads and Kafka in memory, and a clock that a test moves."""

    def __init__(self, *channels, brokers=1):
        self.registry = FakeRegistry(*channels)
        self.workloads = FakeWorkloads()
        self.kafka = FakeKafkaCluster(brokers)
        self.ports = Ports(registry=self.registry, workloads=self.workloads, kafka=self.kafka)
        self.policy = POLICY
        self.now = NOW

    def reconcile(self):
        return reconcile_once(self.ports, self.policy, self.now)

    def settle(self, limit=10):
        """Reconcile, and let Deployments become ready and replicas move, until there is nothing to do."""
        for _ in range(limit):
            done = self.reconcile()
            assert done.succeeded, done.applied.summary
            self.workloads.settle()
            self.kafka.finish_reassignments()
            if not done.plan.actions:
                return done
        raise AssertionError(f"still something to do: {done.plan.summary}")

    def forget_writes(self):
        self.kafka.writes.clear()
        self.workloads.writes.clear()
        self.registry.status_writes.clear()

    @property
    def writes(self):
        return [*self.kafka.writes, *self.workloads.writes, *self.registry.status_writes]

    def later(self, **duration):
        self.now += timedelta(**duration)

    def condition(self, name="orders", kind="Ready", namespace="shop"):
        for found in self.registry.list_channels().channels:
            if (found["metadata"]["namespace"], found["metadata"]["name"]) == (namespace, name):
                conditions = found["status"].get("conditions", [])
                return next((c for c in conditions if c["type"] == kind), {})
        raise AssertionError(f"there is no channel {namespace}/{name}")
