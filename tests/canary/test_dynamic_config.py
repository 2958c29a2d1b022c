"""The log level may change while the canary runs."""

from __future__ import annotations

import pytest

from canary_image.dynamic_config import DynamicConfig


@pytest.fixture
def file(tmp_path):
    return tmp_path / "dynamic.json"


@pytest.fixture
def applied():
    return []


@pytest.fixture
def dynamic(file, applied):
    return DynamicConfig(str(file), 0, applied.append)


def test_a_file_that_is_there_at_the_start_is_applied(file, dynamic, applied):
    file.write_text('{"saramaLogEnabled": true, "verbosityLogLevel": 1}')
    dynamic.look()

    assert applied == [1]


def test_a_change_is_applied_once(file, dynamic, applied):
    for content in ('{"verbosityLogLevel": 1}', '{"verbosityLogLevel": 2}', '{"verbosityLogLevel": 2}'):
        file.write_text(content)
        dynamic.look()

    assert applied == [1, 2]


def test_a_file_that_goes_gives_way_to_the_environment(file, dynamic, applied):
    dynamic.look()
    file.write_text('{"verbosityLogLevel": 2}')
    dynamic.look()
    file.unlink()
    dynamic.look()
    dynamic.look()

    assert applied == [2, 0]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '"x"', '{"verbosityLogLevel": "1"}', '{"verbosityLogLevel": 3}', '{"verbosityLogLevel": true}'],
)
def test_a_wrong_file_changes_nothing(file, dynamic, applied, content):
    file.write_text('{"verbosityLogLevel": 1}')
    dynamic.look()
    file.write_text(content)
    dynamic.look()

    assert applied == [1]


def test_a_key_that_is_absent_is_the_environments(file, applied):
    file.write_text("{}")
    DynamicConfig(str(file), 2, applied.append).look()

    assert applied == [2]
