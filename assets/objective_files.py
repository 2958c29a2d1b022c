"""Reading objectives and corrections from disk: the edge around the pure parsers."""

from __future__ import annotations

from pathlib import Path

from assets.slo.corrections import Correction, parse_corrections
from assets.slo.errors import DamagedInput
from assets.slo.objectives import Objective, parse_objectives
from eventing.errors import ConfigError

SHIPPED = Path(__file__).parent / "objectives"
"""The objectives that come with the platform."""


def load_objectives(*places: Path) -> list[Objective]:
    """The objectives of files, and of all `.yaml` and `.yml` files below folders.

    Raises ConfigError with every problem, and where there is no objective at all; DamagedInput for unreadable files.
    """
    files = [file for place in places for file in _files(place)]
    objectives = parse_objectives((str(file), _read(file)) for file in files)
    if not objectives:
        where = ", ".join(str(place) for place in places)
        raise ConfigError([f"{where}: no SLO in any .yaml file; put OpenSLO v1 files there"], subject="objectives")
    return objectives


def load_corrections(file: Path) -> list[Correction]:
    """The corrections of one file."""
    return parse_corrections(_read(file), str(file))


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return sorted(
        file
        for file in place.rglob("*")
        if file.suffix in (".yaml", ".yml")
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(place).parts)
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise DamagedInput(f"{file}: not readable ({exc})") from exc
