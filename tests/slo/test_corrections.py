"""Corrections: times that do not count, with a reason and an author."""

from datetime import UTC, datetime, timedelta

import pytest

from assets.slo.corrections import excluded, parse_corrections
from assets.slo.errors import DamagedInput
from assets.slo.windows import Range
from eventing.errors import ConfigError

VALID = """
corrections:
- {from: "2026-11-02T10:00:00+01:00", to: 2026-11-02T10:00:00Z, reason: upgrade, author: ann, objectives: [a]}
- {from: 2026-11-01T00:00:00Z, to: 2026-11-01T01:00:00Z, reason: move, author: bob}
"""


def test_corrections_are_sorted_and_apply_to_the_named_objectives_or_to_all():
    first, second = parse_corrections(VALID, "c.yaml")

    assert (first.author, second.author) == ("bob", "ann")
    assert second.range.length == timedelta(hours=1)
    assert first.applies_to("b")
    assert not second.applies_to("b")


def test_only_the_part_inside_the_window_is_excluded():
    window = Range(datetime(2026, 11, 1, 0, 30, tzinfo=UTC), datetime(2026, 11, 2, 9, 30, tzinfo=UTC))

    parts = excluded(parse_corrections(VALID, "c.yaml"), "a", window)

    assert [part.length for part in parts] == [timedelta(minutes=30), timedelta(minutes=30)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("corrections: [{from: 2026-11-01T00:00:00Z, to: 2026-11-01T01:00:00Z, author: a}]", "corrections[0].reason"),
        ("corrections: [{from: 2026-11-01T00:00:00Z, to: 2026-11-01T01:00:00Z, reason: a}]", "corrections[0].author"),
        ("corrections: [{from: 2026-11-01T00:00:00, to: 2026-11-01T01:00:00Z, reason: a, author: b}]", "with a zone"),
        ("corrections: [{from: 2026-11-01T01:00:00Z, to: 2026-11-01T01:00:00Z, reason: a, author: b}]", "after from"),
        ("corrections: [{to: 2026-11-01T01:00:00Z, reason: a, author: b}]", "corrections[0].from"),
        (VALID.replace("[a]", "[]"), "leave it out to correct all"),
        ("corrections: [1]", "mapping"),
        ("corrections: {}", "list"),
        ("correction: []", "correction"),
    ],
)
def test_what_is_refused_names_file_and_field(text, reason):
    with pytest.raises(ConfigError) as caught:
        parse_corrections(text, "c.yaml")

    assert caught.value.problems[0].startswith("c.yaml")
    assert reason in str(caught.value)


def test_a_file_that_is_no_yaml_is_damaged():
    with pytest.raises(DamagedInput, match=r"c\.yaml"):
        parse_corrections("corrections: [", "c.yaml")
