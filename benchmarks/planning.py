"""How long planning takes, and that it grows in proportion to the world: `python benchmarks/planning.py`.

Prints a table. Each figure is the best of a few rounds, in seconds of CPU time of the one thread that plans; on an idle
core that is the time on the clock, and on a busy machine it is still the same figure:

* *read*: `Snapshot.from_document`, from parsed JSON to frozen values
* *first*: the plan of a world in which nothing exists yet
* *steady*: the plan of the same world once all is there and ready, which is what a sensor does all day
* *canary*: the plan of the canary's topic alone, for many brokers in racks

The growth at the end is measured with Python's cyclic garbage collector switched off, because what is asked is whether
the planner's work is linear; the figures of the table have it on, as it is in use.

`--check` ends with exit code 1 when a limit of the project is missed: 10,000 channels with 100,000 partitions within
`LIMIT_CHANNELS_S` seconds, steady planning growing no faster than linear (with a tolerance of a third), and 1,000
brokers in 50 racks within a second.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from datetime import UTC, datetime

from orchestration.planning import Policy, Snapshot, plan
from orchestration.planning.canary_topic import plan_canary_topic
from orchestration.planning.policy import CanaryPolicy
from orchestration.planning.world import apply_to

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
LIMIT_CHANNELS_S = 30.0
LIMIT_CANARY_S = 1.0
PARTITIONS = 10
SUBSCRIPTIONS = 2
BROKERS = 12


def world(channels: int) -> dict:
    """A snapshot document of so many channels, each with ten partitions and two subscriptions, and nothing else."""
    return {
        "observed_at": "2026-11-20T03:00:00Z",
        "brokers": [{"id": n, "rack": "abc"[n % 3], "fenced": False, "last_seen": None} for n in range(BROKERS)],
        "topics": {},
        "channels": [
            {
                "apiVersion": "messaging.knative.dev/v1beta1",
                "kind": "KafkaChannel",
                "metadata": {"namespace": f"team-{n % 100}", "name": f"events-{n}", "generation": 1},
                "spec": {
                    "numPartitions": PARTITIONS,
                    "replicationFactor": 3,
                    "subscribers": [
                        {"uid": f"{n}-{s}", "generation": 1, "subscriberUri": f"http://s{s}.team-{n % 100}.svc/"}
                        for s in range(SUBSCRIPTIONS)
                    ],
                },
            }
            for n in range(channels)
        ],
        "deployments": [],
        "services": [],
        "lag": {},
    }


def timed(work, rounds=1):
    """Result, best CPU time of some rounds, and that of a round with Python's cyclic garbage collector switched off."""
    best, result = float("inf"), None
    for _ in range(rounds):
        gc.collect()
        started = time.process_time()
        result = work()
        best = min(best, time.process_time() - started)
    gc.collect()
    gc.disable()
    started = time.process_time()
    work()
    alone = time.process_time() - started
    gc.enable()
    return result, best, alone


def ready(snapshot: Snapshot) -> dict:
    """The document of that world once every dispatcher is ready and the statuses say so."""
    doc = json.loads(json.dumps(snapshot.to_document()))
    for deployment in doc["deployments"]:
        deployment["status"] = {"replicas": 1, "readyReplicas": 1}
    snapshot = Snapshot.from_document(doc)
    return apply_to(snapshot, plan(snapshot, Policy(), NOW)).to_document()


def measure_channels(channels: int) -> dict:
    snapshot = Snapshot.from_document(world(channels))
    first, first_s, first_alone = timed(lambda: plan(snapshot, Policy(), NOW))
    doc = ready(apply_to(snapshot, first))
    steady, read_s, read_alone = timed(lambda: Snapshot.from_document(doc), 2)
    calm, steady_s, steady_alone = timed(lambda: plan(steady, Policy(), NOW), 2)
    assert calm.is_empty, calm.summary
    topics = steady.topics or {}
    return {
        "channels": channels,
        "partitions": sum(len(t.partitions or ()) for t in topics.values()),
        "actions": len(first.actions),
        "read_s": read_s,
        "first_s": first_s,
        "steady_s": steady_s,
        "alone": {"read": read_alone, "first": first_alone, "steady": steady_alone},
    }


def measure_canary(brokers: int, racks: int, *, uneven: bool) -> float:
    def rack(n: int) -> str:
        # A quarter of all brokers in one rack: the simple rotation runs out of racks, and each choice is weighed.
        return "rack-0" if uneven and n < brokers // 4 else f"rack-{n % racks}"

    snapshot = Snapshot.from_document(
        {
            "observed_at": "2026-11-20T03:00:00Z",
            "brokers": [{"id": n, "rack": rack(n), "fenced": False} for n in range(brokers)],
            "topics": {},
        }
    )
    findings, seconds, _ = timed(lambda: plan_canary_topic(snapshot, CanaryPolicy(), NOW), 3)
    assert [len(action.assignments) for action in findings.actions] == [brokers], findings
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--channels", type=int, nargs="*", default=[1250, 2500, 5000, 10000])
    parser.add_argument("--check", action="store_true", help="exit 1 when a limit is missed")
    arguments = parser.parse_args()

    print(f"{'channels':>9} {'partitions':>11} {'actions':>8} {'read s':>8} {'first s':>8} {'steady s':>9}")
    rows = []
    for channels in arguments.channels:
        row = measure_channels(channels)
        rows.append(row)
        print(
            f"{row['channels']:>9} {row['partitions']:>11} {row['actions']:>8} {row['read_s']:>8.2f} "
            f"{row['first_s']:>8.2f} {row['steady_s']:>9.2f}"
        )
    canary = {}
    for brokers, racks in ((100, 5), (1000, 50)):
        for uneven in (False, True):
            canary[brokers, uneven] = measure_canary(brokers, racks, uneven=uneven)
            print(
                f"canary: {brokers} brokers in {racks} racks{' of unequal size' if uneven else ''}: "
                f"{canary[brokers, uneven]:.3f} s"
            )

    missed = [f"{seconds:.2f} s for {key[0]} brokers" for key, seconds in canary.items() if seconds > LIMIT_CANARY_S]
    missed += [
        f"{row['channels']} channels took more than {LIMIT_CHANNELS_S} s"
        for row in rows
        if row["channels"] <= 10000 and max(row["first_s"], row["steady_s"]) > LIMIT_CHANNELS_S
    ]
    small, large = rows[0], rows[-1]
    growth = large["channels"] / small["channels"]
    for kind in ("read", "first", "steady"):
        ratio = large["alone"][kind] / small["alone"][kind]
        print(f"{kind}: {growth:g} times the channels take {ratio:.1f} times as long")
        if ratio > growth * 4 / 3:
            missed.append(f"{kind} grows faster than linear")
    for message in missed:
        print(f"missed: {message}", file=sys.stderr)
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
