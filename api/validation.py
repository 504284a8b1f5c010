"""Checks a submitted batch or job as a whole and tells everything that is wrong at once."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from api.matrix import Combination, combinations, count_combinations, expand, unknown_names
from api.references import check_references, check_verdict
from api.schemas.batches import MAX_JOBS, AppendEnvelope, BatchEnvelope
from api.schemas.convert import to_batch_webhook, to_spec
from api.schemas.jobs import OFFERED_RUNTIMES, JobRequest, JobRequestInBatch, VerdictRequest
from api.schemas.problems import to_field, to_problem
from core.errors import PayloadTooLargeError
from services.batches import MAX_TRIALS, Caps, NewBatch, NewJobs
from services.jobspec import JobSpec
from services.needs import MAX_NEEDS, need_problems
from services.problems import InvalidFieldsError, Problem

__all__ = ["JobChecker", "check_schema", "merge_defaults"]

Model = TypeVar("Model", bound=BaseModel)

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
        envelope = check_schema(BatchEnvelope, body)
        findings = _Findings()
        if not envelope.jobs and not envelope.open:
            findings.add(Problem("jobs", "at least one job is needed, unless the batch is open"))
        jobs = self._check_jobs(envelope, envelope.defaults, findings, priority=envelope.priority)
        findings.raise_if_any()
        stop_when = None if envelope.stop_when is None else envelope.stop_when.model_dump(exclude_none=True)
        return NewBatch(
            name=envelope.name,
            labels=envelope.labels,
            priority=envelope.priority,
            implicit=False,
            jobs=jobs,
            is_open=envelope.open,
            defaults=envelope.defaults,
            stop_when=stop_when,
            caps=Caps(envelope.concurrency.max, envelope.concurrency.per_label),
            webhook=to_batch_webhook(envelope.on_complete),
        )

    def check_append(self, body: Any, *, defaults: Mapping[str, Any], priority: int) -> NewJobs:
        """Check the body of POST /v1/batches/{id}/jobs. defaults, priority: of the batch.

        Raises InvalidFieldsError, PayloadTooLargeError.
        """
        envelope = check_schema(AppendEnvelope, body)
        findings = _Findings()
        merged = merge_defaults(defaults, envelope.defaults)
        jobs = self._check_jobs(envelope, merged, findings, priority=priority, others_may_exist=True)
        findings.raise_if_any()
        return jobs

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
        if job.needs:
            findings.add(Problem("needs", "a lone job has no others to need: send a batch"))
        findings.raise_if_any()
        spec = to_spec(job, priority=0, files=files)
        return NewBatch(
            name=None,
            labels=spec.labels,
            priority=spec.priority,
            implicit=True,
            jobs=NewJobs((spec,), ("",), files),
        )

    def check_verdict(self, verdict: VerdictRequest, spec: JobSpec) -> list[Problem]:
        """Say what is wrong with another verdict for a job that was accepted."""
        found = check_verdict(verdict, {step.name for step in spec.steps}, self._known_parsers)
        return [Problem(to_field(location), message) for location, message in found]

    def _check_jobs(
        self,
        envelope: BatchEnvelope | AppendEnvelope,
        defaults: Mapping[str, Any],
        findings: _Findings,
        *,
        priority: int,
        others_may_exist: bool = False,
    ) -> NewJobs:
        """Check jobs with the defaults under them, for each combination of the matrix."""
        _check_matrix(envelope)
        _check_expansion(envelope, defaults)
        if "key" in defaults:
            findings.add(Problem("defaults.key", "a key belongs to one job: give each its own"))
        chosen = combinations(envelope.matrix)
        files: dict[str, bytes] = {}
        specs: list[JobSpec] = []
        numbers: list[int] = []
        bases: dict[str, Combination] = {}
        first_use: dict[str, int] = {}
        for number, raw in enumerate(envelope.jobs):
            for job, combination in self._check_merged(
                raw, defaults, number, findings, chosen=chosen, matrix=envelope.matrix
            ):
                other = first_use.setdefault(job.key, number)
                if job.key in bases:
                    findings.add(Problem(f"jobs[{number}].key", f"the same as that of jobs[{other}]"))
                bases[job.key] = combination
                specs.append(to_spec(job, priority=priority, files=files))
                numbers.append(number)
            if findings.is_full:
                break
        trials = sum(spec.trials.count for spec in specs)
        if trials > MAX_TRIALS:
            findings.add(Problem("jobs", f"{trials} trials in all; a batch may have at most {MAX_TRIALS}"))
        resolved = [_resolve_needs(spec, bases) for spec in specs]
        if not findings.problems:
            _check_needs(resolved, numbers, findings, others_may_exist=others_may_exist)
        return NewJobs(tuple(resolved), tuple(f"jobs[{number}]" for number in numbers), files)

    def _check_merged(
        self,
        raw: Mapping[str, Any],
        defaults: Mapping[str, Any],
        number: int,
        findings: _Findings,
        *,
        chosen: Sequence[Combination],
        matrix: Mapping[str, Any],
    ) -> Iterator[tuple[JobRequest, Combination]]:
        merged = merge_defaults(defaults, raw)
        if matrix:
            problems = list(_matrix_problems(merged, raw, defaults, number, matrix))
            for problem in problems:
                findings.add(problem)
            if problems:
                return
        for combination in chosen:
            job = self._check_one(expand(merged, combination), raw, defaults, number, findings)
            if job is None:
                # What is wrong with one combination mostly is with all; the next request tells the rest.
                return
            yield job, combination

    def _check_one(
        self,
        merged: Mapping[str, Any],
        raw: Mapping[str, Any],
        defaults: Mapping[str, Any],
        number: int,
        findings: _Findings,
    ) -> JobRequest | None:
        try:
            job = JobRequestInBatch.model_validate(merged, context=self._context)
        except ValidationError as error:
            for item in _errors(error):
                cut = _cut(item, merged)
                # What is missing is missing from the object around it.
                where = cut["loc"][:-1] if cut["type"] == "missing" else cut["loc"]
                findings.add(to_problem(cut, prefix=_origin(where, raw, defaults, number)))
            return None
        problems = list(self._check_references(job, ["jobs", number]))
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


def _origin(
    where: Sequence[str | int], raw: Mapping[str, Any], defaults: Mapping[str, Any], number: int
) -> list[str | int]:
    """Say what a place in a merged job came from: a mistake in the defaults is told once, and where it was made."""
    from_defaults = _reaches(defaults, where) and not _reaches(raw, where)
    return ["defaults"] if from_defaults else ["jobs", number]


def _check_matrix(envelope: BatchEnvelope | AppendEnvelope) -> None:
    """Check the size first: what is refused is not unfolded. Raises InvalidFieldsError."""
    problems = []
    for name, values in envelope.matrix.items():
        first: dict[str, int] = {}
        for number, value in enumerate(values):
            other = first.setdefault(value, number)
            if other != number:
                field = to_field(["matrix", name, number])
                problems.append(Problem(field, f"the same as {to_field(['matrix', name, other])}"))
    jobs = len(envelope.jobs) * count_combinations(envelope.matrix)
    if jobs > MAX_JOBS:
        message = f"unfolds to {jobs} jobs; at most {MAX_JOBS} in one request"
        problems.append(Problem("matrix", message))
    if problems:
        raise InvalidFieldsError(problems)


def _matrix_problems(
    merged: Mapping[str, Any],
    raw: Mapping[str, Any],
    defaults: Mapping[str, Any],
    number: int,
    matrix: Mapping[str, Any],
) -> Iterator[Problem]:
    known = ", ".join(matrix)
    for unknown in unknown_names(merged, matrix):
        place = [*_origin(unknown.location, raw, defaults, number), *unknown.location]
        yield Problem(to_field(place), f"the matrix has no {unknown.name[:60]!r}; it has: {known}")
    labels = merged.get("labels")
    for name in matrix:
        if isinstance(labels, dict) and name in labels:
            place = [*_origin(["labels", name], raw, defaults, number), "labels", name]
            yield Problem(to_field(place), "is set by the matrix: give one of them another name")


def _resolve_needs(spec: JobSpec, bases: Mapping[str, Combination]) -> JobSpec:
    """Let a need that names a key as it was sent mean the job of the same values."""
    if not spec.needs:
        return spec
    suffix = bases[spec.key].suffix
    needs = tuple(
        need if need.job in bases or need.job + suffix not in bases else replace(need, job=need.job + suffix)
        for need in spec.needs
    )
    return replace(spec, needs=needs)


def _check_needs(
    specs: Sequence[JobSpec], numbers: Sequence[int], findings: _Findings, *, others_may_exist: bool
) -> None:
    edges = sum(len(spec.needs) for spec in specs)
    if edges > MAX_NEEDS:
        findings.add(Problem("jobs", f"{edges} needs in all; at most {MAX_NEEDS}"))
        return
    for place, field_name, message in need_problems(specs, others_may_exist=others_may_exist):
        findings.add(Problem(f"jobs[{numbers[place]}].{field_name}", message))


def _check_expansion(envelope: BatchEnvelope | AppendEnvelope, defaults: Mapping[str, Any]) -> None:
    combined = count_combinations(envelope.matrix)
    size = len(json.dumps(defaults)) * len(envelope.jobs) * combined
    if combined > 1:
        size += len(json.dumps(envelope.jobs)) * combined
    if size > MAX_EXPANDED_BYTES:
        raise PayloadTooLargeError(
            f"defaults and matrix unfold to {size >> 20} MiB, more than {MAX_EXPANDED_BYTES >> 20}:"
            " store large inputs with POST /v1/blobs and name them by digest",
            field="defaults" if combined == 1 else "matrix",
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
