"""Alert rules: the arithmetic as text, and what Prometheus' own tool makes of it."""

import json
import shutil
import subprocess
from decimal import Decimal

import pytest
import yaml

from assets.slo.rules import ALERT_WINDOWS, render_rules, rule_file, scaled_factor
from eventing.errors import ConfigError
from tests.slo.slo_documents import objective, parse, slo


def alerts(**changes):
    (group,) = rule_file([objective(**changes)])["groups"]
    return [rule for rule in group["rules"] if rule.get("alert") == "SLOErrorBudgetBurn"]


@pytest.mark.parametrize(
    ("duration", "factors"),
    [
        ("30d", ["14.4", "6", "3", "1"]),
        ("28d", ["13.44", "5.6", "2.8", "0.933"]),
        ("7d", ["3.36", "1.4", "0.7", "0.233"]),
        ("1M", ["14.4", "6", "3", "1"]),
        ("1Q", ["43.2", "18", "9", "3"]),
    ],
)
def test_factors_scale_with_the_period(duration, factors):
    declared = objective(window={"duration": duration, "isRolling": True})

    assert [scaled_factor(window, declared).quantize(Decimal("0.001")) for window in ALERT_WINDOWS] == [
        Decimal(factor) for factor in factors
    ]


def test_a_page_and_a_ticket_carry_severity_name_and_nothing_to_wait_for():
    page, ticket = alerts(name="delivery")

    assert page["labels"] == {"severity": "page", "objective": "delivery"}
    assert ticket["labels"] == {"severity": "ticket", "objective": "delivery"}
    assert "for" not in page
    assert "for" not in ticket
    assert "> 0.0144 *" in page["expr"]
    assert "> 0.006 *" in page["expr"]
    assert "> 0.003 *" in ticket["expr"]
    assert "> 0.001 *" in ticket["expr"]


def test_the_ratio_is_bad_over_total_and_groups_stay_apart():
    (group,) = rule_file([objective(good="good_total", total="all_total", group_by="a,b")])["groups"]

    assert group["rules"][0]["expr"] == (
        "(sum by (a, b) (increase(all_total[5m])) - (sum by (a, b) (increase(good_total[5m])) or "
        "sum by (a, b) (increase(all_total[5m])) * 0)) / sum by (a, b) (increase(all_total[5m]))"
    )


@pytest.mark.parametrize(
    ("target", "duration", "is_refused"),
    [
        ("0.9305", "30d", True),  # 14.4 * 0.0695 = 1.0008
        ("0.931", "30d", False),
        ("0.5", "1d", False),
        ("0.97", "1Q", True),
        ("1", "30d", True),
        ("0", "30d", True),
    ],
)
def test_an_alert_that_can_never_fire_is_refused_with_the_objectives_name(target, duration, is_refused):
    declared = objective(name="hopeless", target=target, window={"duration": duration, "isRolling": True})
    if is_refused:
        with pytest.raises(ConfigError, match="hopeless"):
            rule_file([declared])
    else:
        assert rule_file([declared])["groups"]


def test_an_alert_that_fires_at_exactly_every_event_is_refused():
    declared = objective(name="edge", target="0.5", window={"duration": "100h", "isRolling": True})
    assert scaled_factor(ALERT_WINDOWS[0], declared) * declared.budget == 1

    with pytest.raises(ConfigError, match="edge"):
        rule_file([declared])


def test_labels_that_every_alert_has_cannot_group():
    with pytest.raises(ConfigError, match="severity"):
        rule_file([objective(group_by="severity")])


def test_yaml_and_json_hold_the_same():
    document = rule_file(parse(slo("a"), slo("b", group_by="pod")))

    assert yaml.safe_load(render_rules(document)) == json.loads(json.dumps(document)) == document


promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def run_promtool(folder, objectives, series, claims):
    """Evaluate the rules over synthetic series; `claims` are (time, expression, expected number of alerts)."""
    (folder / "rules.yaml").write_text(render_rules(rule_file(objectives)))
    tests = [
        {
            "expr": f"count({expression}) or vector(0)",
            "eval_time": time,
            "exp_samples": [{"labels": "{}", "value": count}],
        }
        for time, expression, count in claims
    ]
    document = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": tests,
            }
        ],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump(document))
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "test.yaml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


PAGE = 'ALERTS{severity="page",alertstate="firing"}'
TICKET = 'ALERTS{severity="ticket",alertname="SLOErrorBudgetBurn"}'
ABSENT = 'ALERTS{alertname="SLODataAbsent"}'


@promtool
@pytest.mark.parametrize(
    ("bad", "severity", "fires"),
    [(60, "page", 0), (61, "page", 1), (10, "ticket", 0), (11, "ticket", 1)],
    ids=["exactly 6 times", "one event more", "exactly once", "one event more than once"],
)
def test_a_tie_is_silent_and_one_event_more_fires(tmp_path, bad, severity, fires):
    series = {
        'requests_total{code="500"}': f"0+{bad}x120",
        'requests_total{code="200"}': f"0+{10_000 - bad}x120",
    }

    expression = {"page": PAGE, "ticket": TICKET}[severity]
    run_promtool(tmp_path, [objective()], series, [("2h", expression, fires), ("1h37m", expression, fires)])


@promtool
@pytest.mark.parametrize(("bad", "fires"), [(60, 0), (61, 1)], ids=["exactly the threshold", "one more"])
def test_ties_by_good_events_are_decided_alike(tmp_path, bad, fires):
    series = {'requests_total{code="200"}': f"0+{10_000 - bad}x120", 'requests_total{code="x"}': f"0+{bad}x120"}
    declared = objective(good='requests_total{code="200"}')

    run_promtool(tmp_path, [declared], series, [("2h", PAGE, fires)])


@promtool
def test_a_short_outage_pages_and_stops_paging_when_the_short_window_recovers(tmp_path):
    series = {
        'requests_total{code="500"}': "0x120 0+100x10 1000x120",
        'requests_total{code="200"}': "0+100x120 12000x10 12000+100x120",
    }
    claims = [("2h", PAGE, 0), ("2h5m", PAGE, 1), ("2h11m", PAGE, 1), ("2h45m", PAGE, 0)]

    run_promtool(tmp_path, [objective()], series, claims)


@promtool
def test_a_slow_burn_is_a_ticket_and_no_page(tmp_path):
    series = {'requests_total{code="500"}': "0+4x2000", 'requests_total{code="200"}': "0+996x2000"}

    run_promtool(tmp_path, [objective()], series, [("30h", PAGE, 0), ("30h", TICKET, 1)])


@promtool
def test_groups_alert_on_their_own_and_with_their_labels_alone(tmp_path):
    series = {
        'requests_total{code="500",pod="a",instance="1"}': "0+50x120",
        'requests_total{code="200",pod="a",instance="1"}': "0+50x120",
        'requests_total{code="200",pod="b",instance="2"}': "0+50x120",
    }
    exact = (
        'ALERTS{alertname="SLOErrorBudgetBurn",alertstate="firing",objective="availability",pod="a",'
        'severity="page",instance=""}'
    )

    run_promtool(tmp_path, [objective(group_by="pod")], series, [("2h", PAGE, 1), ("2h", exact, 1)])


@promtool
def test_an_outage_from_the_very_start_is_no_missing_data(tmp_path):
    declared = objective(good="good_total", total="all_total")

    run_promtool(tmp_path, [declared], {"all_total": "0+10x120"}, [("2h", PAGE, 1)])


@promtool
def test_no_traffic_is_silent_and_absent_data_is_a_ticket(tmp_path):
    declared = [
        objective(name="one"),
        objective(name="two", total="gone_total", bad='gone_total{a="b"}', group_by="pod"),
    ]
    series = {"requests_total": "5x240", 'gone_total{pod="a"}': "0+1x60"}
    claims = [("2h", PAGE, 0), ("1h5m", ABSENT, 0), ("1h20m", ABSENT, 1), ("2h30m", ABSENT, 0)]

    run_promtool(tmp_path, declared, series, claims)


@promtool
def test_an_objective_that_was_never_measured_is_a_ticket(tmp_path):
    run_promtool(tmp_path, [objective()], {"other": "1x60"}, [("30m", ABSENT, 1)])
