"""Lets placement see on which nodes free members of warm pools would do for the trials whose turn it is."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from repositories.dispatch import DispatchRepository, SpareRow
from repositories.fair_share import NodeRoom, QueuedTrial
from services.job_sandbox import form_key
from services.jobspec import Resources
from services.session_spec import SessionSpec

__all__ = ["job_key", "pool_job_key", "with_spares"]


def with_spares(
    repository: DispatchRepository, trials: Sequence[QueuedTrial], nodes: Sequence[NodeRoom]
) -> tuple[Sequence[QueuedTrial], Sequence[NodeRoom]]:
    """Give trials and nodes with what `place` has to know of free members; as they are where there are none.

    Only a preference: whether a member is still free, and the same thing, is decided when the attempt takes it.
    """
    tenants = {trial.tenant_id for trial in trials}
    spares = repository.spares(tenants) if tenants and len(nodes) > 1 else []
    if not spares:
        return trials, nodes
    owners = {spare.tenant_id for spare in spares}
    specs = repository.specs([trial.id for trial in trials if trial.tenant_id in owners])
    keyed = [
        replace(trial, sandbox_key=job_key(specs[trial.id])) if trial.id in specs else trial
        for trial in trials
    ]
    by_node = _by_node(spares)
    return keyed, [replace(node, spares=by_node.get(node.id, {})) for node in nodes]


def job_key(spec: Mapping[str, Any]) -> str:
    """Give the sandbox key of a job, by its stored spec."""
    return form_key(spec["image"], Resources(**spec["resources"]), spec["workdir"])


def pool_job_key(spec: Mapping[str, Any]) -> str | None:
    """Give the sandbox key of a pool's members, by its stored spec; None: no job can have one."""
    member = SessionSpec.from_json(spec)
    if member.job_workdir is None or member.env:
        return None
    return form_key(member.image, member.resources, member.job_workdir)


def _by_node(spares: Sequence[SpareRow]) -> dict[UUID, Counter[tuple[int, str, str]]]:
    found: dict[UUID, Counter[tuple[int, str, str]]] = {}
    for spare in spares:
        key = pool_job_key(spare.spec)
        if key is not None:
            found.setdefault(spare.node_id, Counter())[spare.tenant_id, spare.runtime, key] += spare.number
    return found
