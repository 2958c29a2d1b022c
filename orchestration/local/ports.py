"""Loopback ports: which are free, and a one-line answer for one that is not.

Ports are drawn below the kernel's ephemeral range (ip_local_port_range, 32768 upwards by default), because any outgoing
connection may take one from that range between our looking and the server's binding.
"""

from __future__ import annotations

import random
import socket

LOOPBACK = "127.0.0.1"
FIRST_PORT, LAST_PORT = 20000, 32767
ATTEMPTS = 2000  # of drawing a port before giving up; the range has 12768

_drawn: set[int] = set()


def is_free(port: int) -> bool:
    """Whether a server could bind this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port in TIME_WAIT is free for them.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def answers(port: int, timeout_s: float = 0.5) -> bool:
    """Whether something accepts connections on this loopback port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def free_port() -> int:
    """A free loopback port that this process has not drawn before.

    Raises:
        OSError: no free port found in `ATTEMPTS` draws.
    """
    # From the system's source: two processes must not draw the same sequence.
    draw = random.SystemRandom()
    for _ in range(ATTEMPTS):
        port = draw.randint(FIRST_PORT, LAST_PORT)
        if port not in _drawn and is_free(port):
            _drawn.add(port)
            return port
    raise OSError(f"no free loopback port between {FIRST_PORT} and {LAST_PORT}")


def give_back(port: int) -> None:
    """The port may be drawn again (its process has ended)."""
    _drawn.discard(port)
