"""What a submission is told of jobs that no node could start now."""

from typing import Any

import pytest

from repositories.nodes import NodeCapacity
from services.jobspec import JobSpec, Resources, Step
from services.problems import MAX_PROBLEMS
from services.submission_warnings import submission_warnings

LARGE = NodeCapacity(frozenset({"local"}), 4000, 8 << 30, 1, {"zone": "a"})
WIDE = NodeCapacity(frozenset({"local"}), 8000, 1 << 30)


def job(**changes: Any) -> JobSpec:
    resources = Resources(**changes.pop("resources", {}))
    steps = (Step(name="s", run="true"),)
    return JobSpec(key="a", image="host", steps=steps, **{"resources": resources, **changes})


def warned(*specs: JobSpec, nodes: tuple[NodeCapacity, ...] = (LARGE,)) -> list[tuple[int, str, str]]:
    return submission_warnings(specs, nodes, default_runtime="local")


@pytest.mark.parametrize(
    ("spec", "field", "told"),
    [
        (job(resources={"cpu_millicores": 4001}), "resources.cpu", "is 4.001; no node"),
        (job(resources={"memory_bytes": (8 << 30) + (1 << 20)}), "resources.memory_mb", "more than 8192"),
        (job(resources={"gpu": 2}), "resources.gpu", "is 2; no node"),
        (job(runtime="docker"), "runtime", "offers docker"),
        (job(node_labels={"zone": "b"}), "placement.labels", "has zone=b"),
    ],
    ids=["cpu", "memory", "gpu", "runtime", "labels"],
)
def test_what_no_node_has_is_told_by_its_field(spec, field, told):
    ((number, name, message),) = warned(job(), spec)
    assert (number, name) == (1, field)
    assert told in message
    assert "it waits for one, for at most 86400 s (timeouts.queue)" in message


def test_what_some_node_could_start_is_not_told():
    most = {"cpu_millicores": 4000, "memory_bytes": 8 << 30, "gpu": 1}
    assert warned(job(resources=most, node_labels={"zone": "a"})) == []
    assert warned(job(runtime="docker"), nodes=()) == []


def test_sizes_that_no_one_node_has_together_are_told():
    spec = job(resources={"cpu_millicores": 8000, "memory_bytes": 8 << 30})
    ((_, name, message),) = warned(spec, nodes=(LARGE, WIDE))
    assert name == "resources"
    assert "together" in message
    # The largest is one that could run it: without its labels another is none.
    ((_, name, message),) = warned(
        job(resources={"cpu_millicores": 8000}, node_labels={"zone": "a"}), nodes=(LARGE, WIDE)
    )
    assert (name, "more than 4:" in message) == ("resources.cpu", True)


def test_jobs_that_want_the_same_are_told_once():
    big, bigger = (job(resources={"cpu_millicores": cpu}) for cpu in (5000, 6000))
    first, second = warned(job(), big, bigger, big, big)
    assert (first[0], first[2].endswith("(so do 2 more jobs)")) == (1, True)
    assert (second[0], second[2].endswith("(timeouts.queue)")) == (2, True)
    assert warned(big, big)[0][2].endswith("(so does one more job)")
    many = [job(resources={"cpu_millicores": 5000 + number}) for number in range(MAX_PROBLEMS + 1)]
    assert len(warned(*many)) == MAX_PROBLEMS
