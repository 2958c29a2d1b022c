"""The one place where a Spark session is made.

`SPARK_REMOTE` (sc://host:port, Spark Connect) or `SPARK_MASTER` (k8s://…, spark://…) choose a cluster; without them
everything runs in this process tree on `local[*]`, with little memory and no user interface.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from eventing.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_INPUT_ROWS = 100_000
"""Below this, compiling a query costs more than interpreting it: with 15 objectives they are even at about 150,000."""

_LOCAL = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.showConsoleProgress": "false",
}
_ALWAYS = {
    "spark.app.name": "sluice-slo",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # A re-materialised partition replaces itself and no other.
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    # Not seen in the wild in Parquet of ours; files of others may hold nanoseconds.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_SMALL = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
_COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
}


def session(environ: Mapping[str, str] | None = None, *, input_rows: int | None = None) -> SparkSession:
    """The session of this process, made on first use.

    `input_rows` is how much there is to read, None when not known; small inputs are interpreted, not compiled.

    Raises Unavailable when Spark does not start (no Java, no such master), with the reason.
    """
    env = os.environ if environ is None else environ
    from pyspark.sql import SparkSession  # noqa: PLC0415 - half a second that `--help` need not wait for

    small = input_rows is not None and input_rows < SMALL_INPUT_ROWS
    builder = SparkSession.builder
    remote, master = env.get("SPARK_REMOTE"), env.get("SPARK_MASTER")
    if remote:
        builder = builder.remote(remote)
    else:
        builder = builder.master(master or "local[*]")
        if not master or master.startswith("local"):
            options = "-XX:+UseSerialGC" + (" -XX:TieredStopAtLevel=1" if small else "")
            for key, value in {**_LOCAL, "spark.driver.extraJavaOptions": options}.items():
                builder = builder.config(
                    key, env.get("SLUICE_SPARK_MEMORY", value) if key == "spark.driver.memory" else value
                )
    for key, value in {**_ALWAYS, **(_SMALL if small else _COMPILED)}.items():
        builder = builder.config(key, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else a warning, and a look-up that can hang
    with _quiet_stderr():
        spark = builder.getOrCreate()
        if not remote:
            spark.sparkContext.setLogLevel("OFF")
    return spark


@contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Give a starting JVM a file for its standard error, which it keeps: its start-up chatter is not for our users.

    When it fails to start, what it said is in the error.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        except Exception as exc:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()
            raise Unavailable("Spark", " | ".join([str(exc), *said[-5:]])) from exc
        finally:
            os.dup2(kept, 2)
            os.close(kept)
