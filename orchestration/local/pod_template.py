"""What one local process needs of a Deployment's manifest: command, environment, ports, probes, grace.

The same manifest goes to Kubernetes. Here the single container becomes a process on loopback: its ports are replaced
by free ones, which the process learns from the environment (`METRICS_PORT` for the port named `metrics`, and so on),
except where the manifest asks for a fixed `hostPort`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eventing.errors import FieldProblem, InvalidResource
from orchestration.local.ports import LOOPBACK

PORT_VARIABLES = {"http": "PORT", "metrics": "METRICS_PORT", "health": "HEALTH_PORT", "profiling": "PROFILING_PORT"}
DEFAULT_GRACE_S = 30.0  # Kubernetes' terminationGracePeriodSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPort:
    """A port by its name; `fixed` is the hostPort that must be used, None for any free one."""

    name: str
    fixed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A readiness or liveness probe. Defaults are those of Kubernetes."""

    path: str | None
    """Of `httpGet`; None for `tcpSocket`."""
    port: str
    """The port's name."""
    initial_delay_s: float = 0.0
    period_s: float = 10.0
    timeout_s: float = 1.0
    failure_threshold: int = 3
    success_threshold: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """The process that each replica of a Deployment runs."""

    namespace: str
    name: str
    replicas: int
    labels: Mapping[str, str]
    command: tuple[str, ...]
    env: Mapping[str, str]
    ports: tuple[ContainerPort, ...]
    readiness: Probe | None
    liveness: Probe | None
    grace_s: float
    working_dir: str | None
    exclusive: bool
    """Old and new cannot run side by side: a fixed port, or strategy `Recreate`."""
    revision: str
    """Hash of the pod template, annotations included: it changes when, and only when, replicas must be replaced."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def argv(self, env: Mapping[str, str]) -> list[str]:
        """The command as this machine runs it: `python` is ours, other programs come from our environment first.

        `$(NAME)` stands for a variable of `env`, as in Kubernetes; one that is not there is left as it is.
        """
        program, *arguments = (_VARIABLE.sub(lambda m: env.get(m[1], m[0]), part) for part in self.command)
        if program in {"python", "python3"}:
            return [sys.executable, *arguments]
        ours = Path(sys.executable).with_name(program)
        found = str(ours) if ours.exists() else shutil.which(program)
        return [found or program, *arguments]

    def environment(self, pod: str, ports: Mapping[str, int]) -> dict[str, str]:
        """The variables of one replica: the manifest's, what the downward API would give, and its own ports."""
        own = {name: value.replace(_POD_NAME, pod) for name, value in self.env.items()}
        for port, number in ports.items():
            own[PORT_VARIABLES.get(port, port.upper().replace("-", "_") + "_PORT")] = str(number)
        return own


_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_POD_NAME = "\0pod\0"  # stands for metadata.name until the replica has one; no real value holds a NUL


def parse_deployment(manifest: Mapping[str, Any]) -> PodTemplate:
    """Read the manifest.

    Raises:
        InvalidResource: something is missing, or cannot be done by a local process; names every such field.
    """
    problems: list[FieldProblem] = []
    metadata = manifest.get("metadata") or {}
    namespace, name = str(metadata.get("namespace") or "default"), str(metadata.get("name") or "")
    spec = manifest.get("spec") or {}
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    containers = pod.get("containers") or []
    at = "spec.template.spec.containers"
    if not name:
        problems.append(FieldProblem("metadata.name", "is required"))
    if len(containers) != 1:
        problems.append(FieldProblem(at, f"must be one, not {len(containers)}: a replica is one local process"))
        raise InvalidResource(f"{namespace}/{name}", problems)
    container = containers[0]
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    if not container.get("command"):
        problems.append(FieldProblem(f"{at}[0].command", "is required: there is no image to take it from"))
    ports = tuple(
        ContainerPort(name=str(port.get("name") or port["containerPort"]), fixed=port.get("hostPort"))
        for port in container.get("ports") or []
    )
    fixed = any(port.fixed is not None for port in ports)
    replicas = spec.get("replicas", 1)
    if fixed and replicas > 1:
        problems.append(FieldProblem("spec.replicas", "must not exceed 1 with a hostPort: one process can have it"))
    parsed = PodTemplate(
        namespace=namespace,
        name=name,
        replicas=replicas,
        labels=dict(metadata.get("labels") or {}),
        command=tuple(str(part) for part in command),
        env=_environment(container.get("env") or [], namespace, f"{at}[0].env", problems),
        ports=ports,
        readiness=_probe(container, "readinessProbe", at, problems),
        liveness=_probe(container, "livenessProbe", at, problems),
        grace_s=float(pod.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)),
        working_dir=container.get("workingDir"),
        exclusive=fixed or (spec.get("strategy") or {}).get("type") == "Recreate",
        revision=hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10],
    )
    if problems:
        raise InvalidResource(parsed.key, problems)
    return parsed


def _environment(
    entries: list[Mapping[str, Any]], namespace: str, at: str, problems: list[FieldProblem]
) -> dict[str, str]:
    fields = {
        "metadata.name": _POD_NAME,
        "metadata.namespace": namespace,
        "status.podIP": LOOPBACK,
        "spec.nodeName": "localhost",
    }
    env: dict[str, str] = {}
    for entry in entries:
        source = entry.get("valueFrom")
        if source is None:
            env[str(entry["name"])] = str(entry.get("value", ""))
            continue
        path = (source.get("fieldRef") or {}).get("fieldPath")
        if path in fields:
            env[str(entry["name"])] = fields[path]
        else:
            problems.append(FieldProblem(f"{at}.{entry['name']}", "valueFrom is not available to a local process"))
    return env


def _probe(container: Mapping[str, Any], kind: str, at: str, problems: list[FieldProblem]) -> Probe | None:
    declared = container.get(kind)
    if not declared:
        return None
    get = declared.get("httpGet")
    asked = (get or declared.get("tcpSocket") or {}).get("port")
    names = {port.get("containerPort"): str(port.get("name")) for port in container.get("ports") or []}
    port = names.get(asked, str(asked))
    if port not in names.values():
        problems.append(FieldProblem(f"{at}[0].{kind}", "must be httpGet or tcpSocket on one of the container's ports"))
        return None
    return Probe(
        path=None if get is None else str(get.get("path", "/")),
        port=port,
        initial_delay_s=float(declared.get("initialDelaySeconds", 0)),
        period_s=float(declared.get("periodSeconds", 10)),
        timeout_s=float(declared.get("timeoutSeconds", 1)),
        failure_threshold=int(declared.get("failureThreshold", 3)),
        success_threshold=int(declared.get("successThreshold", 1)),
    )
