"""The report: for every objective, window and group what was promised, what was kept, and what remains.

Spark sums; this module says over which ranges, and turns the few sums that come back into judgements.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from assets.slo.budgets import (
    BURN_WINDOWS,
    LONGEST_ALERT_WINDOW,
    Budget,
    Consumed,
    Counts,
    Infinite,
    State,
    budget_of,
    consumption,
    exhausted_at,
    is_at_risk,
    is_spent,
    state_of,
)
from assets.slo.corrections import Correction, excluded
from assets.slo.errors import DamagedInput
from assets.slo.increments import (
    created_metrics,
    created_times,
    identified,
    pairs,
    refuse_conflicts,
    series_name,
    slot_increments,
    with_created,
)
from assets.slo.indicators import (
    CORRECTED,
    PREVIOUS,
    WHOLE,
    AskedRange,
    contributors_in,
    events_of,
    groups_seen,
    label,
    label_names,
    matches,
    observations_in,
    ranges_frame,
    roles_of,
    slices_in,
    spent_moments,
    timelines_of,
    totals_of,
    units_in,
)
from assets.slo.instants import from_millis, to_millis
from assets.slo.objectives import SLOT, Method, Objective, common_grid
from assets.slo.samples import only_metrics
from assets.slo.selectors import Operator, Selector, parse_bound
from assets.slo.windows import Range, complement
from eventing.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Group = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributor:
    """A label set and the bad events it brought."""

    labels: Mapping[str, str]
    bad: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """The figures with agreed times left out."""

    counts: Counts
    sli: Fraction | None
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A stretch of a window: (end - length, end]. `missed` is in the method's currency: bad events, or slices."""

    end: datetime
    good: float
    valid: float
    missed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One objective in one window for one group."""

    objective: Objective
    group: Group
    window: Range
    counts: Counts
    sli: Fraction | None
    budget: Budget
    burn_rates: Mapping[str, Consumed | None]
    state: State
    is_at_risk: bool
    coverage: float | None
    """Scrapes seen ÷ expected; None where one scrape alone does not tell how many to expect."""
    resets: int
    corrected: Corrected | None
    contributors: Sequence[Contributor]
    exhausted_at: datetime | None
    previous: Counts | None = None
    """The period before, where it was asked for."""
    timeline: Sequence[Step] = ()
    """How the window went, in steps of equal length, where it was asked for; steps without events are left out."""

    @property
    def labels(self) -> dict[str, str]:
        return dict(zip(self.objective.group_by, self.group, strict=True))


@dataclass(frozen=True, slots=True)
class ReportResult:
    """All reports, sorted by objective, window and group, and what is worth a warning."""

    reports: list[Report]
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which ranges are needed: decided before any data is looked at."""

    objectives: Sequence[Objective]
    windows: Mapping[tuple[int, int], Range]
    """(objective, window) → range."""
    ranges: Sequence[AskedRange]
    corrections: Sequence[Correction]
    asked: Range
    is_detailed: bool = False
    """Whether the period before and timelines are wanted as well."""

    @property
    def starts(self) -> datetime:
        """Nothing before this moment is counted (samples before it still are the first halves of pairs)."""
        return from_millis(min(item.start_ms for item in self.ranges))

    @property
    def until_ms(self) -> int:
        """Nothing after this moment matters."""
        return max(item.end_ms for item in self.ranges)

    @property
    def ends(self) -> datetime:
        return from_millis(self.until_ms)

    def cuts_ms(self) -> list[int]:
        """The bounds that no slot may straddle."""
        bounds = {item.start_ms for item in self.ranges} | {item.end_ms for item in self.ranges}
        return sorted(bounds | {item.born_after_ms for item in self.ranges})


STEPS = 96
"""Steps of a timeline, at most: quarters of an hour for a day, about 8 hours for a month."""


def plan_ranges(
    objectives: Sequence[Objective],
    asked: Range,
    corrections: Sequence[Correction] = (),
    *,
    is_detailed: bool = False,
) -> Plan:
    """The windows of every objective, the burn windows before their ends, and what corrections leave of them."""
    windows: dict[tuple[int, int], Range] = {}
    ranges: list[AskedRange] = []
    for index, objective in enumerate(objectives):
        for number, window in enumerate(objective.window.ranges(asked)):
            windows[index, number] = window
            ranges.append(_asked(index, number, WHOLE, window, window))
            for name, length in BURN_WINDOWS.items():
                burn = Range(window.end - length, window.end)
                ranges.append(_asked(index, number, name, burn, burn))
            cut = excluded(corrections, objective.name, window)
            if cut:
                ranges += [_asked(index, number, CORRECTED, piece, window) for piece in complement(window, cut)]
            if is_detailed:
                previous = objective.window.before(window)
                ranges.append(_asked(index, number, PREVIOUS, previous, previous))
    return Plan(objectives, windows, ranges, corrections, asked, is_detailed)


def _asked(objective: int, window: int, kind: str, part: Range, whole: Range) -> AskedRange:
    return AskedRange(
        objective=objective,
        window=window,
        kind=kind,
        start_ms=to_millis(part.start),
        end_ms=to_millis(part.end),
        born_after_ms=to_millis(whole.start),
        born_until_ms=to_millis(whole.end),
    )


def metrics_of(objectives: Iterable[Objective]) -> set[str] | None:
    """The metrics that the objectives select, or None where a selector does not fix its metric's name."""
    names = {selector.metric for objective in objectives for _, selector in objective.indicator.selectors()}
    return None if None in names else {name for name in names if name is not None}


def report_over_samples(
    samples: DataFrame, objectives: Sequence[Objective], asked: Range, corrections: Sequence[Correction] = ()
) -> ReportResult:
    """The report straight from samples: every bound exact to the millisecond.

    Raises DamagedInput for conflicting samples and values that are not finite, naming the series; ConfigError for a
    threshold that is no bucket bound, naming file and field.
    """
    plan = plan_ranges(objectives, asked, corrections)
    wanted = metrics_of(objectives)
    names = None if wanted is None else wanted | {name for metric in wanted for name in created_metrics(metric)}
    read = only_metrics(samples, names).filter(F.col("ts_ms") <= plan.until_ms)
    counted, series = identified(only_metrics(read, wanted))
    series = series.persist()
    grid_ms = common_grid(objectives) // timedelta(milliseconds=1)
    slots = slot_increments(pairs(counted), grid_ms, plan.cuts_ms())
    if wanted is None:
        created = created_times(read, [row["metric"] for row in series.select("metric").distinct().collect()])
    else:
        created = created_times(read, wanted)
    increments = with_created(slots, series, created).persist()
    try:
        refuse_conflicts(increments, series)
        return report_over_increments(increments, series, plan)
    finally:
        increments.unpersist()
        series.unpersist()


def report_over_increments(increments: DataFrame, series: DataFrame, plan: Plan) -> ReportResult:
    """The report from increments by series and slot (see `increments.py`), whose slots respect the plan's cuts.

    Raises ConfigError for a threshold that is no bucket bound; in a detailed report such an objective is left out with
    a warning, so that the others are still reported.
    """
    spark = increments.sparkSession
    objectives = plan.objectives
    # Checkpoints, because plans that carry all of their history take longer to plan than to run.
    roles = roles_of(series, objectives).localCheckpoint()
    events = events_of(increments, roles).localCheckpoint()
    names = {(row["objective"], row["role"]): set(row["names"]) for row in label_names(roles, series).collect()}
    warnings, wrong = _selector_warnings(objectives, names, series)
    if wrong and not plan.is_detailed:
        raise ConfigError(list(wrong.values()), subject="objectives")
    ranges = ranges_frame(spark, plan.ranges)
    windows = ranges_frame(spark, [item for item in plan.ranges if item.kind == WHOLE])
    units = units_in(events, ranges, objectives)
    slices = slices_in(units, objectives).localCheckpoint()
    totals = _totals(slices, objectives, increments, series)
    groups = _groups(events, objectives)
    observed = {_key(row): row.asDict() for row in observations_in(events, windows).collect()}
    common = [_common_labels(index, objective, names) for index, objective in enumerate(objectives)]
    contributors = _contributors(
        contributors_in(
            increments=increments,
            roles=roles,
            series=series,
            windows=windows,
            objectives=objectives,
            common_labels=common,
        )
    )
    builder = _Builder(plan, totals, groups, observed, contributors, left_out=frozenset(wrong))
    spent = _spent(spark, slices, objectives, builder.thresholds())
    if plan.is_detailed:
        builder.timelines = _timelines(spark, slices, plan)
    reports = builder.reports(spent)
    return ReportResult(reports, [*warnings, *wrong.values(), *builder.warnings])


@dataclass(slots=True)
class _Builder:
    """Puts the collected sums together; knows no Spark."""

    plan: Plan
    totals: Mapping[tuple[int, int, str, Group], tuple[Counts, int]]
    groups: Mapping[int, Mapping[Group, int]]
    """objective → group → the slot in which it was first seen."""
    observed: Mapping[tuple[int, int, Group], Mapping[str, Any]]
    contributors: Mapping[tuple[int, int, Group], Sequence[Contributor]]
    left_out: frozenset[int] = frozenset()
    """Objectives that cannot be computed; the others must not suffer from them."""
    timelines: Mapping[tuple[int, int, Group], Sequence[Step]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def keys(self) -> list[tuple[int, int, Group]]:
        """Every element of the report.

        A group is reported from the window on in which it was first seen, and never dropped afterwards: one that fell
        silent shows as without data. An objective that selects nothing at all shows once, with empty labels.
        """
        found: list[tuple[int, int, Group]] = []
        for (index, number), window in self.plan.windows.items():
            if index in self.left_out:
                continue
            known = self.groups.get(index, {})
            end_ms = to_millis(window.end)
            names = sorted(group for group, first_ms in known.items() if first_ms <= end_ms)
            nothing: Group = ("",) * len(self.plan.objectives[index].group_by)
            found += [(index, number, group) for group in names or ([] if known else [nothing])]
        return found

    def counts(self, index: int, number: int, kind: str, group: Group) -> Counts:
        return self.totals.get((index, number, kind, group), (Counts(), 0))[0]

    def has_data(self, key: tuple[int, int, Group]) -> bool:
        return bool(self.observed.get(key, {}).get("seen"))

    def budget(self, key: tuple[int, int, Group]) -> Budget:
        index, number, group = key
        counts = self.counts(index, number, WHOLE, group)
        period = self.plan.windows[index, number].length
        return budget_of(self.plan.objectives[index], counts, period, has_data=self.has_data(key))

    def thresholds(self) -> list[tuple[int, int, list[str], float]]:
        """For spent budgets: how much could be missed before nothing was left, in the method's own currency."""
        found: list[tuple[int, int, list[str], float]] = []
        for key in self.keys():
            if not is_spent(self.budget(key)):
                continue
            index, number, group = key
            objective = self.plan.objectives[index]
            counts = self.counts(index, number, WHOLE, group)
            base = counts.valid if objective.method is Method.OCCURRENCES else Fraction(counts.slices)
            allowed = Fraction(objective.budget) * base
            if objective.method is Method.RATIO_TIMESLICES:
                # A sum of ratios carries rounding noise; the moment is the slot in which it came within the noise.
                allowed *= 1 - Fraction(1, 10**12)
            found.append((index, number, list(group), float(allowed)))
        return found

    def reports(self, spent: Mapping[tuple[int, int, Group], datetime]) -> list[Report]:
        built = [self._report(key, spent.get(key)) for key in self.keys()]
        return sorted(built, key=lambda report: (report.objective.name, report.window.start, report.group))

    def _report(self, key: tuple[int, int, Group], spent_at: datetime | None) -> Report:
        index, number, group = key
        objective, window = self.plan.objectives[index], self.plan.windows[index, number]
        counts, clamped = self.totals.get((index, number, WHOLE, group), (Counts(), 0))
        has_data = self.has_data(key)
        budget = self.budget(key)
        state = state_of(counts, budget, has_data=has_data)
        burns = {name: consumption(objective, self.counts(index, number, name, group)) for name in BURN_WINDOWS}
        longest = burns[LONGEST_ALERT_WINDOW]
        if clamped:
            where = f" for {dict(zip(objective.group_by, group, strict=True))}" if group else ""
            self.warnings.append(
                f"{objective.name}{where}: in {clamped} slots good or bad exceeded valid and was cut to it; check that "
                "the selectors count the same events"
            )
        observed = self.observed.get(key, {})
        return Report(
            objective=objective,
            group=group,
            window=window,
            counts=counts,
            sli=counts.sli(objective.method) if has_data else None,
            budget=budget,
            burn_rates=burns,
            state=state,
            is_at_risk=is_at_risk(state, budget, longest),
            coverage=self._coverage(window, observed),
            resets=int(observed.get("resets") or 0),
            corrected=self._corrected(key),
            contributors=self.contributors.get(key, ()),
            exhausted_at=exhausted_at(window, budget, longest, spent_at),
            previous=self.counts(index, number, PREVIOUS, group) if self.plan.is_detailed else None,
            timeline=self.timelines.get(key, ()),
        )

    def _coverage(self, window: Range, observed: Mapping[str, Any]) -> float | None:
        seen, spacing_ms = observed.get("seen") or 0, observed.get("spacing_ms")
        if not seen:
            return 0.0
        if not spacing_ms:
            return None
        # A period that is still running cannot have been seen beyond now: expected up to the end of what was asked.
        known_until = max(self.plan.asked.end, from_millis(observed["last_ms"]))
        elapsed = min(window.end, known_until) - window.start
        expected = elapsed / timedelta(milliseconds=float(spacing_ms))
        return min(1.0, seen / expected)

    def _corrected(self, key: tuple[int, int, Group]) -> Corrected | None:
        index, number, group = key
        objective, window = self.plan.objectives[index], self.plan.windows[index, number]
        cut = excluded(self.plan.corrections, objective.name, window)
        if not cut:
            return None
        left = sum((piece.length for piece in complement(window, cut)), timedelta())
        counts = self.counts(index, number, CORRECTED, group)
        has_data = self.has_data(key)
        return Corrected(
            counts=counts,
            sli=counts.sli(objective.method) if has_data else None,
            budget=budget_of(objective, counts, left, has_data=has_data),
        )


def _key(row: Any) -> tuple[int, int, Group]:
    return row["objective"], row["window"], tuple(row["group"])


def _totals(
    slices: DataFrame, objectives: Sequence[Objective], increments: DataFrame, series: DataFrame
) -> dict[tuple[int, int, str, Group], tuple[Counts, int]]:
    found: dict[tuple[int, int, str, Group], tuple[Counts, int]] = {}
    for row in totals_of(slices, objectives).collect():
        if not all(math.isfinite(row[name]) for name in ("good", "valid", "ratio_sum")):
            raise DamagedInput(_not_finite(increments, series))
        counts = Counts(
            good=Fraction(row["good"]),
            valid=Fraction(row["valid"]),
            slices=row["slices"],
            good_slices=row["good_slices"],
            ratio_sum=Fraction(row["ratio_sum"]),
        )
        found[row["objective"], row["window"], row["kind"], tuple(row["group"])] = (counts, row["clamped"])
    return found


def _not_finite(increments: DataFrame, series: DataFrame) -> str:
    odd = F.isnan("increase") | (F.abs(F.col("increase")) == F.lit(math.inf)) | (F.col("birth") == F.lit(math.inf))
    rows = increments.filter(odd).join(series, "series_id").orderBy("metric", "slot_ms").limit(1).collect()
    name = series_name(rows[0]["metric"], rows[0]["labels"]) if rows else "a series"
    return f"{name} has an infinite value; a counter counts, so its target exports nonsense"


def _groups(events: DataFrame, objectives: Sequence[Objective]) -> dict[int, dict[Group, int]]:
    found: dict[int, dict[Group, int]] = defaultdict(dict)
    for row in groups_seen(events).collect():
        found[row["objective"]][tuple(row["group"])] = row["first_ms"]
    for index, objective in enumerate(objectives):
        if not objective.group_by:
            found[index] = {(): 0}  # there is one group, seen or not
    return found


def _contributors(rows: DataFrame) -> dict[tuple[int, int, Group], list[Contributor]]:
    found: dict[tuple[int, int, Group], list[Contributor]] = defaultdict(list)
    for row in rows.collect():
        labels = {entry["key"]: entry["value"] for entry in row["labels"]}
        found[_key(row)].append(Contributor(labels=labels, bad=row["bad"]))
    for contributors in found.values():
        contributors.sort(key=lambda item: (-item.bad, sorted(item.labels.items())))
    return found


def _common_labels(index: int, objective: Objective, names: Mapping[tuple[int, str], set[str]]) -> list[str]:
    """Label names by which good and total can be told apart alike; all names where bad is counted itself."""
    if objective.indicator.good is None:
        common = names.get((index, "bad"), set())
    else:
        common = names.get((index, "total"), set())
        common = common & names.get((index, "good"), common)
    return sorted(common - {"le", "__name__"})


def _spent(
    spark: SparkSession,
    slices: DataFrame,
    objectives: Sequence[Objective],
    thresholds: Sequence[tuple[int, int, list[str], float]],
) -> dict[tuple[int, int, Group], datetime]:
    if not thresholds:
        return {}
    frame = spark.createDataFrame(list(thresholds), "objective int, window int, group array<string>, allowed double")
    rows = spent_moments(slices, objectives, frame).collect()
    return {_key(row): from_millis(row["spent_ms"]) for row in rows}


def step_length(window: Range) -> timedelta:
    """The length of a timeline's steps: whole slots, and not more than STEPS of them."""
    return SLOT * math.ceil(window.length / SLOT / STEPS)


def _timelines(spark: SparkSession, slices: DataFrame, plan: Plan) -> dict[tuple[int, int, Group], list[Step]]:
    rows = [
        (index, number, to_millis(window.start), step_length(window) // timedelta(milliseconds=1))
        for (index, number), window in plan.windows.items()
    ]
    steps = spark.createDataFrame(rows, "objective int, window int, start_ms bigint, step_ms bigint")
    found: dict[tuple[int, int, Group], list[Step]] = defaultdict(list)
    for row in timelines_of(slices, plan.objectives, steps).orderBy("step").collect():
        window = plan.windows[row["objective"], row["window"]]
        end = min(window.start + (row["step"] + 1) * step_length(window), window.end)
        found[_key(row)].append(Step(end=end, good=row["good"], valid=row["valid"], missed=row["missed"]))
    return found


def _selector_warnings(
    objectives: Sequence[Objective], names: Mapping[tuple[int, str], set[str]], series: DataFrame
) -> tuple[list[str], dict[int, str]]:
    """Selectors without a series; and objectives whose threshold is no bucket bound, which would read as 0 % good."""
    warnings: list[str] = []
    problems: dict[int, str] = {}
    for index, objective in enumerate(objectives):
        for role, selector in objective.indicator.selectors():
            if (index, role) in names:
                continue
            bounds = _other_bounds(selector, series)
            if bounds:
                problems[index] = (
                    f"{objective.source}: {_field(objective, role)}: {selector} names no bucket bound; "
                    f"the histogram has {', '.join(bounds)}"
                )
            else:
                warnings.append(f"{objective.name}: no series match {role} {selector}")
    return warnings, problems


def _field(objective: Objective, role: str) -> str:
    if objective.indicator.threshold is not None:
        return "spec.objectives[0].value"
    return f"spec.indicator.spec.ratioMetric.{role}.metricSource.spec.query"


def _other_bounds(selector: Selector, series: DataFrame) -> list[str]:
    """The bounds of the histogram that the selector asks for with another bound; empty where that is not the case."""
    bounded = [item for item in selector.matchers if item.bound is not None and item.operator is Operator.EQUAL]
    if not bounded:
        return []
    rest = Selector(tuple(item for item in selector.matchers if item not in bounded))
    rows = series.filter(matches(rest)).select(label("le").alias("le")).distinct().collect()
    return sorted((row["le"] for row in rows if row["le"]), key=lambda text: parse_bound(text) or math.inf)


def as_number(value: Consumed | Decimal | float | None) -> float | None:
    """A fraction as the nearest double; infinite stays infinite."""
    if value is None:
        return None
    return math.inf if isinstance(value, Infinite) else float(value)
