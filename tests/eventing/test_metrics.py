"""The catalogue: what dashboards, objectives and the page in docs/ rely on."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from eventing import metrics

ROOT = Path(__file__).parents[2]


def test_every_name_is_declared_once():
    names = [metric.name for metric in metrics.ALL]

    assert len(names) == len(set(names))


OURS = [metric for metric in metrics.ALL if metric.name.startswith("sluice_")]


@pytest.mark.parametrize("metric", OURS, ids=lambda metric: metric.name)
def test_our_own_names_follow_the_conventions_of_prometheus(metric):
    """Inherited names are kept as dashboards know them; ours end in what they count."""
    assert metric.name.endswith("_total") == (metric.kind is metrics.Kind.COUNTER)
    assert metric.help
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert bool(metric.buckets) == (metric.kind is metrics.Kind.HISTOGRAM)


def test_the_page_of_metrics_is_the_catalogue():
    page = runpy.run_path(str(ROOT / "docs" / "render_metrics.py"))

    assert (ROOT / "docs" / "metrics.md").read_text() == page["render"](), "run: python docs/render_metrics.py"
