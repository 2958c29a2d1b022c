"""Selectors: what is accepted means what Prometheus means by it; the rest is refused with a remedy."""

import pytest

from assets.slo.selectors import parse_selector


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("up", "up"),
        ("  up  ", "up"),
        ("up{}", "up"),
        ('up{job="a",}', 'up{job="a"}'),
        ("up{job='a'}", 'up{job="a"}'),
        ("up{job=`a\\d`}", 'up{job="a\\\\d"}'),
        ('up { job = "a" , code =~ "5.." }', 'up{job="a",code=~"5.."}'),
        ('up{a!="x",b!~"y"}', 'up{a!="x",b!~"y"}'),
        ('{__name__="up",job="a"}', 'up{job="a"}'),
        ('{"up",job="a"}', 'up{job="a"}'),
        ('{__name__=~"a|b"}', '{__name__=~"a|b"}'),
        ('up{job="say \\"hi\\"\\n"}', 'up{job="say \\"hi\\"\\n"}'),
        ('up{job="\\u00e4\\x41\\101"}', 'up{job="äAA"}'),
        ('x_bucket{le="1"}', 'x_bucket{le=~"1|1\\\\.0"}'),
        ('x_bucket{le="1.0"}', 'x_bucket{le=~"1|1\\\\.0"}'),
        ('x_bucket{le="0.25"}', 'x_bucket{le="0.25"}'),
        ('x_bucket{le="+Inf"}', 'x_bucket{le="+Inf"}'),
        ("up # the target\n", "up"),
    ],
)
def test_a_selector_has_one_canonical_form(text, canonical):
    assert str(parse_selector(text)) == canonical
    assert parse_selector(canonical) == parse_selector(canonical)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{job=""}',
        '{job=~".*"}',
        "sum(up)",
        "rate(up[5m])",
        "up[5m]",
        "up offset 5m",
        "up @ 1",
        "up + up",
        "up > 0",
        "-up",
        "1",
        "up{job}",
        "up{job=}",
        'up{job="a"',
        'up{job="a" code="b"}',
        'up{job=~"("}',
        'up{job=~"(?=x)"}',
        'up{job="\\q"}',
        'up{"up"}',
        "up and up",
        "sum by (job) (up)",
    ],
)
def test_anything_but_a_plain_selector_is_refused_with_a_remedy(text):
    with pytest.raises(ValueError, match="write one series selector"):
        parse_selector(text)


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        ('m{a="x"}', {"a": "x"}, True),
        ('m{a="x"}', {"a": "xx"}, False),
        ('m{a=~"x"}', {"a": "xx"}, False),  # anchored
        ('m{a=~"x|yy"}', {"a": "yy"}, True),  # anchored as a whole, not per branch
        ('m{a=~".*b"}', {"a": "a\nb"}, True),  # a dot matches a newline
        ('m{a=""}', {}, True),  # absent is empty
        ('m{a!="x"}', {}, True),
        ('m{a=~"x?"}', {}, True),
        ('m{a!~"x"}', {}, True),
        ('m{le="1"}', {"le": "1.0"}, True),
        ('m{le="0.5"}', {"le": "5e-1"}, True),
        ('m{le!="1"}', {"le": "1.0"}, False),
        ('m{le="+Inf"}', {"le": "inf"}, True),
    ],
)
def test_matching(selector, labels, expected):
    assert parse_selector(selector).matches("m", labels) is expected


def test_the_metrics_name_is_a_matcher_like_the_others():
    selector = parse_selector('{__name__=~"a|b",__name__!="b"}')

    assert selector.matches("a", {})
    assert not selector.matches("b", {})
    assert selector.metric is None
