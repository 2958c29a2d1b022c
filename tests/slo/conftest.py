"""One Spark session for all tests of reports; samples are written as the recorder writes them."""

from __future__ import annotations

import pytest

from tests.slo.sample_tables import SampleTable


@pytest.fixture(scope="session")
def spark():
    from assets.spark import session

    spark = session(input_rows=0)
    yield spark
    spark.stop()


@pytest.fixture
def table(tmp_path):
    """An empty table of samples that a test fills and writes."""
    return SampleTable(tmp_path / "samples")
