"""The report of a batch: from what came of its trials to counts, estimates and a table of jobs.

Trials without a verdict are never graded 0 in silence and never dropped in silence: every estimate stands twice, over
the trials with a verdict (`valid`) and over all. Attempts and infrastructure losses are told apart from samples.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean

from services.outcomes import Failure, Outcome
from services.report_statistics import Estimate, estimate, reported_ks

__all__ = ["AttemptResult", "JobReport", "Report", "TrialResult", "build_report"]

UNFINISHED = "unfinished"
"""Stands beside the outcomes in counts for trials that have none yet."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One physical try. number: from 1. state: of the attempt. Times are aware UTC, None if it never came to that."""

    number: int
    state: str
    outcome: Outcome | None = None
    failure: Failure | None = None
    node: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """One sample. outcome: None while it is not finished. duration_s: from first start to end, None before.

    attempts: how many tries it took. infra_losses: how many of them the infrastructure lost. attempt_results: those
    tries in order, for the line format; may be empty where only counts are wanted.
    """

    trial_id: str
    job_key: str
    index: int
    outcome: Outcome | None = None
    failure: Failure | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    attempts: int = 0
    infra_losses: int = 0
    duration_s: float | None = None
    attempt_results: Sequence[AttemptResult] = ()


@dataclass(frozen=True, slots=True)
class JobReport:
    """One line of the job table. trials_by_outcome: every outcome and `unfinished`, zeros included.

    pass_rate_valid: passed / (passed + failed), None without verdicts. pass_rate_all: passed / all trials.
    failure_codes: how often each code ended a trial. duration_s_mean: over finished trials.
    """

    key: str
    labels: Mapping[str, str]
    trials: int
    trials_by_outcome: dict[str, int]
    pass_rate_valid: float | None
    pass_rate_all: float
    failure_codes: dict[str, int]
    attempts: int
    infra_losses: int
    duration_s_mean: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """The whole batch.

    complete: every trial is finished; before that all figures are provisional and `all` is a lower bound.
    biased: trials were stopped, or retried, because of outcomes, so that pass@k is not an estimate.
    resolved_trials, resolved_rate: passed trials, and their share of all trials, whatever became of the rest.
    jobs_passed_any, jobs_passed_all: jobs of which at least one trial, or every trial, passed.
    valid: estimates over trials that passed or failed; jobs without any are left out, see `jobs_without_verdict`.
    all: estimates over all trials, where whatever is not passed counts as not passed.
    reward_means: by name, over the trials that have it. failure_codes: how often each code ended a trial.
    attempts, infra_losses: physical tries, and those lost to the infrastructure; neither changes any estimate.
    duration_s_total: summed over trials.
    """

    batch_id: str
    name: str
    complete: bool
    biased: bool
    jobs: int
    trials: int
    trials_by_outcome: dict[str, int]
    resolved_trials: int
    resolved_rate: float | None
    jobs_passed_any: int
    jobs_passed_all: int
    jobs_without_verdict: int
    valid: Estimate
    all: Estimate
    reward_means: dict[str, float]
    failure_codes: dict[str, int]
    attempts: int
    infra_losses: int
    duration_s_total: float
    job_table: tuple[JobReport, ...]


def build_report(
    trials: Iterable[TrialResult],
    *,
    batch_id: str,
    name: str,
    unmade: Mapping[str, int] | None = None,
    biased: bool = False,
) -> Report:
    """Make the report.

    trials: all of the batch that count, in any order; jobs appear in the order of their first trial. unmade: by key,
    how many more there are that nothing is known of yet. biased: see Report.
    """
    unmade = unmade or {}
    by_job: dict[str, list[TrialResult]] = {}
    for trial in trials:
        by_job.setdefault(trial.job_key, []).append(trial)
    rows = [trial for job in by_job.values() for trial in job]
    outcomes = _outcomes(rows)
    outcomes[UNFINISHED] += sum(unmade.values())
    number = len(rows) + sum(unmade.values())
    passed = outcomes[Outcome.PASSED]
    valid = [(_count_valid(job), _count_passed(job)) for job in by_job.values()]
    every = [(len(job) + unmade.get(key, 0), _count_passed(job)) for key, job in by_job.items()]
    ks = reported_ks(min((n for n, _ in every), default=0))
    return Report(
        batch_id=batch_id,
        name=name,
        complete=outcomes[UNFINISHED] == 0,
        biased=biased,
        jobs=len(by_job),
        trials=number,
        trials_by_outcome=outcomes,
        resolved_trials=passed,
        resolved_rate=passed / number if number else None,
        jobs_passed_any=sum(c > 0 for _, c in every),
        jobs_passed_all=sum(c == n for n, c in every),
        jobs_without_verdict=sum(n == 0 for n, _ in valid),
        valid=estimate(valid, ks),
        all=estimate(every, ks),
        reward_means=_reward_means(rows),
        failure_codes=_failure_codes(rows),
        attempts=sum(trial.attempts for trial in rows),
        infra_losses=sum(trial.infra_losses for trial in rows),
        duration_s_total=sum(trial.duration_s or 0.0 for trial in rows),
        job_table=tuple(_job_report(key, job, unmade.get(key, 0)) for key, job in by_job.items()),
    )


def _job_report(key: str, trials: Sequence[TrialResult], unmade: int) -> JobReport:
    outcomes = _outcomes(trials)
    outcomes[UNFINISHED] += unmade
    passed, valid = _count_passed(trials), _count_valid(trials)
    durations = [trial.duration_s for trial in trials if trial.outcome and trial.duration_s is not None]
    return JobReport(
        key=key,
        labels=dict(trials[0].labels),
        trials=len(trials) + unmade,
        trials_by_outcome=outcomes,
        pass_rate_valid=passed / valid if valid else None,
        pass_rate_all=passed / (len(trials) + unmade),
        failure_codes=_failure_codes(trials),
        attempts=sum(trial.attempts for trial in trials),
        infra_losses=sum(trial.infra_losses for trial in trials),
        duration_s_mean=fmean(durations) if durations else None,
    )


def _outcomes(trials: Iterable[TrialResult]) -> dict[str, int]:
    counts: dict[str, int] = {**{str(outcome): 0 for outcome in Outcome}, UNFINISHED: 0}
    for trial in trials:
        counts[UNFINISHED if trial.outcome is None else str(trial.outcome)] += 1
    return counts


def _count_passed(trials: Iterable[TrialResult]) -> int:
    return sum(trial.outcome is Outcome.PASSED for trial in trials)


def _count_valid(trials: Iterable[TrialResult]) -> int:
    return sum(trial.outcome in {Outcome.PASSED, Outcome.FAILED} for trial in trials)


def _failure_codes(trials: Iterable[TrialResult]) -> dict[str, int]:
    # An unfinished trial may carry the failure of its last attempt; that is not how it ended.
    counts = Counter(trial.failure.code for trial in trials if trial.outcome and trial.failure)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _reward_means(trials: Iterable[TrialResult]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for trial in trials:
        for name, reward in trial.rewards.items():
            values.setdefault(name, []).append(reward)
    return {name: fmean(numbers) for name, numbers in sorted(values.items())}
