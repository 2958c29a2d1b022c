"""Plain series selectors of PromQL: what an objective may ask for.

`metric{label="value", other=~"regex"}`: the four matchers, anchored regular expressions, an absent label is empty.
Functions, ranges, offsets and arithmetic are refused, because the report computes increments itself; the same
objective would otherwise mean two things in a report and in an alert.

Grammar: https://prometheus.io/docs/prometheus/latest/querying/basics/#instant-vector-selectors
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
REMEDY = 'write one series selector such as metric{label="value"}; the report itself computes increases and sums'

_SPACE = re.compile(r"(?:\s|#[^\n]*)*")
_OPERATOR = re.compile(r"=~|!~|!=|=")
_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"' + r"|'((?:[^'\\\n]|\\.)*)'" + r"|`([^`]*)`")
_ESCAPE = re.compile(r"\\(?:([abfnrtv\\\"'])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))")
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
# RE2, which Prometheus uses, has neither look-around nor back-references; a rule with one would not load.
_NOT_RE2 = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")


class Operator(enum.StrEnum):
    """How a matcher compares."""

    EQUAL = "="
    NOT_EQUAL = "!="
    MATCHES = "=~"
    NOT_MATCHES = "!~"


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; `__name__` is the metric's name."""

    label: str
    operator: Operator
    value: str

    @property
    def bound(self) -> float | None:
        """The number of a bucket bound: `le` compares as a number, because Prometheus 3 rewrites "1" to "1.0"."""
        if self.label != "le" or self.operator not in (Operator.EQUAL, Operator.NOT_EQUAL):
            return None
        return parse_bound(self.value)

    def matches(self, value: str) -> bool:
        """Whether a label value (empty when the label is absent) satisfies the condition."""
        bound = self.bound
        equal = value == self.value if bound is None else parse_bound(value) == bound
        match self.operator:
            case Operator.EQUAL:
                return equal
            case Operator.NOT_EQUAL:
                return not equal
            case Operator.MATCHES:
                return re.fullmatch(f"(?s:{self.value})", value) is not None
            case Operator.NOT_MATCHES:
                return re.fullmatch(f"(?s:{self.value})", value) is None
            case _:
                assert_never(self.operator)

    def __str__(self) -> str:
        bound = self.bound
        if bound is not None and bound.is_integer():
            # Both spellings: up to Prometheus 2 the bucket is le="1", from 3 on it is le="1.0".
            regex = "=~" if self.operator is Operator.EQUAL else "!~"
            return self.label + regex + _quote(rf"{int(bound)}|{int(bound)}\.0")
        return f"{self.label}{self.operator}{_quote(self.value)}"


@dataclass(frozen=True, slots=True)
class Selector:
    """A set of series: all matchers must hold. `metric` is the name where the selector fixes one."""

    matchers: tuple[Matcher, ...]

    @property
    def metric(self) -> str | None:
        for matcher in self.matchers:
            if matcher.label == "__name__" and matcher.operator is Operator.EQUAL:
                return matcher.value
        return None

    def matches(self, metric: str, labels: Mapping[str, str]) -> bool:
        return all(
            matcher.matches(metric if matcher.label == "__name__" else labels.get(matcher.label, ""))
            for matcher in self.matchers
        )

    def with_label(self, label: str, value: str) -> Selector:
        """The same series narrowed to one value of a label."""
        return Selector((*self.matchers, Matcher(label, Operator.EQUAL, value)))

    def renamed(self, metric: str) -> Selector:
        """The same conditions on another metric."""
        rest = tuple(matcher for matcher in self.matchers if matcher.label != "__name__")
        return Selector((Matcher("__name__", Operator.EQUAL, metric), *rest))

    def __str__(self) -> str:
        """The selector as PromQL, in one canonical notation."""
        name = self.metric
        if name is not None and not METRIC_NAME.fullmatch(name):
            name = None
        rest = [
            str(matcher)
            for matcher in self.matchers
            if not (matcher.label == "__name__" and matcher.operator is Operator.EQUAL and matcher.value == name)
        ]
        if not rest:
            return name or "{}"
        return f"{name or ''}{{{','.join(rest)}}}"


def parse_bound(text: str) -> float | None:
    """The number of an `le` value, or None. "1", "1.0" and "1e0" are one bound."""
    try:
        return float(text)
    except ValueError:
        return None


def parse_selector(text: str) -> Selector:
    """Read a selector. Raises ValueError with position and remedy."""
    reader = _Reader(text)
    matchers: list[Matcher] = []
    reader.space()
    name = reader.take(METRIC_NAME)
    if name is not None:
        matchers.append(Matcher("__name__", Operator.EQUAL, name))
        reader.space()
    if reader.literal("{"):
        matchers += _matchers(reader, named=name is not None)
        reader.space()
    elif name is None:
        raise reader.error("no series selector")
    if not reader.at_end:
        raise reader.error("more than a plain series selector")
    if not any(not matcher.matches("") for matcher in matchers):
        raise reader.error("a selector must name a metric or a label value that is not empty")
    return Selector(tuple(matchers))


def _matchers(reader: _Reader, *, named: bool) -> list[Matcher]:
    found: list[Matcher] = []
    while True:
        reader.space()
        if reader.literal("}"):
            return found
        quoted = reader.quoted()
        label = quoted if quoted is not None else reader.take(LABEL_NAME)
        if not label:
            raise reader.error("a label name is missing")
        reader.space()
        operator = reader.take(_OPERATOR)
        if operator is None:
            if quoted is None:
                raise reader.error("one of =, !=, =~, !~ is missing")
            if named:
                raise reader.error("the metric is named twice")
            named = True
            found.append(Matcher("__name__", Operator.EQUAL, quoted))
        else:
            reader.space()
            value = reader.quoted()
            if value is None:
                raise reader.error("a quoted label value is missing")
            found.append(_checked(reader, Matcher(label, Operator(operator), value)))
        reader.space()
        if not reader.literal(",") and not reader.sees("}"):
            raise reader.error("a comma or } is missing")


def _checked(reader: _Reader, matcher: Matcher) -> Matcher:
    if matcher.operator in (Operator.MATCHES, Operator.NOT_MATCHES):
        try:
            re.compile(matcher.value)
        except re.error as exc:
            raise reader.error(f"{matcher.value!r} is no regular expression ({exc})") from exc
        if _NOT_RE2.search(matcher.value):
            raise reader.error(f"{matcher.value!r} uses look-around or back-references, which Prometheus has not")
    return matcher


class _Reader:
    """A cursor over the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._text)

    def space(self) -> None:
        self.take(_SPACE)

    def sees(self, literal: str) -> bool:
        return self._text.startswith(literal, self._at)

    def literal(self, literal: str) -> bool:
        if not self.sees(literal):
            return False
        self._at += len(literal)
        return True

    def take(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def quoted(self) -> str | None:
        match = _QUOTED.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        if match[3] is not None:
            return match[3]
        return _ESCAPE.sub(self._unescape, match[1] if match[1] is not None else match[2])

    def _unescape(self, match: re.Match[str]) -> str:
        simple, byte, short, long, octal, wrong = match.groups()
        if wrong is not None:
            raise self.error(f"unknown escape \\{wrong} in a label value (a backslash is written \\\\)")
        if simple is not None:
            return _SIMPLE.get(simple, simple)
        return chr(int(octal, 8)) if octal is not None else chr(int(byte or short or long, 16))

    def error(self, reason: str) -> ValueError:
        return ValueError(f"{reason} at column {self._at + 1} of {self._text!r}; {REMEDY}")


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
