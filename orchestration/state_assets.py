"""What the platform keeps, as assets: channels → topics → dispatchers and canary. The SLO reports hang below them.

None of these is produced by a run as a table would be; they are there. To materialize them is to take stock: the job
`take_stock` does so, with the checks, and changes nothing. Reconcile runs record an observation of what they changed.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence

import dagster as dg

from orchestration.observe import Observation
from orchestration.planning.actions import CANARY
from orchestration.resources import ControlPlane
from orchestration.run_metadata import (
    KEY_CANARY,
    KEY_CHANNELS,
    KEY_DISPATCHERS,
    KEY_TOPICS,
    METADATA_OF,
    Row,
    broker_rows,
    channel_row,
    component_of,
    deployment_row,
    table,
)

SPECS = [
    dg.AssetSpec(
        KEY_CHANNELS,
        group_name="platform",
        description="KafkaChannels as their teams declared them, and whether each is ready.",
        kinds={"kubernetes"},
    ),
    dg.AssetSpec(
        KEY_TOPICS,
        deps=[KEY_CHANNELS],
        group_name="platform",
        description="Topics of channels and canary: partitions, leaders and replicas by broker, lag by group.",
        kinds={"kafka"},
    ),
    dg.AssetSpec(
        KEY_DISPATCHERS,
        deps=[KEY_CHANNELS, KEY_TOPICS],
        group_name="platform",
        description="One Deployment per channel, which delivers its events to its subscribers.",
        kinds={"python"},
    ),
    dg.AssetSpec(
        KEY_CANARY,
        deps=[KEY_TOPICS],
        group_name="platform",
        description="The program that proves every broker from outside.",
        kinds={"python"},
    ),
]


@dg.multi_asset(specs=SPECS, name="platform_state", can_subset=True, description="One look at the world.")
def platform_state(
    context: dg.AssetExecutionContext, control_plane: dg.ResourceParam[ControlPlane]
) -> Iterator[dg.MaterializeResult[None]]:
    observation = control_plane.observe()
    for key, metadata_of in METADATA_OF.items():  # in the order of their dependencies, which Dagster wants
        if key not in context.selected_asset_keys:
            continue
        metadata = metadata_of(observation)
        yield dg.MaterializeResult(asset_key=key, metadata=metadata, data_version=_version(key, observation))


def _version(key: dg.AssetKey, observation: Observation) -> dg.DataVersion:
    """Changes when the asset does: what is below it knows by this that it is out of date."""
    document = observation.document
    parts = {
        KEY_CHANNELS: document["channels"],
        # Without leaders and ISR, which come and go with every restart of a broker.
        KEY_TOPICS: None
        if document["topics"] is None
        else {name: [p["replicas"] for p in t.get("partitions") or ()] for name, t in document["topics"].items()},
        KEY_DISPATCHERS: _names(observation, "dispatcher"),
        KEY_CANARY: _names(observation, "canary"),
    }
    digest = hashlib.sha256(json.dumps(parts[key], sort_keys=True, default=str).encode())
    return dg.DataVersion(digest.hexdigest()[:16])


def _names(observation: Observation, component: str) -> list[Row] | None:
    deployments = observation.document["deployments"]
    if deployments is None:
        return None
    return [deployment_row(d) for d in deployments if component_of(d) == component]


@dg.asset_check(asset=KEY_CHANNELS, description="Every declared channel is valid and ready.")
def every_channel_is_ready(control_plane: dg.ResourceParam[ControlPlane]) -> dg.AssetCheckResult:
    observation = control_plane.observe()
    if observation.document["channels"] is None:
        return _unknown(observation)
    bad = [row for row in map(channel_row, observation.document["channels"]) if row["ready"] != "True"]
    invalid = [{"object": problem.object, "problem": str(problem)} for problem in observation.invalid]
    return dg.AssetCheckResult(
        passed=not bad and not invalid,
        metadata={"not ready": table(bad), "invalid documents": table(invalid)},
        description=f"{len(bad)} not ready, {len(invalid)} problems in documents",
    )


@dg.asset_check(
    asset=KEY_TOPICS, description="Every broker that is up leads exactly one probed partition of the canary."
)
def every_broker_leads_one_canary_partition(control_plane: dg.ResourceParam[ControlPlane]) -> dg.AssetCheckResult:
    observation = control_plane.observe()
    topics, brokers = observation.document["topics"], observation.document["brokers"]
    if topics is None or brokers is None:
        return _unknown(observation)
    name = control_plane.policy.canary.topic
    if name not in topics:
        return dg.AssetCheckResult(passed=False, description=f"the topic {name} does not exist")
    leads = Counter(p["leader"] for p in probed(topics[name].get("partitions") or ()))
    wrong = [b["id"] for b in brokers if not b["fenced"] and leads[b["id"]] != 1]
    return dg.AssetCheckResult(
        passed=not wrong,
        metadata={"by broker": table(broker_rows({name: topics[name]}, brokers))},
        description="as it should be" if not wrong else f"brokers that lead none or several: {wrong}",
    )


def probed(partitions: Sequence[dict[str, list[int]]]) -> list[dict[str, list[int]]]:
    """Partitions that are no orphans: none with a lower id has the same preferred leader (design §4.2.1)."""
    seen: set[int] = set()
    chosen = []
    for partition in partitions:
        preferred = (partition["replicas"] or [-1])[0]
        if preferred not in seen:
            seen.add(preferred)
            chosen.append(partition)
    return chosen


@dg.asset_check(
    asset=KEY_DISPATCHERS, description="Every dispatcher runs with as many ready replicas as it should have."
)
def every_dispatcher_is_ready(control_plane: dg.ResourceParam[ControlPlane]) -> dg.AssetCheckResult:
    return _deployments_ready(control_plane.observe(), "dispatcher")


@dg.asset_check(asset=KEY_CANARY, description="The canary runs and is ready.")
def canary_is_ready(control_plane: dg.ResourceParam[ControlPlane]) -> dg.AssetCheckResult:
    observation = control_plane.observe()
    if control_plane.policy.canary.enabled and _names(observation, CANARY) == []:
        return dg.AssetCheckResult(passed=False, description="no canary is deployed")
    return _deployments_ready(observation, CANARY)


def _deployments_ready(observation: Observation, component: str) -> dg.AssetCheckResult:
    rows = _names(observation, component)
    if rows is None:
        return _unknown(observation)
    bad = [row for row in rows if row["replicas"] != row["ready"]]
    return dg.AssetCheckResult(passed=not bad, metadata={"not ready": table(bad)}, description=f"{len(bad)} not ready")


def _unknown(observation: Observation) -> dg.AssetCheckResult:
    reason = "; ".join(observation.unreadable) or "could not be read"
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=f"not known: {reason}")


CHECKS = [every_channel_is_ready, every_broker_leads_one_canary_partition, every_dispatcher_is_ready, canary_is_ready]
take_stock = dg.define_asset_job(
    "take_stock",
    selection=dg.AssetSelection.assets(*(spec.key for spec in SPECS)),
    executor_def=dg.in_process_executor,
    description="Look at channels, topics, dispatchers and canary, and check them. Changes nothing.",
)
