"""Judges a run by three witnesses: what the client was promised, what the database says, what the executions wrote."""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import redis

from runtimes.local.records import Records
from runtimes.raw_engine import RawEngine, engine_socket
from runtimes.registry import local_state
from tests.chaos.execlog import Execution, overlaps, parse_uptimes, read_exec_log
from tests.chaos.harness import ChaosStack, Submitted

__all__ = ["Verdict", "judge", "left_behind", "sandboxes_left", "untold"]

TOLD_SECONDS = 120.0
"""For how long ends may be on their way to the receiver: what a dead sender had is due again after 91 s."""

GONE_SECONDS = 40.0
"""For how long what is over may be there: two rounds of a worker that looks for it."""

OPEN_WORK = """
SELECT t.id, t.state, t.state_reason FROM trials t
WHERE t.batch_id = ANY(%(ids)s::uuid[]) AND t.state <> 'finished'
"""

OUTCOMES = """
SELECT t.id, t.batch_id, j.key, t.outcome, t.failure FROM trials t JOIN jobs j ON j.id = t.job_id
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
    untold: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    trials: int = 0
    attempts: int = 0
    executions: int = 0

    @property
    def problems(self) -> list[str]:
        """Everything wrong."""
        return [
            f"{name}: {line}"
            for name in ("lost", "doubled", "over_quota", "overlaps", "wrong", "broken", "untold", "left")
            for line in getattr(self, name)
        ]


def judge(
    stack: ChaosStack,
    promised: Sequence[Submitted],
    *,
    allow_errors: bool = False,
    cancelled: Container[UUID] = (),
) -> Verdict:
    """Judge after everything has come to rest.

    allow_errors: faults may use up a trial's budget of losses. cancelled: batches whose trials may have ended so.
    """
    verdict = Verdict(trials=sum(batch.trials for batch in promised))
    ids = [batch.batch_id for batch in promised]
    verdict.lost += [
        f"{row['id']} is {row['state']} ({row['state_reason']})" for row in stack.rows(OPEN_WORK, ids=ids)
    ]
    # Those of live sandboxes have none, and a witness of their own.
    by_name = {
        row["name"]: row["n"]
        for row in stack.rows(
            "SELECT name, count(*)::int AS n FROM batches WHERE NOT is_session GROUP BY name"
        )
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
        is_cancelled = row["outcome"] == "cancelled" and row["batch_id"] in cancelled
        if row["outcome"] != expected and not is_cancelled and not (allow_errors and is_spent):
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


def untold(stack: ChaosStack, promised: Sequence[Submitted]) -> list[str]:
    """What the receiver was not told of these batches, or told under two ids. Waits while messages are on their way.

    It is the witness of I11: a message may come more than once, always under its own id.
    """
    return _settled(lambda: _untold(stack, promised), TOLD_SECONDS)


def _untold(stack: ChaosStack, promised: Sequence[Submitted]) -> list[str]:
    told: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for message in list(stack.receiver.messages):
        payload = json.loads(message.body)
        subject = payload["data"].get("trial_id") or payload["data"]["batch_id"]
        told[payload["type"], subject].add(message.headers["webhook-id"])
    ids = [batch.batch_id for batch in promised if batch.is_told]
    trials = stack.rows("SELECT t.id FROM trials t WHERE t.batch_id = ANY(%(ids)s::uuid[])", ids=ids)
    wanted = [("trial.finished", str(row["id"])) for row in trials]
    wanted += [("batch.finished", str(batch.batch_id)) for batch in promised]
    found = [f"untold: {kind} of {subject}" for kind, subject in wanted if not told[kind, subject]]
    # A batch with a receiver of its own is told to both.
    most = {("batch.finished", str(batch_id)): 2 for batch_id in ids}
    return found + [
        f"told under {len(told[end])} ids: {end[0]} of {end[1]}"
        for end in wanted
        if len(told[end]) > most.get(end, 1)
    ]


def left_behind(stack: ChaosStack) -> list[str]:
    """What is still there of work that is over: sandboxes by their runtimes' own lists, messages of the broker.

    Asked when nothing is submitted any more, with the workers alive: they have to clear away. I7 and I13 from outside.
    """
    return _settled(lambda: [*sandboxes_left(stack), *_messages_left(stack)], GONE_SECONDS)


def sandboxes_left(stack: ChaosStack) -> list[str]:
    """What the runtimes' own lists have now of attempts that are over."""
    live = {
        f"sm-{row['trial_id']}-{row['fence']}"
        for row in stack.rows("SELECT trial_id, fence FROM attempts WHERE finished_at IS NULL")
    }
    left = []
    if "local" in stack.runtimes:
        for home in stack.home.glob("worker-*"):
            folder = local_state(home / "runtimes") / "sandboxes"
            names = [record.name for record in Records(folder).all()] if folder.is_dir() else []
            left += [f"left: local sandbox {name} on {home.name}" for name in names if name not in live]
    if "docker" in stack.runtimes:
        for row in stack.rows("SELECT id FROM nodes"):
            names = RawEngine(engine_socket() or "").labelled("sandmill.node", str(row["id"]))
            left += [f"left: container {name} of node {row['id']}" for name in names]
    return left


def _messages_left(stack: ChaosStack) -> list[str]:
    with redis.Redis.from_url(stack.redis_url, socket_timeout=5) as client:
        keys = [key.decode() for key in client.scan_iter("sandmill:*", count=1000)]
        found = [key for key in keys if ("node." in key and "_kombu" not in key) or "unacked" in key]
        return [f"left: {key} in the broker" for key in found]


def _settled(look: Callable[[], list[str]], seconds: float) -> list[str]:
    """Look until there is nothing, or for so long."""
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
