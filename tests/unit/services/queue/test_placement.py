from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from repositories.fair_share import NodeRoom, QueuedTrial
from services.placement import place


def make_node(number: int, *, slots=4, cpu=4000, memory=4096, runtimes=("fake",)) -> NodeRoom:
    return NodeRoom(UUID(int=number), frozenset(runtimes), slots, 8000, 8192, cpu, memory)


def make_trial(number: int, *, cpu=1000, memory=1024, runtime="fake") -> QueuedTrial:
    return QueuedTrial(UUID(int=1000 + number), runtime, cpu, memory)


def test_fullest_node_that_fits_is_taken():
    nodes = [make_node(1), make_node(2, cpu=1500, memory=2048)]
    assert place([make_trial(1)], nodes) == [(UUID(int=1001), UUID(int=2))]


def test_trial_that_fits_nowhere_is_left_out_and_the_next_is_placed():
    trials = [make_trial(1, cpu=9000), make_trial(2, runtime="docker"), make_trial(3)]
    assert [trial for trial, _ in place(trials, [make_node(1)])] == [UUID(int=1003)]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8000), st.integers(0, 8192)), max_size=6),
    st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 9000)), max_size=30),
)
def test_no_node_is_ever_overfilled(node_sizes, trial_sizes):
    nodes = [make_node(i, slots=s, cpu=c, memory=m) for i, (s, c, m) in enumerate(node_sizes)]
    trials = [make_trial(i, cpu=c, memory=m) for i, (c, m) in enumerate(trial_sizes)]
    by_id = {trial.id: trial for trial in trials}
    placed = place(trials, nodes)
    for node in nodes:
        mine = [by_id[trial] for trial, where in placed if where == node.id]
        assert len(mine) <= node.free_slots
        assert sum(trial.cpu_millicores for trial in mine) <= node.free_cpu_millicores
        assert sum(trial.memory_bytes for trial in mine) <= node.free_memory_bytes


def test_free_member_that_will_do_comes_before_the_image_and_is_for_one():
    spares = {(1, "fake", "key"): 1}
    nodes = [
        replace(make_node(1), spares=spares),
        replace(make_node(2, cpu=1500), images=frozenset({"i"})),
    ]
    trials = [replace(make_trial(number), tenant_id=1, image="i", sandbox_key="key") for number in (1, 2)]
    assert place(trials, nodes) == [(UUID(int=1001), UUID(int=1)), (UUID(int=1002), UUID(int=2))]
    for change in ({"tenant_id": 2}, {"sandbox_key": "other"}, {"sandbox_key": None}):
        assert place([replace(trials[0], **change)], nodes) == [(UUID(int=1001), UUID(int=2))]
