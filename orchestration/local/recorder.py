"""Records the metrics of this machine's workloads as samples: a small Prometheus for a machine that has none.

    python -m orchestration.local.recorder        (SLUICE_HOME; SLUICE_SCRAPE_INTERVAL_SECONDS, default 5)

Every interval it scrapes the targets that the controller lists in `targets.json` and keeps what they tell in memory;
every `FLUSH_S` that becomes a Parquet file in `$SLUICE_HOME/samples`. A crash loses at most what was not flushed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from eventing.errors import EXIT_CONFIG, ConfigError
from eventing.program_config import EnvReader
from orchestration.local.sample_files import SampleFiles
from orchestration.local.scrapes import Exposed, Sample, TargetHistory, normalized

log = logging.getLogger("sluice.recorder")

SCRAPE_INTERVAL_S = 5.0
FLUSH_S = 15.0
TEND_S = 60.0
SCRAPE_TIMEOUT_S = 4.0  # below the interval, so that attempts of one target never overlap
MOST_BODY_BYTES = 16 * 1024 * 1024
MOST_BUFFERED = 500_000  # samples in memory (about 200 MB) before they are flushed early
SCRAPES_AT_ONCE = 8
NOT_RECORDED = ("python_", "process_")
"""Families of the Python runtime: half of what a process tells, and no objective asks for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderConfig:
    """Read once from the environment."""

    home: Path
    interval_s: float = SCRAPE_INTERVAL_S
    retention: timedelta = timedelta(days=40)
    """Longer than the longest usual window, a month, with some days to look back at it."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> RecorderConfig:
        """Raises ConfigError with every wrong key."""
        env = EnvReader(environ)
        config = cls(
            home=Path(env.text("SLUICE_HOME")).absolute(),
            interval_s=env.number("SLUICE_SCRAPE_INTERVAL_SECONDS", SCRAPE_INTERVAL_S, low=1.0, high=300.0),
            retention=timedelta(days=env.number("SLUICE_SAMPLE_RETENTION_DAYS", 40.0, low=1.0, high=3650.0)),
        )
        env.raise_problems()
        return config


Target = tuple[str, tuple[tuple[str, str], ...]]
"""Address and labels."""


def read_targets(path: Path) -> set[Target]:
    """The targets of a file in Prometheus' file_sd form; none when it is not there yet."""
    try:
        groups = json.loads(path.read_bytes())
    except FileNotFoundError:
        return set()
    return {(address, normalized(group.get("labels") or {})) for group in groups for address in group["targets"]}


def parse_exposition(text: str) -> Iterator[Exposed]:
    """The lines of a text exposition that are recorded. Raises ValueError for one that is none."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.startswith(NOT_RECORDED):
                at = None if sample.timestamp is None else round(float(sample.timestamp) * 1000)
                yield Exposed(sample.name, sample.labels, sample.value, at)


def fetch(address: str, timeout_s: float) -> str:
    """`GET /metrics`. Raises OSError when there is no good answer in time."""
    request = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": "text/plain;version=0.0.4"})
    with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
        body: bytes = response.read(MOST_BODY_BYTES + 1)
    if len(body) > MOST_BODY_BYTES:
        raise OSError(f"more than {MOST_BODY_BYTES} bytes of metrics")
    return body.decode()


class Recorder:
    """See the module."""

    def __init__(self, config: RecorderConfig) -> None:
        self._config = config
        self._files = SampleFiles(config.home / "samples")
        self._histories: dict[Target, TargetHistory] = {}
        self._failing: set[Target] = set()
        self._buffer: list[Sample] = []
        self._stopping = asyncio.Event()
        self._slots = asyncio.Semaphore(SCRAPES_AT_ONCE)

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop`; what was scraped is flushed before it returns."""
        now = time.monotonic()
        next_scrape, next_flush, next_tend = now, now + FLUSH_S, now + TEND_S
        while not self._stopping.is_set():
            await self._scrape_all()
            now = time.monotonic()
            if now >= next_flush or len(self._buffer) >= MOST_BUFFERED:
                await asyncio.to_thread(self._flush)
                next_flush = now + FLUSH_S
            if now >= next_tend:
                await asyncio.to_thread(self._files.tend, datetime.now(UTC), self._config.retention)
                next_tend = now + TEND_S
            # A fixed grid: a slow round delays the next one, it does not shift all that follow.
            missed = max(0.0, time.monotonic() - next_scrape) // self._config.interval_s
            next_scrape += (missed + 1) * self._config.interval_s
            try:
                await asyncio.wait_for(self._stopping.wait(), max(0.0, next_scrape - time.monotonic()))
            except TimeoutError:
                continue
        self._flush()

    async def _scrape_all(self) -> None:
        try:
            targets = read_targets(self._config.home / "targets.json")
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            log.warning("targets.unreadable reason=%s", problem)
            targets = set(self._histories)
        now_ms = time.time_ns() // 1_000_000
        for target in sorted(self._histories.keys() - targets):
            self._buffer += self._histories.pop(target).vanished(now_ms)
            self._failing.discard(target)
        await asyncio.gather(*(self._scrape(target) for target in sorted(targets)))

    async def _scrape(self, target: Target) -> None:
        address, labels = target
        history = self._histories.setdefault(target, TargetHistory(dict(labels)))
        async with self._slots:
            began_ms = time.time_ns() // 1_000_000
            try:
                text = await asyncio.to_thread(fetch, address, min(SCRAPE_TIMEOUT_S, self._config.interval_s))
                exposed = list(parse_exposition(text))
            except (OSError, ValueError) as problem:
                if target not in self._failing:
                    # Once: a process that starts or ends fails a few scrapes, a broken one all.
                    log.warning("scrape.failed address=%s reason=%s", address, problem)
                self._failing.add(target)
                self._buffer += history.failed(began_ms)
                return
        self._failing.discard(target)
        self._buffer += history.scraped(exposed, began_ms)

    def _flush(self) -> None:
        buffered, self._buffer = self._buffer, []
        try:
            self._files.append(buffered)
        except OSError as problem:
            # A full disk: keep what memory allows and try again at the next flush.
            log.error("samples.not_written reason=%s", problem)  # noqa: TRY400 - the reason says it all
            self._buffer = [*buffered[-MOST_BUFFERED:], *self._buffer]


async def _record(config: RecorderConfig) -> None:
    recorder = Recorder(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, recorder.stop)
    log.info("recorder.start interval_s=%g", config.interval_s)
    await recorder.run()
    log.info("recorder.end")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        config = RecorderConfig.from_env(os.environ)
    except ConfigError as problem:
        log.error("%s", problem)  # noqa: TRY400 - for a person, without a traceback
        return EXIT_CONFIG
    asyncio.run(_record(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
