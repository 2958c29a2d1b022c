"""What the local controller decides, without clock and processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.local.replicas import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    ROLLOUT_WAIT_S,
    STABLE_S,
    SURGE,
    Create,
    Desired,
    Phase,
    Replica,
    Restart,
    Stop,
    backoff_s,
    decide,
    failures_after_end,
)

NOW = 1000.0
KEY = "default/a"


def replica(name, revision="v1", phase=Phase.RUNNING, *, ready=True, since=NOW - 100, failures=0, exit_code=None):
    return Replica(
        id=name,
        revision=revision,
        phase=phase,
        since=since,
        ready=ready and phase is Phase.RUNNING,
        failures=failures,
        exit_code=exit_code,
    )


def want(replicas=1, revision="v1", *, exclusive=False):
    return Desired(replicas=replicas, revision=revision, exclusive=exclusive)


def stopped(actions):
    return [a.replica for a in actions if isinstance(a, Stop)]


@pytest.mark.parametrize(
    ("desired", "observed", "expected"),
    [
        pytest.param(want(2), [], [Create(KEY, "v1")] * 2, id="nothing there → all are created at once"),
        pytest.param(want(2), [replica("a"), replica("b")], [], id="as desired → nothing"),
        pytest.param(want(2), [replica("a"), replica("b", ready=False)], [], id="unready is no reason to act"),
        pytest.param(want(0), [replica("a")], [Stop("a", "scaled to 0")], id="scaled to 0"),
        pytest.param(None, [replica("a")], [Stop("a", "not wanted any more")], id="deleted"),
        pytest.param(None, [replica("a", phase=Phase.STOPPING)], [], id="told to stop once"),
        pytest.param(
            want(1),
            [replica("old", since=NOW - 50), replica("young", since=NOW - 5)],
            [Stop("young", "scaled to 1")],
            id="the youngest goes first",
        ),
        pytest.param(
            want(1),
            [replica("ready", since=NOW - 5), replica("unready", ready=False, since=NOW - 50)],
            [Stop("unready", "scaled to 1")],
            id="an unready one goes before a younger ready one",
        ),
        pytest.param(
            want(1, "v2"), [replica("a")], [Create(KEY, "v2")], id="new revision: the new one starts, the old one stays"
        ),
        pytest.param(
            want(1, "v2"),
            [replica("a"), replica("b", "v2", ready=False, since=NOW - 5)],
            [],
            id="new one not ready yet: the old one stays",
        ),
        pytest.param(
            want(1, "v2"),
            [replica("a"), replica("b", "v2")],
            [Stop("a", "replaced by a new revision")],
            id="new one ready: the old one goes",
        ),
        pytest.param(
            want(1, "v2"),
            [replica("a"), replica("b", "v2", ready=False, since=NOW - ROLLOUT_WAIT_S)],
            [Stop("a", "replaced by a new revision")],
            id="new one runs unready for too long: it takes over",
        ),
        pytest.param(
            want(1, "v2"),
            [replica("a"), replica("b", "v2", ready=False, failures=30, since=NOW - ROLLOUT_WAIT_S + 1)],
            [],
            id="a new revision that crashes never replaces one that works",
        ),
        pytest.param(
            want(2, "v2"),
            [replica("a"), replica("b")],
            [Create(KEY, "v2")],
            id="of two, one is replaced after the other",
        ),
        pytest.param(
            want(1, "v2"),
            [replica("a", phase=Phase.WAITING, failures=2)],
            [Stop("a", "replaced by a new revision"), Create(KEY, "v2")],
            id="a crashed old one is not waited for",
        ),
        pytest.param(
            want(1, "v2", exclusive=True),
            [replica("a")],
            [Stop("a", "replaced by a new revision")],
            id="fixed port: the old one goes first",
        ),
        pytest.param(
            want(1, "v2", exclusive=True),
            [replica("a", phase=Phase.STOPPING)],
            [],
            id="fixed port: the new one waits until the old one has gone",
        ),
        pytest.param(want(1, "v2", exclusive=True), [], [Create(KEY, "v2")], id="fixed port: then it starts"),
        pytest.param(
            want(1),
            [replica("a", phase=Phase.WAITING, failures=1, since=NOW - FIRST_BACKOFF_S)],
            [Restart("a")],
            id="back-off over: started again in its place",
        ),
        pytest.param(
            want(1),
            [replica("a", phase=Phase.WAITING, failures=1, since=NOW - FIRST_BACKOFF_S + 0.01)],
            [],
            id="back-off not over",
        ),
        pytest.param(
            want(1),
            [replica("a", phase=Phase.WAITING, failures=1, exit_code=78, since=NOW - LONGEST_BACKOFF_S + 1)],
            [],
            id="wrong configuration waits longest",
        ),
    ],
)
def test_decision(desired, observed, expected):
    assert decide({} if desired is None else {KEY: desired}, {KEY: observed}, NOW) == expected


def test_backoff_doubles_up_to_its_cap():
    assert [backoff_s(n, 1) for n in range(1, 9)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert backoff_s(10**6, 1) == LONGEST_BACKOFF_S


@pytest.mark.parametrize(
    ("ready_for", "failures"),
    [(None, 5), (STABLE_S - 0.01, 5), (STABLE_S, 1), (3600.0, 1)],
)
def test_only_an_end_without_a_stable_time_counts_as_one_more_failure(ready_for, failures):
    assert failures_after_end(4, ready_for) == failures


replicas = st.lists(
    st.builds(
        replica,
        name=st.uuids().map(str),
        revision=st.sampled_from(["v1", "v2"]),
        phase=st.sampled_from(list(Phase)),
        ready=st.booleans(),
        since=st.floats(0, NOW),
        failures=st.integers(0, 5),
    ),
    max_size=8,
    unique_by=lambda r: r.id,
)
wanted = st.builds(Desired, replicas=st.integers(0, 4), revision=st.sampled_from(["v1", "v2"]), exclusive=st.booleans())


@given(desired=wanted, observed=replicas, seed=st.randoms())
def test_equal_observations_in_any_order_give_equal_actions(desired, observed, seed):
    shuffled = list(observed)
    seed.shuffle(shuffled)
    assert decide({KEY: desired}, {KEY: observed}, NOW) == decide({KEY: desired}, {KEY: shuffled}, NOW)


@given(desired=wanted, observed=replicas)
def test_creating_never_exceeds_the_desired_number_and_the_surge(desired, observed):
    actions = decide({KEY: desired}, {KEY: observed}, NOW)
    gone = set(stopped(actions))
    staying = [r for r in observed if r.phase is not Phase.STOPPING and r.id not in gone]
    created = sum(isinstance(a, Create) for a in actions)
    if created:
        assert len(staying) + created <= desired.replicas + SURGE


@given(desired=wanted, observed=replicas)
def test_stopping_never_leaves_fewer_that_work_than_desired_while_a_revision_is_replaced(desired, observed):
    """Except on a fixed port, where two cannot run side by side."""
    if desired.exclusive or desired.replicas == 0:
        return
    works = {r.id for r in observed if r.ready}
    actions = decide({KEY: desired}, {KEY: observed}, NOW)
    took_over = {
        r.id
        for r in observed
        if r.revision == desired.revision and r.phase is Phase.RUNNING and NOW - r.since >= ROLLOUT_WAIT_S
    }
    left = (works | took_over) - set(stopped(actions))
    assert len(left) >= min(desired.replicas, len(works))


@given(desired=wanted, observed=replicas)
def test_repeating_decision_and_perfect_execution_converges(desired, observed):
    """Every start becomes ready at once, every stop is over at once: after a few rounds nothing is left to do."""
    world, now = list(observed), NOW
    for number in range(40):
        actions = decide({KEY: desired}, {KEY: world}, now)
        world = [r for r in world if r.phase is not Phase.STOPPING]
        if not actions and len(world) == (1 if desired.exclusive and desired.replicas else desired.replicas):
            break
        for action in actions:
            match action:
                case Create(_, revision):
                    world.append(replica(f"new{number}-{len(world)}", revision, since=now))
                case Stop(name, _):
                    world = [r for r in world if r.id != name]
                case Restart(name):
                    world = [replica(name, r.revision, since=now) if r.id == name else r for r in world]
        now += LONGEST_BACKOFF_S
    assert {r.revision for r in world} <= {desired.revision}
    assert len(world) == (min(1, desired.replicas) if desired.exclusive else desired.replicas)
