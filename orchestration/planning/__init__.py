"""The deciding half of the control plane: a snapshot, a policy and the time go in, a plan comes out.

Nothing in this room performs I/O, reads a clock or logs; the same inputs give the same plan, whatever their order.

How a plan comes about:

    Snapshot.from_document ─┐
    Policy ─────────────────┼─ plan ──▶ Plan ──▶ applied by orchestration.apply, or by `world.apply_to` in tests
    now ────────────────────┘

| module | decides |
|---|---|
| `snapshot`, `actions`, `policy`, `documents` | nothing: the values that go in and come out, and their JSON |
| `placement` | which brokers hold the replicas of a partition |
| `canary_topic` | the next safe step of the canary's topic |
| `channel_topics` | topics, partitions, configs and first offsets of a channel |
| `replicas`, `dispatchers`, `manifests`, `sizing` | how many dispatchers, and what they look like |
| `deletion` | what goes, in which order, when a channel does |
| `channel_status` | what the channel's status says about all of it |
| `world` | the world as it is right after a plan was applied |
| `planner` | puts it together |

Start reading at `planner.plan`.
"""

from orchestration.planning.actions import Action, Plan, Remark
from orchestration.planning.documents import DocumentError
from orchestration.planning.planner import plan
from orchestration.planning.policy import CanaryDeployment, CanaryPolicy, DispatcherPolicy, Policy
from orchestration.planning.snapshot import Snapshot

__all__ = [
    "Action",
    "CanaryDeployment",
    "CanaryPolicy",
    "DispatcherPolicy",
    "DocumentError",
    "Plan",
    "Policy",
    "Remark",
    "Snapshot",
    "plan",
]
