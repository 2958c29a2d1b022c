"""A change in the registry reaches the programs within a second; what breaks leaves what was good."""

import asyncio
import shutil
from contextlib import asynccontextmanager

import pytest

from dispatcher_image.channel_source import open_channel_source
from eventing.channels import topic_name
from eventing.errors import ConfigError

CHANNEL = """\
apiVersion: messaging.knative.dev/v1beta1
kind: KafkaChannel
metadata: {namespace: team, name: %s}
spec:
  subscribers:
  - {uid: one, subscriberUri: "%s"}
"""
STATUS = """\
apiVersion: messaging.knative.dev/v1beta1
kind: KafkaChannel
metadata: {namespace: team, name: orders, generation: 7}
status: {annotations: {default.topic: kept-name}}
"""


class Watcher:
    def __init__(self, source):
        self._views = source.views()

    async def next(self, within=1.0):
        return await asyncio.wait_for(anext(self._views), within)

    async def silent(self, seconds=0.8):
        with pytest.raises(TimeoutError):
            await self.next(seconds)
        # wait_for cancelled the generator's step, which ends it: a test asks for silence last.


@asynccontextmanager
async def watching(path, **kwargs):
    async with open_channel_source(str(path), **kwargs) as source:
        yield Watcher(source)


def declare(folder, name="orders", uri="http://one/", file=None):
    (folder / (file or f"{name}.yaml")).write_text(CHANNEL % (name, uri))


def uri(view, name="orders"):
    return view["team", name].subscribers[0].subscriber_uri


def run(coroutine):
    asyncio.run(coroutine)


def test_first_view_comes_at_once_even_when_it_is_empty(tmp_path):
    async def check():
        async with watching(tmp_path) as source:
            assert await source.next() == {}

    run(check())


def test_changes_are_seen_within_a_second(tmp_path):
    async def check():
        declare(tmp_path)
        async with watching(tmp_path) as source:
            assert uri(await source.next()) == "http://one/"
            declare(tmp_path, uri="http://two/")
            assert uri(await source.next()) == "http://two/"
            declare(tmp_path, "bills")
            assert set(await source.next()) == {("team", "orders"), ("team", "bills")}
            (tmp_path / "bills.yaml").unlink()
            assert set(await source.next(1.5)) == {("team", "orders")}

    run(check())


def test_persisted_topic_and_generation_come_from_the_status_file(tmp_path):
    async def check():
        declare(tmp_path)
        async with watching(tmp_path) as source:
            assert topic_name((await source.next())["team", "orders"]) == "team.orders"
            (tmp_path / ".status").mkdir()
            (tmp_path / ".status/team.orders.yaml").write_text(STATUS)
            channel = (await source.next())["team", "orders"]
            assert (topic_name(channel), channel.generation) == ("kept-name", 7)

    run(check())


def test_a_file_that_is_replaced_by_deleting_it_first_is_no_deletion(tmp_path):
    async def check():
        declare(tmp_path)
        async with watching(tmp_path) as source:
            await source.next()
            (tmp_path / "orders.yaml").unlink()
            await asyncio.sleep(0.2)
            declare(tmp_path, uri="http://two/")
            assert uri(await source.next(1.5)) == "http://two/"

    run(check())


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("{", id="no YAML"),
        pytest.param(CHANNEL % ("orders", "ftp://x"), id="invalid object"),
        pytest.param("\xff", id="not UTF-8"),
    ],
)
def test_a_broken_document_leaves_its_channel_as_it_was_and_others_go_on(tmp_path, broken):
    async def check():
        declare(tmp_path)
        async with watching(tmp_path) as source:
            await source.next()
            (tmp_path / "orders.yaml").write_text(broken, encoding="latin-1")
            declare(tmp_path, "bills")
            view = await source.next()
            assert set(view) == {("team", "orders"), ("team", "bills")}
            assert uri(view) == "http://one/"

    run(check())


def test_a_folder_that_vanishes_leaves_the_view_and_is_followed_when_it_returns(tmp_path):
    async def check():
        folder = tmp_path / "registry"
        folder.mkdir()
        declare(folder)
        async with watching(folder) as source:
            await source.next()
            shutil.rmtree(folder)
            await asyncio.sleep(0.7)
            folder.mkdir()
            declare(folder, uri="http://two/")
            assert uri(await source.next(2.0)) == "http://two/"
            declare(folder, uri="http://three/")
            assert uri(await source.next()) == "http://three/"

    run(check())


def test_a_folder_that_vanishes_is_no_change(tmp_path):
    async def check():
        folder = tmp_path / "registry"
        folder.mkdir()
        declare(folder)
        async with watching(folder) as source:
            await source.next()
            shutil.rmtree(folder)
            await source.silent()

    run(check())


def test_a_single_file_can_be_the_source(tmp_path):
    async def check():
        declare(tmp_path)
        declare(tmp_path, "bills")
        async with watching(tmp_path / "orders.yaml") as source:
            assert set(await source.next()) == {("team", "orders")}
            declare(tmp_path, uri="http://two/")
            assert uri(await source.next()) == "http://two/"

    run(check())


def test_a_copy_of_a_document_changes_nothing(tmp_path):
    async def check():
        declare(tmp_path)
        (tmp_path / ".status").mkdir()
        (tmp_path / ".status/team.orders.yaml").write_text(
            STATUS.replace("generation: 7", "generation: 7, annotations: {sluice.dev/source-file: orders.yaml}")
        )
        async with watching(tmp_path) as source:
            await source.next()
            declare(tmp_path, uri="http://copy/", file="a-copy.yaml")
            declare(tmp_path, "bills")
            view = await source.next()
            assert uri(view) == "http://one/"

    run(check())


def test_one_channel_of_interest_hides_the_others(tmp_path):
    async def check():
        declare(tmp_path)
        declare(tmp_path, "bills")
        async with watching(tmp_path, only=("team", "bills")) as source:
            assert set(await source.next()) == {("team", "bills")}

    run(check())


def test_a_path_that_cannot_be_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="CHANNEL_SOURCE"):
        open_channel_source(str(tmp_path / "no" / "where"))
