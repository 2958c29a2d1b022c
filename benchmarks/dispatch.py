"""How fast the dispatcher delivers, measured against the limit of this machine in the same run.

    python -m benchmarks.dispatch [CASE…] [--repeat N] [--seconds S] [--json FILE]

Starts a Kafka broker, a sink and the dispatcher, runs each case `--repeat` times and prints one line per run: events
per second, events per CPU-second of the dispatcher, latency, peak RSS; and both rates as a ratio to `wrk`, which sends
the same requests to the same sink in the same run. Everything it starts is stopped. Needs `wrk` and `nginx`
(Debian packages) and nothing else. Without CASE: all. What was measured where: benchmarks/dispatch.md.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from orchestration.local.kafka_server import KafkaServer
from orchestration.local.ports import free_port

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    """One measurement."""

    name: str
    size: int = 160
    partitions: int = 8
    keys: int = 10_000
    zipf: bool = False
    subscriptions: int = 1
    delay_ms: float = 0.0
    """Of the sink; 0: nginx answers 204 at once."""
    failing: float = 0.0
    """Share of the keys whose events the sink refuses with 503 for ever."""
    max_in_flight: int = 256
    rate: int = 0
    """Events per second, open loop; 0: as many as there are were produced before."""
    order: str = "key"
    transport: str = "native"
    target: str = ""


CASES = [
    Case("160B", target="55,000/s, 0.55 of wrk per CPU-second"),
    Case("160B-zipf", zipf=True, target="as 160B"),
    Case("1kB", size=1024, target="0.5"),
    Case("10kB", size=10_240, target="0.45"),
    Case("10-subscriptions", subscriptions=10, target="0.45"),
    Case("5ms-100keys", partitions=4, keys=100, delay_ms=5, target="15,000/s"),
    Case("10ms-10000keys", partitions=4, delay_ms=10, target="30,000/s"),
    Case("100ms-10000keys", partitions=4, delay_ms=100, target="9,000/s"),
    Case("100ms-1%-failing", partitions=4, delay_ms=100, failing=0.01, target="90 % of 100ms"),
    Case("latency-2000/s", partitions=4, rate=2000, target="p50 0.8 ms, p99 8 ms"),
    Case("160B-aiohttp", transport="aiohttp"),
]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int, key: str = "VmHWM") -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return 0.0


# --- sinks -----------------------------------------------------------------------------------------------------------

NGINX = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  client_body_buffer_size 64k;
  client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
  uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
  server {{ listen 127.0.0.1:{port} backlog=8192; location / {{ return 204; }} }}
}}
"""


@contextmanager
def nginx(folder: Path):
    folder.mkdir()
    port = free_port()
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    process = subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)])
    try:
        wait_for_port(port)
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def slow_sink(delay_ms: float, latencies: Path, failing: list[str]):
    """`benchmarks/dispatch_sink.py`: answers after a delay, and notes how old each event was."""
    port = free_port()
    command = [sys.executable, str(ROOT / "benchmarks/dispatch_sink.py"), str(port), str(delay_ms), str(latencies)]
    process = subprocess.Popen([*command, ",".join(failing)])
    try:
        wait_for_port(port)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


WRK = """\
wrk.method = "POST"
wrk.headers["user-agent"] = "sluice"
wrk.headers["prefer"] = "reply"
wrk.headers["ce-specversion"] = "1.0"
wrk.headers["ce-id"] = "00000000-0000-4000-8000-000000000000"
wrk.headers["ce-source"] = "/benchmark/source"
wrk.headers["ce-type"] = "benchmark.event.v1"
wrk.headers["content-type"] = "application/json"
wrk.headers["ce-partitionkey"] = "key-00000"
wrk.body = string.rep("x", {size})
"""


def wrk(folder: Path, port: int, size: int, seconds: int) -> tuple[float, float]:
    """(requests per second, requests per CPU-second) of the same requests, sent by wrk."""
    script = folder / f"wrk-{size}.lua"
    script.write_text(WRK.format(size=size))
    before = os.times()
    command = ["wrk", "-t1", "-c64", f"-d{seconds}s", "-s", str(script), f"http://127.0.0.1:{port}/"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    total = int(next(line for line in output.splitlines() if "requests in" in line).split()[0])
    rate = float(next(line for line in output.splitlines() if "Requests/sec" in line).split()[1])
    return rate, total / cpu


# --- events ----------------------------------------------------------------------------------------------------------


def keys_of(case: Case):
    """An endless series of key numbers."""
    draw = random.Random(1)
    if not case.zipf:
        return itertools.cycle(draw.sample(range(case.keys), case.keys))
    cumulated = list(itertools.accumulate(1.0 / rank for rank in range(1, case.keys + 1)))
    return (bisect.bisect(cumulated, draw.random() * cumulated[-1]) for _ in itertools.count())


def produce(bootstrap: str, topic: str, case: Case, count: int, rate: int = 0) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 0 if rate else 20,
            "compression.type": "none" if rate else "lz4",
            "queue.buffering.max.messages": 500_000,
        }
    )
    value = b"x" * case.size
    keys = keys_of(case)
    began = time.monotonic()
    for number in range(count):
        key = b"key-%05d" % next(keys)
        headers = [
            ("ce_specversion", b"1.0"),
            ("ce_id", b"00000000-0000-4000-8000-%012d" % number),
            ("ce_source", b"/benchmark/source"),
            ("ce_type", b"benchmark.event.v1"),
            ("content-type", b"application/json"),
            ("ce_partitionkey", key),
        ]
        if rate:
            headers.append(("ce_sentns", b"%d" % time.time_ns()))
            ahead = number / rate - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)
        while True:
            try:
                producer.produce(topic, value, key, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0 or rate:
            producer.poll(0)
    producer.flush(60)


# --- the program under test ------------------------------------------------------------------------------------------


class Dispatcher:
    def __init__(self, *, bootstrap: str, topic: str, name: str, case: Case, folder: Path, port: int) -> None:
        registry = folder / "registry"
        registry.mkdir()
        subscribers = "".join(
            f'  - {{uid: s{n}, subscriberUri: "http://127.0.0.1:{port}/"}}\n' for n in range(case.subscriptions)
        )
        (registry / "channel.yaml").write_text(
            "apiVersion: messaging.knative.dev/v1beta1\nkind: KafkaChannel\n"
            f"metadata:\n  namespace: bench\n  name: {name}\n  annotations:\n"
            f"    kafka.eventing.knative.dev/delivery.order: {case.order}\n"
            f"    sluice.dev/initial-offset: {'latest' if case.rate else 'earliest'}\n"
            "spec:\n  delivery: {retry: 1000, backoffPolicy: linear, backoffDelay: PT1S}\n"
            f"  subscribers:\n{subscribers}"
        )
        self.metrics_port, self.health_port = free_port(), free_port()
        environment = {
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
            "CHANNEL_KEY": f"bench/{name}",
            "KAFKA_TOPIC": topic,
            "CHANNEL_SOURCE": str(registry),
            "METRICS_PORT": str(self.metrics_port),
            "HEALTH_PORT": str(self.health_port),
            "MAX_IN_FLIGHT": str(case.max_in_flight),
            "TRANSPORT": case.transport,
            "LOG_LEVEL": "WARNING",
        }
        command = [sys.executable, "-m", "dispatcher_image", "dispatch"]
        if os.environ.get("BENCH_PROFILE"):
            command = [sys.executable, str(ROOT / "benchmarks/profiled.py"), "dispatch"]
        self.process = subprocess.Popen(command, env=environment, cwd=ROOT)

    def delivered(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/subscriptions", timeout=10) as answer:
            return sum(item["delivered"] for item in json.load(answer)["subscriptions"])

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=2).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def run(case: Case, bootstrap: str, seconds: float, folder: Path, wrk_seconds: int) -> dict:
    """One run of one case."""
    name = f"b{time.time_ns() % 10**9}"
    topic = f"bench.{name}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(topic, case.partitions, 1), NewTopic(f"{topic}.dead-letter", case.partitions, 1)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    failing = [f"key-{n:05d}" for n in range(int(case.keys * case.failing))]
    latencies = folder / "latencies"
    result: dict = {"case": case.name, "target": case.target}
    with ExitStack() as stack:
        if case.delay_ms or case.failing or case.rate:
            port = stack.enter_context(slow_sink(case.delay_ms, latencies, failing))
        else:
            port = stack.enter_context(nginx(folder / "nginx"))
            rate, per_cpu = wrk(folder, port, case.size, wrk_seconds)
            result |= {"wrk/s": rate, "wrk/cpu-s": per_cpu}
        if not case.rate:
            guess = {160: 75_000, 1024: 60_000, 10_240: 20_000}.get(case.size, 60_000)
            if case.delay_ms:
                guess = min(guess, int(case.partitions * case.max_in_flight * 1000 / case.delay_ms), 45_000)
            produce(bootstrap, topic, case, int(guess * (seconds + 2) / case.subscriptions))
        dispatcher = Dispatcher(bootstrap=bootstrap, topic=topic, name=name, case=case, folder=folder, port=port)
        stack.callback(dispatcher.stop)
        dispatcher.wait_ready()
        pid = dispatcher.process.pid
        if case.rate:
            produce(bootstrap, topic, case, case.rate, case.rate)  # warm
            cpu = cpu_seconds(pid)
            count = int(case.rate * seconds)
            produce(bootstrap, topic, case, count, case.rate)
            time.sleep(1.0)
            result["events/cpu-s"] = count / (cpu_seconds(pid) - cpu)
            result["events/s"] = case.rate
        else:
            while dispatcher.delivered() < 2000 * case.subscriptions:
                time.sleep(0.02)
            time.sleep(0.5)
            first, cpu, began = dispatcher.delivered(), cpu_seconds(pid), time.monotonic()
            time.sleep(seconds)
            last, spent, ended = dispatcher.delivered(), cpu_seconds(pid) - cpu, time.monotonic()
            result["events/s"] = (last - first) / (ended - began)
            result["events/cpu-s"] = (last - first) / spent
            result["cpu"] = spent / (ended - began)
        result["rss MB"] = rss_mb(pid)
    if case.rate:
        ages = sorted(float(line) for line in latencies.read_text().split()[case.rate :])
        result["p50 ms"] = statistics.median(ages)
        result["p99 ms"] = ages[int(len(ages) * 0.99)]
    if "wrk/cpu-s" in result:
        result["ratio/s"] = result["events/s"] / result["wrk/s"]
        result["ratio/cpu-s"] = result["events/cpu-s"] / result["wrk/cpu-s"]
    for future in admin.delete_topics([topic, f"{topic}.dead-letter"]).values():
        future.result(30)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(case.name for case in CASES))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    for needed in ("wrk", "nginx"):
        if shutil.which(needed) is None:
            sys.exit(f"{needed} is missing: apt-get install {needed}")
    chosen = [case for case in CASES if not arguments.cases or case.name in arguments.cases]
    results = []
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder, KafkaServer(Path(folder) / "kafka") as kafka:
        for case in chosen:
            for number in range(arguments.repeat):
                run_folder = Path(folder) / f"{case.name.replace('/', '-')}-{number}"
                run_folder.mkdir()
                result = run(case, kafka.bootstrap, arguments.seconds, run_folder, 3)
                results.append(result | {"parameters": asdict(case)})
                words = [
                    f"{key}={value:,.2f}" if isinstance(value, float) else f"{key}={value}"
                    for key, value in result.items()
                ]
                print("  ".join(words), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
