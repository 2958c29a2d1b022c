"""The dispatcher: `python -m dispatcher_image dispatch`. Delivers the events of one channel to its subscribers.

This is its composition root: it follows the registry, keeps one `Subscription` with its `KafkaFeed` for each
subscriber, commits what is finished, follows the credentials, and ends in order.

    Kafka ──► consumer (a thread each) ──► subscription: lanes, delivery ──► sender ──HTTP──► subscriber
                                              ▲ channel_source

A change of one subscriber touches no other. A changed URI or delivery option is applied while everything runs; only a
changed order makes one subscription begin anew, because what is in the house was sorted by the old one.

SIGTERM and SIGINT: not ready, send nothing new, wait for answers up to DRAIN_TIMEOUT_SECONDS, commit, leave, exit 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import hashlib
import itertools
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dispatcher_image.channel_source import ChannelView, open_channel_source
from dispatcher_image.consumer import FeedConfig, KafkaFeed
from dispatcher_image.dead_letters import DeadLetters
from dispatcher_image.dispatch_pages import serve_pages
from dispatcher_image.profiling import serve_profiles
from dispatcher_image.sender import OpenSender
from dispatcher_image.subscription import Subscription
from dispatcher_image.telemetry import DispatcherMetrics
from eventing.channels import DeliveryOrder, InitialOffset, KafkaChannel, Subscriber, group_id
from eventing.errors import ConfigError
from eventing.kafka_security import fingerprint, read_secret_dir
from eventing.program_config import DispatchConfig, Transport

COMMIT_INTERVAL_S: Final = 0.25
"""What a crash repeats is what is in flight and what was confirmed within this time."""
FOLLOW_SECRET_S: Final = 2.0
"""Between two looks at a mounted secret; a kubelet takes up to a minute to update it anyway."""
HOUSE_BYTES: Final = 40 * 1024 * 1024
"""Memory for records of all subscriptions together; each assigned partition gets an equal share of it."""
LEAST_SHARE_BYTES: Final = 256 * 1024
"""Share of a partition, however many there are: enough for a few large events."""
STOP_GRACE_S: Final = 3.0
"""After the drain, for the last commit and for leaving the group."""
LIBRARY_LOG_EVERY_S: Final = 10.0
"""For each client and facility of librdkafka."""
ARENAS: Final = 2
_M_ARENA_MAX: Final = -8
"""From malloc.h of glibc."""
OPEN_FILES: Final = 65_536
GC_THRESHOLD: Final = (50_000, 20, 50)
"""Records in the house are many, long-lived and free of cycles: looking at them often finds nothing."""
SWITCH_INTERVAL_S: Final = 0.0001
"""A feed's thread that waits for the interpreter is woken at every system call of the loop, in vain, until this time
has passed and the loop has to let go; with Python's 5 ms that cost a tenth of all CPU (benchmarks/dispatch.md)."""

log = logging.getLogger(__name__)


class Slot:
    """One subscriber of the channel: converges what runs to what is declared, one change at a time."""

    def __init__(self, dispatcher: Dispatcher, uid: str) -> None:
        self._dispatcher = dispatcher
        self._uid = uid
        self._desired: tuple[KafkaChannel, Subscriber] | None = None
        self._changed = asyncio.Event()
        self._client_name = f"rdkafka#consumer-{next(dispatcher.consumer_numbers)}"
        self._order: DeliveryOrder | None = None
        self.subscription: Subscription | None = None
        self.feed: KafkaFeed | None = None
        self.task = asyncio.get_running_loop().create_task(self._converge())

    def declare(self, channel: KafkaChannel, subscriber: Subscriber) -> None:
        """What should be."""
        if self._desired != (channel, subscriber):
            self._desired = channel, subscriber
            self._changed.set()

    def withdraw(self) -> None:
        """It should not be any more."""
        self._desired = None
        self._changed.set()

    async def _converge(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            desired = self._desired
            if self.subscription is not None and (desired is None or desired[0].order is not self._order):
                await self._end()
            if desired is None:
                if self._desired is None:
                    return
                continue  # declared again while it ended
            if self.subscription is None:
                self._begin(*desired)
            else:
                self.subscription.update(*desired)
                log.info("dispatch.updated subscription=%s generation=%d", self._uid, desired[1].generation)

    def _begin(self, channel: KafkaChannel, subscriber: Subscriber) -> None:
        dispatcher = self._dispatcher
        config = dispatcher.config
        self._order = channel.order
        subscription = Subscription(
            channel,
            subscriber,
            topic=config.kafka_topic,
            client_name=self._client_name,
            in_flight_limit=config.max_in_flight,
            open_sender=dispatcher.open_sender,
            dead_letters=dispatcher.dead_letters,
        )
        feed = KafkaFeed(
            FeedConfig(
                bootstrap_servers=config.bootstrap_servers,
                topic=config.kafka_topic,
                group=group_id(channel, subscriber.uid),
                group_protocol=config.group_protocol,
                initial_offset=InitialOffset.EARLIEST if _was_ready(channel, subscriber) else channel.initial_offset,
                drain_timeout_s=config.drain_timeout_seconds,
                client_rack=config.client_rack,
                instance_id=dispatcher.instance_id,
            ),
            security=dispatcher.security,
            listener=subscription,
            house=subscription.lanes,
            taken=lambda: subscription.taken,
            bytes_limit=dispatcher.bytes_limit,
            loop=asyncio.get_running_loop(),
        )
        subscription.paused = lambda: feed.paused
        self.subscription, self.feed = subscription, feed
        feed.start()
        log.info("dispatch.subscribed subscription=%s uri=%s", self._uid, subscription.terms.subscriber_url)

    async def _end(self) -> None:
        subscription, feed = self.subscription, self.feed
        assert subscription is not None
        assert feed is not None
        await feed.stop()
        subscription.abort()
        self.subscription = self.feed = None
        log.info("dispatch.unsubscribed subscription=%s", self._uid)


class Dispatcher:
    """All subscriptions of one channel."""

    def __init__(self, config: DispatchConfig) -> None:
        self.config = config
        self.consumer_numbers = itertools.count(1)
        self.slots: dict[str, Slot] = {}
        self.instance_id = _instance_id(config)
        self.open_sender = _open_sender(config.transport)
        self._security = read_secret_dir(config.kafka_secret_dir).client_properties()
        self.dead_letters = DeadLetters(config.bootstrap_servers, self.security, asyncio.get_running_loop())
        self.is_registry_read = False
        self.is_stopping = False
        namespace, _, name = config.channel_key.partition("/")
        self.key = (namespace, name)

    def security(self) -> Mapping[str, str]:
        """Client properties from the secret as it was last good."""
        return self._security

    def renew_security(self) -> None:
        """Read the secret again, and let every client come back with it."""
        try:
            security = read_secret_dir(self.config.kafka_secret_dir).client_properties()
        except ConfigError as exc:
            log.error("dispatch.secret_invalid reason=%r (the one before stays in use)", str(exc))  # noqa: TRY400
            return
        if security == self._security:
            return
        self._security = security
        log.info("dispatch.secret_changed")
        self.dead_letters.renew()
        for slot in self.slots.values():
            if slot.feed is not None:
                slot.feed.restart()

    def subscriptions(self) -> list[Subscription]:
        return [slot.subscription for slot in self.slots.values() if slot.subscription is not None]

    def bytes_limit(self) -> int:
        """Bytes that one partition of one subscription may have in the house. Called by the feeds' threads."""
        partitions = 0
        for slot in list(self.slots.values()):
            subscription = slot.subscription
            if subscription is not None:
                partitions += len(subscription.lanes.partitions)
        share = max(LEAST_SHARE_BYTES, HOUSE_BYTES // max(1, partitions))
        return min(self.config.max_in_flight_bytes, share)

    def follow(self, view: ChannelView) -> None:
        """Bring what runs in line with the registry."""
        if not self.is_registry_read:
            self.is_registry_read = True
            if self.key not in view:
                log.warning("dispatch.channel_absent channel=%s", self.config.channel_key)
        if self.is_stopping:
            return
        channel = view.get(self.key)
        declared = {} if channel is None or channel.is_being_deleted else {s.uid: s for s in channel.subscribers}
        for uid, slot in self.slots.items():
            if uid not in declared:
                slot.withdraw()
        for uid, subscriber in declared.items():
            assert channel is not None
            if uid not in self.slots or self.slots[uid].task.done():
                self.slots[uid] = Slot(self, uid)
            self.slots[uid].declare(channel, subscriber)

    def commit(self) -> None:
        """Ask every feed to commit what is new."""
        for slot in self.slots.values():
            if slot.subscription is not None and slot.feed is not None:
                entries = slot.subscription.commits()
                if entries:
                    slot.feed.commit(entries)
        for uid in [uid for uid, slot in self.slots.items() if slot.task.done()]:
            del self.slots[uid]

    async def stop(self) -> None:
        """Drain, commit and leave all groups at once."""
        self.is_stopping = True
        for slot in self.slots.values():
            slot.withdraw()
        tasks = [slot.task for slot in self.slots.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self.config.drain_timeout_seconds + STOP_GRACE_S)
            for task in late:
                log.warning("dispatch.stop_timed_out")
                task.cancel()
        self.dead_letters.close()

    def reasons(self) -> list[str]:
        """Why it is not ready, in words; none when it is."""
        if self.is_stopping:
            return ["stopping"]
        if not self.is_registry_read:
            return ["the registry was not read yet"]
        reasons = []
        for uid, slot in sorted(self.slots.items()):
            subscription = slot.subscription
            if subscription is None:
                reasons.append(f"subscription {uid}: starting")
            elif not subscription.is_ready:
                reasons.append(f"subscription {uid}: {subscription.state} {subscription.reason}".rstrip())
        return reasons

    def status(self) -> dict[str, Any]:
        """What `/subscriptions` shows."""
        listed = sorted(self.subscriptions(), key=lambda subscription: subscription.uid)
        return {
            "channel": self.config.channel_key,
            "topic": self.config.kafka_topic,
            "ready": not self.reasons(),
            "subscriptions": [subscription.status() for subscription in listed],
        }


async def dispatch(config: DispatchConfig) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        ConfigError: something that the configuration names is missing or unusable.
        OSError: a port is taken.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _raise_file_limit()
    _limit_arenas()
    logging.getLogger("librdkafka").addFilter(SparseLog())

    dispatcher = Dispatcher(config)
    source = open_channel_source(config.channel_source, only=dispatcher.key)
    servers = await serve_pages(
        metrics_port=config.metrics_port,
        health_port=config.health_port,
        collector=DispatcherMetrics(dispatcher.subscriptions),
        reasons=dispatcher.reasons,
        status=dispatcher.status,
    )
    if config.profiling_port is not None:
        servers.append(await serve_profiles(config.profiling_port))
    log.info("dispatch.started channel=%s topic=%s", config.channel_key, config.kafka_topic)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    async def follow_registry() -> None:
        async with source:
            async for view in source.views():
                dispatcher.follow(view)

    async def commit_regularly() -> None:
        while True:
            await asyncio.sleep(COMMIT_INTERVAL_S)
            dispatcher.commit()

    async def follow_secret() -> None:
        seen = fingerprint(config.kafka_secret_dir)
        while config.kafka_secret_dir is not None:
            await asyncio.sleep(FOLLOW_SECRET_S)
            now = fingerprint(config.kafka_secret_dir)
            if now != seen:
                seen = now
                dispatcher.renew_security()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work()) for work in (follow_registry, commit_regularly, follow_secret)]
        await stop.wait()
        began = time.monotonic()
        log.info("dispatch.stopping in_flight=%d", sum(s.in_flight for s in dispatcher.subscriptions()))
        tasks[0].cancel()
        await dispatcher.stop()
        for task in tasks:
            task.cancel()
    for server in servers:
        await server.stop(last_call=0, timeout=0)
    log.info("dispatch.stopped seconds=%.2f", time.monotonic() - began)
    if any(slot.feed is not None for slot in dispatcher.slots.values()):
        # A thread is still inside librdkafka, waiting for a broker that is away; it would keep the interpreter.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(0)


class SparseLog(logging.Filter):
    """Lets a client of librdkafka say at most one thing in a while: cut off, it says the same ten times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        words = record.getMessage().split(" ", 2)
        subject = words[0], words[1] if len(words) > 1 else ""
        now = time.monotonic()
        if now - self._said.get(subject, -LIBRARY_LOG_EVERY_S) < LIBRARY_LOG_EVERY_S:
            return False
        self._said[subject] = now
        return True


def _open_sender(transport: Transport) -> OpenSender:
    if transport is Transport.AIOHTTP:
        from dispatcher_image.aiohttp_sender import AiohttpSender  # noqa: PLC0415  # 30 MB that most do not need

        return AiohttpSender
    from dispatcher_image.native_sender import NativeSender  # noqa: PLC0415  # the other one of two

    return NativeSender


def _instance_id(config: DispatchConfig) -> str:
    """A name that this process has again after a crash, and that no other process has meanwhile.

    The health port is bound before any group is joined, so two that live on one host differ in it; hosts and pods
    differ in their names.
    """
    try:
        machine = Path("/etc/machine-id").read_bytes()
    except OSError:
        machine = b""
    text = b"|".join([socket.gethostname().encode(), machine, b"%d" % config.health_port])
    return "sluice-" + hashlib.sha256(text).hexdigest()[:16]


def _was_ready(channel: KafkaChannel, subscriber: Subscriber) -> bool:
    """Whether the status says that offsets were set before. Missing ones have then expired, and are not new."""
    listed = channel.status.get("subscribers")
    return isinstance(listed, list) and any(
        isinstance(entry, Mapping) and entry.get("uid") == subscriber.uid and entry.get("ready") == "True"
        for entry in listed
    )


def _limit_arenas() -> None:
    """Keep the C library from giving every thread of librdkafka an arena of its own.

    A message is allocated by one thread and freed by another; with dozens of arenas, memory that was used once in each
    adds up to several times of what is in use.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(ARENAS))


def _raise_file_limit() -> None:
    """Many subscriptions with slow subscribers need a connection for each record in flight."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
