"""Checks a submitted batch or job as a whole and tells everything that is wrong at once."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from api.references import check_references
from api.schemas.batches import BatchEnvelope
from api.schemas.convert import to_batch_webhook, to_spec
from api.schemas.jobs import OFFERED_RUNTIMES, JobRequest, JobRequestInBatch
from api.schemas.problems import to_field, to_problem
from core.errors import PayloadTooLargeError
from services.batches import NewBatch
from services.jobspec import JobSpec
from services.problems import InvalidFieldsError, Problem

__all__ = ["JobChecker", "check_schema", "merge_defaults"]

Model = TypeVar("Model", bound=BaseModel)

MAX_TRIALS = 100_000
MAX_EXPANDED_BYTES = 256 << 20
"""Defaults times jobs: a small body must not unfold into a database full of copies."""
STOP_AFTER = 200
"""Problems after which the rest of the batch is not looked at."""


@dataclass(slots=True)
class _Findings:
    """Problems in the order they were found, each once."""

    problems: dict[tuple[str, str], Problem] = field(default_factory=dict)

    def add(self, problem: Problem) -> None:
        self.problems.setdefault((problem.field, problem.message), problem)

    @property
    def is_full(self) -> bool:
        return len(self.problems) >= STOP_AFTER

    def raise_if_any(self) -> None:
        if self.problems:
            raise InvalidFieldsError(list(self.problems.values()))


class JobChecker:
    """Turns bodies into batches of checked job specs."""

    def __init__(self, known_parsers: Collection[str], runtimes: Collection[str] = ()) -> None:
        """Set up.

        known_parsers: names of the log parsers that a verdict can name. runtimes: those this installation offers
        beyond the usual ones, to be named where a job names none that there is.
        """
        self._known_parsers = frozenset(known_parsers)
        self._context = {"runtimes": list(dict.fromkeys([*OFFERED_RUNTIMES, *runtimes]))}

    def check_batch(self, body: Any) -> NewBatch:
        """Check the body of POST /v1/batches. Raises InvalidFieldsError, PayloadTooLargeError."""
        findings = _Findings()
        envelope = check_schema(BatchEnvelope, body)
        _check_expansion(envelope)
        if "key" in envelope.defaults:
            findings.add(Problem("defaults.key", "a key belongs to one job: give each its own"))
        files: dict[str, bytes] = {}
        specs: list[JobSpec] = []
        first_use: dict[str, int] = {}
        for number, raw in enumerate(envelope.jobs):
            job = self._check_merged(raw, envelope.defaults, number, findings)
            if findings.is_full:
                break
            if job is None:
                continue
            other = first_use.setdefault(job.key, number)
            if other != number:
                findings.add(Problem(f"jobs[{number}].key", f"the same as that of jobs[{other}]"))
            specs.append(to_spec(job, priority=envelope.priority, files=files))
        trials = sum(spec.trials.count for spec in specs)
        if trials > MAX_TRIALS:
            findings.add(Problem("jobs", f"{trials} trials in all; a batch may have at most {MAX_TRIALS}"))
        findings.raise_if_any()
        return NewBatch(
            name=envelope.name,
            labels=envelope.labels,
            priority=envelope.priority,
            implicit=False,
            jobs=tuple(specs),
            files=files,
            max_running=envelope.concurrency.max,
            max_per_label=envelope.concurrency.per_label,
            webhook=to_batch_webhook(envelope.on_complete),
        )

    def check_job(self, body: Any) -> NewBatch:
        """Check the body of POST /v1/jobs: a batch of one. Raises InvalidFieldsError."""
        findings = _Findings()
        files: dict[str, bytes] = {}
        try:
            job = JobRequest.model_validate(body, context=self._context)
        except ValidationError as error:
            raise InvalidFieldsError([to_problem(_cut(e, body)) for e in _errors(error)]) from error
        for problem in self._check_references(job, []):
            findings.add(problem)
        findings.raise_if_any()
        spec = to_spec(job, priority=0, files=files)
        return NewBatch(
            name=None, labels=spec.labels, priority=spec.priority, implicit=True, jobs=(spec,), files=files
        )

    def _check_merged(
        self, raw: Mapping[str, Any], defaults: Mapping[str, Any], number: int, findings: _Findings
    ) -> JobRequest | None:
        merged = merge_defaults(defaults, raw)
        place: list[str | int] = ["jobs", number]
        try:
            job = JobRequestInBatch.model_validate(merged, context=self._context)
        except ValidationError as error:
            for item in _errors(error):
                cut = _cut(item, merged)
                # A mistake in the defaults is told once, and where it was made. What is missing is missing from the
                # object around it.
                where = cut["loc"][:-1] if cut["type"] == "missing" else cut["loc"]
                from_defaults = _reaches(defaults, where) and not _reaches(raw, where)
                findings.add(to_problem(cut, prefix=["defaults"] if from_defaults else place))
            return None
        problems = list(self._check_references(job, place))
        for problem in problems:
            findings.add(problem)
        return None if problems else job

    def _check_references(self, job: JobRequest, place: Sequence[str | int]) -> Iterator[Problem]:
        """Check what one field says about another."""
        for location, message in check_references(job, self._known_parsers):
            yield Problem(to_field([*place, *location]), message)


def check_schema(model: type[Model], body: Any) -> Model:
    """Check a small body against its schema. Raises InvalidFieldsError."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise InvalidFieldsError([to_problem(item) for item in _errors(error)]) from error


def merge_defaults(defaults: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Lay a job's fields over the defaults: objects deeply, all else as a whole. Neither is changed."""
    merged = dict(defaults)
    for name, value in job.items():
        below = merged.get(name)
        is_other_verdict = name == "verdict" and isinstance(value, dict) and "from" in value
        if isinstance(value, dict) and isinstance(below, dict) and not is_other_verdict:
            merged[name] = merge_defaults(below, value)
        else:
            merged[name] = value
    return merged


def _check_expansion(envelope: BatchEnvelope) -> None:
    size = len(json.dumps(envelope.defaults)) * len(envelope.jobs)
    if size > MAX_EXPANDED_BYTES:
        raise PayloadTooLargeError(
            f"the defaults unfold to {size >> 20} MiB, more than {MAX_EXPANDED_BYTES >> 20}:"
            " store large inputs with POST /v1/blobs and name them by digest",
            field="defaults",
        )


def _errors(error: ValidationError) -> list[Any]:
    return list(error.errors(include_url=False, include_input=False))


_ABSENT = object()


def _step_into(value: Any, part: str | int) -> Any:
    """Give what lies at this part of a place, or _ABSENT."""
    if isinstance(value, dict):
        return value.get(part, _ABSENT)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return _ABSENT


def _cut(error: Any, value: Any) -> Any:
    """End the place where the request ends: inside a plain number there is no `request` and no `limit`."""
    location: list[str | int] = []
    for part in error["loc"]:
        if not isinstance(value, dict | list):
            break
        location.append(part)
        found = _step_into(value, part)
        value = value if found is _ABSENT else found
    return {**error, "loc": tuple(location)}


def _reaches(value: Any, location: Sequence[str | int]) -> bool:
    """Say whether the place is in the value; what the schema adds to places (kinds, marks) is passed over."""
    reached = False
    for part in location:
        found = _step_into(value, part)
        if found is not _ABSENT:
            value, reached = found, True
        elif part not in {"[key]", "exit_code", "reward", "junit", "log"}:
            return False
    return reached
