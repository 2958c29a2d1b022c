"""Which Java is used, and the one line that says what to do when there is none."""

from __future__ import annotations

import pytest

from eventing.errors import ConfigError
from orchestration.local.java import find_java, java_version


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("no such thing", None),
    ],
)
def test_versions_are_read_in_every_form(printed, version):
    assert java_version(printed) == version


def fake_java(folder, version):
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_comes_before_the_path(tmp_path):
    home, path = fake_java(tmp_path / "home" / "bin", "21.0.1"), fake_java(tmp_path / "path", "17.0.1")

    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(path.parent)}) == home
    assert find_java({"JAVA_HOME": "", "PATH": str(path.parent)}) == path


@pytest.mark.parametrize(
    ("version", "words"),
    [("11.0.2", "Java 11, which is too old"), ("1.8.0_1", "Java 8, which is too old"), ("what", "does not tell")],
)
def test_a_java_that_is_too_old_is_told_with_the_remedy(tmp_path, version, words):
    fake_java(tmp_path / "path", version)
    with pytest.raises(ConfigError, match=words) as problem:
        find_java({"PATH": str(tmp_path / "path")})

    assert "17 or newer" in str(problem.value)
    assert "apt-get install" in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_missing_java_is_told_with_the_remedy(tmp_path):
    with pytest.raises(ConfigError, match="not installed"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match="holds no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
