"""Dagster code location 2: from metric samples to SLO reports, with PySpark.

`slo/` holds what is computed; `spark.py` makes the session; `cli.py` is `sluice slo`; `definitions.py` is what Dagster
loads. The other code location never imports this package, because pyspark would slow each of its sensors.
"""
