"""The report as one HTML page that needs nothing else: no script, no font, no server.

First what matters at a glance (which promises are kept, how much may still go wrong), then each objective with what
burned its budget and when. Follows the reader's light or dark setting, and prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from html import escape

from assets.slo.budgets import BURN_WINDOWS, Infinite, State
from assets.slo.charts import bad_events, burn_down, shown_state, worst_steps
from assets.slo.corrections import Correction
from assets.slo.instants import render_instant
from assets.slo.report import Report, step_length
from assets.slo.report_documents import number, percent
from assets.slo.rules import ALERT_WINDOWS, scaled_factor

LEAST_COVERAGE = 0.9
"""Below nine scrapes of ten, a number says little about its window."""
MOST_SECTIONS = 40
"""Objectives shown with charts; the table always holds all. A page of 40 is about a megabyte."""

_WORDS = {
    "met": "met",
    "at_risk": "at risk",
    "breached": "breached",
    "no_traffic": "no traffic",
    "no_data": "no data",
}
_URGENCY = ["breached", "at_risk", "no_data", "no_traffic", "met"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Something that was done to the platform, to be held against when budget was lost."""

    at: datetime
    what: str
    why: str


def render_page(
    reports: Sequence[Report],
    *,
    title: str,
    computed_at: datetime,
    corrections: Sequence[Correction] = (),
    activities: Sequence[Activity] = (),
    warnings: Sequence[str] = (),
) -> str:
    """The page. Reports are ordered by urgency, then by name."""
    ordered = sorted(reports, key=lambda report: _URGENCY.index(shown_state(report)))
    shown = ordered[:MOST_SECTIONS]
    body = [
        _header(ordered, title, computed_at),
        _overview(ordered, len(shown)),
        *(_section(index, report, corrections, activities) for index, report in enumerate(shown)),
    ]
    if len(shown) < len(ordered):
        body.append(
            f"<p class=note>{len(ordered) - len(shown)} more are in the table and in the JSON and CSV files.</p>"
        )
    if warnings:
        items = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
        body.append(f"<section class=card><h2>Warnings</h2><ul>{items}</ul></section>")
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        + "".join(body)
        + f"<footer>{_FOOTER}</footer></main></body></html>\n"
    )


def _header(reports: Sequence[Report], title: str, computed_at: datetime) -> str:
    states = Counter(shown_state(report) for report in reports)
    chips = "".join(
        f'<span class="chip {state}"><b>{states[state]}</b> {_WORDS[state]}</span>'
        for state in _URGENCY
        if states[state]
    )
    windows = {(report.window.start, report.window.end) for report in reports}
    covered = ""
    if len(windows) == 1:
        ((start, end),) = windows
        covered = f"{_day(start)} to {_day(end)} · "
    return (
        f"<header><h1>{escape(title)}</h1><p class=sub>{covered}computed {_day(computed_at)}</p>"
        f"<div class=chips>{chips}</div></header>"
    )


def _overview(reports: Sequence[Report], sections: int) -> str:
    rows = []
    for index, report in enumerate(reports):
        state = shown_state(report)
        name = escape(report.objective.display_name)
        linked = f'<a href="#o{index}">{name}</a>' if index < sections else name
        rows.append(
            f"<tr><td>{_badge(state)}</td><td>{linked}{_group(report)}</td>"
            f"<td class=num>{percent(report.sli, 3)}</td><td class='num soft'>{_target(report.objective.target)}</td>"
            f"<td>{_bar(report)}</td><td class='num {_coverage_class(report)}'>{_coverage(report)}</td></tr>"
        )
    return (
        "<section class=card><table class=overview><thead><tr><th>State<th>Objective<th class=num>SLI"
        "<th class=num>Target<th>Budget left<th class=num>Coverage</tr></thead><tbody>"
        + "".join(rows)
        + "</tbody></table></section>"
    )


def _section(index: int, report: Report, corrections: Sequence[Correction], activities: Sequence[Activity]) -> str:
    state = shown_state(report)
    objective = report.objective
    description = f"<p class=desc>{escape(objective.description)}</p>" if objective.description else ""
    window = f"{_day(report.window.start)} to {_day(report.window.end)}"
    if objective.window.time_zone != "UTC":
        window += f" ({escape(objective.window.time_zone)})"
    blocks = [
        f"<div class=facts>{_facts(report)}</div>",
        f"<div class=sentence>{_sentence(report)}{_doubt(report)}</div>",
        f"<figure>{burn_down(report)}<figcaption>{_BURN_DOWN_CAPTION}</figcaption></figure>",
    ]
    if any(step.valid > step.good for step in report.timeline):
        blocks.append(f"<figure>{bad_events(report)}<figcaption>Bad events over time.</figcaption></figure>")
    blocks.append(f"<div class=columns>{_burn_rates(report)}{_contributors(report)}</div>")
    blocks.append(_worst(report, activities))
    blocks.append(_correction_table(report, corrections))
    return (
        f'<section class="card objective" id="o{index}"><div class=title><h2>{escape(objective.display_name)}'
        f"{_group(report)}</h2>{_badge(state)}</div>{description}<p class=sub>{window} · {escape(objective.name)} · "
        f"{objective.method.value}</p>{''.join(blocks)}</section>"
    )


def _facts(report: Report) -> str:
    counts, budget = report.counts, report.budget
    remaining = budget.remaining
    left_events = left_minutes = "-"
    if isinstance(remaining, Fraction):
        if budget.events is not None:
            left_events = _count(max(Fraction(0), budget.events * remaining))
        left_minutes = _duration(timedelta(minutes=float(max(Fraction(0), budget.minutes * remaining))))
    pairs = [
        ("SLI", percent(report.sli, 4)),
        ("Target", _target(report.objective.target)),
        ("Budget left", "overspent" if isinstance(remaining, Infinite) else percent(remaining, 1)),
        ("Bad / valid events", f"{_count(counts.bad)} / {_count(counts.valid)}"),
        ("Bad events left", left_events),
        ("Outage time left", left_minutes),
        ("Coverage", _coverage(report)),
        ("Counter resets", str(report.resets)),
    ]
    if report.previous is not None:
        pairs.append(("Period before", percent(report.previous.sli(report.objective.method), 4)))
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs)


def _sentence(report: Report) -> str:
    """What the numbers mean, for who reads nothing else."""
    match report.state:
        case State.NO_DATA:
            return (
                "Nothing was measured in this window: neither met nor breached, but unknown. Look at the targets first."
            )
        case State.NO_TRAFFIC:
            return "It was measured, but nothing happened: no events, so nothing could go wrong."
        case State.BREACHED:
            when = f" on {_day(report.exhausted_at)}" if report.exhausted_at else ""
            return f"More went wrong than was allowed; the budget was spent{when}."
        case State.MET:
            if report.exhausted_at is None:
                return "Kept, and nothing burns the budget now."
            if report.is_at_risk:
                return (
                    f"Kept so far, but at the pace of the last 3 days the budget ends on {_day(report.exhausted_at)}."
                )
            return f"Kept. At the pace of the last 3 days the budget would last until {_day(report.exhausted_at)}."


def _doubt(report: Report) -> str:
    """That a number is about less than it seems to be."""
    if report.state is State.NO_DATA or report.coverage is None or report.coverage >= LEAST_COVERAGE:
        return ""
    share = _coverage(report)
    return f" <span class=thin>Only {share} of this window was observed: the figures are about that part.</span>"


def _burn_rates(report: Report) -> str:
    factors = {name: window for window in ALERT_WINDOWS for name in (window.long,)}
    rows = []
    for name in BURN_WINDOWS:
        rate = report.burn_rates[name]
        window = factors.get(name)
        limit = scaled_factor(window, report.objective) if window else None
        if rate is None:
            text, share, hot = "-", 0.0, False
        elif isinstance(rate, Infinite):
            text, share, hot = "∞", 1.0, True
        else:
            text, share = f"{float(rate):.2f}", min(1.0, float(rate) / 15)
            hot = rate > (1 if limit is None else Fraction(limit))
        alert = f"{window.severity} above {float(limit or 0):.3g}" if window else ""
        rows.append(
            f"<tr><td>{name}</td><td class=num>{text}</td><td class=track><i class={'hot' if hot else 'cool'} "
            f'style="width:{share:.1%}"></i></td><td class=soft>{alert}</td></tr>'
        )
    return (
        "<div><h3>Burn rate</h3><p class=note>1 spends the budget exactly over the period.</p><table class=bars>"
        + "".join(rows)
        + "</table></div>"
    )


def _contributors(report: Report) -> str:
    if not report.contributors:
        return "<div><h3>What burned it</h3><p class=note>Nothing: no bad events.</p></div>"
    most = report.contributors[0].bad
    rows = []
    for item in report.contributors[:8]:
        labels = (
            ", ".join(f"{name}={value}" for name, value in item.labels.items() if name not in report.labels) or "all"
        )
        rows.append(
            f"<tr><td class=wrap>{escape(labels)}</td><td class=num>{_count(Fraction(item.bad))}</td>"
            f'<td class=track><i class=hot style="width:{item.bad / most:.1%}"></i></td></tr>'
        )
    more = len(report.contributors) - len(rows)
    rest = f"<p class=note>and {more} more</p>" if more > 0 else ""
    return (
        "<div><h3>What burned it</h3><p class=note>Bad events by label set.</p>"
        f"<table class=bars>{''.join(rows)}</table>{rest}</div>"
    )


def _worst(report: Report, activities: Sequence[Activity]) -> str:
    steps = worst_steps(report)
    if not steps:
        return ""
    length = step_length(report.window)
    rows = []
    for step in steps:
        begin = step.end - length
        # What is done to a platform shows a little later in what it delivers.
        nearby = [item for item in activities if begin - timedelta(minutes=10) < item.at <= step.end]
        done = "; ".join(f"{item.at:%H:%M} {item.what}: {item.why}" for item in nearby[:4]) or "-"
        rows.append(
            f"<tr><td>{_day(begin)} to {step.end:%H:%M}</td>"
            f"<td class=num>{_count(Fraction(step.valid - step.good))} of "
            f"{_count(Fraction(step.valid))}</td><td class=wrap>{escape(done)}</td></tr>"
        )
    return (
        "<h3>When it burned most</h3><table class=plain><thead><tr><th>Time (UTC)<th class=num>Bad of valid"
        f"<th>What was done then</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _correction_table(report: Report, corrections: Sequence[Correction]) -> str:
    if report.corrected is None:
        return ""
    rows = "".join(
        f"<tr><td>{_day(item.range.start)} to {_day(item.range.end)}</td><td class=wrap>{escape(item.reason)}</td>"
        f"<td>{escape(item.author)}</td></tr>"
        for item in corrections
        if item.applies_to(report.objective.name) and item.range.overlaps(report.window)
    )
    corrected = report.corrected
    remaining = corrected.budget.remaining
    left = "overspent" if isinstance(remaining, Infinite) else percent(remaining, 1)
    return (
        f"<h3>Corrections</h3><p>Without the agreed times: SLI <b>{percent(corrected.sli, 4)}</b>, budget left "
        f"<b>{left}</b>, {_count(corrected.counts.bad)} bad of {_count(corrected.counts.valid)}. "
        "The figures above are uncorrected.</p>"
        f"<table class=plain><thead><tr><th>Time (UTC)<th>Reason<th>Agreed by</tr></thead><tbody>{rows}</tbody></table>"
    )


def _badge(state: str) -> str:
    return f'<span class="badge {state}">{_WORDS[state]}</span>'


def _group(report: Report) -> str:
    if not report.labels:
        return ""
    text = ", ".join(f"{name}={value or '-'}" for name, value in report.labels.items())
    return f"<span class=group>{escape(text)}</span>"


def _bar(report: Report) -> str:
    remaining = report.budget.remaining
    if remaining is None:
        return "<span class=soft>unknown</span>"
    if isinstance(remaining, Infinite) or remaining < 0:
        over = "" if isinstance(remaining, Infinite) else f" by {percent(-remaining, 0)}"
        return (
            f"<div class=meter><i class=breached style='width:100%'></i></div><span class=over>overspent{over}</span>"
        )
    return (
        f"<div class=meter><i class={shown_state(report)} style='width:{float(remaining):.1%}'></i></div>"
        f"<span class=left>{percent(remaining, 1)}</span>"
    )


def _coverage_class(report: Report) -> str:
    return "soft" if (report.coverage or 0) >= LEAST_COVERAGE else "thin"


def _coverage(report: Report) -> str:
    if report.coverage is None:
        return "-"
    return "under 0.1 %" if 0 < report.coverage < 0.001 else percent(Fraction(report.coverage), 1)


def _target(target: Decimal) -> str:
    text = format(target * 100, "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) + " %"


def _count(value: Fraction) -> str:
    found = number(value)
    if isinstance(found, int):
        return f"{found:,}".replace(",", "\u202f")
    return f"{float(value):,.1f}".replace(",", "\u202f")


def _duration(length: timedelta) -> str:
    minutes = length.total_seconds() / 60
    if minutes >= 120:
        return f"{minutes / 60:.1f} h"
    return f"{minutes:.1f} min"


def _day(moment: datetime) -> str:
    return f"<time datetime={render_instant(moment)}>{moment:%Y-%m-%d %H:%M}</time>"


_FOOTER = (
    "All times are UTC unless a zone is named; windows are open at their start and closed at their end. SLI: good of "
    "valid events. The budget is what may be bad: (1 - target) of the valid events. Coverage: scrapes seen of those "
    "expected. "
    "Numbers come from counters, pair by pair, and are decided on before they are rounded."
)

_BURN_DOWN_CAPTION = "Budget left over the window; dashed: a pace that lasts exactly."

_STYLE = """
:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1b2330;--ink-soft:#5f6b7c;--grid:#e3e7ed;
--edge:#e3e7ed;
--good:#1f8a5b;--good-bg:#e3f4ec;--warn:#b36b00;--warn-bg:#fdf0d8;--bad:#c93636;--bad-bg:#fde6e6;--none:#7a8699;
--none-bg:#eaedf2;--link:#2558c4}
@media(prefers-color-scheme:dark){:root{--page:#12161d;--card:#1b212b;--ink:#e7ebf1;--ink-soft:#9aa6b8;--grid:#2c3542;
--edge:#2a3240;--good:#4cc38a;--good-bg:#16352a;--warn:#f0b04a;--warn-bg:#3a2c12;--bad:#ff7b7b;--bad-bg:#421f22;
--none:#97a3b6;--none-bg:#28303c;--link:#8ab0ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums}
main{max-width:1040px;margin:0 auto;padding:32px 20px 48px}
h1{font-size:26px;margin:0;letter-spacing:-.01em}h2{font-size:19px;margin:0}h3{font-size:14px;margin:22px 0 4px}
p{margin:4px 0}a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}
.sub,.soft,.note,footer,.desc{color:var(--ink-soft)}.note{font-size:13px}.desc{margin-top:6px;color:var(--ink)}
header{margin-bottom:20px}.chips{display:flex;flex-wrap:wrap;gap:8px;margin-top:12px}
.chip,.badge{border-radius:999px;padding:3px 12px;font-size:13px;white-space:nowrap}.badge{padding:2px 10px;
font-weight:600}
.met{--c:var(--good);--b:var(--good-bg)}.at_risk{--c:var(--warn);--b:var(--warn-bg)}
.breached{--c:var(--bad);--b:var(--bad-bg)}.no_data,.no_traffic{--c:var(--none);--b:var(--none-bg)}
.chip,.badge{color:var(--c);background:var(--b)}
.card{background:var(--card);border:1px solid var(--edge);border-radius:14px;padding:20px 22px;margin-bottom:18px;
overflow-x:auto}
table{border-collapse:collapse;width:100%}th{font-size:12px;font-weight:600;color:var(--ink-soft);text-align:left;
padding:4px 10px 8px 0}td{padding:8px 10px 8px 0;border-top:1px solid var(--edge);vertical-align:middle}
.num{text-align:right;white-space:nowrap}th.num{text-align:right}.wrap{overflow-wrap:anywhere}
.group{display:block;font-size:12.5px;font-weight:400;color:var(--ink-soft);overflow-wrap:anywhere}
.meter{display:inline-block;width:110px;height:8px;border-radius:4px;background:var(--none-bg);overflow:hidden;
vertical-align:middle;margin-right:8px}.meter i{display:block;height:100%;background:var(--c)}
.thin{color:var(--warn)}
.left,.over{font-size:13px;white-space:nowrap}.over{color:var(--bad)}
.title{display:flex;justify-content:space-between;gap:12px;align-items:flex-start}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:14px 18px;margin:16px 0 6px}
dt{font-size:12px;color:var(--ink-soft)}dd{margin:0;font-size:18px;font-weight:600}
.sentence{margin:10px 0 4px}figure{margin:14px 0 0}figure svg{width:100%;height:auto;display:block}
figcaption{font-size:12.5px;color:var(--ink-soft)}
.columns{display:grid;grid-template-columns:1fr 1fr;gap:8px 34px}@media(max-width:720px){.columns{
grid-template-columns:1fr}}
.bars td{padding:4px 10px 4px 0;border:0;font-size:13.5px}.track{width:34%;min-width:70px}
.track i{display:block;height:8px;border-radius:4px;min-width:0}.hot{background:var(--bad)}.cool{
background:var(--good)}
.plain td{font-size:13.5px;padding:6px 14px 6px 0}footer{font-size:12.5px;margin-top:26px}
@media print{:root{--page:#fff;--card:#fff}body{font-size:12px}main{max-width:none;padding:0}
.card{break-inside:avoid;border-color:#ccc;padding:12px 14px}
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
