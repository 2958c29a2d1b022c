"""Leaders over brokers, replicas over racks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.planning.placement import in_turns, place, unevenness
from orchestration.planning.snapshot import Broker
from tests.planning.worlds import go_rule


def brokers(racks):
    """Brokers by id; `racks` maps ids to racks."""
    return [Broker(id=number, rack=rack) for number, rack in sorted(racks.items())]


# From the comment in the Go program; its code yields another order than the comment says.
KIP_36 = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


def test_the_order_takes_one_of_each_rack_in_turn_as_the_go_code_does():
    assert in_turns(brokers(KIP_36)) == [0, 1, 3, 5, 2, 4]


def test_without_racks_the_order_is_by_id():
    assert in_turns(brokers({7: None, 3: None, 10: None})) == [3, 7, 10]


def test_racks_are_ignored_when_one_broker_has_none():
    assert in_turns(brokers({0: "a", 1: "a", 2: None, 3: "b"})) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("racks", "partitions"),
    [
        pytest.param({0: None}, 1, id="one broker"),
        pytest.param({0: None, 1: None}, 3, id="an orphan"),
        pytest.param({4: None, 17: None, 1000: None}, 3, id="ids are not 0..n-1"),
        pytest.param(KIP_36, 6, id="three racks of two"),
        pytest.param(KIP_36, 9, id="three racks of two and orphans"),
        pytest.param({n: "abc"[n % 3] for n in range(9)}, 9, id="three racks of three"),
        pytest.param({n: "ab"[n % 2] for n in range(4)}, 4, id="fewer racks than replicas"),
    ],
)
def test_the_assignment_equals_the_go_rule(racks, partitions):
    factor = min(3, len(racks))

    assert [list(r) for r in place(brokers(racks), partitions=partitions, replication_factor=factor)] == go_rule(
        racks.items(), partitions
    )


cluster = st.dictionaries(st.integers(0, 500), st.sampled_from(["a", "b", "c", "d", "e"]), min_size=1, max_size=30)


@given(cluster, st.integers(1, 5), st.integers(0, 40))
def test_every_list_has_as_many_racks_as_there_can_be_however_uneven_they_are(racks, factor, partitions):
    factor = min(factor, len(racks))

    for replicas in place(brokers(racks), partitions=partitions, replication_factor=factor):
        assert len(set(replicas)) == len(replicas) == factor
        assert len({racks[b] for b in replicas}) == min(factor, len(set(racks.values())))


@given(cluster, st.integers(1, 3), st.integers(1, 4))
def test_every_broker_is_first_replica_equally_often(racks, factor, times):
    factor = min(factor, len(racks))

    lists = place(brokers(racks), partitions=times * len(racks), replication_factor=factor)

    assert set(Counter(replicas[0] for replicas in lists).values()) == {times}
    assert {replicas[0] for replicas in lists} == set(racks)


@given(cluster, st.integers(1, 3), st.integers(0, 40), st.integers(0, 40))
def test_more_partitions_leave_the_others_where_they_are(racks, factor, some, more):
    factor = min(factor, len(racks))
    fewer = place(brokers(racks), partitions=some, replication_factor=factor)

    assert place(brokers(racks), partitions=some + more, replication_factor=factor)[:some] == fewer


@pytest.mark.parametrize(
    ("racks", "most"),
    [
        pytest.param({n: "a" if n < 4 else "b" if n < 7 else "c" for n in range(10)}, 1, id="4-3-3"),
        pytest.param({n: "a" if n < 3 else "b" for n in range(5)}, 2, id="3-2, two racks"),
        pytest.param({n: "a" if n < 5 else "b" if n < 9 else "c" for n in range(12)}, 2, id="5-4-3"),
    ],
)
def test_uneven_racks_carry_about_the_same(racks, most):
    lists = place(brokers(racks), partitions=len(racks), replication_factor=3)

    # In a rack that is smaller than the others each broker must carry more: three racks, one replica in each.
    per_rack = {rack: [b for b in racks if racks[b] == rack] for rack in set(racks.values())}
    for members in per_rack.values():
        assert unevenness([tuple(b for b in r if b in members) for r in lists], brokers(dict.fromkeys(members))) <= most


@given(st.sets(st.integers(0, 200), min_size=1, max_size=20), st.integers(1, 3))
def test_without_racks_brokers_carry_the_same(ids, factor):
    factor = min(factor, len(ids))
    members = brokers(dict.fromkeys(ids))

    assert unevenness(place(members, partitions=len(ids), replication_factor=factor), members) == 0


def test_a_thousand_brokers_in_fifty_racks_of_unequal_size_take_less_than_a_second():
    import time

    racks = {n: "rack-0" if n < 250 else f"rack-{n % 50}" for n in range(1000)}
    started = time.process_time()

    place(brokers(racks), partitions=1000, replication_factor=3)

    assert time.process_time() - started < 1
