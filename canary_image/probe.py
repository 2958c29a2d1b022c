"""The canary without its clients: what to send now, and what each answer means for ledger, metrics and readiness.

`session` calls this from its threads, with the clock's reading as argument: `now` is seconds of a monotonic clock,
`wall` Unix time in seconds. One lock guards all; nothing in here waits.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection
from dataclasses import dataclass

from canary_image import coverage, journal, payload
from canary_image.coverage import Broker, CheckedBrokers, ClusterView, Target
from canary_image.ledger import Arrived, Duplicated, Failed, Foreign, Ledger, Lost, Sent, Verdict
from canary_image.status import AvailabilityWindow, StatusWindow, Totals
from canary_image.telemetry import Telemetry
from eventing import metrics
from eventing.program_config import CanaryConfig

READY_INTERVALS = 3
"""`/readiness` is 503 when the last own record is older than this many intervals."""

MEMORY_LIMITS = 10
"""Records are remembered for this many round-trip limits, to know late ones and repeats."""

PATIENCE_S = 0.5
"""An acknowledgement that takes longer (or half the interval) puts its leader in question."""

NOT_WATCHED = "its end could not be read, the leader does not answer"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to be sent at once."""

    partition: int
    message_id: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Changes:
    """What a look at the cluster means for the clients."""

    unwatched: tuple[Target, ...] = ()
    """Partitions to probe whose position the consumer does not know yet."""
    dropped: tuple[int, ...] = ()
    """Partitions that the consumer reads and that are not probed any more."""
    moved: frozenset[int] = frozenset()
    """Partitions that are new or have another leader: clients should refresh their metadata now."""


class Probe:
    """One start of the canary: its records, their verdicts, and what they say about the cluster."""

    def __init__(self, config: CanaryConfig, telemetry: Telemetry) -> None:
        limit = config.round_trip_limit_ms / 1000
        self._config = config
        self._telemetry = telemetry
        self._client = config.client_id
        self._patience = min(PATIENCE_S, config.reconcile_interval_ms / 2000)
        self._lock = threading.RLock()
        self._ledger = Ledger(config.client_id, limit=limit, memory=MEMORY_LIMITS * limit)
        self._status = StatusWindow(size=config.status_samples, interval_ms=config.status_check_interval_ms)
        self._partitions = AvailabilityWindow[int](size=config.status_samples)
        self._brokers = AvailabilityWindow[int](size=config.status_samples)
        self._targets: tuple[Target, ...] = ()
        self._admitted: set[int] = set()  # targets whose end was looked for, found or not: these are probed
        self._positions: dict[int, int] = {}  # next offset to read, for partitions that the consumer reads
        self._seen: tuple[Broker, ...] = ()
        self._checked = CheckedBrokers()
        self._brokers_known = threading.Event()
        self._settled = 0
        self._consumed = 0
        self._last_receipt: float | None = None
        self._failing_since: dict[int, float] = {}
        self._led_known: set[tuple[int, int]] = set()
        self._expose_known_series()

    # --- the cluster -------------------------------------------------------------------------------------------------

    def observe(self, view: ClusterView) -> Changes:
        """Follow brokers, partitions and leaders. An absent topic changes nothing: its partitions go on failing."""
        with self._lock:
            self._seen = view.brokers
            self._checked = self._checked.after(view.brokers, self._config.expected_cluster_size)
            for broker in self._checked.brokers:
                self._expose_broker(broker)
            if self._checked.brokers:
                self._brokers_known.set()
            before = self._targets
            if view.partitions is not None:
                self._targets = coverage.targets(view.partitions, probe_orphans=self._config.probe_orphans)
                self._expose_targets(before)
            wanted = {target.partition for target in self._targets}
            self._admitted &= wanted
            dropped = tuple(sorted(set(self._positions) - wanted))
            for partition in dropped:
                del self._positions[partition]
            return Changes(
                unwatched=tuple(target for target in self._targets if target.partition not in self._positions),
                dropped=dropped,
                moved=coverage.moved(before, self._targets),
            )

    def checked_brokers(self) -> tuple[Broker, ...]:
        """Whom the connection check visits."""
        with self._lock:
            return self._checked.brokers

    def wait_for_brokers(self, timeout: float) -> bool:
        """Block until the first broker is known, at most `timeout` seconds."""
        return self._brokers_known.wait(timeout)

    def watched(self, partition: int, offset: int) -> None:
        """The consumer reads the partition from this offset on: what is sent from now on can be seen."""
        with self._lock:
            self._positions[partition] = offset
            self._admitted.add(partition)

    def unwatchable(self, partition: int) -> None:
        """The partition's end could not be read: its probes are attempted and fail until it can."""
        with self._lock:
            self._admitted.add(partition)

    def is_primed(self) -> bool:
        """There is something to probe, and the end of all of it was looked for."""
        with self._lock:
            return bool(self._targets) and self._admitted.issuperset(target.partition for target in self._targets)

    def positions(self) -> dict[int, int]:
        """Next offset to read, by partition."""
        with self._lock:
            return dict(self._positions)

    # --- the records -------------------------------------------------------------------------------------------------

    def round(self, now: float, wall: float) -> list[Outgoing]:
        """The records of this interval; every one counts as an attempt, whatever becomes of it."""
        timestamp_ms = int(wall * 1000)
        outgoing: list[Outgoing] = []
        with self._lock:
            for target in self._targets:
                if target.partition not in self._admitted:
                    continue
                sent = self._ledger.send(target.partition, blamed=target.blamed, timestamp_ms=timestamp_ms, now=now)
                self._expose_led(target.partition, target.blamed)
                self._telemetry.count(metrics.CANARY_RECORDS_PRODUCED, self._client, str(target.partition))
                if target.partition not in self._positions:
                    # Sent now, it could not be seen coming back and would be taken for lost.
                    self.failed(sent.message_id, NOT_WATCHED, now)
                    continue
                value = payload.encode(
                    payload.Payload(self._client, sent.message_id, timestamp_ms), self._config.record_size_bytes
                )
                outgoing.append(Outgoing(target.partition, sent.message_id, value))
        return outgoing

    def acknowledged(self, message_id: int, now: float, wall: float) -> None:
        """Kafka has the record."""
        with self._lock:
            event = self._ledger.acknowledged(message_id, now)
            if event is None:
                return
            record, partition = event.record, str(event.record.partition)
            self._telemetry.observe(
                metrics.CANARY_RECORDS_PRODUCED_LATENCY, event.latency_s * 1000, self._client, partition
            )
            self._telemetry.set(metrics.CANARY_LAST_PRODUCED, wall, self._client, partition)
            self._add(record, Totals(acknowledged=1))
            if event.verdict is not None:
                self._decided(record, event.verdict, now)

    def failed(self, message_id: int, reason: str, now: float) -> None:
        """Kafka did not acknowledge the record."""
        with self._lock:
            event = self._ledger.failed(message_id)
            if event is None:
                return
            record = event.record
            self._count_failure(record)
            if record.partition not in self._failing_since:
                self._failing_since[record.partition] = record.sent_at
                journal.note(
                    logging.WARNING, "probe.failing", partition=record.partition, broker=record.blamed, reason=reason
                )
            else:
                journal.note(logging.DEBUG, "probe.failed", partition=record.partition, reason=reason)
            if event.verdict is not None:
                self._decided(record, event.verdict, now)

    def leaders_in_question(self, now: float) -> list[Broker]:
        """Leaders that owe an answer for suspiciously long: whoever can reach them should say so."""
        with self._lock:
            leaders = {target.partition: target.leader for target in self._targets}
            suspects = {leaders.get(record.partition) for record in self._ledger.awaiting(now, self._patience)}
            return [broker for broker in self._seen if broker.id in suspects]

    def leaders_unreachable(self, unreachable: Collection[int], now: float) -> int:
        """Give up what waits for these leaders, or for one that there is not; how many records that were.

        Only the leader's own death is told early. An acknowledgement can also wait for a dead *follower*, until Kafka
        notices; that is no fault of this leader, so its records keep their whole time.
        """
        with self._lock:
            leaders = {target.partition: target.leader for target in self._targets}
            known = {broker.id for broker in self._seen}
            given_up = 0
            for record in self._ledger.awaiting(now, self._patience):
                leader = leaders.get(record.partition, coverage.NO_LEADER)
                if leader == coverage.NO_LEADER:
                    reason = "the partition has no leader"
                elif leader in unreachable or leader not in known:
                    reason = f"its leader, broker {leader}, cannot be reached"
                else:
                    continue
                self.failed(record.message_id, reason, now)
                given_up += 1
            return given_up

    def received(self, partition: int, offset: int, value: bytes | None, now: float, wall: float) -> None:
        """A record was read from the topic."""
        with self._lock:
            if partition in self._positions:
                self._positions[partition] = offset + 1
            receipt = self._ledger.received(partition, offset, payload.decode(value), now)
            match receipt:
                case Arrived():
                    self._arrived(receipt, now, wall)
                case Duplicated(record):
                    self._telemetry.count(metrics.CANARY_RECORDS_DUPLICATED, *self._led(record))
                    journal.note(
                        logging.WARNING,
                        "probe.duplicated",
                        partition=partition,
                        message=record.message_id,
                        offset=offset,
                    )
                case Foreign(_, reason):
                    self._telemetry.count(metrics.CANARY_RECORDS_FOREIGN, self._client, str(partition), reason.value)
                    journal.note(logging.DEBUG, "probe.foreign", partition=partition, offset=offset, reason=reason)

    def expire(self, now: float) -> None:
        """Give up what did not come back in time."""
        with self._lock:
            for event in self._ledger.expire(now):
                match event:
                    case Lost(record):
                        self._decided(record, Verdict.LOST, now)
                    case Failed(record, verdict):
                        self._count_failure(record)
                        if verdict is not None:
                            self._decided(record, verdict, now)

    # --- what it says ------------------------------------------------------------------------------------------------

    def is_ready(self, now: float) -> bool:
        """An own record was consumed, not longer than three intervals ago."""
        with self._lock:
            limit = READY_INTERVALS * self._config.reconcile_interval_ms / 1000
            return self._last_receipt is not None and now - self._last_receipt <= limit

    def sample(self) -> None:
        """Take a sample for `/status` and the availability ratios.

        Records on their way are in neither total: a sample between sending and receipt would otherwise show a
        healthy cluster below 100.
        """
        with self._lock:
            self._status.sample(produced=self._settled, consumed=self._consumed)
            self._partitions.sample()
            self._brokers.sample()

    def status(self) -> dict[str, dict[str, float]]:
        """The body of `/status`."""
        with self._lock:
            return self._status.document()

    def refresh_gauges(self, now: float) -> None:
        """Bring gauges up to date that depend on the moment."""
        with self._lock:
            self._telemetry.set(metrics.CANARY_READY, float(self.is_ready(now)), self._client)
            for target in self._targets:
                partition = str(target.partition)
                in_flight = self._ledger.in_flight(target.partition)
                self._telemetry.set(metrics.CANARY_RECORDS_IN_FLIGHT, in_flight, self._client, partition)
            for partition_id, growth in self._partitions.growth().items():
                labels = (self._client, str(partition_id))
                self._set_ratio(metrics.CANARY_PRODUCE_AVAILABILITY, growth.produce_availability, labels)
                self._set_ratio(metrics.CANARY_CONSUME_AVAILABILITY, growth.consume_availability, labels)
            for broker_id, growth in self._brokers.growth().items():
                labels = (self._client, str(broker_id))
                self._set_ratio(metrics.CANARY_BROKER_PRODUCE_AVAILABILITY, growth.produce_availability, labels)
                self._set_ratio(metrics.CANARY_BROKER_CONSUME_AVAILABILITY, growth.consume_availability, labels)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float, wall: float) -> None:
        record, partition = event.record, str(event.record.partition)
        self._consumed += 1
        self._last_receipt = now
        self._telemetry.count(metrics.CANARY_RECORDS_CONSUMED, self._client, partition)
        self._telemetry.observe(
            metrics.CANARY_RECORDS_CONSUMED_LATENCY, event.latency_s * 1000, self._client, partition
        )
        self._telemetry.set(metrics.CANARY_LAST_CONSUMED, wall, self._client, partition)
        if event.late:
            self._telemetry.count(metrics.CANARY_RECORDS_LATE, *self._led(record))
        if event.out_of_order:
            self._telemetry.count(metrics.CANARY_RECORDS_OUT_OF_ORDER, *self._led(record))
        if event.verdict is not None:
            self._decided(record, event.verdict, now)
        journal.note(
            journal.TRACE, "probe.arrived", partition=partition, message=record.message_id, seconds=event.latency_s
        )

    def _decided(self, record: Sent, verdict: Verdict, now: float) -> None:
        """Book the one verdict of a record."""
        self._settled += 1
        self._telemetry.count(metrics.CANARY_PROBES, *self._led(record), verdict.value)
        if verdict is Verdict.LOST:
            self._telemetry.count(metrics.CANARY_RECORDS_LOST, *self._led(record))
            self._add(record, Totals(lost=1))
            journal.note(logging.WARNING, "probe.lost", partition=record.partition, message=record.message_id)
        elif verdict is Verdict.SUCCEEDED:
            self._add(record, Totals(back_in_time=1))
            since = self._failing_since.pop(record.partition, None)
            if since is not None:
                journal.note(
                    logging.INFO, "probe.recovered", partition=record.partition, after_seconds=round(now - since, 1)
                )

    def _count_failure(self, record: Sent) -> None:
        self._telemetry.count(metrics.CANARY_RECORDS_PRODUCED_FAILED, self._client, str(record.partition))
        self._add(record, Totals(unacknowledged=1))

    def _add(self, record: Sent, growth: Totals) -> None:
        self._partitions.add(record.partition, growth)
        self._brokers.add(record.blamed, growth)

    def _led(self, record: Sent) -> tuple[str, str, str]:
        return self._client, str(record.partition), str(record.blamed)

    def _set_ratio(self, metric: metrics.Metric, ratio: float | None, labels: tuple[str, str]) -> None:
        self._telemetry.set(metric, math.nan if ratio is None else ratio, *labels)

    def _expose_known_series(self) -> None:
        """Series whose labels the configuration gives exist from the start."""
        for metric in metrics.ALL:
            if metric.name.startswith(("strimzi_canary_", "sluice_canary_")) and metric.kind is metrics.Kind.COUNTER:
                match metric.labels:
                    case ():
                        self._telemetry.expose(metric)
                    case ("topic",):
                        self._telemetry.expose(metric, self._config.topic)
                    case ("clientid",):
                        self._telemetry.expose(metric, self._client)
        self._telemetry.expose(metrics.CANARY_READY, self._client)

    def _expose_broker(self, broker: Broker) -> None:
        for connected in ("true", "false"):
            for metric in (
                metrics.CANARY_CONNECTION,
                metrics.CANARY_CONNECTION_ERROR,
                metrics.CANARY_CONNECTION_LATENCY,
            ):
                self._telemetry.expose(metric, str(broker.id), connected)

    def _expose_targets(self, before: tuple[Target, ...]) -> None:
        known = {(target.partition, target.proves) for target in before}
        for target in self._targets:
            partition = str(target.partition)
            if (target.partition, target.proves) not in known:
                for metric in _BY_PARTITION:
                    self._telemetry.expose(metric, self._client, partition)
                for reason in metrics.CANARY_FOREIGN_REASONS:
                    self._telemetry.expose(metrics.CANARY_RECORDS_FOREIGN, self._client, partition, reason)
                self._expose_led(target.partition, target.proves)
                self._partitions.add(target.partition, Totals())
                self._brokers.add(target.proves, Totals())
            self._telemetry.set(
                metrics.CANARY_LEADER_IS_PREFERRED,
                float(target.leader == target.proves),
                self._client,
                partition,
                str(target.proves),
            )
        still = {(target.partition, target.proves) for target in self._targets}
        for partition_id, broker in known - still:
            self._telemetry.drop(metrics.CANARY_LEADER_IS_PREFERRED, self._client, str(partition_id), str(broker))

    def _expose_led(self, partition: int, broker: int) -> None:
        if (partition, broker) in self._led_known:
            return
        self._led_known.add((partition, broker))
        labels = (self._client, str(partition), str(broker))
        for metric in _BY_LEADER:
            self._telemetry.expose(metric, *labels)
        for result in metrics.CANARY_PROBE_RESULTS:
            self._telemetry.expose(metrics.CANARY_PROBES, *labels, result)


_BY_PARTITION = (
    metrics.CANARY_RECORDS_PRODUCED,
    metrics.CANARY_RECORDS_PRODUCED_FAILED,
    metrics.CANARY_RECORDS_CONSUMED,
    metrics.CANARY_RECORDS_PRODUCED_LATENCY,
    metrics.CANARY_RECORDS_CONSUMED_LATENCY,
    metrics.CANARY_RECORDS_IN_FLIGHT,
    metrics.CANARY_LAST_PRODUCED,
    metrics.CANARY_LAST_CONSUMED,
)
_BY_LEADER = (
    metrics.CANARY_RECORDS_LOST,
    metrics.CANARY_RECORDS_LATE,
    metrics.CANARY_RECORDS_DUPLICATED,
    metrics.CANARY_RECORDS_OUT_OF_ORDER,
)
