"""`sluice`: the operator's tool beside the Dagster UI.

Data goes to standard output, messages to standard error; with `--output json` standard output holds one JSON document
and nothing else. Exit codes: 0 done, 1 failed or damaged input, 2 wrong use, 78 wrong configuration. What fails prints
nothing on standard output.

Commands import what they need when they are called: `sluice plan --snapshot` answers at once, without network and
without configuration.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from eventing.errors import EXIT_CONFIG, ConfigError, SluiceError

if TYPE_CHECKING:
    from orchestration.observe import Observation
    from orchestration.planning import Plan, Policy
    from orchestration.ports import Ports
    from orchestration.settings import Settings

EXIT_FAILED = 1

PLUGGED_IN = {"slo": "assets.cli:slo"}
"""Commands of other packages: loaded by name, because programs import nothing of each other but `eventing`."""


class _Group(click.Group):
    """Loads plugged-in commands when they are called, and turns our errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *PLUGGED_IN])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in PLUGGED_IN:
            module, _, attribute = PLUGGED_IN[cmd_name].partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command)
            return command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as exc:
            _say(str(exc))
            ctx.exit(EXIT_CONFIG)
        except SluiceError as exc:
            _say(str(exc))
            ctx.exit(EXIT_FAILED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Event channels on Kafka, kept delivering."""


_output = click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or for scripts.",
)


def _say(message: str) -> None:
    click.echo(f"sluice: {message}", err=True)


def _print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


# ---------------------------------------------------------------------- the platform on this machine


@main.command()
@click.option("--detach", is_flag=True, help="Return when it is ready, and leave it running.")
@click.option("--brokers", type=click.IntRange(1, 10), help="Kafka brokers to start (default 1).")
@_output
def up(*, detach: bool, brokers: int | None, output: str) -> None:
    """Start the whole platform on this machine."""
    from orchestration.local import platform

    def show(table: str) -> None:
        if output == "json":
            _print_json(platform.status())
        else:
            click.echo(table)

    sys.exit(platform.up(say=_say, show=show, detach=detach, brokers=brokers))


@main.command()
@_output
def down(output: str) -> None:
    """Stop everything that `sluice up` started; the data stays."""
    from orchestration.local import platform

    code = platform.down(say=_say)
    if output == "json":
        _print_json({"stopped": code == 0})
    sys.exit(code)


@main.command()
@_output
def status(output: str) -> None:
    """What is running where, and how the channels are."""
    from orchestration.local import platform

    document = platform.status()
    if output == "json":
        _print_json(document)
    else:
        click.echo(platform.status_text(document))


# ---------------------------------------------------------------------- observe, plan, apply


@main.command()
@_output
def snapshot(output: str) -> None:  # noqa: ARG001  # a snapshot is JSON for people too
    """The observed state of the world, as one JSON document."""
    ports, _, settings = _live()
    observation = _observe(ports, settings)
    _print_json(observation.document)
    if not any(observation.document[part] is not None for part in ("brokers", "topics", "channels", "deployments")):
        sys.exit(EXIT_FAILED)


@main.command()
@click.option(
    "--snapshot",
    "file",
    metavar="FILE",
    help="Plan for the world of this snapshot document (- for standard input) instead of the real one.",
)
@_output
def plan(file: str | None, output: str) -> None:
    """What would be done now, and why. Changes nothing."""
    if file is None:
        ports, policy, settings = _live()
        observation = _observe(ports, settings)
        decided = _planned(observation, policy)
    else:
        decided = _planned_from_file(file)
    if output == "json":
        _print_json(decided.to_document())
    else:
        click.echo(_plan_text(decided))


@main.command()
@_output
def reconcile(output: str) -> None:
    """Observe, plan and apply once, without Dagster."""
    from orchestration.apply import reconcile_once
    from orchestration.wiring import exclusively

    ports, policy, settings = _live()
    with exclusively(settings):
        done = reconcile_once(ports, policy, _now(), expected_brokers=settings.canary.expected_cluster_size)
    _say_what_is_unknown(done.observation)
    document = done.to_document()
    if output == "json":
        _print_json(document)
    else:
        rows = [(o["result"], o["kind"], o["target"], o["cause"], o["why"]) for o in document["actions"]]
        parts = [_columns(("RESULT", "ACTION", "OBJECT", "FOR", "WHY"), rows)] if rows else []
        parts += [f"{o['kind']} {o['target']}: {o['error']} — {o['advice']}" for o in document["actions"] if o["error"]]
        parts += _remarks_text(document)
        click.echo("\n".join([*parts, document["summary"]]))
    for problem in document["unreported"]:
        _say(problem)
    if not done.succeeded or done.observation.unreadable:
        sys.exit(EXIT_FAILED)


def _live() -> tuple[Ports, Policy, Settings]:
    """Ports and policy of the running platform of this home; without one, as the environment says."""
    from orchestration.settings import Settings, WorkloadsKind
    from orchestration.wiring import build_ports, live_policy

    settings = Settings.from_env(os.environ)
    if settings.workloads is WorkloadsKind.LOCAL:
        from orchestration.local.platform_state import read_state

        state = read_state(settings.home)
        if state is not None and state.is_alive():
            # The running platform knows its addresses; this shell may have other variables.
            settings = Settings.from_env({**os.environ, **state.environ})
    return build_ports(settings), live_policy(settings), settings


def _observe(ports: Ports, settings: Settings) -> Observation:
    from orchestration.observe import observe

    observation = observe(ports, now=_now(), expected_brokers=settings.canary.expected_cluster_size)
    _say_what_is_unknown(observation)
    return observation


def _say_what_is_unknown(observation: Observation) -> None:
    for reason in observation.unreadable:
        _say(reason)
    for problem in observation.invalid:
        _say(f"{problem.object}: {problem}")


def _planned(observation: Observation, policy: Policy) -> Plan:
    from orchestration.planning.planner import plan

    return plan(observation.snapshot, policy, observation.snapshot.observed_at)


def _planned_from_file(file: str) -> Plan:
    from orchestration.planning import DocumentError, Policy, Snapshot
    from orchestration.planning.planner import plan

    name = "standard input" if file == "-" else file
    try:
        text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        world = Snapshot.from_document(json.loads(text.decode("utf-8-sig"), parse_constant=_no_number))
    except OSError as exc:
        _fail(f"{name}: {exc.strerror or exc}")
    except UnicodeDecodeError as exc:
        _fail(f"{name}: byte {exc.start} is not UTF-8 text")
    except json.JSONDecodeError as exc:
        _fail(f"{name}: line {exc.lineno}, column {exc.colno}: is no valid JSON: {exc.msg}")
    except DocumentError as exc:
        _fail(f"{name}: {exc}")
    except (ValueError, RecursionError) as exc:
        _fail(f"{name}: is no valid JSON: {exc}")
    return plan(world, Policy(), world.observed_at)


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


def _fail(message: str) -> NoReturn:
    """End with one line and exit code 1."""
    _say(message.replace("\n", " "))
    sys.exit(EXIT_FAILED)


def _now() -> datetime:
    # Whole seconds, as documents and annotations keep them.
    return datetime.now(UTC).replace(microsecond=0)


# ---------------------------------------------------------------------- for people


def _plan_text(decided: Plan) -> str:
    from orchestration.apply import target

    document = decided.to_document()
    rows = [(action.kind, target(action), action.cause, action.why) for action in decided.actions]
    parts = [_columns(("ACTION", "OBJECT", "FOR", "WHY"), rows)] if rows else []
    return "\n".join([*parts, *_remarks_text(document), document["summary"]])


def _remarks_text(document: Mapping[str, Any]) -> list[str]:
    return [
        _columns((word, "REASON"), [(remark["object"], remark["reason"]) for remark in document[key]])
        for key, word in (("rejected", "REJECTED"), ("waiting", "WAITING"))
        if document[key]
    ]


def _columns(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the last column is as long as it is."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles) - 1)]
    lines = []
    for row in [titles, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
