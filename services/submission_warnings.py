"""What of a submission no node could start now, however empty. Pure: no database, no clock.

It is accepted all the same, and waits: a queue is for what cannot start yet, and the node may be on its way.
"""

from collections.abc import Iterator, Sequence

from repositories.nodes import NodeCapacity
from services.jobspec import JobSpec
from services.problems import MAX_PROBLEMS, Problem
from services.waiting import Demand, WaitReason, lack_of_nodes, suited_nodes

__all__ = ["submission_warnings"]


def submission_warnings(
    specs: Sequence[JobSpec], nodes: Sequence[NodeCapacity], *, default_runtime: str
) -> list[tuple[int, str, str]]:
    """Give (number of the job, field of it, what is so) for jobs that none of the nodes could start.

    nodes: all that take work now. Of jobs that want the same the first is named, with how many more there are.
    At most MAX_PROBLEMS.
    """
    alike: dict[object, list[int]] = {}
    demands = [_demand_of(spec, default_runtime) for spec in specs]
    for number, demand in enumerate(demands):
        alike.setdefault(demand.key, []).append(number)
    told = [
        (numbers[0], problem.field, f"{problem.message}{_more(len(numbers) - 1)}")
        for numbers in alike.values()
        for problem in _lacks(demands[numbers[0]], nodes)
    ]
    return told[:MAX_PROBLEMS]


def _demand_of(spec: JobSpec, default_runtime: str) -> Demand:
    return Demand(
        runtime=spec.runtime or default_runtime,
        cpu_millicores=spec.resources.cpu_millicores,
        memory_bytes=spec.resources.memory_bytes,
        gpu=spec.resources.gpu,
        node_labels=spec.node_labels,
        queue_seconds=spec.timeouts.queue,
    )


def _lacks(demand: Demand, nodes: Sequence[NodeCapacity]) -> Iterator[Problem]:
    waits = f"it waits for one, for at most {demand.queue_seconds:g} s (timeouts.queue)"
    match lack_of_nodes(demand, nodes):
        case WaitReason.NO_RUNTIME:
            yield Problem("runtime", f"no node that takes work now offers {demand.runtime}: {waits}")
        case WaitReason.NO_LABELS:
            wanted = ", ".join(f"{name}={value}" for name, value in sorted(demand.node_labels.items()))
            yield Problem(
                "placement.labels",
                f"no node that takes work now and offers {demand.runtime} has {wanted}: {waits}",
            )
        case WaitReason.TOO_LARGE:
            yield from _excesses(demand, suited_nodes(demand, nodes), waits)


def _excesses(demand: Demand, nodes: Sequence[NodeCapacity], waits: str) -> Iterator[Problem]:
    sizes = (
        ("cpu", demand.cpu_millicores / 1000, max(node.cpu_millicores for node in nodes) / 1000),
        ("memory_mb", demand.memory_bytes >> 20, max(node.memory_bytes for node in nodes) >> 20),
        ("gpu", demand.gpu, max(node.gpu for node in nodes)),
    )
    is_told = False
    for name, wanted, most in sizes:
        if wanted > most:
            is_told = True
            message = (
                f"is {wanted:.10g}; no node that takes work now and could run this has more than {most:.10g}"
            )
            yield Problem(f"resources.{name}", f"{message}: {waits}")
    if not is_told:
        yield Problem("resources", f"no one node that takes work now has all of it together: {waits}")


def _more(number: int) -> str:
    return f" (so do {number} more jobs)" if number > 1 else " (so does one more job)" if number else ""
