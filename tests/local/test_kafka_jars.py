"""The jar cache: complete or absent, and filled by one process at a time."""

from __future__ import annotations

import threading

import pytest

from eventing.errors import Unavailable
from orchestration.local import kafka_jars as jars


def test_a_filled_cache_needs_no_network(tmp_path, monkeypatch):
    folder = tmp_path / f"kafka-{jars.KAFKA_VERSION}"
    folder.mkdir()
    (folder / "b.jar").touch()
    (folder / "a.jar").touch()
    monkeypatch.setattr(jars, "_resolve_into", None)

    assert jars.kafka_jars(print, tmp_path) == [folder / "a.jar", folder / "b.jar"]


def test_an_interrupted_download_is_never_taken_for_complete(tmp_path, monkeypatch):
    def interrupted(workplace, _progress):
        (workplace / "jars").mkdir()
        (workplace / "jars" / "half.jar").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(jars, "_resolve_into", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jars.kafka_jars(print, tmp_path)

    assert [p.name for p in tmp_path.iterdir()] == [f"kafka-{jars.KAFKA_VERSION}.lock"]


def test_a_failing_download_is_repeated_and_then_told_with_the_remedy(tmp_path, monkeypatch):
    attempts = []

    def failing(_workplace, _progress):
        attempts.append(1)
        raise OSError("no route to host")

    monkeypatch.setattr(jars, "_resolve_into", failing)
    with pytest.raises(Unavailable, match=r"no route to host.*KAFKA_BOOTSTRAP_SERVERS"):
        jars.kafka_jars(lambda _: None, tmp_path)

    assert len(attempts) == jars.DOWNLOAD_ATTEMPTS


def test_a_second_process_waits_for_the_first_and_uses_its_download(tmp_path, monkeypatch):
    inside, go_on, downloads = threading.Event(), threading.Event(), []

    def slow(workplace, _progress):
        downloads.append(1)
        inside.set()
        assert go_on.wait(10)
        (workplace / "jars").mkdir()
        (workplace / "jars" / "kafka.jar").touch()

    monkeypatch.setattr(jars, "_resolve_into", slow)
    found, told = [], []
    first = threading.Thread(target=lambda: found.append(jars.kafka_jars(print, tmp_path)))
    first.start()
    assert inside.wait(10)

    def progress(message):
        told.append(message)
        go_on.set()

    found.append(jars.kafka_jars(progress, tmp_path))
    first.join()

    assert len(downloads) == 1
    assert found[0] == found[1] != []
    assert told == ["another process is downloading Apache Kafka; waiting for it"]


def test_waiting_for_another_process_is_bounded(tmp_path, monkeypatch):
    import fcntl

    monkeypatch.setattr(jars, "LOCK_WAIT_S", 0.0)
    with (tmp_path / f"kafka-{jars.KAFKA_VERSION}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unavailable, match="another process"):
            jars.kafka_jars(lambda _: None, tmp_path)


def test_the_cache_follows_xdg(tmp_path):
    assert jars.cache_home({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "sluice"
    assert jars.cache_home({}).parts[-2:] == (".cache", "sluice")
