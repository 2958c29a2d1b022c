"""Writes docs/metrics.md from the catalogue: `python docs/render_metrics.py`. A test holds the page to it."""

from __future__ import annotations

from pathlib import Path

from eventing import metrics

PAGE = Path(__file__).with_name("metrics.md")
SECTIONS = (
    ("Dispatcher", ("eventing_kafka_", "sluice_dispatcher_")),
    ("Receiver", ("sluice_receiver_",)),
    ("Canary: the names of strimzi-canary, so that its dashboards and alerts work", ("strimzi_canary_",)),
    ("Canary: our own", ("sluice_canary_",)),
)
HEAD = """# Metrics

Every series that an image exports at `/metrics`, from the catalogue in `eventing/metrics.py` (this page is written by
`python docs/render_metrics.py`). Label sets that are known in advance exist from the start with 0. Cardinality is
bounded by what is declared: subscriptions, channels, brokers and partitions; nothing of an event becomes a label.
"""


def render() -> str:
    """The page."""
    lines = [HEAD]
    left = list(metrics.ALL)
    for title, prefixes in SECTIONS:
        lines += [f"\n## {title}\n", "| name | type | labels | meaning |", "|---|---|---|---|"]
        for metric in [m for m in left if m.name.startswith(prefixes)]:
            left.remove(metric)
            unit = f" ({metric.unit})" if metric.unit else ""
            labels = ", ".join(metric.labels) or "none"
            lines.append(f"| `{metric.name}` | {metric.kind}{unit} | {labels} | {metric.help} |")
    assert not left, f"metrics without a section: {[m.name for m in left]}"
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
