"""Samples as the recorder makes them: Prometheus' rules, on files that anybody may read at any time."""

from __future__ import annotations

import asyncio
import http.server
import json
import struct
import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eventing.errors import ConfigError
from orchestration.local import sample_files
from orchestration.local.recorder import Recorder, RecorderConfig, parse_exposition, read_targets
from orchestration.local.sample_files import SampleFiles
from orchestration.local.scrapes import STALE, STALE_BITS, Exposed, Sample, TargetHistory

TARGET = {"job": "dispatcher", "instance": "d-1", "channel": "orders"}
UP = ("up", (("channel", "orders"), ("instance", "d-1"), ("job", "dispatcher")))


def bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def told(samples):
    return {(s.metric, dict(s.labels).get("a")): "stale" if bits(s.value) == STALE_BITS else s.value for s in samples}


def exposed(**values):
    return [Exposed("m", {"a": name}, value) for name, value in values.items()]


def test_a_scrape_adds_the_targets_labels_and_up():
    samples = TargetHistory(TARGET).scraped(exposed(x=1.0), 5000)

    assert samples[0] == Sample("m", (("a", "x"), *UP[1]), 5000, 1.0)
    assert samples[1] == Sample(*UP, 5000, 1.0)


def test_a_label_of_the_metric_wins_over_the_targets_and_an_empty_one_is_absent():
    (sample, _) = TargetHistory(TARGET).scraped([Exposed("m", {"channel": "own", "empty": ""}, 1.0)], 0)

    assert dict(sample.labels) == {**TARGET, "channel": "own"}


def test_a_timestamp_of_the_target_is_kept():
    (sample, up) = TargetHistory(TARGET).scraped([Exposed("m", {}, 1.0, timestamp_ms=17)], 5000)

    assert (sample.timestamp_ms, up.timestamp_ms) == (17, 5000)


def test_a_series_that_is_told_no_more_gets_one_stale_marker():
    history = TargetHistory(TARGET)
    history.scraped(exposed(x=1.0, y=2.0), 0)

    assert told(history.scraped(exposed(x=3.0), 5000)) == {("m", "x"): 3.0, ("m", "y"): "stale", ("up", None): 1.0}
    assert told(history.scraped(exposed(x=3.0), 10000)) == {("m", "x"): 3.0, ("up", None): 1.0}


def test_a_failed_scrape_makes_everything_stale_but_up_which_is_0():
    history = TargetHistory(TARGET)
    history.scraped(exposed(x=1.0), 0)

    assert told(history.failed(5000)) == {("m", "x"): "stale", ("up", None): 0.0}
    assert told(history.failed(10000)) == {("up", None): 0.0}


def test_a_target_that_has_gone_takes_its_up_along():
    history = TargetHistory(TARGET)
    history.scraped(exposed(x=1.0), 0)

    assert told(history.vanished(5000)) == {("m", "x"): "stale", ("up", None): "stale"}


def test_an_exposition_is_read_without_the_python_runtimes_own_metrics():
    text = (
        '# TYPE a_total counter\na_total{x="1"} 5\n# TYPE a_created gauge\na_created 1.5e9\n'
        '# TYPE python_info gauge\npython_info 1\n# TYPE h histogram\nh_bucket{le="+Inf"} 2\nh_sum 3\nh_count 2\n'
    )

    names = [(e.metric, dict(e.labels), e.value) for e in parse_exposition(text)]
    assert ("a_total", {"x": "1"}, 5.0) in names
    assert ("h_bucket", {"le": "+Inf"}, 2.0) in names
    assert not any(name.startswith("python_") for name, _, _ in names)


def test_what_is_no_exposition_is_told():
    with pytest.raises(ValueError, match=r".*"):
        list(parse_exposition("<html>not metrics</html>\n"))


def test_targets_are_read_from_prometheus_form(tmp_path):
    (tmp_path / "targets.json").write_text('[{"targets": ["127.0.0.1:1", "127.0.0.1:2"], "labels": {"job": "x"}}]')

    assert read_targets(tmp_path / "targets.json") == {
        ("127.0.0.1:1", (("job", "x"),)),
        ("127.0.0.1:2", (("job", "x"),)),
    }
    assert read_targets(tmp_path / "nothing.json") == set()


# -- files ----------------------------------------------------------------------------------------------------------

HOUR = datetime(2026, 11, 20, 3, tzinfo=UTC)


def at(minutes, value=1.0, metric="m"):
    return Sample(metric, (("a", "x"),), int((HOUR + timedelta(minutes=minutes)).timestamp() * 1000), value)


def rows(folder):
    """Every row that a reader of the whole folder sees; equal rows count once."""
    seen = set()
    for path in folder.rglob("*.parquet"):
        for row in pq.ParquetFile(path).read().to_pylist():
            seen.add((row["metric"], tuple(row["labels"]), row["timestamp"], bits(row["value"])))
    return seen


def names(folder):
    return sorted(p.name.split("-")[0] for p in folder.rglob("*.parquet"))


def test_samples_have_the_agreed_columns_and_go_to_their_hour(tmp_path):
    SampleFiles(tmp_path).append([at(0), at(59.9), at(60, STALE)])

    first, second = sorted(tmp_path.rglob("*.parquet"))
    assert first.parent == tmp_path / "date=2026-11-20" / "hour=03"
    assert second.parent.name == "hour=04"
    schema = pq.read_schema(first)
    assert schema.names == ["metric", "labels", "timestamp", "value"]
    assert schema.field("labels").type == pa.map_(pa.string(), pa.string())
    assert schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert len(rows(tmp_path)) == 3
    (stale,) = pq.ParquetFile(second).read().to_pylist()
    assert bits(stale["value"]) == STALE_BITS
    assert stale["timestamp"] == HOUR + timedelta(hours=1)


def test_many_parts_become_one_file_and_readers_keep_theirs_for_a_while(tmp_path):
    files = SampleFiles(tmp_path)
    for minute in range(sample_files.PARTS_TO_MERGE):
        files.append([at(minute)])
    before, now = rows(tmp_path), HOUR + timedelta(minutes=30)
    files.tend(now, timedelta(days=40))

    assert names(tmp_path) == ["merged"] + ["part"] * sample_files.PARTS_TO_MERGE
    assert rows(tmp_path) == before
    files.tend(now + timedelta(seconds=sample_files.READERS_GRACE_S), timedelta(days=40))
    assert names(tmp_path) == ["merged"]
    assert rows(tmp_path) == before


def test_few_parts_of_the_running_hour_are_left_alone(tmp_path):
    files = SampleFiles(tmp_path)
    files.append([at(0)])
    files.append([at(1)])
    files.tend(HOUR + timedelta(minutes=30), timedelta(days=40))

    assert names(tmp_path) == ["part", "part"]


def test_a_closed_hour_becomes_one_file(tmp_path):
    files = SampleFiles(tmp_path)
    for minute in range(3):
        files.append([at(minute)])
    before, now = rows(tmp_path), HOUR + timedelta(hours=1) + sample_files.HOUR_CLOSED_AFTER
    files.tend(now, timedelta(days=40))
    files.tend(now + timedelta(seconds=sample_files.READERS_GRACE_S), timedelta(days=40))
    files.tend(now + timedelta(hours=3), timedelta(days=40))

    assert names(tmp_path) == ["merged"]
    assert rows(tmp_path) == before


def test_a_crash_between_merging_and_removing_leaves_nothing_double(tmp_path):
    files = SampleFiles(tmp_path)
    for minute in range(3):
        files.append([at(minute)])
    before, now = rows(tmp_path), HOUR + timedelta(hours=2)
    files.tend(now, timedelta(days=40))
    (tmp_path / "date=2026-11-20" / "hour=03" / ".part-1.parquet.tmp").touch()

    again = SampleFiles(tmp_path)
    assert names(tmp_path) == ["merged"]
    assert not list(tmp_path.rglob(".*.tmp"))
    again.tend(now, timedelta(days=40))
    assert names(tmp_path) == ["merged"]
    assert rows(tmp_path) == before


def test_days_beyond_the_retention_go_and_younger_ones_stay(tmp_path):
    files = SampleFiles(tmp_path)
    files.append([at(0)])
    files.tend(datetime(2026, 11, 25, 23, tzinfo=UTC), timedelta(days=5))
    assert rows(tmp_path)
    files.tend(datetime(2026, 11, 26, tzinfo=UTC), timedelta(days=5))
    assert not rows(tmp_path)


# -- the loop -------------------------------------------------------------------------------------------------------


@pytest.fixture
def exporter():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(server.status)
            self.end_headers()
            self.wfile.write(b"# TYPE a_total counter\na_total 5\n")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.status = 200
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_recorder_that_is_stopped_has_written_what_it_scraped(tmp_path, exporter):
    targets = [{"targets": [f"127.0.0.1:{exporter.server_port}", "127.0.0.1:1"], "labels": {"job": "x"}}]
    (tmp_path / "targets.json").write_text(json.dumps(targets))

    async def record():
        recorder = Recorder(RecorderConfig(home=tmp_path, interval_s=1.0))
        # The first round is scraped at once, and stopping lets it end.
        asyncio.get_running_loop().call_later(0.2, recorder.stop)
        await recorder.run()

    asyncio.run(record())
    values = {}
    for metric, _, _, value in rows(tmp_path / "samples"):
        values.setdefault(metric, set()).add(struct.unpack("<d", struct.pack("<Q", value))[0])
    assert values == {"a_total": {5.0}, "up": {0.0, 1.0}}


def test_every_wrong_setting_is_named():
    environ = {"SLUICE_SCRAPE_INTERVAL_SECONDS": "often", "SLUICE_SAMPLE_RETENTION_DAYS": "0"}
    with pytest.raises(ConfigError) as wrong:
        RecorderConfig.from_env(environ)

    for key in ("SLUICE_HOME", "SLUICE_SCRAPE_INTERVAL_SECONDS", "SLUICE_SAMPLE_RETENTION_DAYS"):
        assert key in str(wrong.value)
