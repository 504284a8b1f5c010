"""Spells a report: one JSON object, one JSON line per trial, or JUnit XML that any CI shows."""

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import junitparser

from services.outcomes import Outcome
from services.reports import AttemptResult, Report, TrialResult

__all__ = ["RenderedReport", "ReportFormat", "render_report"]

_ILLEGAL_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class ReportFormat(StrEnum):
    """json: the report. jsonl: one line per trial, attempts inline. junit: one suite, a case per trial."""

    JSON = "json"
    JSONL = "jsonl"
    JUNIT = "junit"


@dataclass(frozen=True, slots=True)
class RenderedReport:
    """Bytes to send, UTF-8, and their media type."""

    body: bytes
    media_type: str


def render_report(form: ReportFormat, report: Report, trials: Sequence[TrialResult]) -> RenderedReport:
    """Spell the report of these trials. The result depends on nothing else, so equal batches give equal bytes."""
    write, media_type = _FORMS[form]
    return RenderedReport(write(report, trials), media_type)


def _to_json(report: Report, _: Sequence[TrialResult]) -> bytes:
    # Keys that are numbers (k) become strings, as JSON wants them.
    return json.dumps(asdict(report), allow_nan=False).encode()


def _to_jsonl(_: Report, trials: Sequence[TrialResult]) -> bytes:
    lines = (json.dumps(_trial(trial), allow_nan=False) for trial in trials)
    return "".join(f"{line}\n" for line in lines).encode()


def _trial(trial: TrialResult) -> dict[str, Any]:
    return {
        "trial_id": trial.trial_id,
        "job": trial.job_key,
        "index": trial.index,
        "labels": dict(trial.labels),
        "outcome": trial.outcome and str(trial.outcome),
        "failure": trial.failure and trial.failure.to_json(),
        "rewards": dict(trial.rewards),
        "duration_s": trial.duration_s,
        "infra_losses": trial.infra_losses,
        "attempts": [_attempt(attempt) for attempt in trial.attempt_results],
    }


def _attempt(attempt: AttemptResult) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "state": attempt.state,
        "outcome": attempt.outcome and str(attempt.outcome),
        "failure": attempt.failure and attempt.failure.to_json(),
        "node": attempt.node,
        "started_at": attempt.started_at and attempt.started_at.isoformat(),
        "finished_at": attempt.finished_at and attempt.finished_at.isoformat(),
    }


def _to_junit(report: Report, trials: Sequence[TrialResult]) -> bytes:
    suite = junitparser.TestSuite(_xml(report.name))
    suite.add_property("batch_id", report.batch_id)
    suite.add_property("complete", str(report.complete).lower())
    suite.add_testcases([_case(report, trial) for trial in trials])
    document = junitparser.JUnitXml()
    document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]  # junitparser leaves it unannotated
    out = io.BytesIO()
    document.write(out)
    return out.getvalue()


def _case(report: Report, trial: TrialResult) -> junitparser.TestCase:
    case = junitparser.TestCase(f"{_xml(trial.job_key)}[{trial.index}]", classname=_xml(report.name))
    case.time = round(trial.duration_s or 0.0, 3)
    code = trial.failure.code if trial.failure else str(trial.outcome or "unfinished")
    message = _xml(trial.failure.message if trial.failure else code)
    match trial.outcome:
        case Outcome.PASSED:
            pass
        case Outcome.FAILED:
            case.result = [junitparser.Failure(message, code)]
        case Outcome.ERROR:
            case.result = [junitparser.Error(message, code)]
        case _:
            case.result = [junitparser.Skipped(message, code)]
    return case


def _xml(text: str) -> str:
    """Drop the characters XML 1.0 cannot hold; messages may quote what a sandbox wrote."""
    return _ILLEGAL_IN_XML.sub("\ufffd", text)


_FORMS: dict[ReportFormat, tuple[Callable[[Report, Sequence[TrialResult]], bytes], str]] = {
    ReportFormat.JSON: (_to_json, "application/json"),
    ReportFormat.JSONL: (_to_jsonl, "application/jsonl"),
    ReportFormat.JUNIT: (_to_junit, "application/xml"),
}
