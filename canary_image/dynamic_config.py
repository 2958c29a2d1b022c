"""The file that may change the log level while the canary runs: JSON with `verbosityLogLevel` and `saramaLogEnabled`.

A key in the file wins over the environment; a file that is gone gives way to it again. What does not parse, or holds
a wrong value, is told once and changes nothing. `saramaLogEnabled` is accepted and means nothing here.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

from canary_image import journal

MAX_BYTES = 65_536


class DynamicConfig:
    """Call `look` at the start and once in each watcher interval."""

    def __init__(self, path: str, default_verbosity: int, apply: Callable[[int], None]) -> None:
        self._path = Path(path)
        self._default = default_verbosity
        self._apply = apply
        self._digest: str | None = None

    def look(self) -> None:
        """Apply the file if its content is another than the last time."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES)
        except OSError:
            if self._digest is not None:
                journal.note(logging.INFO, "dynamic_config.gone", file=self._path)
                self._digest = None
                self._apply(self._default)
            return
        digest = hashlib.sha256(content).hexdigest()
        if digest == self._digest:
            return
        self._digest = digest
        verbosity = self._verbosity(content)
        if verbosity is not None:
            self._apply(verbosity)
            journal.note(logging.INFO, "dynamic_config.applied", file=self._path, verbosity=verbosity)

    def _verbosity(self, content: bytes) -> int | None:
        """None when the file is wrong."""
        try:
            document = json.loads(content)
        except ValueError as exc:
            journal.note(logging.WARNING, "dynamic_config.wrong", file=self._path, reason=exc)
            return None
        verbosity = document.get("verbosityLogLevel", self._default) if isinstance(document, dict) else None
        if isinstance(verbosity, bool) or not isinstance(verbosity, int) or not 0 <= verbosity <= 2:
            reason = "must be an object; verbosityLogLevel is 0, 1 or 2"
            journal.note(logging.WARNING, "dynamic_config.wrong", file=self._path, reason=reason)
            return None
        return verbosity
