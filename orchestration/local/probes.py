"""Probes of replicas: the judgement is pure, the request is a few lines of asyncio."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from orchestration.local.pod_template import Probe
from orchestration.local.ports import LOOPBACK

EAGER_PERIOD_S = 0.2
"""Until a replica is ready it is asked this often, whatever `periodSeconds` says: somebody is waiting."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a row of probes has shown so far."""

    healthy: bool
    in_a_row: int = 0
    """Answers in a row that speak against `healthy`."""


def judge(verdict: Verdict, probe: Probe, *, success: bool) -> Verdict:
    """The verdict after one more answer: it turns when enough answers in a row are against it."""
    if success == verdict.healthy:
        return replace(verdict, in_a_row=0)
    needed = probe.success_threshold if success else probe.failure_threshold
    against = verdict.in_a_row + 1
    return Verdict(healthy=success) if against >= needed else replace(verdict, in_a_row=against)


async def ask(port: int, path: str | None, timeout_s: float) -> bool:
    """Whether `GET path` is answered in time with a status from 200 to 399, as a kubelet judges it.

    Without a path: whether the port accepts a connection.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                if path is None:
                    return True
                request = f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    parts = status.split()
    return len(parts) >= 2 and parts[1].isdigit() and 200 <= int(parts[1]) < 400
