"""Objectives: what is accepted, exactly; what is refused, with file, field and remedy."""

from datetime import timedelta
from decimal import Decimal

import pytest
import yaml

from assets.objective_files import load_objectives
from assets.slo.errors import DamagedInput
from assets.slo.objectives import Method, common_grid, parse_objectives
from eventing.errors import ConfigError
from tests.slo.slo_documents import objective, parse, query, slo


def problems_of(*documents) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(*documents)
    return list(caught.value.problems)


def changed(path: str, value, document=None):
    """The valid document with one field replaced, or taken out with None."""
    document = document or slo()
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    place = document
    for part in parents:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


def test_targets_are_exact_decimals():
    assert objective(target="0.999").budget == Decimal("0.001")
    assert objective(target=None, targetPercent=99.9).budget == Decimal("0.001")
    assert objective(target=None, targetPercent=99.95).target == Decimal("0.9995")


def test_a_target_keeps_every_digit_that_was_written():
    text = yaml.safe_dump(slo()).replace("target: 0.999", "target: 0.99999999999999999999")

    assert parse_objectives([("a.yaml", text)])[0].budget == Decimal("1E-20")


def test_a_target_of_100_percent_is_accepted():
    assert objective(target=None, targetPercent=100).budget == 0


def test_group_by_names_labels():
    assert objective(group_by="namespace, channel").group_by == ("namespace", "channel")


def test_a_document_may_hold_other_kinds_and_refer_to_an_sli():
    document = slo()
    sli = {
        "apiVersion": "openslo/v1",
        "kind": "SLI",
        "metadata": {"name": "shared"},
        "spec": document["spec"].pop("indicator")["spec"],
    }
    document["spec"]["indicatorRef"] = "shared"
    service = {"apiVersion": "openslo/v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {}}

    (found,) = parse(sli, service, document)

    assert str(found.indicator.total) == "requests_total"


def test_a_latency_threshold_counts_the_bucket_of_its_bound():
    document = slo(op="lte", value=0.25)
    document["spec"]["indicator"]["spec"] = {"thresholdMetric": query('latency_seconds{job="a"}')}

    (found,) = parse(document)

    assert str(found.indicator.good) == 'latency_seconds_bucket{job="a",le="0.25"}'
    assert str(found.indicator.total) == 'latency_seconds_bucket{job="a",le="+Inf"}'


def test_a_threshold_that_must_be_exceeded_makes_the_bucket_bad():
    document = slo(op="gt", value=1)
    document["spec"]["indicator"]["spec"] = {"thresholdMetric": query("latency_seconds_bucket")}

    (found,) = parse(document)

    assert found.indicator.good is None
    assert found.indicator.bad.matches("latency_seconds_bucket", {"le": "1.0"})


def test_timeslices():
    found = objective(method="Timeslices", timeSliceWindow="1m", timeSliceTarget=0.9)

    assert found.method is Method.TIMESLICES
    assert found.time_slice == timedelta(minutes=1)
    assert found.unit == timedelta(minutes=1)
    assert common_grid([found, objective()]) == timedelta(minutes=1)
    assert objective(method="RatioTimeslices", timeSliceWindow="1h").unit == timedelta(minutes=5)


@pytest.mark.parametrize(
    ("document", "field", "reason"),
    [
        pytest.param(changed("apiVersion", "openslo/v2"), "apiVersion", "openslo/v1", id="another version"),
        pytest.param(changed("kind", "SL0"), "kind", "SLO", id="an unknown kind"),
        pytest.param(changed("metadata/name", None), "metadata.name", "missing", id="no name"),
        pytest.param(changed("spec/budgetingMethod", "Events"), "spec.budgetingMethod", "Occurrences", id="method"),
        pytest.param(changed("spec/objectives", []), "spec.objectives", "exactly one", id="no objective"),
        pytest.param(
            changed("spec/objectives", [{"target": 0.9}, {"target": 0.99}]), "spec.objectives", "one SLO", id="two"
        ),
        pytest.param(slo(target=None), "spec.objectives[0].target", "missing", id="no target"),
        pytest.param(slo(targetPercent=99.9), "spec.objectives[0].target", "contradicts", id="two targets"),
        pytest.param(slo(target="99.9"), "spec.objectives[0].target", "targetPercent", id="percent as fraction"),
        pytest.param(slo(target="-0.1"), "spec.objectives[0].target", "0 to 1", id="negative"),
        pytest.param(slo(target=None, targetPercent=101), "spec.objectives[0].targetPercent", "100", id="above 100"),
        pytest.param(slo(targt=1), "spec.objectives[0].targt", "not a field", id="a misspelt field"),
        pytest.param(slo(timeSliceWindow="5m"), "spec.objectives[0].timeSliceWindow", "Timeslices", id="stray slices"),
        pytest.param(slo(method="Timeslices"), "spec.objectives[0].timeSliceWindow", "missing", id="no slices"),
        pytest.param(
            slo(method="Timeslices", timeSliceWindow="5m"),
            "spec.objectives[0].timeSliceTarget",
            "0.99",
            id="slice target",
        ),
        pytest.param(
            slo(method="Timeslices", timeSliceWindow="1M", timeSliceTarget=0.9),
            "spec.objectives[0].timeSliceWindow",
            "fixed",
            id="a slice of a month",
        ),
        pytest.param(
            slo(method="Timeslices", timeSliceWindow="5m", timeSliceTarget=0),
            "spec.objectives[0].timeSliceTarget",
            "above 0",
            id="slice target 0",
        ),
        pytest.param(slo(op="lte"), "spec.objectives[0].op", "thresholdMetric", id="op without threshold"),
        pytest.param(
            slo(total="rate(requests_total[5m])"),
            "ratioMetric.total.metricSource.spec.query",
            "selector",
            id="a function",
        ),
        pytest.param(slo(good="sum(a)"), "ratioMetric.good.metricSource.spec.query", "selector", id="a sum"),
        pytest.param(slo(bad="requests_total"), "ratioMetric.bad", "same series", id="bad is total"),
        pytest.param(
            slo(window={"duration": "30x", "isRolling": True}), "timeWindow[0].duration", "30d", id="duration"
        ),
        pytest.param(
            slo(window={"duration": "30d", "isRolling": False}),
            "timeWindow[0].calendar",
            "isRolling: true",
            id="neither",
        ),
        pytest.param(
            slo(
                window={"duration": "1M", "isRolling": True, "calendar": {"startTime": "2026-01-01", "timeZone": "UTC"}}
            ),
            "timeWindow[0].isRolling",
            "contradicts",
            id="both",
        ),
        pytest.param(
            slo(window={"duration": "1M", "calendar": {"startTime": "2026-01-01", "timeZone": "Mars/Base"}}),
            "timeWindow[0].calendar.timeZone",
            "IANA",
            id="an unknown zone",
        ),
        pytest.param(
            slo(window={"duration": "1M", "calendar": {"startTime": "2026-01-01T00:00:00Z", "timeZone": "Asia/Tokyo"}}),
            "timeWindow[0].calendar.startTime",
            "local time",
            id="a start with a zone",
        ),
        pytest.param(
            slo(window={"duration": "1M", "calendar": {"startTime": "soon", "timeZone": "UTC"}}),
            "timeWindow[0].calendar.startTime",
            "2026-01-01",
            id="no time",
        ),
        pytest.param(slo(group_by="a,,b"), "sluice.dev/group-by", "commas", id="an empty label"),
        pytest.param(slo(group_by="le"), "sluice.dev/group-by", "no label", id="by bucket"),
        pytest.param(slo(group_by="a,a"), "sluice.dev/group-by", "twice", id="a label twice"),
        pytest.param(changed("spec/indicator", None), "spec.indicator", "exactly one", id="no indicator"),
        pytest.param(
            changed("spec/indicator/spec/ratioMetric/raw", query("a")), "ratioMetric.raw", "weighted", id="a raw ratio"
        ),
        pytest.param(
            changed("spec/indicator/spec/ratioMetric/counter", False), "ratioMetric.counter", "true", id="a gauge"
        ),
        pytest.param(
            changed("spec/indicator/spec/ratioMetric/good", query("a")),
            "ratioMetric.good",
            "exactly one",
            id="good and bad",
        ),
        pytest.param(
            changed("spec/indicator/spec/ratioMetric/total", None), "ratioMetric.total", "missing", id="no total"
        ),
        pytest.param(
            changed("spec/indicator/spec/ratioMetric/total/metricSource/type", "Datadog"),
            "ratioMetric.total.metricSource.type",
            "Prometheus",
            id="another source",
        ),
    ],
)
def test_what_is_refused_names_file_field_and_remedy(document, field, reason):
    problems = problems_of(document)

    matching = [problem for problem in problems if field in problem]
    assert matching, problems
    assert matching[0].startswith("test.yaml: ")
    assert reason in matching[0]


def test_all_problems_of_all_files_are_told_at_once():
    first, second = yaml.safe_dump(slo("a", target="7")), yaml.safe_dump(slo("b", total="sum(x)"))

    with pytest.raises(ConfigError) as caught:
        parse_objectives([("one.yaml", first), ("two.yaml", second)])

    assert [problem.split(":")[0] for problem in caught.value.problems] == ["one.yaml", "two.yaml"]


def test_two_objectives_of_one_name_are_refused_with_both_files():
    text = yaml.safe_dump(slo("twice"))

    with pytest.raises(ConfigError, match=r"two.yaml: metadata.name: 'twice' is already used in one.yaml"):
        parse_objectives([("one.yaml", text), ("two.yaml", text)])


@pytest.mark.parametrize("text", ["a: [", "a: 1\na: 2", "\x00", "!!python/object:os.system x"])
def test_a_file_that_is_no_yaml_is_damaged_input(text):
    with pytest.raises(DamagedInput, match=r"broken\.yaml"):
        parse_objectives([("broken.yaml", text)])


def test_a_document_that_is_no_mapping_is_refused():
    with pytest.raises(ConfigError, match=r"a\.yaml"):
        parse_objectives([("a.yaml", "- 1")])


def test_objectives_are_read_from_all_yaml_files_below_a_folder(tmp_path):
    (tmp_path / "team").mkdir()
    (tmp_path / "b.yml").write_text(yaml.safe_dump(slo("b")))
    (tmp_path / "team" / "a.yaml").write_text(yaml.safe_dump(slo("a")))
    (tmp_path / "notes.txt").write_text("not: [yaml")

    assert [found.name for found in load_objectives(tmp_path)] == ["a", "b"]


def test_a_folder_without_objectives_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match="no SLO"):
        load_objectives(tmp_path)
