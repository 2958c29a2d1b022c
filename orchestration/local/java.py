"""Which Java runs the broker: `JAVA_HOME`, then `PATH`, at least version 17."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from eventing.errors import ConfigError

LEAST_VERSION = 17  # Kafka 4 brokers: https://kafka.apache.org/41/documentation/compatibility.html
VERSION_TIMEOUT_S = 20.0
REMEDY = "install one (Debian: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one"


def java_version(printed: str) -> int | None:
    """The feature release in what `java -version` prints: 17 for "17.0.15", 8 for "1.8.0_402"; None without one."""
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(found.group(1)) if found else None


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The java program to use.

    Raises:
        ConfigError: there is none, or it is too old; says what was found, where, and the remedy.
    """
    home = environ.get("JAVA_HOME")
    if home:
        java, where = Path(home, "bin", "java"), f"JAVA_HOME={home}"
        if not os.access(java, os.X_OK):
            raise _unusable(f"{where} holds no bin/java")
    else:
        on_path = shutil.which("java", path=environ.get("PATH"))
        if on_path is None:
            raise _unusable("Java is not installed")
        java, where = Path(on_path), on_path
    try:
        shown = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise _unusable(f"{where} does not answer `java -version` ({problem})") from problem
    version = java_version(shown.stderr + shown.stdout)
    if version is None:
        raise _unusable(f"{where} does not tell its version")
    if version < LEAST_VERSION:
        raise _unusable(f"{where} is Java {version}, which is too old")
    return java


def _unusable(reason: str) -> ConfigError:
    return ConfigError([f"{reason}: the Kafka broker needs Java {LEAST_VERSION} or newer; {REMEDY}"], subject="Java")
