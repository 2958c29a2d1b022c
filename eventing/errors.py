"""Errors that answer two questions: whose fault is it, and would a retry help?

Adapters translate library errors into these at the seam (always `raise … from exc`); no exception of a client library
travels further up. Inside the pure cores bad data is a value, not an exception.

    SluiceError
    ├─ ConfigError        ours,   permanent  say what and where, exit 78; never retried
    ├─ InvalidResource    theirs, permanent  reported on that object, skipped; the others go on
    ├─ Unavailable        theirs, transient  retry with back-off
    └─ Refused            theirs, permanent  the other system understood and said no
       ├─ Conflict        observe again
       ├─ Forbidden
       └─ NotFound
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_CONFIG = 78
"""EX_CONFIG of sysexits.h: the configuration is wrong and a restart will not mend it."""


class SluiceError(Exception):
    """Base of all errors that cross a seam of this project."""


class ConfigError(SluiceError):
    """The configuration is wrong; lists every problem at once, so that one round of mending is enough."""

    def __init__(self, problems: Sequence[str], *, subject: str = "configuration") -> None:
        self.problems = tuple(problems)
        self.subject = subject
        super().__init__(f"wrong {subject}: " + "; ".join(self.problems))


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing that is wrong with a declared object.

    `path` is the field as an operator would write it (`spec.subscribers[0].subscriberUri`), `reason` says what is
    wrong and what to do.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class InvalidResource(SluiceError):
    """A declared object cannot be used as it is. `resource` is `namespace/name`, as far as it could be read."""

    def __init__(self, resource: str, problems: Sequence[FieldProblem]) -> None:
        self.resource = resource
        self.problems = tuple(problems)
        super().__init__(f"{resource}: " + "; ".join(str(problem) for problem in self.problems))


class Unavailable(SluiceError):
    """A system did not answer, or not in time; the same call may succeed later.

    `system` is the word for people (`Kafka`, `Kubernetes`, `registry`, `workloads`), `retry_after_s` is in seconds.
    """

    def __init__(self, system: str, reason: str, *, retry_after_s: float | None = None) -> None:
        self.system = system
        self.reason = reason
        self.retry_after_s = retry_after_s
        super().__init__(f"{system} is unavailable: {reason}")


class Refused(SluiceError):
    """A system understood the request and said no; repeating it unchanged cannot help."""

    def __init__(self, system: str, reason: str) -> None:
        self.system = system
        self.reason = reason
        super().__init__(f"{system} refused: {reason}")


class Conflict(Refused):
    """The object changed since it was observed: observe again and plan anew."""


class Forbidden(Refused):
    """The credentials do not allow it."""


class NotFound(Refused):
    """The object does not exist."""
