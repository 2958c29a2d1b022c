"""`sluice slo`: the report, and the means to re-check its numbers, for scripts and for people.

With `--output json` standard output holds one JSON document and nothing else; messages go to standard error. A command
that fails prints nothing on standard output: 1 failed or damaged input, 2 wrong use, 78 wrong configuration.

Spark is imported inside the commands that need it, because `sluice --help` must not wait for it.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from assets.slo.instants import parse_instant, to_millis
from assets.slo.windows import Range
from eventing.errors import EXIT_CONFIG, ConfigError, SluiceError

P = ParamSpec("P")
R = TypeVar("R")


class Instant(click.ParamType[datetime]):
    """RFC 3339 with a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return parse_instant(value)
        except ValueError as exc:
            self.fail(str(exc), param, ctx)


FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

samples_option = click.option("--samples", type=FOLDER, required=True, help="Folder of Parquet samples.")
objectives_option = click.option(
    "--objectives", type=click.Path(exists=True, path_type=Path), required=True, help="Folder of OpenSLO v1 files."
)
from_option = click.option("--from", "start", type=Instant(), required=True, help="Start, exclusive, RFC 3339.")
to_option = click.option("--to", "end", type=Instant(), required=True, help="End, inclusive, RFC 3339.")
output_option = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the result."
)


def reports_errors(command: Callable[P, R]) -> Callable[P, R]:
    """End with the exit code that says whose turn it is, and one line that says why."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ConfigError as exc:
            for problem in exc.problems:
                click.echo(f"sluice: wrong {exc.subject}: {problem}", err=True)
            sys.exit(EXIT_CONFIG)
        except SluiceError as exc:
            click.echo(f"sluice: {exc}", err=True)
            sys.exit(1)
        except click.exceptions.ClickException:
            raise
        except (BrokenPipeError, click.exceptions.Exit, click.Abort):
            raise
        except Exception as exc:  # noqa: BLE001 - the outermost frame
            # A defect of ours or of Spark: whoever calls us gets the exit code and the first line, never a traceback.
            click.echo(f"sluice: {type(exc).__name__}: {(str(exc).strip().splitlines() or [''])[0]}", err=True)
            sys.exit(1)

    return wrapped


@click.group(help="SLO reports, the numbers behind them, and alert rules.")
def slo() -> None:
    """The group that `sluice` plugs in."""


@slo.command()
@samples_option
@click.option("--metric", required=True, help="Name of a counter.")
@from_option
@to_option
@click.option(
    "--mode",
    type=click.Choice(["anchored", "promql"]),
    default="anchored",
    show_default=True,
    help="anchored: additive, as reports count. promql: as increase() of Prometheus 3.",
)
@output_option
@reports_errors
def increase(*, samples: Path, metric: str, start: datetime, end: datetime, mode: str, output: str) -> None:
    """The increment of each series of a counter over (from, to]."""
    asked = _range(start, end)
    from assets.slo.single_metric import anchored_increases, promql_increases

    compute = anchored_increases if mode == "anchored" else promql_increases
    _print_values(_over_samples(samples, lambda frame: compute(frame, metric, asked)), output)


@slo.command()
@samples_option
@click.option("--metric", required=True, help="Name of a classic histogram, with or without _bucket.")
@click.option("--q", type=float, required=True, help="The quantile, 0 to 1.")
@from_option
@to_option
@output_option
@reports_errors
def quantile(*, samples: Path, metric: str, q: float, start: datetime, end: datetime, output: str) -> None:
    """A quantile of each group of a classic histogram over (from, to], as histogram_quantile() defines it."""
    asked = _range(start, end)
    from assets.slo.single_metric import quantiles

    _print_values(_over_samples(samples, lambda frame: quantiles(frame, metric, q, asked)), output)


@slo.command()
@objectives_option
@output_option
@reports_errors
def rules(objectives: Path, output: str) -> None:
    """Prometheus rules: burn-rate alerts and alerts on absent data, from the same objectives as the report."""
    from assets.objective_files import load_objectives
    from assets.slo.rules import render_rules, rule_file

    document = rule_file(load_objectives(objectives))
    click.echo(json.dumps(document, indent=2) if output == "json" else render_rules(document), nl=output == "json")


@slo.command()
@samples_option
@objectives_option
@from_option
@to_option
@click.option("--corrections", type=FILE, help="YAML of agreed times that do not count.")
@output_option
@reports_errors
def report(
    *, samples: Path, objectives: Path, start: datetime, end: datetime, corrections: Path | None, output: str
) -> None:
    """What was promised and what was kept, for each objective, window and group."""
    asked = _range(start, end)
    from assets.objective_files import load_corrections, load_objectives
    from assets.slo.report import report_over_samples
    from assets.slo.report_documents import render_text, to_document

    declared = load_objectives(objectives)
    corrected = load_corrections(corrections) if corrections else []
    result = _over_samples(samples, lambda frame: report_over_samples(frame, declared, asked, corrected))
    for warning in result.warnings:
        click.echo(f"sluice: warning: {warning}", err=True)
    if output == "json":
        click.echo(json.dumps(to_document(result.reports), indent=2, allow_nan=False))
    else:
        click.echo(render_text(result.reports))


def _range(start: datetime, end: datetime) -> Range:
    if to_millis(start) >= to_millis(end):
        raise click.UsageError("--to must be after --from")
    return Range(start, end)


def _over_samples(folder: Path, compute: Callable[[Any], R]) -> R:
    """Run a computation over the samples of a folder, with a Spark session of its own."""
    from assets.slo.samples import find_samples, naming_the_file, read_samples
    from assets.spark import session

    files = find_samples(folder)
    spark = session(input_rows=files.rows)
    try:
        with naming_the_file():
            return compute(read_samples(spark, files))
    finally:
        spark.stop()


def _print_values(values: list[Any], output: str) -> None:
    """A JSON list in both forms; as text one line a series, which people and `grep` can read."""
    document = [{"labels": dict(value.labels), "value": json_number(value.value)} for value in values]
    if output == "json" or not document:
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        click.echo("[" + ",\n ".join(json.dumps(item, allow_nan=False) for item in document) + "]")


def json_number(value: float) -> float | int | str:
    """A number as JSON can hold it: whole ones without a fraction, the others that JSON lacks as text."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def main(argv: list[str] | None = None, environ: Mapping[str, str] | None = None) -> None:
    """`python -m assets.cli`."""
    del environ
    slo(args=argv, prog_name="sluice slo")


if __name__ == "__main__":
    main()
