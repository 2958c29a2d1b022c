"""Order within a lane, progress between lanes, bounds, and nothing of a revoked partition is ever offered or lost."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher_image.delivery import START, Progress
from dispatcher_image.lanes import BUFFER_FACTOR, RECORD_OVERHEAD, SLOW_FACTOR, Lanes
from dispatcher_image.offsets import EMPTY_MAP, Attempts, decode
from eventing.channels import DeliveryOrder
from tests.fakes.messages import FakeMessage


def resume(attempts):
    return Progress(attempts=attempts.made)


def lanes_with(order=DeliveryOrder.KEY, limit=10, partitions=1):
    lanes = Lanes(order, limit)
    for number in range(partitions):
        lanes.assign(number, 1, 0, EMPTY_MAP)
    return lanes


def feed(lanes, *records, partition=0, start=0):
    """Records given as keys (None: no key)."""
    messages = [FakeMessage(partition, start + i, key and key.encode(), b"v") for i, key in enumerate(records)]
    lanes.intake(messages, 0.0, resume)
    lanes.validate()


def take(lanes):
    return lanes.next()


def offsets(records):
    return [record.offset for record in records]


def test_records_of_a_key_go_one_after_the_other_and_other_keys_do_not_wait():
    lanes = lanes_with()
    feed(lanes, "a", "a", "b", None, None, "a")
    assert offsets(lanes.ready) == [0, 2, 3, 4]
    first = take(lanes)
    assert first.offset == 0
    lanes.finish(first)
    assert sorted(offsets([*lanes.ready, *lanes.urgent])) == [1, 2, 3, 4]


def test_a_parked_record_keeps_its_key_and_others_go_on():
    lanes = lanes_with()
    feed(lanes, "a", "a", "b")
    head = take(lanes)
    lanes.park(head, 5.0)
    lanes.validate()
    assert offsets(lanes.ready) == [2]
    assert lanes.next_due == 5.0
    assert lanes.release_due(4.9) == 0
    assert lanes.release_due(5.0) == 1
    assert offsets(lanes.ready) == [2, 0]


def test_ordered_keeps_a_partition_in_order_and_partitions_apart():
    lanes = lanes_with(DeliveryOrder.ORDERED, partitions=2)
    feed(lanes, "a", "b", None)
    feed(lanes, "c", "d", partition=1)
    assert [(r.partition.number, r.offset) for r in lanes.ready] == [(0, 0), (1, 0)]


def test_unordered_sends_everything_up_to_the_bound():
    lanes = lanes_with(DeliveryOrder.UNORDERED, limit=3)
    feed(lanes, *["a"] * 5)
    assert offsets(lanes.ready) == [0, 1, 2]
    first = take(lanes)
    lanes.finish(first)
    assert offsets(lanes.ready) == [1, 2, 3]
    lanes.validate()


def test_a_parked_record_gives_its_place_in_flight_to_another():
    lanes = lanes_with(limit=1)
    feed(lanes, "a", "b")
    assert offsets(lanes.ready) == [0]
    head = take(lanes)
    lanes.park(head, 9.0)
    lanes.validate()
    assert offsets(lanes.ready) == [1]


def test_key_lock_outlives_the_epoch():
    """The late request of a revoked assignment still holds its key when the partition comes back."""
    lanes = lanes_with()
    feed(lanes, "a", "b")
    late = take(lanes)
    (old,) = lanes.revoke([0])
    lanes.validate()
    assert not old.is_idle
    assert not lanes.ready
    lanes.assign(0, 2, 0, EMPTY_MAP)
    feed(lanes, "a", "b")
    assert offsets(lanes.ready) == [1], "key a is still on its way"
    lanes.finish(late)
    lanes.validate()
    assert old.is_idle
    assert [(r.offset, r.partition.epoch) for r in lanes.ready] == [(1, 2), (0, 2)]


def test_lanes_with_more_behind_get_every_second_turn_and_nobody_starves():
    lanes = lanes_with(limit=100)
    feed(lanes, *["hot"] * 20, *(f"k{n}" for n in range(20)))
    order = []
    while (record := take(lanes)) is not None:
        order.append(record.lane.decode())
        lanes.finish(record)
        lanes.validate()
    assert order[:7] == ["hot", "hot", "k0", "hot", "k1", "hot", "k2"]
    assert len(order) == 40


def test_a_late_result_changes_nothing_in_the_new_epoch():
    lanes = lanes_with()
    feed(lanes, "a")
    late = take(lanes)
    lanes.revoke([0])
    new = lanes.assign(0, 2, 0, EMPTY_MAP)
    feed(lanes, "a")
    lanes.finish(late)
    assert new.tracker.commit().offset == 0
    lanes.validate()


def test_failing_after_a_revoke_frees_the_key_without_a_retry():
    lanes = lanes_with()
    feed(lanes, "a")
    late = take(lanes)
    lanes.revoke([0])
    lanes.park(late, 1.0)
    assert lanes.parked == 0
    lanes.assign(0, 2, 0, EMPTY_MAP)
    feed(lanes, "a")
    assert offsets(lanes.ready) == [0]


def test_keys_that_fail_do_not_take_the_room_of_keys_that_work():
    lanes = lanes_with(limit=4)
    full = BUFFER_FACTOR * 4
    feed(lanes, *["bad"] * full)
    partition = lanes.partitions[0]
    assert lanes.is_buffer_full(partition, 1 << 30)
    head = take(lanes)
    lanes.park(head, 60.0)
    lanes.validate()
    assert not lanes.is_buffer_full(partition, 1 << 30)
    feed(lanes, *["bad"] * (SLOW_FACTOR * 4), start=full)
    assert lanes.is_buffer_full(partition, 1 << 30), "what waits behind failing keys is bounded too"


def test_bytes_count_whatever_the_keys_do():
    lanes = lanes_with()
    feed(lanes, "a", "b")
    partition = lanes.partitions[0]
    assert partition.size == 2 * (RECORD_OVERHEAD + 2)
    assert lanes.is_buffer_full(partition, partition.size)
    assert not lanes.is_buffer_full(partition, partition.size + 1)


def test_attempts_of_a_former_assignment_are_taken_up():
    lanes = lanes_with()
    partition = lanes.partitions[0]
    partition.tracker.attempts[1] = Attempts(3)
    feed(lanes, "a", "b")
    assert [record.progress.attempts for record in lanes.ready] == [0, 3]


def test_records_of_partitions_that_are_not_ours_and_repeats_are_left_alone():
    lanes = lanes_with()
    feed(lanes, "a", partition=7)
    feed(lanes, "a", "b")
    feed(lanes, "a", "b")
    assert offsets(lanes.ready) == [0, 1]


class Life(RuleBasedStateMachine):
    """Random operations over assignments, with what a subscriber and a group would see of them."""

    @initialize(order=st.sampled_from(DeliveryOrder), limit=st.integers(1, 6))
    def begin(self, order, limit):
        self.lanes = Lanes(order, limit)
        self.order = order
        self.log = {0: [], 1: [], 2: []}
        self.stored = dict.fromkeys(self.log, (0, ""))
        self.position = {}
        self.epoch = 0
        self.flying = []
        self.aside = []
        self.now = 0.0
        self.delivered = {number: set() for number in self.log}

    def lane_of(self, record):
        if self.order is DeliveryOrder.KEY:
            return record.message.key()
        return record.partition.number if self.order is DeliveryOrder.ORDERED else None

    @rule(number=st.sampled_from([0, 1, 2]), keys=st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=10))
    def produce(self, number, keys):
        self.log[number] += keys

    @rule(number=st.sampled_from([0, 1, 2]))
    def assign(self, number):
        if number not in self.lanes.partitions:
            self.epoch += 1
            committed, metadata = self.stored[number]
            self.lanes.assign(number, self.epoch, committed, decode(committed, metadata))
            self.position[number] = committed

    @rule(number=st.sampled_from([0, 1, 2]), count=st.integers(1, 8))
    def poll(self, number, count):
        if number in self.lanes.partitions:
            start = self.position[number]
            batch = [FakeMessage(number, o, self.log[number][o], b"x") for o in range(start, len(self.log[number]))]
            self.lanes.intake(batch[:count], self.now, resume)
            self.position[number] = start + len(batch[:count])

    @precondition(lambda self: self.lanes.ready or self.lanes.urgent)
    @rule()
    def send(self):
        record = self.lanes.next()
        lane = self.lane_of(record)
        assert lane is None or lane not in [self.lane_of(r) for r in self.flying + self.aside], "a key twice at once"
        self.flying.append(record)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), how=st.sampled_from(["ok", "ok", "fail", "topic"]))
    def answer(self, data, how):
        record = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
        if how == "ok":
            self.lanes.finish(record)
            self.delivered[record.partition.number].add(record.offset)
        elif how == "fail":
            record.progress = Progress(attempts=record.progress.attempts + 1)
            record.partition.tracker.attempts[record.offset] = record.progress.as_attempts()
            self.lanes.park(record, self.now + data.draw(st.floats(0, 3)))
        else:
            record.progress = Progress(attempts=1)
            self.lanes.set_aside(record)
            self.aside.append(record)

    @precondition(lambda self: self.aside)
    @rule()
    def written(self):
        record = self.aside.pop(0)
        self.lanes.finish_aside(record)
        self.delivered[record.partition.number].add(record.offset)

    @rule(seconds=st.floats(0, 2))
    def pass_time(self, seconds):
        self.now += seconds
        self.lanes.release_due(self.now)

    @rule()
    def commit(self):
        for number, partition in self.lanes.partitions.items():
            self.store(number, partition)

    def store(self, number, partition):
        commit = partition.tracker.commit()
        assert commit.offset >= self.stored[number][0], "the committed offset went back"
        assert set(range(commit.offset)) <= self.delivered[number], "committed past an unfinished record"
        self.stored[number] = (commit.offset, commit.metadata)

    @rule(numbers=st.sets(st.sampled_from([0, 1, 2]), min_size=1))
    def revoke(self, numbers):
        for partition in self.lanes.revoke(numbers):
            self.store(partition.number, partition)
            mine = [r for r in self.flying + self.aside if r.partition is partition]
            assert partition.is_idle == (not mine)

    @invariant()
    def bookkeeping_holds(self):
        if hasattr(self, "lanes"):
            self.lanes.validate()

    def teardown(self):
        """From anywhere: when everything succeeds from now on, everything is delivered."""
        if not hasattr(self, "lanes"):
            return
        for number in self.log:
            self.assign(number)
        for _ in range(sum(map(len, self.log.values())) + 20):
            for number in self.log:
                self.poll(number, 100)
            while self.lanes.ready or self.lanes.urgent:
                self.send()
            while self.flying:
                self.lanes.finish(record := self.flying.pop())
                self.delivered[record.partition.number].add(record.offset)
            while self.aside:
                self.written()
            self.pass_time(4)
        for number, log in self.log.items():
            assert self.lanes.partitions[number].tracker.safe_offset == len(log)
            assert self.delivered[number] >= set(range(len(log)))
        assert not self.lanes._waiting
        assert not self.lanes._slow_lanes


Life.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestLife = Life.TestCase


def test_start_is_shared():
    """`finish` skips a dict lookup for records that never failed by comparing identity."""
    lanes = lanes_with()
    feed(lanes, "a")
    assert take(lanes).progress is START
