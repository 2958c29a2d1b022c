"""The report, with exact numbers: windows, groups, states, clamping, coverage, corrections, moments."""

from datetime import UTC, datetime, timedelta

import pytest
import yaml

from assets.slo.corrections import parse_corrections
from assets.slo.errors import DamagedInput
from assets.slo.report import report_over_samples
from assets.slo.report_documents import to_document
from assets.slo.windows import Range
from eventing.errors import ConfigError
from tests.slo.sample_tables import NAN, SampleTable, at
from tests.slo.slo_documents import parse, query, slo

pytestmark = pytest.mark.spark

HOUR = {"duration": "1h", "isRolling": True}
DAY = {"duration": "1d", "isRolling": True}


def report(spark, table, *documents, start=0.0, end=60.0, corrections=""):
    corrected = parse_corrections(corrections, "c.yaml") if corrections else []
    result = report_over_samples(table.frame(spark), parse(*documents), Range(at(start), at(end)), corrected)
    return to_document(result.reports)["reports"], result.warnings


def steady(per_minute: float, until: int = 60, start: int = 0, every: int = 1) -> dict[float, float]:
    return {minute: (minute - start) * per_minute for minute in range(start, until + 1, every)}


@pytest.fixture(scope="module")
def an_hour(spark, tmp_path_factory):
    """One hour of many objectives over the same samples, by name: one computation for many claims."""
    table = SampleTable(tmp_path_factory.mktemp("hour"))
    # 100 requests a minute, 1 of them bad: an error ratio of exactly 1 %.
    table.add("requests_total", {"code": "200", "pod": "a"}, steady(99))
    table.add("requests_total", {"code": "500", "pod": "a"}, steady(1))
    table.add("silent_total", {"pod": "a"}, dict.fromkeys(range(61), 5.0))
    table.add("gone_total", {"pod": "a"}, {-120: 1, -60: 5})
    table.add("nan_total", {"pod": "a"}, dict.fromkeys(range(61), NAN))
    # Two pods with a restart each; the second appears on the last minute.
    table.add(
        "pods_total", {"pod": "a", "ok": "yes"}, {**steady(10, 30), **{m: (m - 31) * 10.0 for m in range(31, 61)}}
    )
    table.add("pods_total", {"pod": "b", "ok": "yes"}, {60: 70})
    table.add("pods_created", {"pod": "b", "ok": "yes"}, {60: at(59.5).timestamp()})
    # Good runs ahead of total within the first slot only.
    table.add("ahead_total", {}, {0: 0, 5: 10, 10: 40})
    table.add("ahead_good_total", {}, {0: 0, 5: 20, 10: 40})
    # A gap of half an hour.
    table.add("gap_total", {}, {**steady(1, 15), **{m: float(m) for m in range(46, 61)}})
    for bound, share in (("0.1", 5), ("1", 9), ("+Inf", 10)):
        table.add("latency_bucket", {"le": bound, "pod": "a"}, steady(share))
    documents = [
        slo("exact", target="0.99", window=HOUR),
        slo("over", target="0.991", window=HOUR),
        slo("all", target="1", window=HOUR),
        slo("silent", total="silent_total", bad='silent_total{pod="b"}', window=HOUR),
        slo("gone", total="gone_total", bad='gone_total{pod="b"}', window=HOUR),
        slo("nan", total="nan_total", bad='nan_total{pod="b"}', window=HOUR),
        slo("never", total="never_total", bad='never_total{pod="b"}', window=HOUR, group_by="pod"),
        slo("pods", total="pods_total", good='pods_total{ok="yes"}', window=HOUR, group_by="pod"),
        slo("ahead", total="ahead_total", good="ahead_good_total", window=HOUR),
        slo("gap", total="gap_total", bad='gap_total{a="b"}', window=HOUR),
        slo("sliced", target="0.9", window=HOUR, method="Timeslices", timeSliceWindow="5m", timeSliceTarget=0.99),
        slo("sliced hard", target="0.9", window=HOUR, method="Timeslices", timeSliceWindow="1m", timeSliceTarget=0.999),
        slo("averaged", target="0.9", window=HOUR, method="RatioTimeslices", timeSliceWindow="7m"),
        slo("fast", target="0.8", total='latency_bucket{le="+Inf"}', good='latency_bucket{le="1.0"}', window=HOUR),
    ]
    threshold = slo("threshold", target="0.9", window=HOUR, op="lte", value=0.1)
    threshold["spec"]["indicator"]["spec"] = {"thresholdMetric": query("latency")}
    reports, warnings = report(spark, table, *documents, threshold)
    return reports, warnings


def of(an_hour, name, **group):
    (found,) = [item for item in an_hour[0] if item["objective"] == name and (not group or item["group"] == group)]
    return found


def test_every_field_of_a_report(an_hour):
    assert of(an_hour, "exact") == {
        "objective": "exact",
        "group": {},
        "window": {
            "from": "2026-11-01T00:00:00Z",
            "to": "2026-11-01T01:00:00Z",
            "kind": "rolling",
            "time_zone": "UTC",
        },
        "method": "Occurrences",
        "good": 5940,
        "valid": 6000,
        "bad": 60,
        "sli": 0.99,
        "target": 0.99,
        "budget": {"events": 60, "minutes": 0.6, "consumed_ratio": 1, "remaining_ratio": 0},
        "burn_rates": {"5m": 1, "30m": 1, "1h": 1, "2h": 1, "6h": 1, "1d": 1, "3d": 1},
        "state": "met",
        "at_risk": True,
        "coverage": 1.0,
        "resets": 0,
        "corrected": None,
        "contributors": [{"labels": {"code": "500", "pod": "a"}, "bad": 60}],
        "exhausted_at": "2026-11-01T01:00:00Z",
    }


def test_a_breach_says_when_the_budget_was_spent(an_hour):
    found = of(an_hour, "over")

    assert found["state"] == "breached"
    assert found["exhausted_at"] == "2026-11-01T00:55:00Z"  # 54 allowed: 55 bad at the end of the 11th slot
    assert found["burn_rates"]["5m"] == pytest.approx(0.01 / 0.009)


def test_a_target_of_100_percent_has_no_budget(an_hour):
    found = of(an_hour, "all")

    assert found["budget"] == {"events": 0, "minutes": 0, "consumed_ratio": "+Inf", "remaining_ratio": "-Inf"}
    assert (found["state"], found["burn_rates"]["1h"]) == ("breached", "+Inf")
    assert found["exhausted_at"] == "2026-11-01T00:05:00Z"


def test_no_traffic_is_no_figure_and_no_consumption(an_hour):
    found = of(an_hour, "silent")

    assert (found["state"], found["sli"], found["valid"]) == ("no_traffic", None, 0)
    assert (found["budget"]["consumed_ratio"], found["budget"]["remaining_ratio"]) == (0, 1)
    assert set(found["burn_rates"].values()) == {None}
    assert found["coverage"] == 1.0
    assert found["exhausted_at"] is None


@pytest.mark.parametrize("name", ["gone", "nan", "never"])
def test_no_data_is_unknown(an_hour, name):
    found = of(an_hour, name)

    assert (found["state"], found["sli"], found["coverage"]) == ("no_data", None, 0.0)
    assert (found["budget"]["consumed_ratio"], found["budget"]["remaining_ratio"]) == (None, None)
    assert found["exhausted_at"] is None


def test_an_objective_without_any_series_is_reported_once_with_its_labels_empty(an_hour):
    assert of(an_hour, "never")["group"] == {"pod": ""}
    assert "never: no series match total never_total" in an_hour[1]


def test_groups_restarts_and_a_series_that_appears_on_the_last_minute(an_hour):
    first, last = of(an_hour, "pods", pod="a"), of(an_hour, "pods", pod="b")

    assert (first["valid"], first["good"], first["resets"]) == (590, 590, 1)
    assert (last["valid"], last["sli"], last["state"]) == (70, 1, "met")
    assert last["coverage"] is None  # one scrape does not say how many to expect


def test_good_above_valid_is_clamped_slot_by_slot_with_a_warning(an_hour):
    found = of(an_hour, "ahead")

    assert (found["good"], found["valid"], found["bad"]) == (30, 40, 10)
    assert any(warning.startswith("ahead: in 1 slots") for warning in an_hour[1])


def test_coverage_is_scrapes_seen_of_those_expected(an_hour):
    assert of(an_hour, "gap")["coverage"] == 30 / 60


def test_timeslices_count_slices(an_hour):
    good, hard = of(an_hour, "sliced"), of(an_hour, "sliced hard")

    assert (good["sli"], good["state"]) == (1, "met")
    assert (hard["sli"], hard["state"], hard["budget"]["consumed_ratio"]) == (0, "breached", 10)
    assert (good["good"], good["valid"], good["bad"]) == (5940, 6000, 60)
    assert hard["exhausted_at"] == "2026-11-01T00:06:00Z"  # 10 % of 60 slices of a minute


def test_ratio_timeslices_average(an_hour):
    assert of(an_hour, "averaged")["sli"] == pytest.approx(0.99)


def test_latency_by_bucket_bounds_as_numbers(an_hour):
    assert (of(an_hour, "fast")["sli"], of(an_hour, "fast")["state"]) == (0.9, "met")
    assert (of(an_hour, "threshold")["sli"], of(an_hour, "threshold")["state"]) == (0.5, "breached")
    assert of(an_hour, "fast")["contributors"] == [{"labels": {"pod": "a"}, "bad": 60}]


def test_a_threshold_that_is_no_bucket_bound_is_refused(spark, table):
    table.add("latency_bucket", {"le": "0.1"}, steady(1, 5)).add("latency_bucket", {"le": "+Inf"}, steady(1, 5))
    document = slo(total='latency_bucket{le="+Inf"}', good='latency_bucket{le="0.3"}')

    with pytest.raises(ConfigError, match=r"test.yaml: .*good.*query: .*no bucket bound.* 0.1, \+Inf"):
        report(spark, table, document)


def test_infinite_values_are_refused_with_the_series(spark, table):
    table.add("requests_total", {"pod": "x"}, {0: 1, 5: float("inf")})

    with pytest.raises(DamagedInput, match=r'requests_total\{pod="x"\} has an infinite value'):
        report(spark, table, slo(window=HOUR))


@pytest.fixture(scope="module")
def months(spark, tmp_path_factory):
    """One bad event an hour for 14 months, of 100; local months in Berlin."""
    table = SampleTable(tmp_path_factory.mktemp("months"))
    first = datetime(2027, 12, 1, tzinfo=UTC)
    hours = [first + timedelta(hours=hour) for hour in range(24 * 430)]
    table.add_at("requests_total", {"code": "200"}, {moment: 99.0 * index for index, moment in enumerate(hours)})
    table.add_at("requests_total", {"code": "500"}, {moment: 1.0 * index for index, moment in enumerate(hours)})
    quiet = [moment for moment in hours if moment.month != 6]
    table.add_at("quiet_total", {}, {moment: 1.0 * index for index, moment in enumerate(quiet)})
    calendar = {"duration": "1M", "calendar": {"startTime": "2020-01-01 00:00:00", "timeZone": "Europe/Berlin"}}
    documents = [
        slo("monthly", target="0.99", window=calendar),
        slo("quiet", total="quiet_total", bad='quiet_total{a="b"}', window=calendar),
    ]
    objectives = parse(*documents)
    asked = Range(datetime(2028, 1, 15, tzinfo=UTC), datetime(2028, 12, 15, tzinfo=UTC))
    reports = to_document(report_over_samples(table.frame(spark), objectives, asked).reports)["reports"]
    return {(item["objective"], item["window"]["from"]): item for item in reports}


@pytest.mark.parametrize(
    ("month", "hours"),
    [
        ("2028-01-31T23:00:00Z", 29 * 24),  # a leap February
        ("2028-02-29T23:00:00Z", 743),  # clocks forward
        ("2028-03-31T22:00:00Z", 720),
        ("2028-09-30T22:00:00Z", 745),  # clocks back
        ("2028-11-30T23:00:00Z", 744),  # whole, though the range ends in its middle
    ],
)
def test_months_count_every_event_of_their_local_hours(months, month, hours):
    found = months["monthly", month]

    assert (found["valid"], found["bad"], found["coverage"]) == (hours * 100, hours, 1.0)
    assert found["budget"]["minutes"] == pytest.approx(hours * 60 * 0.01)
    assert found["window"]["time_zone"] == "Europe/Berlin"


def test_twelve_months_overlap_the_range(months):
    assert len([key for key in months if key[0] == "monthly"]) == 12


def test_a_month_without_samples_is_without_data_and_what_happened_in_it_belongs_to_the_next(months):
    june, july = months["quiet", "2028-05-31T22:00:00Z"], months["quiet", "2028-06-30T22:00:00Z"]

    assert june["valid"] == 1  # the hour between local and UTC midnight
    assert june["coverage"] == pytest.approx(1 / 720)
    assert july["state"] == "met"


def test_corrections_leave_out_their_union_and_never_change_the_first_figure(spark, table):
    table.add("requests_total", {"code": "200"}, steady(90))
    table.add("requests_total", {"code": "500"}, {0: 0, 10: 0, 11: 20, 12: 40, 30: 40, 60: 50})
    agreed = {"reason": "upgrade", "author": "ann"}
    text = yaml.safe_dump(
        {
            "corrections": [
                {"from": "2026-11-01T00:10:00Z", "to": "2026-11-01T00:11:00Z", **agreed},
                {"from": "2026-11-01T00:10:30Z", "to": "2026-11-01T00:12:00Z", **agreed},
                {
                    "from": "2026-11-01T00:20:00Z",
                    "to": "2026-11-01T00:30:00Z",
                    "reason": "r",
                    "author": "a",
                    "objectives": ["b"],
                },
                {
                    "from": "2026-10-01T00:00:00Z",
                    "to": "2026-10-02T00:00:00Z",
                    "reason": "r",
                    "author": "a",
                    "objectives": ["c"],
                },
            ]
        }
    )
    documents = [slo(name, target="0.99", window=HOUR) for name in ("a", "b")]
    reports, _ = report(spark, table, *documents, corrections=text)
    first, second = reports

    assert (first["bad"], first["valid"], first["state"]) == (50, 5450, "met")
    assert first["corrected"] == {
        "good": 58 * 90,
        "valid": 58 * 90 + 10,
        "bad": 10,
        "sli": pytest.approx(5220 / 5230),
        "budget": {
            "events": pytest.approx(52.3),
            "minutes": pytest.approx(0.58),
            "consumed_ratio": pytest.approx(10 / 52.3),
            "remaining_ratio": pytest.approx(1 - 10 / 52.3),
        },
    }
    assert second["corrected"]["valid"] == 48 * 90 + 10


def test_bounds_between_slots_are_exact(spark, table):
    table.add("requests_total", {"code": "200"}, {minute / 4: minute for minute in range(481)})
    document = slo(window=HOUR, method="Timeslices", timeSliceWindow="1h", timeSliceTarget=0.5)

    reports, _ = report(spark, table, document, start=0, end=67.3)

    # Samples every 15 s; (7.3, 67.3] holds those from 7.5 to 67.25 minutes.
    assert reports[0]["valid"] == 240
    assert reports[0]["window"]["from"] == "2026-11-01T00:07:18Z"


def test_a_group_is_reported_from_when_it_is_first_seen_and_never_dropped_again(spark, table):
    table.add("requests_total", {"pod": "old"}, {10: 1, 20: 2})
    table.add("requests_total", {"pod": "new"}, {70: 1, 80: 2})
    hourly = {"duration": "1h", "calendar": {"startTime": "2026-01-01 00:00:00", "timeZone": "UTC"}}

    reports, _ = report(spark, table, slo(window=hourly, group_by="pod"), start=0, end=120)

    assert [(item["group"]["pod"], item["window"]["from"][11:13], item["state"]) for item in reports] == [
        ("old", "00", "met"),
        ("new", "01", "met"),
        ("old", "01", "no_data"),
    ]
