"""Objectives: OpenSLO v1 documents, checked once and for all.

One SLO has one objective over one or more groups of series. What a report and an alert cannot both compute from plain
selectors is refused here, with file, field and remedy, rather than computed differently in the two.

Specification: https://github.com/OpenSLO/OpenSLO/tree/v1.0.0
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from assets.slo.durations import Duration, parse_duration
from assets.slo.fields import Fields, Problems, describe
from assets.slo.selectors import LABEL_NAME, Selector, parse_selector
from assets.slo.windows import CalendarWindow, RollingWindow, Window
from assets.slo.yaml_documents import load_documents

API_VERSION = "openslo/v1"
GROUP_BY = "sluice.dev/group-by"
SLOT = timedelta(minutes=5)
"""The grain in which increments are kept and good is held against valid."""

_OTHER_KINDS = ("AlertCondition", "AlertNotificationTarget", "AlertPolicy", "DataSource", "Service")


class Method(enum.StrEnum):
    """OpenSLO's `budgetingMethod`: what the budget is counted in."""

    OCCURRENCES = "Occurrences"
    TIMESLICES = "Timeslices"
    RATIO_TIMESLICES = "RatioTimeslices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Indicator:
    """Good (or bad) events out of all of them; exactly one of `good` and `bad` is given."""

    total: Selector
    good: Selector | None = None
    bad: Selector | None = None
    threshold: Decimal | None = None
    """The bucket bound of a latency indicator, in the unit of its metric; None for ratio indicators."""

    def selectors(self) -> list[tuple[str, Selector]]:
        roles = (("good", self.good), ("bad", self.bad), ("total", self.total))
        return [(role, selector) for role, selector in roles if selector is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One promise, as declared."""

    name: str
    source: str
    """The file it came from, for messages."""
    indicator: Indicator
    method: Method
    window: Window
    target: Decimal
    """Fraction of good in valid, 0 to 1."""
    group_by: tuple[str, ...] = ()
    time_slice: timedelta | None = None
    time_slice_target: Decimal | None = None
    display_name: str = ""
    description: str = ""
    service: str = ""
    annotations: dict[str, str] = field(default_factory=dict)

    @property
    def budget(self) -> Decimal:
        """The fraction that may be bad; exact, so that 99.9 % leaves 0.001."""
        return 1 - self.target

    @property
    def unit(self) -> timedelta:
        """The grain in which good is held against valid: a slot, or finer where a timeslice cuts slots."""
        if self.time_slice is None or self.time_slice % SLOT == timedelta(0):
            return SLOT
        return _common_measure(SLOT, self.time_slice)


def common_grid(objectives: Iterable[Objective]) -> timedelta:
    """The coarsest grain from which all these objectives can be computed."""
    grid = SLOT
    for objective in objectives:
        grid = _common_measure(grid, objective.unit)
    return grid


def _common_measure(first: timedelta, second: timedelta) -> timedelta:
    while second:
        first, second = second, first % second
    return first


def parse_objectives(files: Iterable[tuple[str, str]]) -> list[Objective]:
    """Read objectives from (file name, text) pairs; SLIs of one file may be referred to from another.

    Returns them sorted by name. Raises ConfigError with every problem of every file, DamagedInput for a file that is
    no YAML.
    """
    problems = Problems("objectives")
    slos: list[Fields] = []
    indicators: dict[str, Fields] = {}
    for source, text in files:
        documents = load_documents(text, source)
        for index, document in enumerate(documents):
            where = Fields(
                document, source=source, path="" if len(documents) == 1 else f"document {index + 1}", problems=problems
            )
            _sort_document(where, slos, indicators)
    found: dict[str, Objective] = {}
    for slo in slos:
        objective = _parse_slo(slo, indicators)
        if objective is None:
            continue
        if objective.name in found:
            slo.problem("metadata.name", f"{objective.name!r} is already used in {found[objective.name].source}")
        found.setdefault(objective.name, objective)
    problems.raise_any()
    return [found[name] for name in sorted(found)]


def _sort_document(document: Fields, slos: list[Fields], indicators: dict[str, Fields]) -> None:
    version, kind = document.raw("apiVersion"), document.raw("kind")
    if version != API_VERSION:
        document.problem("apiVersion", f"must be {API_VERSION}, not {describe(version)}")
        return
    if kind == "SLO":
        slos.append(document)
    elif kind == "SLI":
        metadata = document.fields("metadata")
        name = metadata.required_text("name", "an SLI is referred to by it") if metadata else ""
        if name in indicators:
            document.problem("metadata.name", f"the SLI {name!r} is already declared in {indicators[name].source}")
        indicators[name] = document
    elif kind not in _OTHER_KINDS:
        document.problem("kind", f"{describe(kind)} is not a kind of {API_VERSION}; objectives are of kind SLO")


def _parse_slo(document: Fields, indicators: dict[str, Fields]) -> Objective | None:
    before = len(document.problems)
    document.known(("apiVersion", "kind", "metadata", "spec"))
    metadata = document.fields("metadata")
    spec = document.fields("spec")
    if metadata is None or spec is None:
        document.problem("metadata" if metadata is None else "spec", "is missing")
        return None
    name = metadata.required_text("name", "reports and alerts carry it")
    spec.known(
        (
            "description",
            "service",
            "indicator",
            "indicatorRef",
            "timeWindow",
            "budgetingMethod",
            "objectives",
            "alertPolicies",
        )
    )
    entry = _only(spec, "objectives", "write one SLO for each objective")
    window = _parse_window(spec)
    method = _parse_method(spec)
    if entry is None:
        return None
    entry.known(
        (
            "displayName",
            "op",
            "value",
            "target",
            "targetPercent",
            "timeSliceTarget",
            "timeSliceWindow",
            "indicator",
            "indicatorRef",
            "compositeWeight",
        )
    )
    target = _parse_target(entry)
    time_slice, time_slice_target = _parse_slices(entry, method)
    indicator = _parse_indicator(spec, entry, indicators)
    group_by = _parse_group_by(metadata)
    if len(document.problems) > before:
        return None
    assert window is not None
    assert method is not None
    assert target is not None
    assert indicator is not None
    return Objective(
        name=name,
        source=document.source,
        indicator=indicator,
        method=method,
        window=window,
        target=target,
        group_by=group_by,
        time_slice=time_slice,
        time_slice_target=time_slice_target,
        display_name=metadata.text("displayName") or entry.text("displayName") or name,
        description=(spec.text("description") or "").strip(),
        service=spec.text("service") or "",
        annotations={str(key): str(value) for key, value in (metadata.raw("annotations") or {}).items()},
    )


def _only(spec: Fields, key: str, remedy: str) -> Fields | None:
    """The single entry of a list."""
    items = spec.items(key)
    if len(items) != 1:
        spec.problem(key, f"must have exactly one entry, not {len(items)}; {remedy}")
        return None
    return Fields(items[0], source=spec.source, path=spec.at(f"{key}[0]"), problems=spec.problems)


def _parse_group_by(metadata: Fields) -> tuple[str, ...]:
    annotations = metadata.fields("annotations")
    text = annotations.text(GROUP_BY) if annotations else None
    if annotations is None or text is None:
        return ()
    labels = [label.strip() for label in text.split(",")]
    for label in labels:
        if not LABEL_NAME.fullmatch(label) or label in ("__name__", "le"):
            annotations.problem(GROUP_BY, f"{label!r} is no label to group by; write label names separated by commas")
    if len(set(labels)) < len(labels):
        annotations.problem(GROUP_BY, "a label is named twice")
    return tuple(labels)


def _parse_method(spec: Fields) -> Method | None:
    value = spec.raw("budgetingMethod")
    try:
        return Method(value)
    except ValueError:
        spec.problem("budgetingMethod", f"must be one of {', '.join(Method)}, not {describe(value)}")
        return None


def _parse_target(entry: Fields) -> Decimal | None:
    fraction, percent = entry.number("target"), entry.number("targetPercent")
    if entry.has("target") and entry.has("targetPercent"):
        entry.problem("target", "contradicts targetPercent; keep one of them")
        return None
    if not entry.has("target") and not entry.has("targetPercent"):
        entry.problem("target", "is missing; write a fraction such as 0.999, or targetPercent: 99.9")
        return None
    if fraction is not None and not 0 <= fraction <= 1:
        entry.problem("target", f"must be from 0 to 1, not {fraction}; for percent write targetPercent")
        return None
    if percent is not None and not 0 <= percent <= 100:
        entry.problem("targetPercent", f"must be from 0 to 100, not {percent}")
        return None
    return fraction if percent is None else percent / 100


def _parse_slices(entry: Fields, method: Method | None) -> tuple[timedelta | None, Decimal | None]:
    if method in (None, Method.OCCURRENCES):
        for key in ("timeSliceWindow", "timeSliceTarget"):
            if method is not None and entry.has(key):
                entry.problem(key, "belongs to the budgeting methods Timeslices and RatioTimeslices")
        return None, None
    length: timedelta | None = None
    text = entry.required_text("timeSliceWindow", f"{method} needs it, for example 5m")
    if text:
        try:
            length = parse_duration(text).fixed
        except ValueError as exc:
            entry.problem("timeSliceWindow", str(exc))
        else:
            if length is None:
                entry.problem("timeSliceWindow", f"{text} has no fixed length; use m, h, d or w")
    target = entry.number("timeSliceTarget")
    if method is Method.TIMESLICES and not entry.has("timeSliceTarget"):
        entry.problem("timeSliceTarget", "is missing; it says how good a slice must be, for example 0.99")
    if method is Method.RATIO_TIMESLICES and entry.has("timeSliceTarget"):
        entry.problem("timeSliceTarget", "has no meaning with RatioTimeslices, which averages the slices' ratios")
    if target is not None and not 0 < target <= 1:
        entry.problem("timeSliceTarget", f"must be above 0 and at most 1, not {target}")
    return length, target


def _parse_window(spec: Fields) -> Window | None:
    entry = _only(spec, "timeWindow", "a report has one window")
    if entry is None:
        return None
    entry.known(("duration", "isRolling", "calendar"))
    duration: Duration | None = None
    text = entry.required_text("duration", "for example 30d, or 1M with a calendar")
    if text:
        try:
            duration = parse_duration(text)
        except ValueError as exc:
            entry.problem("duration", str(exc))
    calendar = entry.fields("calendar")
    is_rolling = entry.boolean("isRolling")
    if is_rolling and calendar is not None:
        entry.problem("isRolling", "true contradicts calendar; keep one of them")
        return None
    if is_rolling is False and calendar is None:
        entry.problem("calendar", "is missing, and isRolling is false; give startTime and timeZone, or isRolling: true")
        return None
    if calendar is None:
        return RollingWindow(duration) if duration is not None else None
    anchor, zone = _parse_calendar(calendar)
    if duration is None or anchor is None or zone is None:
        return None
    return CalendarWindow(duration, anchor, zone)


def _parse_calendar(calendar: Fields) -> tuple[datetime | None, str | None]:
    calendar.known(("startTime", "timeZone"))
    anchor: datetime | None = None
    text = calendar.required_text("startTime", "it sets the phase, for example 2026-01-01 00:00:00")
    if text:
        try:
            anchor = datetime.fromisoformat(text.strip())
        except ValueError:
            calendar.problem("startTime", f"{text!r} is no date and time such as 2026-01-01 00:00:00")
    zone: str | None = calendar.required_text("timeZone", "an IANA name such as Europe/Berlin, or UTC")
    if zone:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            calendar.problem("timeZone", f"{zone!r} is no time zone; use an IANA name such as Europe/Berlin")
            zone = None
    if anchor is not None and anchor.tzinfo is not None and zone:
        if anchor.utcoffset() != anchor.replace(tzinfo=ZoneInfo(zone)).utcoffset():
            calendar.problem("startTime", f"{text!r} contradicts timeZone {zone}; write local time without a zone")
            return None, None
        anchor = anchor.replace(tzinfo=None)
    return anchor, zone or None


def _parse_indicator(spec: Fields, entry: Fields, indicators: dict[str, Fields]) -> Indicator | None:
    given = [(fields, key) for fields in (spec, entry) for key in ("indicator", "indicatorRef") if fields.has(key)]
    if len(given) != 1:
        spec.problem("indicator", f"exactly one indicator or indicatorRef is needed, not {len(given)}")
        return None
    fields, key = given[0]
    if key == "indicator":
        holder = fields.fields(key)
    else:
        name = fields.text(key)
        if name is None:
            return None
        holder = indicators.get(name)
        if holder is None:
            fields.problem(key, f"there is no SLI {name!r} in these files")
            return None
    sli = holder.fields("spec") if holder else None
    if holder is None or sli is None:
        (holder or spec).problem("spec", "is missing")
        return None
    sli.known(("description", "thresholdMetric", "ratioMetric"))
    ratio, threshold = sli.fields("ratioMetric"), sli.fields("thresholdMetric")
    if (ratio is None) == (threshold is None):
        sli.problem("ratioMetric", "exactly one of ratioMetric and thresholdMetric is needed")
        return None
    if ratio is not None:
        for key in ("op", "value"):
            if entry.has(key):
                entry.problem(key, "belongs to a thresholdMetric; a ratioMetric has no threshold")
        return _parse_ratio(ratio)
    assert threshold is not None
    return _parse_threshold(threshold, entry)


def _parse_ratio(ratio: Fields) -> Indicator | None:
    ratio.known(("counter", "good", "bad", "total", "raw", "rawType"))
    if ratio.has("raw"):
        ratio.problem("raw", "a finished ratio cannot be weighted by events; give good or bad, and total")
        return None
    if ratio.boolean("counter") is False:
        ratio.problem("counter", "must be true: increments are taken of counters that only grow")
    if ratio.has("good") == ratio.has("bad"):
        ratio.problem("good", "exactly one of good and bad is needed")
        return None
    if not ratio.has("total"):
        ratio.problem("total", "is missing; it counts all valid events")
        return None
    part = "good" if ratio.has("good") else "bad"
    selected, total = _parse_query(ratio.fields(part)), _parse_query(ratio.fields("total"))
    if selected is None or total is None:
        return None
    if str(selected) == str(total):
        ratio.problem(part, "selects the same series as total; every event would be the same")
        return None
    return Indicator(total=total, good=selected if part == "good" else None, bad=selected if part == "bad" else None)


def _parse_query(metric: Fields | None) -> Selector | None:
    """The selector of one metric; its `metricSource` names no server, because samples come from one place."""
    source = metric.fields("metricSource") if metric else None
    if metric is None or source is None:
        if metric is not None:
            metric.problem("metricSource", "is missing; it holds type Prometheus and spec.query")
        return None
    metric.known(("metricSource",))
    source.known(("metricSourceRef", "type", "spec"))
    kind = source.text("type")
    if kind is not None and kind.lower() != "prometheus":
        source.problem("type", f"must be Prometheus, not {kind!r}")
        return None
    query = source.fields("spec")
    if query is None:
        source.problem("spec", "is missing; it holds the query")
        return None
    text = query.required_text("query", 'write one series selector such as metric{label="value"}')
    if not text:
        return None
    try:
        return parse_selector(text)
    except ValueError as exc:
        query.problem("query", str(exc))
        return None


def _parse_threshold(threshold: Fields, entry: Fields) -> Indicator | None:
    """A latency indicator: events at most `value`, counted by the histogram's bucket of exactly that bound."""
    op, value = entry.raw("op"), entry.number("value")
    if op not in ("lte", "gt"):
        entry.problem("op", f"must be lte (good is at most value) or gt, because buckets count <=; not {describe(op)}")
        return None
    if value is None:
        entry.problem("value", "is missing; it must be a bucket bound of the histogram, in its unit")
        return None
    selector = _parse_query(threshold)
    if selector is None:
        return None
    name = selector.metric
    if name is None or any(matcher.label == "le" for matcher in selector.matchers):
        threshold.problem(
            "metricSource.spec.query", "must name one histogram, without le; the bound is the objective's value"
        )
        return None
    buckets = selector if name.endswith("_bucket") else selector.renamed(f"{name}_bucket")
    within, all_events = buckets.with_label("le", format(value, "f")), buckets.with_label("le", "+Inf")
    if op == "lte":
        return Indicator(total=all_events, good=within, threshold=value)
    return Indicator(total=all_events, bad=within, threshold=value)
