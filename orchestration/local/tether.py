"""Tie a process to the life of the one that started it, then become it.

Run as a script, by path: `python -I -S tether.py <parent pid> <signal> program argument…`. It asks the kernel to send
`signal` to itself when the parent ends (prctl(2), PR_SET_PDEATHSIG; the request survives exec) and then replaces itself
by the program. So no process of the platform outlives the platform, even when that dies from SIGKILL.

A script and not a `preexec_fn`: running Python between fork and exec is unsafe in a process with threads
(https://docs.python.org/3/library/subprocess.html#subprocess.Popen), and every Kafka client brings threads.
The kernel watches the *thread* that started the child: start children from a thread that lives as long as they may.
"""

from __future__ import annotations

import os
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tethered(command: list[str], *, parent: int | None = None, signal_number: int = 9) -> list[str]:
    """The same command, which ends with its parent (`parent`: pid, by default this process)."""
    return [sys.executable, "-I", "-S", __file__, str(parent or os.getpid()), str(signal_number), *command]


def _main(arguments: list[str]) -> None:
    parent, signal_number, command = int(arguments[0]), int(arguments[1]), arguments[2:]
    if sys.platform.startswith("linux"):
        # Imported here: whoever only asks for `tethered()` needs no libffi.
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        # The parent may have gone between fork and prctl; then nobody will ever send the signal.
        if os.getppid() != parent:
            sys.exit(f"not started: the parent {parent} is gone")
    try:
        os.execvp(command[0], command)  # noqa: S606 - becoming the program is the point
    except OSError as problem:
        sys.exit(f"not started: {command[0]}: {problem.strerror}")


if __name__ == "__main__":
    _main(sys.argv[1:])
