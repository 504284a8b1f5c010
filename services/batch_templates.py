"""A checked batch as JSON and back, for those that are submitted later."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from services.batches import NewBatch, NewJobs
from services.jobspec import JobSpec

__all__ = ["from_template", "to_template"]

_BY_ITSELF = {"jobs"}
_ADAPTERS = {
    name: TypeAdapter[Any](hint)
    for name, hint in get_type_hints(NewBatch).items()
    if name in {field.name for field in fields(NewBatch)} - _BY_ITSELF
}


def to_template(batch: NewBatch) -> dict[str, Any]:
    """Write all of a batch but its files, which are in the blob store by then."""
    values = {name: to_jsonable_python(getattr(batch, name)) for name in _ADAPTERS}
    return {
        **values,
        "jobs": [spec.to_json() for spec in batch.jobs.specs],
        "fields": list(batch.jobs.fields),
    }


def from_template(value: Mapping[str, Any]) -> NewBatch:
    """Read what `to_template` wrote; fields that are newer than it get their defaults."""
    known = {
        name: adapter.validate_python(value[name]) for name, adapter in _ADAPTERS.items() if name in value
    }
    specs = tuple(JobSpec.from_json(spec) for spec in value["jobs"])
    places = value.get("fields") or [f"jobs[{number}]" for number in range(len(specs))]
    return NewBatch(**known, jobs=NewJobs(specs, tuple(places)))
