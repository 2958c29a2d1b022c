"""A plan takes time in proportion to the world. The figures are in benchmarks/planning.md."""

from __future__ import annotations

import gc
import time

from tests.planning.worlds import broker, channel, decide, document, read, subscriber


def seconds_for(channels):
    """CPU time of one plan of so many channels, none of which exists yet."""
    snapshot = read(
        document(
            brokers=[broker(n, "abc"[n % 3]) for n in range(6)],
            channels=[
                channel(f"c{n}", numPartitions=4, replicationFactor=3, subscribers=[subscriber("a"), subscriber("b")])
                for n in range(channels)
            ],
        )
    )
    gc.collect()
    gc.disable()  # its passes over the heap are not the planner's work
    try:
        started = time.process_time()
        decide(snapshot)
        return time.process_time() - started
    finally:
        gc.enable()


def test_eight_times_the_channels_take_about_eight_times_as_long():
    seconds_for(50)
    small = min(seconds_for(200) for _ in range(3))

    assert seconds_for(1600) < 16 * small, "a look-up that became a scan would take 64 times as long"
