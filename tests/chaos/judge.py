"""Judges a run by three witnesses: what the client was promised, what the database says, what the executions wrote."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.execlog import Execution, overlaps, parse_uptimes, read_exec_log
from tests.chaos.harness import ChaosStack, Submitted

__all__ = ["Verdict", "judge"]

OPEN_WORK = """
SELECT t.id, t.state, t.state_reason FROM trials t
WHERE t.batch_id = ANY(%(ids)s::uuid[]) AND t.state <> 'finished'
"""

OUTCOMES = """
SELECT t.id, j.key, t.outcome, t.failure FROM trials t JOIN jobs j ON j.id = t.job_id
WHERE t.batch_id = ANY(%(ids)s::uuid[]) AND t.state = 'finished'
"""

LOGS = """
SELECT a.trial_id::text AS trial, a.fence, string_agg(c.bytes, '' ORDER BY c.seq) AS data
FROM attempts a JOIN trials t ON t.id = a.trial_id JOIN log_chunks c ON c.trial_id = a.trial_id AND c.fence = a.fence
WHERE t.runtime <> 'fake' GROUP BY a.trial_id, a.fence
"""


@dataclass
class Verdict:
    """What is wrong, in words. executions, attempts: how many there were."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    over_quota: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    trials: int = 0
    attempts: int = 0
    executions: int = 0

    @property
    def problems(self) -> list[str]:
        """Everything wrong."""
        return [
            f"{name}: {line}"
            for name in ("lost", "doubled", "over_quota", "overlaps", "wrong", "broken")
            for line in getattr(self, name)
        ]


def judge(stack: ChaosStack, promised: Sequence[Submitted], *, allow_errors: bool = False) -> Verdict:
    """Judge after everything has come to rest. allow_errors: faults may use up a trial's budget of losses."""
    verdict = Verdict(trials=sum(batch.trials for batch in promised))
    ids = [batch.batch_id for batch in promised]
    verdict.lost += [
        f"{row['id']} is {row['state']} ({row['state_reason']})" for row in stack.rows(OPEN_WORK, ids=ids)
    ]
    by_name = {
        row["name"]: row["n"]
        for row in stack.rows("SELECT name, count(*)::int AS n FROM batches GROUP BY name")
    }
    verdict.lost += [f"batch {batch.key} is not there" for batch in promised if batch.key not in by_name]
    verdict.doubled += [f"batch {name} is there {n} times" for name, n in by_name.items() if n > 1]
    codes = {key: code for batch in promised for key, code in batch.exit_codes.items()}
    outcomes = stack.rows(OUTCOMES, ids=ids)
    if len(outcomes) + len(verdict.lost) < verdict.trials:
        verdict.lost.append(f"{verdict.trials} trials were promised, {len(outcomes)} have an end")
    for row in outcomes:
        expected = "passed" if codes[row["key"]] == 0 else "failed"
        is_spent = row["outcome"] == "error" and (row["failure"] or {}).get("class") == "infra"
        if row["outcome"] != expected and not (allow_errors and is_spent):
            verdict.wrong.append(
                f"{row['id']} ({row['key']}): {row['outcome']} instead of {expected}: {row['failure']}"
            )
    executions = _executions(stack)
    verdict.executions = len(executions)
    verdict.attempts = stack.rows("SELECT count(*)::int AS n FROM attempts")[0]["n"]
    verdict.overlaps += overlaps(executions)
    return verdict


def _executions(stack: ChaosStack) -> list[Execution]:
    stored = [(row["trial"], row["fence"], row["data"]) for row in stack.rows(LOGS)]
    return [*read_exec_log(stack.exec_log), *parse_uptimes(stored)]
