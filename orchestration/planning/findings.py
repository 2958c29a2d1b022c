"""A part of a plan in the making: what one rule of the planner found."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestration.planning.actions import Action, Remark


@dataclass(slots=True)
class Findings:
    """Actions in the order in which they must be applied, and remarks on what is not done."""

    object: str
    """Whom it is about: `namespace/name` of a channel, or `canary`."""
    actions: list[Action] = field(default_factory=list)
    rejected: list[Remark] = field(default_factory=list)
    waiting: list[Remark] = field(default_factory=list)

    def reject(self, reason: str) -> None:
        """It cannot be done as declared."""
        self.rejected.append(Remark(object=self.object, reason=reason))

    def wait(self, reason: str) -> None:
        """It is not yet as wanted, and nothing is done about it now."""
        self.waiting.append(Remark(object=self.object, reason=reason))


def named(noun: str, numbers: object, *, limit: int = 10) -> str:
    """`broker 3`, `partitions 1, 2 and 7`; long lists are cut, because a person reads them."""
    values = [str(number) for number in numbers]  # type: ignore[attr-defined]
    if len(values) == 1:
        return f"{noun} {values[0]}"
    shown, rest = values[:limit], len(values) - limit
    if rest > 0:
        return f"{noun}s {', '.join(shown)} and {rest} more"
    return f"{noun}s {', '.join(shown[:-1])} and {shown[-1]}" if shown else f"no {noun}s"
