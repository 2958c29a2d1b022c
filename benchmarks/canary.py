"""What the canary costs: CPU and memory at one probe a second over ten partitions, and what a dead broker does to it.

    .venv/bin/python -m benchmarks.canary [--brokers 3] [--partitions 10] [--seconds 60]

Starts real brokers on loopback, creates the topic with its partitions spread over them, lets the canary probe all of
them (orphans included, where there are fewer brokers than partitions) and reads /proc while it runs.
Targets: at most 2 % of a core and 60 MB resident.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from orchestration.local.kafka_server import KafkaServer
from orchestration.local.ports import free_port

WARM_UP_S = 10
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, from /proc/<pid>/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def total(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        text = response.read().decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + "{"))


def create_topic(bootstrap: str, brokers: list[int], partitions: int) -> None:
    copies = min(3, len(brokers))
    assignment = [[brokers[(p + r) % len(brokers)] for r in range(copies)] for p in range(partitions)]
    topic = NewTopic("__strimzi_canary", num_partitions=partitions, replica_assignment=assignment)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([topic]).values():
        future.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--interval-ms", type=int, default=1000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="canary-benchmark") as folder,
        KafkaServer(Path(folder), brokers=options.brokers) as kafka,
    ):
        create_topic(kafka.bootstrap, kafka.broker_ids, options.partitions)
        port = free_port()
        environ = {
            "PATH": os.environ["PATH"],
            "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
            "RECONCILE_INTERVAL_MS": str(options.interval_ms),
            "PROBE_ORPHANS": "true",
            "METRICS_PORT": str(port),
        }
        canary = subprocess.Popen([sys.executable, "-m", "canary_image"], env=environ, cwd=Path(__file__).parent.parent)
        try:
            time.sleep(WARM_UP_S)
            began, used, produced = time.monotonic(), cpu_seconds(canary.pid), total(port, PRODUCED)
            peak = 0.0
            while time.monotonic() - began < options.seconds:
                time.sleep(min(15, options.seconds / 4))  # a scrape every 15 s is part of the cost
                total(port, PRODUCED)
                peak = max(peak, resident_mb(canary.pid))
            took = time.monotonic() - began
            share = 100 * (cpu_seconds(canary.pid) - used) / took
            rate = (total(port, PRODUCED) - produced) / took
            print(
                f"{options.brokers} brokers, {options.partitions} partitions, {rate:.1f} records/s for {took:.0f} s: "
                f"{share:.2f} % of a core, {peak:.1f} MB resident"
            )
        finally:
            canary.terminate()
            canary.wait(15)


PRODUCED = "strimzi_canary_records_produced_total"

if __name__ == "__main__":
    main()
