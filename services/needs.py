"""Checks the edges between jobs of one request. Pure: no database."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from services.jobspec import JobSpec

__all__ = ["MAX_NEEDS", "NeedProblem", "find_cycle", "need_problems"]

MAX_NEEDS = 100_000
"""Edges of one request: they are looked at together each time a job ends that others need."""

NeedProblem = tuple[int, str, str]
"""(number of the job, field in it, what is wrong there)"""


def need_problems(specs: Sequence[JobSpec], *, others_may_exist: bool) -> Iterator[NeedProblem]:
    """Give what is wrong with the needs of these jobs.

    others_may_exist: the batch has more jobs than these, so a key that is not here is not wrong for that.
    """
    keys = {spec.key for spec in specs}
    for number, spec in enumerate(specs):
        yield from _problems_of(number, spec, None if others_may_exist else keys)
    cycle = find_cycle({spec.key: [need.job for need in spec.needs if need.job in keys] for spec in specs})
    # Of one job alone it has been said above.
    if len(cycle) > 1:
        number = next(number for number, spec in enumerate(specs) if spec.key == cycle[0])
        round_trip = " → ".join([*cycle[:20], "…" if len(cycle) > 20 else cycle[0]])
        yield number, "needs", f"needs go in a circle, so that none of these jobs could start: {round_trip}"


def find_cycle(needs: Mapping[str, Collection[str]]) -> list[str]:
    """Give the keys along one circle, from any of its jobs on; empty if there is none. Needs of keys not here end."""
    done: set[str] = set()
    for root in needs:
        path: list[str] = []
        place: dict[str, int] = {}
        # One iterator per job of the path: as deep as there are jobs, so not by recursion.
        stack = [iter([root])]
        while stack:
            key = next(stack[-1], None)
            if key is None:
                stack.pop()
                if path:
                    left = path.pop()
                    del place[left]
                    done.add(left)
            elif key in place:
                return path[place[key] :]
            elif key not in done and key in needs:
                place[key] = len(path)
                path.append(key)
                stack.append(iter(needs[key]))
    return []


def _problems_of(number: int, spec: JobSpec, keys: Collection[str] | None) -> Iterator[NeedProblem]:
    seen: set[str] = set()
    for place, need in enumerate(spec.needs):
        field = f"needs[{place}].job"
        if need.job == spec.key:
            yield number, field, "a job cannot need itself"
        elif need.job in seen:
            yield number, field, "another of its needs names this job: one edge has one outcome"
        elif keys is not None and need.job not in keys:
            yield number, field, f"the batch has no job {need.job!r}"
        seen.add(need.job)
