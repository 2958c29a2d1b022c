"""The catalogue of every metric that an image exports.

Images register from it, SLO objectives and dashboards select from it: a rename cannot break a report silently.
A name follows Prometheus' conventions (base units, `_total`, `_seconds`); where older dashboards depend on a name
(strimzi-canary, the eventing-kafka dispatcher) theirs is kept as it is, unit included.

Label sets that are known in advance exist from the start with 0, so that a first failure is an increase, not a birth.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """Prometheus metric types in use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family; `name` is the exposed one, for counters with its `_total`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    """Unit of the value, for documentation (`seconds`, `records`, `milliseconds`)."""
    buckets: tuple[float, ...] = ()
    """Upper bounds without +Inf, in `unit`; for histograms only."""


LATENCY_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""One set for all latencies of ours, so that objectives may name the same thresholds everywhere."""

# --- dispatcher ------------------------------------------------------------------------------------------------------
# Labels: a channel has few subscriptions and they are declared, so `subscription` (its uid) is bounded; nothing of an
# event or of an answer but its status class becomes a label.

_SUBSCRIPTION = ("namespace", "channel", "subscription")


def _dispatcher_counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, help=text, labels=(*_SUBSCRIPTION, *labels))


def _dispatcher_gauge(name: str, text: str, unit: str = "") -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, help=text, labels=_SUBSCRIPTION, unit=unit)


def _dispatcher_latency(name: str, text: str) -> Metric:
    return Metric(
        name=name,
        kind=Kind.HISTOGRAM,
        help=text,
        labels=_SUBSCRIPTION,
        unit="seconds",
        buckets=LATENCY_BUCKETS_SECONDS,
    )


CONSUMED_MSG_COUNT = Metric(
    name="eventing_kafka_consumed_msg_count",
    kind=Kind.GAUGE,
    help="Consumed Message Count",
    labels=("consumer", "partition", "topic"),
    unit="records",
)
"""Name, kind and labels of the eventing-kafka dispatcher; a gauge by tradition although it only grows."""
DISPATCHER_STAGES = ("subscriber", "reply", "dead_letter_sink")
DISPATCHER_OUTCOMES = ("1xx", "2xx", "3xx", "4xx", "5xx", "no_answer")
DISPATCHER_ATTEMPTS = _dispatcher_counter(
    "sluice_dispatcher_attempts_total", "Requests that ended, by destination and status class", "stage", "outcome"
)
DISPATCHER_FATES = ("delivered", "dead_lettered", "dead_letter_topic", "discarded", "dropped")
DISPATCHER_SETTLED = _dispatcher_counter(
    "sluice_dispatcher_events_settled_total",
    "Events that are done with: delivered, taken by the dead letter sink, kept in the dead-letter topic, discarded as"
    " no CloudEvent (kept there too), dropped because the channel has no dead-letter topic",
    "fate",
)
DISPATCHER_RETRIES = _dispatcher_counter(
    "sluice_dispatcher_retries_total", "Attempts that failed and are repeated later"
)
DISPATCHER_QUEUE_SECONDS = _dispatcher_latency(
    "sluice_dispatcher_queue_duration_seconds", "From reading an event to its last attempt: the wait for its turn"
)
DISPATCHER_ATTEMPT_SECONDS = _dispatcher_latency(
    "sluice_dispatcher_attempt_duration_seconds", "One request to the subscriber, from sending to its answer"
)
DISPATCHER_END_TO_END_SECONDS = _dispatcher_latency(
    "sluice_dispatcher_end_to_end_duration_seconds", "From the record's timestamp to the confirmed delivery"
)
DISPATCHER_IN_FLIGHT = _dispatcher_gauge("sluice_dispatcher_in_flight", "Requests without an answer yet", "requests")
DISPATCHER_CONNECTIONS = _dispatcher_gauge(
    "sluice_dispatcher_connections", "Open connections to subscriber, reply URI and dead letter sink", "connections"
)
DISPATCHER_BUFFERED = _dispatcher_gauge("sluice_dispatcher_buffered_records", "Records read and not settled", "records")
DISPATCHER_BUFFERED_BYTES = _dispatcher_gauge(
    "sluice_dispatcher_buffered_bytes", "Memory of the records read and not settled", "bytes"
)
DISPATCHER_PARKED = _dispatcher_gauge(
    "sluice_dispatcher_parked_records", "Records that wait for their retry; their keys wait with them", "records"
)
DISPATCHER_ASSIGNED = _dispatcher_gauge(
    "sluice_dispatcher_assigned_partitions", "Partitions of this member of the group", "partitions"
)
DISPATCHER_PAUSED = _dispatcher_gauge(
    "sluice_dispatcher_paused_partitions",
    "Partitions that are not read because enough of them is buffered",
    "partitions",
)
DISPATCHER_BACKLOG = _dispatcher_gauge(
    "sluice_dispatcher_backlog_records",
    "Events that are owed: end of the partitions - highest read + unsettled; absent while the end is not known",
    "records",
)
DISPATCHER_LAG = _dispatcher_gauge(
    "sluice_dispatcher_committed_lag_records",
    "End of the partitions - committed offset; counts what finished behind a failing key as well",
    "records",
)
DISPATCHER_REBALANCES = _dispatcher_counter(
    "sluice_dispatcher_rebalances_total", "Changes of the assignment, by kind", "kind"
)
DISPATCHER_REBALANCE_KINDS = ("assigned", "revoked", "lost")
DISPATCHER_COMMITS = _dispatcher_counter(
    "sluice_dispatcher_offset_commits_total", "Offset commits, by result", "result"
)
DISPATCHER_COMMIT_RESULTS = ("succeeded", "failed")
DISPATCHER_COMMIT_AGE = _dispatcher_gauge(
    "sluice_dispatcher_commit_age_seconds", "How long something to commit has not been committed; 0: all is", "seconds"
)
DISPATCHER_EXPIRED = _dispatcher_counter(
    "sluice_dispatcher_expired_records_total", "Offsets that retention removed before they were read"
)
DISPATCHER_FORGOTTEN = _dispatcher_gauge(
    "sluice_dispatcher_unmapped_records",
    "Finished records that the commit metadata has no room for: a crash now would repeat them",
    "records",
)
DISPATCHER_SUBSCRIPTION_READY = _dispatcher_gauge(
    "sluice_dispatcher_subscription_ready", "1: offsets are set and the group is stable; 0: see /subscriptions"
)


# --- receiver --------------------------------------------------------------------------------------------------------
# Labels: `code` is one of RECEIVER_CODES; `namespace` and `channel` are registered channels, never what a request said.

RECEIVER_CODES = (200, 202, 400, 404, 405, 408, 413, 414, 415, 417, 431, 500, 501, 503, 505)
"""Every status the receiver answers with; each has a series from the start."""
RECEIVER_REQUESTS = Metric(
    name="sluice_receiver_requests_total",
    kind=Kind.COUNTER,
    help="Requests answered, by status code",
    labels=("code",),
)
RECEIVER_REQUEST_DURATION = Metric(
    name="sluice_receiver_request_duration_seconds",
    kind=Kind.HISTOGRAM,
    help="From a complete request head to its answer, the wait for Kafka included",
    labels=("code",),
    unit="seconds",
    buckets=LATENCY_BUCKETS_SECONDS,
)
RECEIVER_EVENTS = Metric(
    name="sluice_receiver_events_total",
    kind=Kind.COUNTER,
    help="Events made durable; a batch counts each of its events",
    labels=("namespace", "channel"),
)
RECEIVER_EVENTS_IN_FLIGHT = Metric(
    name="sluice_receiver_events_in_flight",
    kind=Kind.GAUGE,
    help="Events given to the producer that Kafka has not confirmed",
    unit="events",
)
RECEIVER_CONNECTIONS = Metric(
    name="sluice_receiver_connections", kind=Kind.GAUGE, help="Open connections of senders", unit="connections"
)
RECEIVER_BUFFERED_BYTES = Metric(
    name="sluice_receiver_buffered_bytes",
    kind=Kind.GAUGE,
    help="Bodies of requests that are still arriving",
    unit="bytes",
)
RECEIVER_CHANNELS = Metric(
    name="sluice_receiver_channels", kind=Kind.GAUGE, help="Channels that take events", unit="channels"
)
RECEIVER_READY = Metric(
    name="sluice_receiver_ready", kind=Kind.GAUGE, help="1: as /readyz says; 0: Kafka or the registry is missing"
)

# --- canary ----------------------------------------------------------------------------------------------------------
# strimzi-canary's names, labels and units (milliseconds) are kept, so that its dashboards and alerts go on working.

_PROBED = ("clientid", "partition")
_LED = ("clientid", "partition", "brokerid")
_CHECKED = ("brokerid", "connected")


def _canary_counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, help=text, labels=labels)


CANARY_CLIENT_CREATION_ERROR = _canary_counter(
    "strimzi_canary_client_creation_error_total", "Attempts at the start in which Kafka could not be reached"
)
CANARY_EXPECTED_CLUSTER_SIZE_ERROR = _canary_counter(
    "strimzi_canary_expected_cluster_size_error_total",
    "Looks at the cluster that found another number of brokers than expected while the topic was absent",
)
CANARY_TOPIC_CREATION_FAILED = _canary_counter(
    "strimzi_canary_topic_creation_failed_total", "Always 0: the topic is created by orchestration", "topic"
)
CANARY_TOPIC_DESCRIBE_CLUSTER_ERROR = _canary_counter(
    "strimzi_canary_topic_describe_cluster_error_total", "Looks at the cluster that got no answer"
)
CANARY_TOPIC_DESCRIBE_ERROR = _canary_counter(
    "strimzi_canary_topic_describe_error_total", "Looks at the topic that got an error other than its absence", "topic"
)
CANARY_TOPIC_ALTER_ASSIGNMENTS_ERROR = _canary_counter(
    "strimzi_canary_topic_alter_assignments_error_total", "Always 0: replicas are moved by orchestration", "topic"
)
CANARY_TOPIC_ALTER_CONFIGURATION_ERROR = _canary_counter(
    "strimzi_canary_topic_alter_configuration_error_total", "Always 0: configs are set by orchestration", "topic"
)
CANARY_RECORDS_PRODUCED = _canary_counter(
    "strimzi_canary_records_produced_total", "Attempts to produce a record, failed ones included", *_PROBED
)
CANARY_RECORDS_PRODUCED_FAILED = _canary_counter(
    "strimzi_canary_records_produced_failed_total", "Attempts that were not acknowledged in time", *_PROBED
)
CANARY_PRODUCER_REFRESH_METADATA_ERROR = _canary_counter(
    "strimzi_canary_producer_refresh_metadata_error_total", "Failed refreshes of the producer's metadata", "clientid"
)
CANARY_RECORDS_CONSUMED = _canary_counter(
    "strimzi_canary_records_consumed_total", "Own records of this start that came back", *_PROBED
)
CANARY_CONSUMER_ERROR = _canary_counter("strimzi_canary_consumer_error_total", "Errors of the consumer", "clientid")
CANARY_CONSUMER_TIMEOUT_JOIN_GROUP = _canary_counter(
    "strimzi_canary_consumer_timeout_join_group_total",
    "Partitions whose end could not be found within 30 s; the consumer is assigned by hand and joins no group",
    "clientid",
)
CANARY_CONSUMER_REFRESH_METADATA_ERROR = _canary_counter(
    "strimzi_canary_consumer_refresh_metadata_error_total", "Failed refreshes of the consumer's metadata", "clientid"
)
CANARY_CONNECTION_ERROR = _canary_counter(
    "strimzi_canary_connection_error_total", "Deprecated: connection checks that failed", *_CHECKED
)
CANARY_CONNECTION = _canary_counter(
    "strimzi_canary_connection_total", "Connection checks, by broker and by whether it could be reached", *_CHECKED
)
CANARY_RECORDS_PRODUCED_LATENCY = Metric(
    name="strimzi_canary_records_produced_latency",
    kind=Kind.HISTOGRAM,
    help="From sending a record to its acknowledgement, in milliseconds",
    labels=_PROBED,
    unit="milliseconds",
    buckets=(2, 5, 10, 20, 50, 100, 200, 400),
)
CANARY_RECORDS_CONSUMED_LATENCY = Metric(
    name="strimzi_canary_records_consumed_latency",
    kind=Kind.HISTOGRAM,
    help="From sending a record to its receipt, in milliseconds",
    labels=_PROBED,
    unit="milliseconds",
    buckets=(5, 10, 20, 50, 100, 200, 400, 800),
)
CANARY_CONNECTION_LATENCY = Metric(
    name="strimzi_canary_connection_latency",
    kind=Kind.HISTOGRAM,
    help="Opening a connection to a broker, TLS and SASL included, in milliseconds",
    labels=_CHECKED,
    unit="milliseconds",
    buckets=(100, 200, 400, 800, 1600),
)

# Our own. `brokerid` is the leader when the record was sent, or the preferred leader while there is none: summed by
# `partition` they tell about the partition, summed by `brokerid` about the broker.
CANARY_PROBES = _canary_counter(
    "sluice_canary_probes_total",
    "Probes by their one verdict: succeeded (back in time), failed (not acknowledged), lost (not back in time)",
    *_LED,
    "result",
)
CANARY_PROBE_RESULTS = ("succeeded", "failed", "lost")
CANARY_RECORDS_LOST = _canary_counter(
    "sluice_canary_records_lost_total", "Acknowledged records that were not back within ROUND_TRIP_LIMIT_MS", *_LED
)
CANARY_RECORDS_LATE = _canary_counter(
    "sluice_canary_records_late_total",
    "Records that came back after ROUND_TRIP_LIMIT_MS (counted as lost before)",
    *_LED,
)
CANARY_RECORDS_DUPLICATED = _canary_counter(
    "sluice_canary_records_duplicated_total", "Own records that came back once more, at another offset", *_LED
)
CANARY_RECORDS_OUT_OF_ORDER = _canary_counter(
    "sluice_canary_records_out_of_order_total", "Records that came back after a later one of their partition", *_LED
)
CANARY_RECORDS_FOREIGN = _canary_counter(
    "sluice_canary_records_foreign_total",
    "Records on the topic that are not of this start: undecodable, other_producer, other_start",
    *_PROBED,
    "reason",
)
CANARY_FOREIGN_REASONS = ("undecodable", "other_producer", "other_start")


def _canary_gauge(name: str, text: str, *labels: str, unit: str = "") -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, help=text, labels=labels, unit=unit)


CANARY_RECORDS_IN_FLIGHT = _canary_gauge(
    "sluice_canary_records_in_flight", "Records that were sent and have no verdict yet", *_PROBED, unit="records"
)
CANARY_PRODUCE_AVAILABILITY = _canary_gauge(
    "sluice_canary_produce_availability_ratio",
    "Acknowledged ÷ attempted within STATUS_TIME_WINDOW_MS; NaN without attempts",
    *_PROBED,
    unit="ratio",
)
CANARY_CONSUME_AVAILABILITY = _canary_gauge(
    "sluice_canary_consume_availability_ratio",
    "Back in time ÷ acknowledged within STATUS_TIME_WINDOW_MS; NaN without acknowledged records",
    *_PROBED,
    unit="ratio",
)
CANARY_BROKER_PRODUCE_AVAILABILITY = _canary_gauge(
    "sluice_canary_broker_produce_availability_ratio",
    "As sluice_canary_produce_availability_ratio, over all partitions that the broker led",
    "clientid",
    "brokerid",
    unit="ratio",
)
CANARY_BROKER_CONSUME_AVAILABILITY = _canary_gauge(
    "sluice_canary_broker_consume_availability_ratio",
    "As sluice_canary_consume_availability_ratio, over all partitions that the broker led",
    "clientid",
    "brokerid",
    unit="ratio",
)
CANARY_LEADER_IS_PREFERRED = _canary_gauge(
    "sluice_canary_leader_is_preferred",
    "1: the broker that this partition proves (`brokerid`, its first replica) leads it; 0: it does not",
    *_LED,
)
CANARY_LAST_PRODUCED = _canary_gauge(
    "sluice_canary_last_produced_timestamp_seconds",
    "When a record was last acknowledged, Unix time; 0: never",
    *_PROBED,
    unit="seconds",
)
CANARY_LAST_CONSUMED = _canary_gauge(
    "sluice_canary_last_consumed_timestamp_seconds",
    "When an own record last came back, Unix time; 0: never",
    *_PROBED,
    unit="seconds",
)
CANARY_OFFSET_COMMITS = _canary_counter(
    "sluice_canary_offset_commits_total", "Offset commits, failed ones included", "clientid", "coordinator"
)
CANARY_OFFSET_COMMITS_FAILED = _canary_counter(
    "sluice_canary_offset_commits_failed_total",
    "Offset commits that failed or had no answer in time",
    "clientid",
    "coordinator",
)
CANARY_OFFSET_COMMIT_LATENCY = Metric(
    name="sluice_canary_offset_commit_latency_seconds",
    kind=Kind.HISTOGRAM,
    help="From asking for an offset commit to its acknowledgement",
    labels=("clientid", "coordinator"),
    unit="seconds",
    buckets=LATENCY_BUCKETS_SECONDS,
)
CANARY_CERTIFICATE_DAYS = _canary_gauge(
    "sluice_canary_certificate_remaining_days",
    "Days until the certificate that the broker showed expires; negative: it has expired",
    "brokerid",
    unit="days",
)
CANARY_CLIENT_CERTIFICATE_DAYS = _canary_gauge(
    "sluice_canary_client_certificate_remaining_days",
    "Days until the canary's own certificate expires",
    "clientid",
    unit="days",
)
CANARY_READY = _canary_gauge("sluice_canary_ready", "1: as /readiness says; 0: it does not", "clientid")

ALL: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Every metric above, for documentation and for checks of objectives; nothing has to be added to it by hand."""
