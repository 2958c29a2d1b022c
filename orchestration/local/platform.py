"""`sluice up`, `sluice down` and `sluice status`: the whole platform on this machine, for people and for scripts.

The functions return what they have to say or an exit code; `orchestration.cli` prints it. Messages for people while
they wait go through `say`, one line each.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from eventing.errors import SluiceError
from orchestration.adapters.registry_folder import FolderRegistry
from orchestration.local.platform_process import Platform, check_machine
from orchestration.local.platform_state import PlatformState, end_leftovers, read_state
from orchestration.local.settings import CHECKOUT, LocalSettings
from orchestration.local.workload_files import WorkloadFiles

JsonObject = dict[str, Any]
Say = Callable[[str], None]

DETACH_WAIT_S = 900.0  # a first start on a slow line: 40 MB of jars, then all the waits of the platform itself
STOP_WAIT_S = 120.0  # the platform's own bounds for stopping are shorter
POLL_S = 0.2


def up(
    *, say: Say, show: Say, detach: bool = False, brokers: int | None = None, environ: Mapping[str, str] = os.environ
) -> int:
    """Start the platform; returns the exit code.

    In the foreground it returns when everything has been stopped again (Ctrl-C or `sluice down`), detached when
    everything answers. `show` gets the table.

    Raises:
        ConfigError: wrong settings, taken ports, no usable Java: nothing was started.
        Unavailable: a part does not answer; everything that was started is stopped.
    """
    settings = LocalSettings.from_env(environ, brokers=brokers)
    state = read_state(settings.home)
    if state is not None and state.is_alive():
        say(f"the platform is already running (pid {state.pid}): `sluice status` shows it, `sluice down` stops it")
        return 1
    if detach:
        return _detached(settings, say, show)

    def ready(late: list[str]) -> None:
        show(table(settings, late))

    return Platform(settings, say, ready, received=lambda line: say(f"sample subscriber: {line}")).run()


def _detached(settings: LocalSettings, say: Say, show: Say) -> int:
    # Before anything is left running, so that the message is the only thing there is to read.
    state = read_state(settings.home)
    if state is not None:
        end_leftovers(state.instance)
    check_machine(settings)
    settings.logs.mkdir(parents=True, exist_ok=True)
    log = settings.logs / "platform.log"
    command = [sys.executable, "-m", "orchestration.local.platform_process"]
    if settings.kafka_bootstrap is None:
        command.append(str(settings.brokers))
    environ = {**os.environ, **settings.environ()}
    if settings.kafka_bootstrap is None:
        del environ["KAFKA_BOOTSTRAP_SERVERS"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environ,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline = time.monotonic() + DETACH_WAIT_S
    try:
        with log.open() as progress:
            while True:
                for line in progress:
                    say(line.rstrip("\n").removeprefix("sluice: "))
                code = process.poll()
                if code is not None:
                    return code or 1
                state = read_state(settings.home)
                if state is not None and state.pid == process.pid and state.phase == "ready":
                    show(table(settings, []))
                    return 0
                if time.monotonic() > deadline:
                    say(f"not ready after {DETACH_WAIT_S:.0f} s; stopping it again (log: {log})")
                    _end(process.pid, say)
                    return 1
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        say("stopping it again")
        _end(process.pid, say)
        return 1


def down(*, say: Say, environ: Mapping[str, str] = os.environ) -> int:
    """Stop the platform and everything it has started; returns the exit code. Nothing running is success."""
    home = LocalSettings.from_env({k: v for k, v in environ.items() if k.startswith("SLUICE_")}).home
    state = read_state(home)
    if state is None:
        say("nothing is running")
        return 0
    if state.is_alive():
        say(f"stopping the platform (pid {state.pid})")
        _end(state.pid, say)
    left = end_leftovers(state.instance)
    if left:
        say(f"ended {len(left)} processes that were left")
    (home / "platform.json").unlink(missing_ok=True)
    say(f"stopped; the data stays in {home}")
    return 0


def _end(pid: int, say: Say) -> None:
    try:
        process = psutil.Process(pid)
        process.terminate()
        began, told = time.monotonic(), 0.0
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            waited = time.monotonic() - began
            if waited > STOP_WAIT_S:
                say("it does not stop; killing it")
                process.kill()
                process.wait()
            elif waited - told >= 5.0:
                told = waited
                say(f"waiting for it to stop ({waited:.0f} s)")
            time.sleep(POLL_S)
    except psutil.NoSuchProcess:
        return


def status(environ: Mapping[str, str] = os.environ) -> JsonObject:
    """What runs where, in the form of design §4.4; with nothing running `ready` is false and `workloads` is empty."""
    settings = LocalSettings.from_env({k: v for k, v in environ.items() if k.startswith("SLUICE_")})
    state = read_state(settings.home)
    if state is not None and not state.is_alive():
        state = None
    if state is not None:
        # The running platform knows its ports; this shell may have other variables.
        settings = LocalSettings.from_env({**environ, **state.environ})
    workloads = [] if state is None else [*_brokers(state), *_deployments(settings.home)]
    problems = [] if state is None else list(state.problems)
    channels, registry_problem = _channels(settings.registry)
    if registry_problem:
        problems.append(registry_problem)
    all_run = all(workload["ready"] >= workload["replicas"] for workload in workloads)
    return {
        "ready": state is not None and state.phase == "ready" and all_run and not problems,
        "phase": "stopped" if state is None else state.phase,
        "problems": problems,
        "urls": settings.urls,
        "workloads": workloads,
        "channels": channels,
    }


def _brokers(state: PlatformState) -> list[JsonObject]:
    return [
        {
            "name": f"kafka-broker-{broker['id']}",
            "replicas": 1,
            "ready": int(broker["pid"] is not None),
            "restarts": broker["restarts"],
            "logs": broker["logs"],
            "pids": [] if broker["pid"] is None else [broker["pid"]],
            "reason": "",
        }
        for broker in state.brokers
    ]


def _deployments(home: Path) -> list[JsonObject]:
    files = WorkloadFiles(home)
    controlled = files.is_controlled()
    found = []
    for (namespace, name), stored in files.read_all("deployments").items():
        told = files.read("status", (namespace, name)) if controlled else None
        pods = [] if told is None else told["pods"]
        conditions = [] if told is None else told["status"]["conditions"]
        found.append(
            {
                "name": name,
                "namespace": namespace,
                "replicas": stored["object"]["spec"].get("replicas", 1),
                "ready": 0 if told is None else told["status"]["readyReplicas"],
                "restarts": sum(pod["restarts"] for pod in pods),
                "logs": pods[0]["log"] if pods else str(home / "logs"),
                "pids": [pod["pid"] for pod in pods if pod["pid"] is not None],
                "reason": "; ".join(c["message"] for c in conditions if c["message"]),
            }
        )
    return found


def _channels(registry: Path) -> tuple[list[JsonObject], str]:
    """Channels as the registry tells them, invalid documents among them; and why it cannot be read, if so."""
    try:
        view = FolderRegistry(registry).list_channels()
    except SluiceError as problem:
        return [], str(problem)
    channels = []
    for channel in view.channels:
        metadata, told = channel["metadata"], channel.get("status") or {}
        ready = _condition(told, "Ready")
        states = {s.get("uid"): s for s in told.get("subscribers") or []}
        channels.append(
            {
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "ready": ready.get("status") == "True",
                # A ready channel has words too where something that it declares was refused.
                "reason": _words(ready) or ("" if ready.get("status") == "True" else "not reconciled yet"),
                "subscribers": [
                    {
                        "uid": subscriber.get("uid"),
                        "uri": subscriber.get("subscriberUri"),
                        "ready": (states.get(subscriber.get("uid")) or {}).get("ready") == "True",
                        "reason": (states.get(subscriber.get("uid")) or {}).get("message", ""),
                    }
                    for subscriber in (channel.get("spec") or {}).get("subscribers") or []
                    if isinstance(subscriber, dict)
                ],
            }
        )
    listed = {f"{c['namespace']}/{c['name']}": c for c in channels}
    for document in view.invalid:
        known = listed.get(document.object)
        if known is None:
            namespace, _, name = document.object.rpartition("/")
            known = {"namespace": namespace, "name": name, "ready": False, "reason": "", "subscribers": []}
            channels.append(known)
            listed[document.object] = known
        known["ready"] = False
        if str(document) not in known["reason"]:
            known["reason"] = "; ".join(filter(None, (str(document), known["reason"])))
    return channels, ""


def _condition(status: JsonObject, kind: str) -> JsonObject:
    return next((c for c in status.get("conditions") or [] if c.get("type") == kind), {})


def _words(condition: JsonObject) -> str:
    return ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))


def table(settings: LocalSettings, late: list[str]) -> str:
    """What a person wants to know once everything answers."""
    urls = settings.urls
    rows = {
        "Dagster UI": urls["dagster"],
        "receiver": urls["receiver"],
        "sample subscriber": f"{urls['subscriber']}/events",
        "canary": f"{urls['canary']}/status",
        "metrics": f"{urls['canary']}/metrics (canary); all targets: {settings.home / 'targets.json'}",
        "samples": str(settings.samples),
        "Kafka": settings.bootstrap,
        "logs": str(settings.logs),
        "registry folder": str(settings.registry),
    }
    lines = ["Sluice is ready.", *(f"  {name:<18} {value}" for name, value in rows.items())]
    lines += [f"  not ready yet: {each}" for each in late]
    lines += ["Try:", f"  {curl_line(settings)}"]
    return "\n".join(lines)


def curl_line(settings: LocalSettings) -> str:
    """One binary-mode CloudEvent to the example channel, as one line for the shell."""
    return (
        f"curl -i {settings.urls['receiver']}/default/orders "
        '-H "Content-Type: application/json" -H "ce-specversion: 1.0" -H "ce-type: test.type.v1" '
        '-H "ce-source: /testsource" -H "ce-id: 123" -d \'{"content": "Test Message"}\''
    )


def status_text(document: JsonObject) -> str:
    """`status` for people."""
    if document["phase"] == "stopped":
        lines = ["The platform is not running; `sluice up` starts it."]
    else:
        ready = "ready" if document["ready"] else f"not ready ({document['phase']})"
        lines = [f"The platform is {ready}."]
        lines += [f"  {name:<12} {url}" for name, url in document["urls"].items()]
    lines += [f"  problem: {problem}" for problem in document["problems"]]
    if document["workloads"]:
        lines.append(f"{'WORKLOAD':<44} {'READY':<7} {'RESTARTS':<9} {'PIDS':<16} LOGS")
    for workload in document["workloads"]:
        ready = f"{workload['ready']}/{workload['replicas']}"
        pids = ",".join(str(pid) for pid in workload["pids"])
        lines.append(f"{workload['name']:<44} {ready:<7} {workload['restarts']:<9} {pids:<16} {workload['logs']}")
        if workload["reason"]:
            lines.append(f"    {workload['reason']}")
    if document["channels"]:
        lines.append(f"{'CHANNEL':<44} {'READY':<7} REASON")
    for channel in document["channels"]:
        name = f"{channel['namespace']}/{channel['name']}"
        lines.append(f"{name:<44} {'yes' if channel['ready'] else 'no':<7} {channel['reason']}")
    return "\n".join(lines)
