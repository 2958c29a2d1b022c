"""`python -m dispatcher_image dispatch|receive`: chooses the program, reads its environment, runs it.

Exit codes: 0 ended in order, 1 failed, 2 wrong use, 78 wrong configuration (every wrong key in one message).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from eventing.errors import EXIT_CONFIG, ConfigError
from eventing.program_config import DispatchConfig, ReceiveConfig

USAGE = "usage: python -m dispatcher_image dispatch|receive"


def main(arguments: list[str]) -> int:
    """Run one of the two programs until it is told to stop."""
    programs: dict[str, Callable[[], tuple[str, Callable[[], Coroutine[Any, Any, None]]]]] = {
        "dispatch": _dispatch,
        "receive": _receive,
    }
    if len(arguments) != 1 or arguments[0] not in programs:
        sys.stderr.write(USAGE + "\n")
        return 2
    try:
        level, run = programs[arguments[0]]()
        logging.basicConfig(
            level=level, stream=sys.stderr, format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s"
        )
        import uvloop  # noqa: PLC0415  # after the configuration was found to be right

        uvloop.run(run())
    except ConfigError as exc:
        sys.stderr.write(f"{exc}\n")
        return EXIT_CONFIG
    except OSError as exc:  # a port that is taken
        sys.stderr.write(f"cannot start: {exc}\n")
        return 1
    return 0


def _dispatch() -> tuple[str, Callable[[], Coroutine[Any, Any, None]]]:
    config = DispatchConfig.from_env(os.environ)
    from dispatcher_image.dispatch import dispatch  # noqa: PLC0415  # the other program's libraries stay unloaded

    return config.log_level, lambda: dispatch(config)


def _receive() -> tuple[str, Callable[[], Coroutine[Any, Any, None]]]:
    config = ReceiveConfig.from_env(os.environ)
    from dispatcher_image.receiver import receive  # noqa: PLC0415  # the other program's libraries stay unloaded

    return config.log_level, lambda: receive(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
