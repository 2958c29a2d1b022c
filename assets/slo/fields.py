"""Reading declared objects field by field, collecting every problem with its file, its path and the remedy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

from eventing.errors import ConfigError


class Problems:
    """What is wrong, over all files; `raise_any` reports it at once, so that one round of mending is enough."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._found: list[str] = []

    def add(self, source: str, path: str, reason: str) -> None:
        self._found.append(f"{source}: {path}: {reason}" if path else f"{source}: {reason}")

    def __len__(self) -> int:
        return len(self._found)

    def raise_any(self) -> None:
        """Raise ConfigError with all problems, if there are any."""
        if self._found:
            raise ConfigError(self._found, subject=self._subject)


class Fields:
    """One mapping of a document at `path`; wrong types are reported and read as absent."""

    def __init__(self, value: Any, *, source: str, path: str, problems: Problems) -> None:
        self.source = source
        self.path = path
        self.problems = problems
        if isinstance(value, Mapping):
            self._fields: Mapping[Any, Any] = value
        else:
            self._fields = {}
            self.problem("", f"must be a mapping, not {describe(value)}")

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path and key else self.path or key

    def problem(self, key: str, reason: str) -> None:
        self.problems.add(self.source, self.at(key), reason)

    def has(self, key: str) -> bool:
        return self._fields.get(key) is not None

    def raw(self, key: str) -> Any:
        return self._fields.get(key)

    def known(self, names: Collection[str]) -> None:
        """Report every field with another name: a misspelt field would silently have no effect."""
        for key in self._fields:
            if key not in names:
                self.problem(str(key), f"is not a field here; known are {', '.join(sorted(names))}")

    def fields(self, key: str) -> Fields | None:
        if not self.has(key):
            return None
        return Fields(self._fields[key], source=self.source, path=self.at(key), problems=self.problems)

    def items(self, key: str) -> list[Any]:
        value = self._fields.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.problem(key, f"must be a list, not {describe(value)}")
            return []
        return value

    def text(self, key: str) -> str | None:
        value = self._fields.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            self.problem(key, f"must be text, not {describe(value)}")
            return None
        return value

    def required_text(self, key: str, remedy: str) -> str:
        if not self.has(key):
            self.problem(key, f"is missing; {remedy}")
            return ""
        return self.text(key) or ""

    def number(self, key: str) -> Decimal | None:
        value = self._fields.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            self.problem(key, f"must be a number, not {describe(value)}")
            return None
        return Decimal(value)

    def boolean(self, key: str) -> bool | None:
        value = self._fields.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.problem(key, f"must be true or false, not {describe(value)}")
        return None


def describe(value: Any) -> str:
    """A value as the reader of an error message wrote it."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return repr(str(value)) if isinstance(value, str | Decimal) else str(value)
