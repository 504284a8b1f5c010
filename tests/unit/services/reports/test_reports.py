import json
import time
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree as ET

import junitparser
import pytest

from core.errors import FailureClass
from services.outcomes import Failure, Outcome
from services.report_formats import ReportFormat, render_report
from services.reports import AttemptResult, Report, TrialResult, build_report

P, F, E, C = Outcome.PASSED, Outcome.FAILED, Outcome.ERROR, Outcome.CANCELLED


def trial(job: str, index: int, outcome: Outcome | None, code: str = "", **fields: Any) -> TrialResult:
    failure = Failure(FailureClass.TASK, code, f"because {code}") if code else None
    return TrialResult(f"id-{job}-{index}", job, index, outcome, failure, **({"attempts": 1} | fields))


MIXED = [
    trial("a", 0, P, duration_s=2.0, rewards={"reward": 1.0}, labels={"repo": "x"}),
    trial("a", 1, F, "tests_failed", duration_s=4.0, rewards={"reward": 0.0}),
    trial("b", 0, P, rewards={"reward": 1.0}),
    trial("b", 1, E, "node_lost", attempts=4, infra_losses=4),
    trial("c", 0, E, "setup_failed"),
    trial("c", 1, E, "setup_failed"),
    trial("d", 0, C, "cancelled", attempts=0),
    trial("d", 1, F, "tests_failed", rewards={"reward": 0.0}),
]


def make(trials: list[TrialResult]) -> Report:
    return build_report(trials, batch_id="0190", name="n <&>")


def test_counts_of_a_finished_batch() -> None:
    report = make(MIXED)
    assert (report.complete, report.biased, report.jobs, report.trials) == (True, False, 4, 8)
    assert report.trials_by_outcome == {
        "passed": 2, "failed": 2, "error": 3, "cancelled": 1, "skipped": 0, "unfinished": 0,
    }  # fmt: skip
    assert (report.resolved_trials, report.resolved_rate) == (2, 0.25)
    assert (report.jobs_passed_any, report.jobs_passed_all, report.jobs_without_verdict) == (2, 0, 1)
    assert report.failure_codes == {"setup_failed": 2, "tests_failed": 2, "cancelled": 1, "node_lost": 1}
    assert (report.attempts, report.infra_losses, report.duration_s_total) == (10, 4, 6.0)
    assert report.reward_means == {"reward": 0.5}


def test_both_denominators_are_given() -> None:
    report = make(MIXED)
    assert (report.valid.jobs, report.valid.trials, report.valid.passed) == (3, 4, 2)
    assert report.valid.pass_at_k == {1: pytest.approx((0.5 + 1 + 0) / 3), 2: None}
    assert (report.all.jobs, report.all.trials, report.all.passed) == (4, 8, 2)
    assert report.all.pass_at_k == {1: pytest.approx(0.25), 2: pytest.approx(0.5)}
    assert report.all.pass_hat_k == {1: pytest.approx(0.25), 2: 0.0}


def test_line_of_a_job() -> None:
    first = make(MIXED).job_table[0]
    assert (first.key, first.labels, first.trials, first.pass_rate_valid) == ("a", {"repo": "x"}, 2, 0.5)
    assert first.duration_s_mean == 3.0
    third = make(MIXED).job_table[2]
    assert (third.pass_rate_valid, third.pass_rate_all, third.failure_codes) == (
        None,
        0.0,
        {"setup_failed": 2},
    )


def test_unfinished_batch_says_so_and_counts_what_is_open_as_not_passed() -> None:
    lost = trial("a", 1, None, "node_lost", infra_losses=1)
    report = make([trial("a", 0, P), lost])
    assert not report.complete
    assert report.trials_by_outcome["unfinished"] == 1
    assert report.failure_codes == {}
    assert report.all.mean_at_n == 0.5
    assert report.valid.mean_at_n == 1.0


def test_empty_batch_has_no_rates() -> None:
    report = make([])
    assert (report.complete, report.resolved_rate, report.all.mean_at_n) == (True, None, None)
    for form in ReportFormat:
        assert render_report(form, report, []).media_type


def test_attempts_and_losses_change_no_estimate() -> None:
    more = [TrialResult(t.trial_id, t.job_key, t.index, t.outcome, attempts=9, infra_losses=8) for t in MIXED]
    assert (make(more).all, make(more).valid) == (make(MIXED).all, make(MIXED).valid)


def test_json_is_one_object_with_named_figures() -> None:
    rendered = render_report(ReportFormat.JSON, make(MIXED), MIXED)
    value = json.loads(rendered.body)
    assert rendered.media_type == "application/json"
    assert value["all"]["pass_at_k"] == {"1": 0.25, "2": 0.5}
    assert value["valid"]["pass_at_k"]["2"] is None
    assert [job["key"] for job in value["job_table"]] == ["a", "b", "c", "d"]


def test_json_lines_hold_a_trial_each_with_its_attempts() -> None:
    at = datetime(2025, 1, 1, tzinfo=UTC)
    tries = [
        AttemptResult(
            1, "lost", failure=Failure(FailureClass.INFRA, "node_lost", "gone"), node="n1", started_at=at
        ),
        AttemptResult(2, "finished", P, node="n2", started_at=at, finished_at=at),
    ]
    trials = [trial("a", 0, P, attempts=2, infra_losses=1, attempt_results=tries), trial("a\nb", 1, None)]
    lines = render_report(ReportFormat.JSONL, make(trials), trials).body.decode().splitlines()
    first, second = map(json.loads, lines)
    assert [attempt["failure"] and attempt["failure"]["code"] for attempt in first["attempts"]] == [
        "node_lost",
        None,
    ]
    assert first["attempts"][0]["started_at"] == "2025-01-01T00:00:00+00:00"
    assert (first["outcome"], second["outcome"], second["job"]) == ("passed", None, "a\nb")


def test_junit_is_read_back_by_its_library() -> None:
    hostile = Failure(FailureClass.TASK, "tests_failed", "bad \x1b[31m <b> ]]> \ud800\ufffe \x00")
    trials = [*MIXED, TrialResult("id", "e", 0, F, hostile), trial("e", 1, None)]
    body = render_report(ReportFormat.JUNIT, make(trials), trials).body
    suites = junitparser.JUnitXml.fromstring(body)
    (suite,) = list(suites)
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped) == ("n <&>", 10, 3, 3, 2)
    assert [case.name for case in suite][:3] == ["a[0]", "a[1]", "b[0]"]
    found = ET.fromstring(body).findall(".//testcase[@name='e[0]']/failure")
    assert found[0].attrib == {"message": "bad \ufffd[31m <b> ]]> ?\ufffd \ufffd", "type": "tests_failed"}


def test_thousands_of_trials_are_spelled_in_linear_time() -> None:
    trials = [trial(f"job-{number}", 0, F, "tests_failed") for number in range(4_000)]
    started = time.process_time()
    report = make(trials)
    for form in ReportFormat:
        render_report(form, report, trials)
    assert time.process_time() - started < 2.0


def test_trials_that_have_no_row_yet_are_unfinished_and_count_in_every_denominator():
    trials = [
        TrialResult("t0", "a", 0, outcome=Outcome.PASSED),
        TrialResult("t1", "b", 0, outcome=Outcome.PASSED),
    ]
    report = build_report(trials, batch_id="x", name="x", unmade={"a": 3}, biased=True)
    assert (report.complete, report.biased, report.trials) == (False, True, 5)
    assert report.trials_by_outcome["unfinished"] == 3
    assert report.resolved_rate == 2 / 5
    assert [(job.trials, job.pass_rate_all) for job in report.job_table] == [(4, 1 / 4), (1, 1.0)]
