"""Pictures of a report as SVG text: how the budget went down, and when what burned it happened.

Colours are CSS variables of the page with fallbacks, so that the same picture follows light and dark there and still
has colours of its own where it stands alone (as a data URI in Dagster's metadata).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from html import escape

from assets.slo.instants import render_instant
from assets.slo.objectives import Method
from assets.slo.report import Report, Step, step_length

LINE = "var(--ink-soft, #8a93a3)"
GRID = "var(--grid, #8a93a333)"
STATE_COLOURS = {
    "met": "var(--good, #2e9e6b)",
    "at_risk": "var(--warn, #d1881f)",
    "breached": "var(--bad, #d64545)",
    "no_traffic": "var(--none, #8a93a3)",
    "no_data": "var(--none, #8a93a3)",
}
_OVERSPENT = -0.25
"""How far below zero a chart of a spent budget reaches; what is overspent beyond is said in numbers."""


def shown_state(report: Report) -> str:
    """The state as it is shown: met at risk is a look of its own."""
    return "at_risk" if report.is_at_risk else report.state.value


def remaining_over_time(report: Report) -> list[tuple[datetime, float]]:
    """The share of the budget that remained, when events began and at the end of each step with events.

    The whole is what the window's events allow, so that the line ends at what the report says.
    """
    counts, objective = report.counts, report.objective
    begin = report.timeline[0].end - step_length(report.window) if report.timeline else report.window.start
    base = counts.valid if objective.method is Method.OCCURRENCES else Fraction(counts.slices)
    allowed = float(Fraction(objective.budget) * base)
    points = [(max(begin, report.window.start), 1.0)]
    missed = 0.0
    for step in report.timeline:
        missed += step.missed
        if allowed:
            points.append((step.end, 1 - missed / allowed))
        else:
            points.append((step.end, 1.0 if missed == 0 else -math.inf))
    return points


def burn_down(report: Report, width: int = 720, height: int = 220) -> str:
    """The remaining budget over the window, with the pace that would last exactly for it."""
    left, right, top, bottom = 44, 12, 10, 26
    plot_width, plot_height = width - left - right, height - top - bottom

    points = remaining_over_time(report)
    floor = _OVERSPENT if points[-1][1] < 0 else 0.0

    def x(moment: datetime) -> float:
        return left + plot_width * ((moment - report.window.start) / report.window.length)

    def y(share: float) -> float:
        return top + plot_height * (1 - max(share, floor)) / (1 - floor)

    parts = [_shell(width, height, f"Remaining error budget of {report.objective.display_name}")]
    for share in (1.0, 0.75, 0.5, 0.25, 0.0):
        weight = 1.4 if share == 0 else 1
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y(share):.1f}" y2="{y(share):.1f}" '
            f'stroke="{LINE if share == 0 else GRID}" stroke-width="{weight}"/>'
            f'<text x="{left - 8}" y="{y(share) + 4:.1f}" text-anchor="end">{share:.0%}</text>'
        )
    parts += _time_axis(report, x, height - 8)
    parts.append(
        f'<line x1="{x(report.window.start):.1f}" y1="{y(1):.1f}" x2="{x(report.window.end):.1f}" y2="{y(0):.1f}" '
        f'stroke="{LINE}" stroke-dasharray="3 4"><title>a pace that lasts exactly for the window</title></line>'
    )
    if len(points) > 1:
        blank = x(points[0][0]) - left
        if blank > 60:
            parts.append(
                f'<rect x="{left}" y="{y(1):.1f}" width="{blank:.1f}" height="{y(0) - y(1):.1f}" fill="{GRID}" '
                f'opacity="0.55"/><text x="{left + blank / 2:.1f}" y="{y(0.5):.1f}" text-anchor="middle">'
                "nothing seen yet</text>"
            )
        colour = STATE_COLOURS[shown_state(report)]
        line = _steps([(x(moment), y(share)) for moment, share in points])
        parts.append(
            f'<path d="{line} V{y(0):.1f} H{x(points[0][0]):.1f} Z" fill="{colour}" opacity="0.14"/>'
            f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-linejoin="round"/>'
        )
        moment, share = points[-1]
        parts.append(f'<circle cx="{x(moment):.1f}" cy="{y(share):.1f}" r="3.6" fill="{colour}"/>')
    else:
        parts.append(f'<text x="{width / 2}" y="{height / 2}" text-anchor="middle">no events in this window</text>')
    return "".join([*parts, "</svg>"])


def bad_events(report: Report, width: int = 720, height: int = 110) -> str:
    """Bad events of each step as bars; steps without any events are left empty."""
    left, right, top, bottom = 44, 12, 8, 22
    plot_width, plot_height = width - left - right, height - top - bottom
    most = max((step.valid - step.good for step in report.timeline), default=0.0)

    def x(moment: datetime) -> float:
        return left + plot_width * ((moment - report.window.start) / report.window.length)

    parts = [_shell(width, height, f"Bad events of {report.objective.display_name}")]
    base = height - bottom
    parts.append(f'<line x1="{left}" x2="{width - right}" y1="{base}" y2="{base}" stroke="{LINE}"/>')
    if most:
        parts.append(f'<text x="{left - 8}" y="{top + 8}" text-anchor="end">{compact(most)}</text>')
    length = step_length(report.window)
    for step in report.timeline:
        bad = step.valid - step.good
        if not most or not bad:
            continue
        begin, end = x(max(step.end - length, report.window.start)), x(step.end)
        tall = max(1.5, plot_height * bad / most)
        parts.append(
            f'<rect x="{begin:.1f}" y="{base - tall:.1f}" width="{max(end - begin - 0.8, 0.8):.1f}" '
            f'height="{tall:.1f}" rx="1" fill="{STATE_COLOURS["breached"]}"><title>{_describe(step)}</title></rect>'
        )
    parts += _time_axis(report, x, height - 6)
    return "".join([*parts, "</svg>"])


def data_uri(svg: str) -> str:
    """An SVG as the source of an image, for places that strip inline SVG."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def worst_steps(report: Report, count: int = 5) -> list[Step]:
    """The steps that cost most of the budget, most expensive first."""
    costly = [step for step in report.timeline if step.missed > 0]
    return sorted(costly, key=lambda step: (-step.missed, step.end))[:count]


def compact(number: float) -> str:
    """A count for a narrow place."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{number:g}"


def _describe(step: Step) -> str:
    return escape(f"until {render_instant(step.end)}: {step.valid - step.good:g} bad of {step.valid:g}")


def _shell(width: int, height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{LINE}"><title>{escape(title)}</title>'
    )


def _steps(points: Sequence[tuple[float, float]]) -> str:
    """A line that holds its height until the next point, because a budget does not melt between events."""
    begin, *rest = points
    return f"M{begin[0]:.1f} {begin[1]:.1f} " + " ".join(f"L{x:.1f} {y:.1f}" for x, y in rest)


def _time_axis(report: Report, x: object, baseline: float) -> list[str]:
    assert callable(x)
    is_long = report.window.length.days >= 2
    labels = []
    for index in range(5):
        moment = report.window.start + report.window.length * index / 4
        text = moment.strftime("%d %b") if is_long else moment.strftime("%H:%M")
        anchor = ("start", "middle", "middle", "middle", "end")[index]
        labels.append(f'<text x="{x(moment):.1f}" y="{baseline:.1f}" text-anchor="{anchor}">{text}</text>')
    return labels
