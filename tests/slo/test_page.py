"""The page and its pictures: complete, well-formed, safe, and right about what they say."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from assets.slo.budgets import Counts, State, budget_of, state_of
from assets.slo.charts import bad_events, burn_down, remaining_over_time, worst_steps
from assets.slo.corrections import parse_corrections
from assets.slo.page import Activity, render_page
from assets.slo.report import Contributor, Corrected, Report, Step
from assets.slo.windows import Range
from tests.slo.slo_documents import objective

END = datetime(2026, 11, 20, tzinfo=UTC)
WINDOW = Range(END - timedelta(days=30), END)


def a_report(
    good: float = 990, valid: float = 1000, *, has_data: bool = True, target: str = "0.98", **changes
) -> Report:
    declared = objective(name="orders", target=target, group_by="pod")
    counts = Counts(good=Fraction(good), valid=Fraction(valid))
    budget = budget_of(declared, counts, WINDOW.length, has_data=has_data)
    half = Step(end=END - timedelta(days=15), good=good / 2, valid=good / 2, missed=0)
    rest = Step(end=END, good=good / 2, valid=valid - good / 2, missed=valid - good)
    report = Report(
        objective=declared,
        group=("a",),
        window=WINDOW,
        counts=counts,
        sli=counts.sli(declared.method) if has_data else None,
        budget=budget,
        burn_rates=dict.fromkeys(("5m", "30m", "1h", "2h", "6h", "1d", "3d"), Fraction(1, 2) if valid else None),
        state=state_of(counts, budget, has_data=has_data),
        is_at_risk=False,
        coverage=1.0,
        resets=0,
        corrected=None,
        contributors=[Contributor(labels={"pod": "a", "code": "500"}, bad=valid - good)] if valid > good else [],
        exhausted_at=END + timedelta(days=20),
        timeline=(half, rest) if valid else (),
    )
    return replace(report, **changes)


def page(*reports: Report, **options) -> str:
    return render_page(reports, title="SLO report", computed_at=END, **options)


EVERY_STATE = {
    "met": a_report(),
    "at risk": a_report(is_at_risk=True),
    "breached": a_report(900),
    "no traffic": a_report(0, 0),
    "no data": a_report(0, 0, has_data=False, coverage=0.0),
    "no budget": a_report(999, target="1"),
}


@pytest.mark.parametrize("name", EVERY_STATE)
def test_pictures_are_well_formed_and_small(name):
    for draw in (burn_down, bad_events):
        text = draw(EVERY_STATE[name])
        assert ET.fromstring(text).tag.endswith("svg")
        assert len(text) < 20_000
        assert "nan" not in text
        assert "inf" not in text


def test_the_line_ends_at_what_the_report_says():
    report = a_report(985)

    assert remaining_over_time(report)[-1] == (END, pytest.approx(float(report.budget.remaining)))
    assert worst_steps(report) == [report.timeline[1]]


def test_the_page_needs_nothing_else_and_shows_every_state():
    text = page(*EVERY_STATE.values(), warnings=["look here"])

    assert "<script" not in text
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in text
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text
    for word in ("<b>2</b> breached", "<b>1</b> at risk", "<b>1</b> no traffic", "<b>1</b> no data", "<b>1</b> met"):
        assert word in text
    assert "look here" in text


def test_the_most_urgent_comes_first():
    text = page(EVERY_STATE["met"], EVERY_STATE["no data"], EVERY_STATE["breached"])

    positions = [text.index(f'<td><span class="badge {state}"') for state in ("breached", "no_data", "met")]
    assert positions == sorted(positions)


def test_names_from_outside_are_text_and_never_markup():
    nasty = "<script>alert(1)</script>"
    report = a_report(900, group=(nasty,), contributors=[Contributor(labels={"x": nasty}, bad=1)])

    text = page(report, warnings=[nasty], activities=[Activity(at=END, what=nasty, why=nasty)])

    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_what_was_done_stands_beside_when_it_burned():
    activity = Activity(at=END - timedelta(hours=2), what="reconcile", why="ScaleDeployment orders to 1")

    assert "reconcile: ScaleDeployment orders to 1" in page(a_report(900), activities=[activity])


def test_both_figures_of_a_corrected_report_are_shown_with_reason_and_author():
    counts = Counts(good=Fraction(990), valid=Fraction(995))
    report = a_report(900)
    corrected = Corrected(
        counts=counts,
        sli=counts.sli(report.objective.method),
        budget=budget_of(report.objective, counts, WINDOW.length, has_data=True),
    )
    agreed = parse_corrections(
        "corrections: [{from: 2026-11-01T00:00:00Z, to: 2026-11-01T01:00:00Z, reason: upgrade, author: Ann}]", "c.yaml"
    )

    text = page(replace(report, corrected=corrected), corrections=agreed)

    assert "90.0000 %" in text
    assert "99.4975 %" in text
    assert "upgrade" in text
    assert "Ann" in text


def test_a_window_that_was_hardly_seen_says_so():
    assert "Only 12.0 % of this window was observed" in page(a_report(coverage=0.12))
    assert "was observed" not in page(a_report(coverage=0.99))


def test_almost_is_never_shown_as_all():
    text = page(a_report(9_999_999, 10_000_000))

    assert "99.9999 %" in text
    assert "100.0000 %" not in text


def test_many_reports_keep_the_page_small():
    many = [a_report(900, group=(str(number),)) for number in range(200)]

    text = page(*many)

    assert text.count("<section") == 41
    assert "160 more are in the table" in text
    assert a_report(900).state is State.BREACHED
