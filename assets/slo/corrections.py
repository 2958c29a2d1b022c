"""Corrections: agreed times that do not count against a budget, each with a reason and an author.

The report always shows both figures; a correction never changes the uncorrected one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from assets.slo.fields import Fields, Problems
from assets.slo.instants import parse_instant
from assets.slo.windows import Range
from assets.slo.yaml_documents import load_documents


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """(start, end] does not count for the named objectives; for all of them when none is named."""

    range: Range
    reason: str
    author: str
    objectives: tuple[str, ...] = ()

    def applies_to(self, objective: str) -> bool:
        return not self.objectives or objective in self.objectives


def parse_corrections(text: str, source: str) -> list[Correction]:
    """Read a corrections file, sorted by start. Raises ConfigError with every problem, DamagedInput for no YAML."""
    problems = Problems("corrections")
    found: list[Correction] = []
    for document in load_documents(text, source):
        root = Fields(document, source=source, path="", problems=problems)
        root.known(("corrections",))
        for index, item in enumerate(root.items("corrections")):
            entry = Fields(item, source=source, path=f"corrections[{index}]", problems=problems)
            correction = _parse_correction(entry)
            if correction is not None:
                found.append(correction)
    problems.raise_any()
    return sorted(found, key=lambda item: (item.range.start, item.range.end))


def _parse_correction(entry: Fields) -> Correction | None:
    entry.known(("from", "to", "reason", "author", "objectives"))
    start, end = _instant(entry, "from"), _instant(entry, "to")
    reason = entry.required_text("reason", "say why this time does not count")
    author = entry.required_text("author", "say who agreed to it")
    names = entry.items("objectives")
    for name in names:
        if not isinstance(name, str):
            entry.problem("objectives", f"must be a list of objective names, not {name!r}")
            return None
    if entry.has("objectives") and not names:
        entry.problem("objectives", "is empty; leave it out to correct all objectives")
        return None
    if start is None or end is None or not reason or not author:
        return None
    if start >= end:
        entry.problem("to", "must be after from")
        return None
    return Correction(range=Range(start, end), reason=reason, author=author, objectives=tuple(names))


def _instant(entry: Fields, key: str) -> datetime | None:
    text = entry.required_text(key, "write an RFC 3339 time with a zone")
    if not text:
        return None
    try:
        return parse_instant(text)
    except ValueError as exc:
        entry.problem(key, str(exc))
        return None


def excluded(corrections: Iterable[Correction], objective: str, window: Range) -> list[Range]:
    """The parts of a window that corrections take out for one objective; they may overlap each other."""
    parts = [correction.range.intersection(window) for correction in corrections if correction.applies_to(objective)]
    return [part for part in parts if part is not None]
