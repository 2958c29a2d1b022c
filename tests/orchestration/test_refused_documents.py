"""What a refused file does to what runs: nothing; and where its author reads why: on the channel."""

from __future__ import annotations

import os
import time

import pytest

from orchestration.adapters.registry_folder import FolderRegistry
from orchestration.ports import Ports
from tests.orchestration.worlds import World, channel

GOOD = """\
apiVersion: messaging.knative.dev/v1beta1
kind: KafkaChannel
metadata: {{namespace: shop, name: {name}}}
spec:
  numPartitions: {partitions}
  subscribers: [{{uid: u1, generation: 1, subscriberUri: "http://u1/"}}]
"""


@pytest.fixture
def world(tmp_path):
    world = World()
    world.registry = FolderRegistry(tmp_path)
    world.ports = Ports(registry=world.registry, workloads=world.workloads, kafka=world.kafka)
    world.forget_writes = lambda: (world.kafka.writes.clear(), world.workloads.writes.clear())
    return world


def write(folder, name, text):
    path = folder / f"{name}.yaml"
    path.write_text(text)
    past = time.time() - 10
    os.utime(path, (past, past))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(GOOD.format(name="a", partitions=0), "a.yaml:5: spec.numPartitions: must be from 1", id="value"),
        pytest.param(
            GOOD.format(name="a", partitions=2) + "  oops: 1\n", "a.yaml:7: spec.oops: is not a field", id="field"
        ),
        pytest.param("spec: [", "a.yaml:1: is no valid YAML", id="no YAML"),
    ],
)
def test_a_bad_change_freezes_its_channel_says_why_on_it_and_is_over_when_it_is_mended(world, tmp_path, text, said):
    for name in ("a", "b"):
        write(tmp_path, name, GOOD.format(name=name, partitions=2))
    world.settle()
    world.forget_writes()
    write(tmp_path, "a", text)
    done = world.settle()
    assert world.kafka.writes == []
    assert world.workloads.writes == []
    assert world.condition("a")["status"] == "False"
    assert world.condition("a")["reason"] == "InvalidDocument"
    assert said in world.condition("a")["message"]
    assert world.condition("b")["status"] == "True"
    assert [remark.object for remark in done.plan.rejected] == ["shop/a"]
    write(tmp_path, "a", GOOD.format(name="a", partitions=3))
    world.settle()
    assert world.condition("a")["status"] == "True"
    assert len(world.kafka.partitions["shop.a"]) == 3


def test_a_document_that_never_was_good_creates_nothing(world, tmp_path):
    write(tmp_path, "a", GOOD.format(name="a", partitions=2) + "  oops: 1\n")
    world.settle()
    assert set(world.kafka.partitions) == {"__strimzi_canary"}
    assert world.condition("a")["reason"] == "InvalidDocument"


def test_a_refused_channel_can_be_removed(world, tmp_path):
    write(tmp_path, "a", GOOD.format(name="a", partitions=2))
    world.settle()
    write(tmp_path, "a", GOOD.format(name="a", partitions=0))
    world.settle()
    (tmp_path / "a.yaml").unlink()
    world.settle()
    assert set(world.kafka.partitions) == {"__strimzi_canary"}
    assert list((tmp_path / ".status").glob("*.yaml")) == []


def test_a_copied_file_changes_nothing_of_what_runs(world, tmp_path):
    write(tmp_path, "b", GOOD.format(name="a", partitions=2))
    world.settle()
    world.forget_writes()
    write(tmp_path, "a", GOOD.format(name="a", partitions=7))
    done = world.settle()
    assert world.kafka.writes == []
    assert "already declared in b.yaml:1" in str(done.observation.invalid[0])


def test_a_folder_that_vanishes_and_comes_back_costs_nothing(world, tmp_path):
    write(tmp_path, "a", GOOD.format(name="a", partitions=2))
    world.settle()
    world.forget_writes()
    elsewhere = tmp_path.with_name("elsewhere")
    tmp_path.rename(elsewhere)
    done = world.reconcile()
    assert "registry is unavailable" in done.observation.unreadable[0]
    elsewhere.rename(tmp_path)
    world.settle()
    assert world.kafka.writes == []
    assert world.workloads.writes == []


def test_the_registry_of_fakes_and_the_folder_lead_to_the_same_world(world, tmp_path):
    write(tmp_path, "a", GOOD.format(name="orders", partitions=2))
    world.settle()
    other = World(channel())
    other.settle()
    assert world.kafka.partitions == other.kafka.partitions
