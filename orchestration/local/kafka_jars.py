"""The broker's jars: resolved once from Maven Central into a cache, then only read.

The cache folder `~/.cache/sluice/kafka-<version>` appears in one rename when all of it is there and checked (jgo
compares each jar's SHA-1), so that an interrupted download is never taken for complete. A second process that needs the
jars meanwhile waits for the first.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from eventing.errors import Unavailable

KAFKA_VERSION = "4.1.0"
KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
DOWNLOAD_ATTEMPTS = 3
DOWNLOAD_THREADS = 4  # Maven Central slows down clients that open many connections
HTTP_TIMEOUT_S = 30
LOCK_WAIT_S = 600.0  # twice the slowest download seen, so that a waiting process does not fail before the first one

Progress = Callable[[str], None]


def cache_home(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/sluice`, else `~/.cache/sluice`."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice"


def kafka_jars(progress: Progress, cache: Path | None = None) -> list[Path]:
    """The jars of the broker, sorted by name; downloaded first when the cache does not hold them.

    Raises:
        Unavailable: Maven Central cannot be reached, or another process holds the cache for too long.
    """
    folder = (cache or cache_home()) / f"kafka-{KAFKA_VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(folder.name + ".lock"), progress):
            if not folder.is_dir():
                _download(folder, progress)
    return sorted(folder.glob("*.jar"))


def _download(folder: Path, progress: Progress) -> None:
    for attempt in range(1, DOWNLOAD_ATTEMPTS + 1):
        progress(f"downloading Apache Kafka {KAFKA_VERSION} from Maven Central (about 40 MB, once)")
        workplace = Path(tempfile.mkdtemp(prefix=folder.name + ".", suffix=".part", dir=folder.parent))
        try:
            _resolve_into(workplace, progress)
            (workplace / "jars").rename(folder)
        except Exception as problem:  # jgo lets requests' and its own errors through; all mean the same to the caller
            if attempt == DOWNLOAD_ATTEMPTS:
                raise Unavailable(
                    "Maven Central",
                    f"Apache Kafka {KAFKA_VERSION} could not be downloaded: {problem}. Check the network, or set "
                    "KAFKA_BOOTSTRAP_SERVERS to use a cluster that is there",
                ) from problem
            progress(f"download failed ({problem}); trying again")
        else:
            return
        finally:
            shutil.rmtree(workplace, ignore_errors=True)


def _resolve_into(workplace: Path, progress: Progress) -> None:
    # Imported here: only the first start on a machine needs the resolver.
    from jgo.maven import MavenContext  # noqa: PLC0415
    from jgo.parse import Coordinate  # noqa: PLC0415

    maven = MavenContext(repo_cache=workplace / "repository", timeout=HTTP_TIMEOUT_S)

    kafka = maven.create_dependency(Coordinate.parse(KAFKA))
    given, needed = maven.resolver.resolve([kafka])
    artifacts = [d.artifact for d in [*given, *needed] if d.scope in (None, "compile", "runtime")]
    # Kafka brings log4j-core but not the binding that connects it to slf4j 1.7; without it the broker logs nothing.
    # Not resolved together: the binding's managed versions would displace Kafka's own (kafka-clients 3.8 was seen).
    log4j = next(a.version for a in artifacts if a.artifactId == "log4j-core")
    binding = Coordinate.parse(f"org.apache.logging.log4j:log4j-slf4j-impl:{log4j}")
    artifacts.append(maven.create_dependency(binding).artifact)

    jars = workplace / "jars"
    jars.mkdir()
    with ThreadPoolExecutor(DOWNLOAD_THREADS) as downloads:
        for done, path in enumerate(downloads.map(lambda artifact: artifact.resolve(), artifacts), start=1):
            shutil.copyfile(path, jars / path.name)
            if done % 15 == 0 or done == len(artifacts):
                progress(f"downloaded {done} of {len(artifacts)} jars")


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file; the kernel frees it when its holder ends, however it ends."""
    with path.open("a") as lock:
        deadline, told = time.monotonic() + LOCK_WAIT_S, False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress("another process is downloading Apache Kafka; waiting for it")
                    told = True
                if time.monotonic() > deadline:
                    raise Unavailable(
                        "jar cache", f"another process holds {path} for more than {LOCK_WAIT_S:.0f} s"
                    ) from None
                time.sleep(0.2)
        yield
