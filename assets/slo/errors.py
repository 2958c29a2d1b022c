"""Errors of the report that are not wrong configuration.

Wrong objectives and corrections are `eventing.errors.ConfigError` (exit 78): well-formed, but not usable as written.
What cannot even be read, or contradicts itself, is damaged input (exit 1).
"""

from __future__ import annotations

from eventing.errors import SluiceError


class DamagedInput(SluiceError):
    """A file or a column cannot be read as what it should be; the message names it and says what to do."""
