"""Topics of a test, and what is durable in them."""

from __future__ import annotations

import uuid

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic


def create_topic(bootstrap: str, topic: str, partitions: int = 1, *, copies: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive its answer
    future = admin.create_topics(
        [NewTopic(topic, partitions, copies, config={name.replace("_", "."): value for name, value in config.items()})]
    )[topic]
    future.result(30)


def records_of(bootstrap: str, topic: str, **properties: str) -> list:
    """Every record that is in the topic now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": str(uuid.uuid4()),
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **properties,
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        records = []
        for partition in partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            position = low
            consumer.assign([TopicPartition(topic, partition, low)])
            while position < high:
                message = consumer.poll(30)
                assert message is not None, f"{topic}/{partition} ends at {high}, seen up to {position}"
                assert message.error() is None, message.error()
                records.append(message)
                position = message.offset() + 1
        return records
    finally:
        consumer.close()


def ids_of(bootstrap: str, topic: str, **properties: str) -> list[str]:
    return [dict(record.headers())["ce_id"].decode() for record in records_of(bootstrap, topic, **properties)]
