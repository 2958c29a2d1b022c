"""Pictures for the Dagster UI: SVG as an inline image, which needs no drawing library. Pure.

Dagster shows Markdown with `data:` images and strips everything else that could draw; so a picture is a few kilobytes
of SVG in base64. Colours are chosen to be told apart without seeing colours: led by preference is filled, led by
accident is hatched, and what a broker should lead and does not is an outline.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from orchestration.ports import JsonObject

MAX_BROKERS = 60
"""Bars in one picture; metadata is stored with every event."""
BAR, GAP, HEIGHT, LEFT, TOP, BOTTOM = 22, 10, 120, 46, 28, 44


@dataclass(frozen=True, slots=True)
class Share:
    """What one broker leads of some topics."""

    broker: int
    rack: str
    is_up: bool
    preferred: int
    """Partitions that it leads as their first replica."""
    borrowed: int
    """Partitions that it leads in place of another."""
    missing: int
    """Partitions whose first replica it is and that another leads, or nobody."""
    replicas: int


def shares(topics: Mapping[str, JsonObject], brokers: Sequence[JsonObject]) -> list[Share]:
    """Per broker, sorted by rack and id."""
    counted = {broker["id"]: [0, 0, 0, 0] for broker in brokers}
    for topic in topics.values():
        for partition in topic.get("partitions") or ():
            replicas = partition["replicas"] or ()
            first, leader = next(iter(replicas), None), partition["leader"]
            for broker in replicas:
                if broker in counted:
                    counted[broker][3] += 1
            if leader in counted:
                counted[leader][0 if leader == first else 1] += 1
            if first in counted and leader != first:
                counted[first][2] += 1
    rows = [
        Share(broker["id"], broker.get("rack") or "", not broker["fenced"], *counted[broker["id"]])
        for broker in brokers
    ]
    return sorted(rows, key=lambda share: (share.rack, share.broker))


def leaders_picture(topics: Mapping[str, JsonObject], brokers: Sequence[JsonObject]) -> str:
    """Markdown with one picture: a bar per broker, brokers of a rack side by side."""
    rows = shares(topics, brokers)[:MAX_BROKERS]
    if not rows:
        return "no brokers"
    most = max(1, *(max(row.preferred + row.borrowed + row.missing, row.replicas) for row in rows))
    width = LEFT + len(rows) * (BAR + GAP) + GAP
    parts = [
        (
            '<pattern id="h" width="5" height="5" patternUnits="userSpaceOnUse">'
            '<path d="M0 5L5 0" stroke="#b45309" stroke-width="2"/></pattern>'
        ),
        '<text x="4" y="14">partitions led by each broker (outline: should lead; line: holds a replica)</text>',
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{most}</text>',
        f'<text x="{LEFT - 6}" y="{TOP + HEIGHT}" text-anchor="end">0</text>',
    ]
    for number, row in enumerate(rows):
        x = LEFT + GAP + number * (BAR + GAP)
        floor = float(TOP + HEIGHT)
        for count, look in (
            (row.preferred, 'fill="#1d4ed8"'),
            (row.borrowed, 'fill="url(#h)" stroke="#b45309"'),
            (row.missing, 'fill="none" stroke="#1d4ed8" stroke-dasharray="3 2"'),
        ):
            if count:
                tall = HEIGHT * count / most
                floor -= tall
                parts.append(f'<rect x="{x}" y="{floor:.1f}" width="{BAR}" height="{tall:.1f}" {look}/>')
        held = TOP + HEIGHT - HEIGHT * row.replicas / most
        parts.append(f'<path d="M{x - 3} {held:.1f}h{BAR + 6}" stroke="#111" stroke-width="1.5"/>')
        middle = x + BAR / 2
        name = str(row.broker) if row.is_up else f"{row.broker} away"
        parts.append(f'<text x="{middle}" y="{TOP + HEIGHT + 14}" text-anchor="middle">{name}</text>')
        if row.rack and (number == 0 or rows[number - 1].rack != row.rack):
            parts.append(f'<text x="{x}" y="{TOP + HEIGHT + 32}" font-style="italic">{escape(row.rack)}</text>')
    width = max(width, 460)
    height = TOP + HEIGHT + BOTTOM
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>'
    )
    image = base64.b64encode(svg.encode()).decode()
    more = f"\n\n{len(brokers) - MAX_BROKERS} more brokers are not shown." if len(brokers) > MAX_BROKERS else ""
    return f"![leaders by broker](data:image/svg+xml;base64,{image}){more}"
