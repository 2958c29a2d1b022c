"""The whole platform on one machine: Kafka, workloads, metrics and Dagster as processes that end together."""
