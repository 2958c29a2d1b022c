"""How fast the receiver acknowledges. Run: `python -m benchmarks.receive` (needs `wrk`; `nginx` for the bare sink).

Starts a real broker, the receiver and a sink that does nothing (nginx answering 204; without nginx our own server
without an application), sends the same requests to both with wrk, and prints for each case the median of its runs:

    events/s          acknowledged with 202, hence durable (acks=all, idempotent)
    per CPU-s         of the receiver's process, librdkafka's threads included
    of wrk            that figure ÷ requests that wrk sends per CPU-second of its own to the bare sink, in this run
    p50, p99          as wrk sees them; `half` repeats a case at half of its rate
    RSS               the receiver's peak so far

Everything shares this machine's cores, so absolute figures move with it; the ratio moves little.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from orchestration.local.kafka_server import KafkaServer
from orchestration.local.ports import LOOPBACK, answers, free_port

TARGET_EVENTS = 30_000
TARGET_RATIO = 0.3
TARGET_P99_HALF_MS = 20.0
PARTITIONS = 8
KEYS = 10_000
PREPARED_REQUESTS = 2_000
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

LUA = """
local requests, n = {}, 0
local file = io.open(os.getenv("SLUICE_REQUESTS"), "rb")
local separator = "\\0\\0\\0\\0"
local text = file:read("*a")
local start = 1
while true do
  local at = text:find(separator, start, true)
  if not at then break end
  requests[#requests + 1] = text:sub(start, at - 1)
  start = at + #separator
end
local pause = tonumber(os.getenv("SLUICE_PAUSE_MS") or "0")
request = function() n = n % #requests + 1; return requests[n] end
if pause > 0 then delay = function() return math.random() * 2 * pause end end
"""


@dataclass(frozen=True)
class Case:
    name: str
    body_bytes: int = 160
    keys: str = "none"
    """`none`, `uniform` or `zipf` over `KEYS` keys."""
    connections: int = 256
    batch: int = 1
    """Events in one request."""


CASES = (
    Case("160 B"),
    Case("160 B, 64 connections", connections=64),
    Case("160 B, uniform keys", keys="uniform"),
    Case("160 B, Zipf keys", keys="zipf"),
    Case("1 kB", body_bytes=1_000),
    Case("10 kB", body_bytes=10_000, connections=64),
    Case("160 B, batches of 100", batch=100, connections=16),
)


def requests_of(case: Case, path: str) -> bytes:
    """Prepared requests, separated by four null bytes."""
    choose = random.Random(1)
    weights = list(accumulate(1 / rank for rank in range(1, KEYS + 1)))

    def key() -> int | None:
        if case.keys == "uniform":
            return choose.randrange(KEYS)
        return bisect.bisect(weights, choose.random() * weights[-1]) if case.keys == "zipf" else None

    rendered = []
    for number in range(PREPARED_REQUESTS // case.batch):
        head = f"POST {path} HTTP/1.1\r\nHost: receiver\r\n"
        if case.batch == 1:
            body = b"x" * case.body_bytes
            head += f"ce-specversion: 1.0\r\nce-id: {number:08d}\r\nce-source: /testsource\r\nce-type: test.type.v1\r\n"
            head += "Content-Type: application/octet-stream\r\n"
            head += "" if (chosen := key()) is None else f"ce-partitionkey: {chosen}\r\n"
        else:
            event = {"specversion": "1.0", "source": "/testsource", "type": "test.type.v1"}
            data = "x" * (case.body_bytes - 2)
            body = json.dumps([{**event, "id": f"{number}-{i}", "data": data} for i in range(case.batch)]).encode()
            head += "Content-Type: application/cloudevents-batch+json\r\n"
        rendered.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return b"\0\0\0\0".join([*rendered, b""])


@dataclass(frozen=True)
class Load:
    """What one run of wrk saw."""

    rate: float
    requests_per_own_cpu_s: float
    p50_ms: float
    p99_ms: float
    requests: int


def milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()
    return float(number) * {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}[unit]


def run_wrk(port: int, case: Case, folder: Path, seconds: float, *, pause_ms: float = 0.0) -> Load:
    script = folder / "load.lua"
    script.write_text(LUA)
    requests = folder / "requests"
    requests.write_bytes(requests_of(case, "/bench/channel"))
    command = ["wrk", "-t1", f"-c{case.connections}", f"-d{seconds:g}s", "--latency", "-s", str(script)]
    process = subprocess.Popen(
        [*command, f"http://{LOOPBACK}:{port}"],
        stdout=subprocess.PIPE,
        env={**os.environ, "SLUICE_REQUESTS": str(requests), "SLUICE_PAUSE_MS": str(pause_ms)},
        text=True,
    )
    output = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    if "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(f"not every request was accepted:\n{output}")
    count = int(re.search(r"(\d+) requests in", output)[1])
    return Load(
        rate=float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1]),
        requests_per_own_cpu_s=count / (usage.ru_utime + usage.ru_stime),
        p50_ms=milliseconds(re.search(r"\n\s+50%\s+(\S+)", output)[1]),
        p99_ms=milliseconds(re.search(r"\n\s+99%\s+(\S+)", output)[1]),
        requests=count,
    )


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def peak_rss_mb(pid: int) -> float:
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


@contextlib.contextmanager
def process_on(port: int, command: list[str], env: dict[str, str] | None = None) -> Iterator[int]:
    """Run a server until the block ends; gives its pid."""
    process = subprocess.Popen(command, env={**os.environ, **(env or {})})
    try:
        deadline = time.monotonic() + 30
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} did not start")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def bare_sink(folder: Path) -> Iterator[int]:
    """Something that reads requests and answers 204; gives its port."""
    port = free_port()
    if shutil.which("nginx") is None:
        print("nginx is not here: the bare sink is our own server without an application, a slower one\n")
        with process_on(port, [sys.executable, "-m", "benchmarks.receive", "--sink", str(port)]):
            yield port
        return
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log /dev/null;\n"
        "events { worker_connections 2048; }\n"
        "http { access_log off; keepalive_requests 1000000000; client_body_buffer_size 1m; client_max_body_size 8m;\n"
        f"  client_body_temp_path {folder}/body; server {{ listen {LOOPBACK}:{port} backlog=2048;\n"
        "    location / { return 204; } } }\n"
    )
    with process_on(port, ["nginx", "-p", str(folder), "-c", str(config)]):
        yield port


def serve_sink(port: int) -> None:
    import asyncio

    import uvloop

    from dispatcher_image.receiver_http import HttpServer, Limits, Response

    class Sink:
        def on_head(self, _):
            return None

        def on_request(self, exchange):
            exchange.respond(Response(204))

    async def main() -> None:
        await HttpServer(Sink(), Limits()).start(port, host=LOOPBACK)
        await asyncio.Event().wait()

    uvloop.run(main())


@contextlib.contextmanager
def receiver(bootstrap: str, folder: Path) -> Iterator[tuple[int, int]]:
    """The program under test; gives its pid and port."""
    registry = folder / "registry"
    registry.mkdir()
    (registry / "channel.yaml").write_text(
        "apiVersion: messaging.knative.dev/v1beta1\nkind: KafkaChannel\n"
        f"metadata: {{name: channel, namespace: bench}}\nspec: {{numPartitions: {PARTITIONS}}}\n"
    )
    port, health, numbers = free_port(), free_port(), free_port()
    env = {
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap, "CHANNEL_SOURCE": str(registry), "PORT": str(port),
        "HEALTH_PORT": str(health), "METRICS_PORT": str(numbers), "LOG_LEVEL": "WARNING",
    }  # fmt: skip
    with process_on(port, [sys.executable, "-m", "dispatcher_image", "receive"], env) as pid:
        time.sleep(3)  # registry read, idempotent producer registered
        yield pid, port


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one run")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each case; the median counts")
    parser.add_argument("--case", action="append", help="only cases whose name contains this")
    parser.add_argument("--json", action="store_true", help="the figures as JSON lines too")
    parser.add_argument("--sink", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sink is not None:
        serve_sink(arguments.sink)
        return 0
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not here; on Debian: apt-get install wrk")
    cases = [case for case in CASES if not arguments.case or any(part in case.name for part in arguments.case)]
    kept = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            KafkaServer(folder / "kafka") as kafka,
            bare_sink(folder) as sink_port,
            receiver(kafka.bootstrap, folder) as (pid, port),
        ):
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            admin.create_topics([NewTopic("bench.channel", PARTITIONS, 1, config={"retention.bytes": "268435456"})])[
                "bench.channel"
            ].result(30)
            run_wrk(port, CASES[0], folder, 2)
            print(f"{'case':<24}{'events/s':>10}{'per CPU-s':>11}{'of wrk':>10}{'p50 ms':>9}{'p99 ms':>9}{'RSS MB':>8}")
            for case in cases:
                kept = report(case, Bench(folder, pid, port, sink_port), arguments) and kept
    return 0 if kept else 1


@dataclass(frozen=True)
class Bench:
    folder: Path
    pid: int
    port: int
    sink_port: int


def report(case: Case, bench: Bench, arguments: argparse.Namespace) -> bool:
    """Run one case, print its figures; gives whether the targets were kept (of the case that has them)."""
    runs: list[tuple[Load, float]] = []
    limits: list[float] = []
    for _ in range(arguments.repeat):
        limits.append(run_wrk(bench.sink_port, case, bench.folder, min(arguments.seconds, 3)).requests_per_own_cpu_s)
        before = cpu_seconds(bench.pid)
        load = run_wrk(bench.port, case, bench.folder, arguments.seconds)
        runs.append((load, load.requests * case.batch / (cpu_seconds(bench.pid) - before)))
    rate = statistics.median(load.rate * case.batch for load, _ in runs)
    per_cpu = statistics.median(value for _, value in runs)
    limit = statistics.median(limits)
    p50, p99 = (statistics.median(getattr(load, name) for load, _ in runs) for name in ("p50_ms", "p99_ms"))
    show(case.name, f"{rate:.0f}", f"{per_cpu:.0f}", f"{per_cpu / limit:.2f}", p50, p99, bench)
    kept = True
    if case is CASES[0]:
        # As many connections, each pausing so long that together they ask for half of what was reached.
        pause = 1000 * case.connections / (rate / 2) - p50 / 2
        seconds = arguments.seconds
        halves = [run_wrk(bench.port, case, bench.folder, seconds, pause_ms=pause) for _ in range(arguments.repeat)]
        half_p99 = statistics.median(load.p99_ms for load in halves)
        half_p50 = statistics.median(load.p50_ms for load in halves)
        half_rate = statistics.median(load.rate for load in halves)
        show("  half", f"{half_rate:.0f}", "", "", half_p50, half_p99, bench)
        kept = rate >= TARGET_EVENTS and per_cpu / limit >= TARGET_RATIO and half_p99 < TARGET_P99_HALF_MS
        print(
            f"  wanted: {TARGET_EVENTS}/s, {TARGET_RATIO} of wrk, p99 < {TARGET_P99_HALF_MS:g} ms at half the rate:"
            f" {'kept' if kept else 'MISSED'}; wrk to the bare sink: {limit:.0f} requests per CPU-s of its own"
        )
    if arguments.json:
        figures = {"case": case.name, "events_per_s": rate, "per_cpu_s": per_cpu, "wrk_per_cpu_s": limit}
        print(json.dumps({**figures, "p50_ms": p50, "p99_ms": p99, "peak_rss_mb": peak_rss_mb(bench.pid)}))
    return kept


def show(*cells: object) -> None:
    name, rate, per_cpu, ratio, p50, p99, bench = cells
    rss = peak_rss_mb(bench.pid)
    print(f"{name:<24}{rate:>10}{per_cpu:>11}{ratio:>10}{p50:>9.2f}{p99:>9.2f}{rss:>8.0f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
