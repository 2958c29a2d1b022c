"""Which partition proves which broker, whatever is up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary_image.coverage import Broker, CheckedBrokers, Partition, Target, moved, orphans, targets


def partitions(*replica_lists: tuple[int, ...], leaders: tuple[int, ...] | None = None) -> list[Partition]:
    return [
        Partition(number, replicas, leaders[number] if leaders else replicas[0])
        for number, replicas in enumerate(replica_lists)
    ]


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        pytest.param([(0, 1), (1, 2), (2, 0)], set(), id="one each: none"),
        pytest.param([(0, 1), (1, 0), (0, 1)], {2}, id="after a scale-down the higher id is the orphan"),
        pytest.param([(7, 3), (7, 5), (7, 9)], {1, 2}, id="broker ids are not partition ids"),
        pytest.param([(1,), (0,), (1,), (0,)], {2, 3}, id="two brokers, four partitions"),
        pytest.param([], set(), id="no partitions"),
    ],
)
def test_orphans(replicas, expected):
    assert orphans(partitions(*replicas)) == expected


def test_what_is_probed_does_not_depend_on_which_brokers_are_up():
    healthy = partitions((0, 1, 2), (1, 2, 0), (2, 0, 1))
    broker_2_down = partitions((0, 1, 2), (1, 2, 0), (2, 0, 1), leaders=(0, 1, 0))
    all_down = partitions((0, 1, 2), (1, 2, 0), (2, 0, 1), leaders=(-1, -1, -1))

    assert (
        [t.partition for t in targets(healthy)]
        == [t.partition for t in targets(broker_2_down)]
        == [t.partition for t in targets(all_down)]
        == [0, 1, 2]
    )


def test_an_option_probes_orphans_too():
    assert [t.partition for t in targets(partitions((0,), (0,)), probe_orphans=True)] == [0, 1]


def test_a_probe_without_leader_goes_on_the_account_of_the_broker_that_should_lead():
    assert Target(partition=4, proves=2, leader=-1).blamed == 2
    assert Target(partition=4, proves=2, leader=0).blamed == 0


observed = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True).map(tuple), max_size=20).map(
    lambda lists: partitions(*lists)
)


@given(observed, st.randoms())
def test_the_order_of_observation_has_no_meaning(found, random):
    shuffled = list(found)
    random.shuffle(shuffled)

    assert targets(shuffled) == targets(found)


@given(observed)
def test_every_preferred_leader_is_proven_exactly_once(found):
    assert sorted(t.proves for t in targets(found)) == sorted({p.replicas[0] for p in found})


def test_moved_names_partitions_that_are_new_or_have_another_leader():
    before = [Target(0, 0, 0), Target(1, 1, 1), Target(2, 2, 2)]
    after = [Target(0, 0, 0), Target(1, 1, 0), Target(3, 3, 3)]

    assert moved(before, after) == {1, 3}


def brokers(*ids: int, port: int = 9092) -> list[Broker]:
    return [Broker(number, f"broker-{number}", port) for number in ids]


class TestCheckedBrokers:
    def test_without_an_expected_size_it_is_whoever_is_there(self):
        checked = CheckedBrokers().after(brokers(0, 1, 2), None).after(brokers(0, 1), None)

        assert [broker.id for broker in checked.brokers] == [0, 1]

    def test_with_one_the_list_stays_once_that_many_were_seen(self):
        checked = CheckedBrokers()
        for seen, expected in [((0, 1), [0, 1]), ((0, 1, 2), [0, 1, 2]), ((0, 1), [0, 1, 2]), ((), [0, 1, 2])]:
            checked = checked.after(brokers(*seen), 3)

            assert [broker.id for broker in checked.brokers] == expected

    def test_a_listed_broker_that_comes_back_elsewhere_is_followed(self):
        checked = CheckedBrokers().after(brokers(0, 1), 2).after([*brokers(0), *brokers(1, port=9999)], 2)

        assert [broker.port for broker in checked.brokers] == [9092, 9999]
