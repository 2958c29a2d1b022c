"""One line an event, `key=value`, to standard error; the level may change while the canary runs.

Level names follow strimzi-canary's verbosity: 0 INFO, 1 DEBUG, 2 TRACE.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

TRACE = 5
_LOGGER = logging.getLogger("canary")
_VERBOSITY = {1: logging.DEBUG, 2: TRACE}


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = f"{when} {record.levelname} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(log_level: str, verbosity: int) -> None:
    """Write to standard error from now on."""
    logging.addLevelName(TRACE, "TRACE")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    _LOGGER.handlers = [handler]
    _LOGGER.propagate = False
    set_level(log_level, verbosity)


def set_level(log_level: str, verbosity: int) -> None:
    """Verbosity 0 leaves the level to `log_level`; more than that asks for more."""
    _LOGGER.setLevel(min(_VERBOSITY.get(verbosity, logging.CRITICAL), logging.getLevelNamesMapping()[log_level]))


def note(level: int, event: str, *, failure: BaseException | None = None, **fields: object) -> None:
    """Write one event; blanks and quotes in a value are quoted. Secrets hide themselves."""
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(level, "%s", " ".join([event, *map(_pair, fields.items())]), exc_info=failure)


def _pair(item: tuple[str, object]) -> str:
    name, value = item
    text = f"{value}"
    return (
        f"{name}={text}" if text and not any(c in ' "=\n' or not c.isprintable() for c in text) else f"{name}={text!r}"
    )
