"""The crash matrix: one process is broken at one point in one way under work, and everything still ends right."""

import itertools
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from core.failpoints import POINTS
from tests.chaos.cell import Cell
from tests.chaos.harness import (
    GRACE_SECONDS,
    LEASE_SECONDS,
    WEBHOOK,
    ChaosStack,
    Program,
    Submitted,
    wait_for,
)
from tests.chaos.judge import judge, untold
from tests.chaos.live_cells import is_live, run_live_cell
from tests.support.images import BUSYBOX_IMAGE
from tests.support.invariants import InvariantWatch

__all__ = [
    "IMAGES",
    "LIVE_SLACK_SECONDS",
    "Cell",
    "all_cells",
    "prepare",
    "rotating_cells",
    "run_cell",
    "script",
]

ACTIONS = ("kill9", f"stop:{2 * LEASE_SECONDS:g}", "drop_connection", "raise")
TENANT, QUOTA = "chaos", 6
LIVE_SLACK_SECONDS = 2 * LEASE_SECONDS + LEASE_SECONDS + GRACE_SECONDS + 6.0
"""A scheduler that is stopped for two lease times, one that then waits a lease before it judges, and a busy machine."""
DEADLINE_SECONDS = 45.0

IMAGES = {"fake": "fake", "local": "host", "docker": BUSYBOX_IMAGE}

_OFF_LIMITS = {
    # The signal of a stopped or killed process says nothing here: the request is answered by then.
    ("api.after_wake", "drop_connection"),
}


def all_cells(runtimes: Sequence[str]) -> list[Cell]:
    """Every point with every action that makes sense there, on every runtime, with one scheduler and with two.

    What the API does depends on neither runtime nor scheduler, so it is tried with one of each; fan-out not on the
    runtime, and it takes a thousand trials; nor do webhooks. Live sandboxes have one node and one scheduler: who acts
    is the worker. Members of pools that jobs are given have their own tests (`test_job_pool_crashes.py`).
    """
    cells = []
    for point, action in itertools.product(sorted(POINTS), ACTIONS):
        if (point, action) in _OFF_LIMITS or point.startswith("member."):
            continue
        if is_live(point):
            cells += [Cell(point, action, runtime, 1) for runtime in runtimes]
            continue
        if point.startswith("api."):
            cells.append(Cell(point, action, "fake", 1))
            continue
        if point.startswith(("fanout.", "webhook.")):
            cells += [Cell(point, action, "fake", count) for count in (1, 2)]
            continue
        cells += [Cell(point, action, runtime, count) for runtime in runtimes for count in (1, 2)]
    return cells


def rotating_cells(count: int, *, runtimes: Sequence[str], seed: str | None = None) -> list[Cell]:
    """Choose some, other ones every day. seed: None takes the date; the same seed chooses the same."""
    seed = seed or datetime.now(UTC).date().isoformat()
    return random.Random(seed).sample(all_cells(runtimes), count)


def prepare(stack: ChaosStack) -> None:
    """Start what all cells use."""
    stack.add_tenant(TENANT, max_running=QUOTA)
    for name in ("api", "worker-a", "worker-b", "scheduler-1"):
        stack.start(name)
    stack.wait_ready()
    stack.add_webhook(TENANT, "batch.finished")


def run_cell(stack: ChaosStack, cell: Cell, watch: InvariantWatch) -> list[str]:
    """Break, wait, judge; gives what is wrong, nothing if all is right."""
    for name in ("worker-a", "worker-b", "scheduler-1"):
        if name not in stack.programs:
            stack.start(name)
    if is_live(cell.point):
        return _run_on_one_node(stack, cell, watch)
    try:
        submitted, armed = _submit_and_arm(stack, cell)
    except TimeoutError as error:
        return [str(error)]
    try:
        _watch_it_end(stack, cell, submitted, armed.name)
    except TimeoutError as error:
        return [str(error), *judge(stack, [submitted]).problems]
    problems = judge(stack, [submitted]).problems + untold(stack, [submitted])
    if "failpoint_reached" not in armed.said():
        problems.append(f"{cell.point} was never reached")
    return problems + [str(violation) for violation in watch.ask(live=False)]


def _run_on_one_node(stack: ChaosStack, cell: Cell, watch: InvariantWatch) -> list[str]:
    """Let the one that breaks have all sandboxes."""
    stack.end("worker-b")
    try:
        armed = _arm(stack, cell)
    except TimeoutError as error:
        return [str(error)]
    problems = run_live_cell(stack, cell, watch, armed, TENANT)
    stack.start("worker-b")  # what rang for it meanwhile is to be heard
    return problems


def _submit_and_arm(stack: ChaosStack, cell: Cell) -> tuple[Submitted, Program]:
    if cell.program != "scheduler":
        armed = _arm(stack, cell)
        return stack.submit(*work(cell, url=stack.receiver.url()), tenant=TENANT), armed
    # Nothing is scheduled before the one that breaks is there.
    for each in {"scheduler-1", "scheduler-2"} & stack.programs.keys():
        stack.end(each)
    submitted = stack.submit(*work(cell, url=stack.receiver.url()), tenant=TENANT)
    return submitted, _arm(stack, cell)


def work(cell: Cell, *, url: str) -> tuple[dict[str, Any], dict[str, int]]:
    """A batch of ten trials: short and long, passing and failing; and what leads to the point. url: of the receiver."""
    body, codes = _ten_trials(cell.runtime)
    if cell.point.startswith("fanout."):
        # More than are made with the batch itself.
        many = {"key": "many", "image": "fake", "runtime": "fake", "steps": [{"name": "run", "run": "true"}]}
        body["jobs"].append({**many, "resources": {"cpu": 0.1, "memory_mb": 64}, "trials": {"count": 1050}})
        codes["many"] = 0
    if cell.point.startswith("webhook."):
        # Of all its trials and of the batch; the other cells tell of the batch alone.
        receiver = {"url": url, "secret_ref": WEBHOOK, "events": ["trial.finished", "batch.finished"]}
        body["on_complete"] = {"webhook": receiver}
    if cell.point.startswith("progress.ruled"):
        body["stop_when"] = {"failed": 1000}
    return body, codes


def _ten_trials(runtime: str) -> tuple[dict[str, Any], dict[str, int]]:
    shapes = [(0.2, 0, 4), (0.3, 1, 3), (1.2, 0, 2), (0.6, 3, 1)]
    jobs, codes = [], {}
    for number, (seconds, code, count) in enumerate(shapes):
        key = f"job-{number}"
        codes[key] = code
        jobs.append(
            {
                "key": key,
                "image": IMAGES[runtime],
                "runtime": runtime,
                "steps": [{"name": "run", "run": script(runtime, seconds, code)}],
                "resources": {"cpu": 0.1, "memory_mb": 128},
                "trials": {"count": count},
                "retry": {"infra": {"max": 10, "backoff": {"initial": 0.1, "max": 0.3}}},
            }
        )
    return {"jobs": jobs}, codes


def script(runtime: str, seconds: float, code: int) -> str:
    """What a trial runs: it says that it lives, for so long, and ends with the code."""
    if runtime == "fake":
        return f"work {seconds} {code}"
    return f"""
say() {{ read -r now _ </proc/uptime; echo "$1 $now"; }}
say start
for _ in $(seq {round(seconds / 0.05)}); do sleep 0.05; say alive; done
say end
exit {code}
"""


def _arm(stack: ChaosStack, cell: Cell) -> Program:
    """Replace the program by one that breaks at the point; the rest of the stack is as the cell says."""
    name = {"api": "api", "worker": "worker-a", "scheduler": "scheduler-1"}[cell.program]
    unwanted = {name, "scheduler-2"} if cell.schedulers == 1 else {name}
    for each in unwanted & stack.programs.keys():
        stack.end(each)
    program = stack.start(name, armed=cell.failpoint)
    if cell.program == "worker":
        _wait_for_session(stack, program)
    if cell.program == "scheduler":
        wait_for(
            lambda: stack.has_ended(name) or "leadership_gained" in program.said(), what="its leadership"
        )
    if cell.schedulers == 2 and "scheduler-2" not in stack.programs:
        stack.start("scheduler-2")
    if cell.point.startswith("reap."):
        _end_a_worker_at_work(stack)
    return program


def _end_a_worker_at_work(stack: ChaosStack) -> None:
    """Give the reaper something to do. The worker stays away: a new one of the same node would do it first."""
    sql = """
        SELECT s.pid FROM attempts a JOIN worker_sessions s ON s.id = a.session_id
        JOIN trials t ON t.id = a.trial_id JOIN jobs j ON j.id = t.job_id
        WHERE a.state = 'running' AND s.ended_at IS NULL AND j.key = 'job-2' LIMIT 1"""
    wait_for(lambda: bool(stack.rows(sql)), what="a long trial that runs")
    pid = stack.rows(sql)[0]["pid"]
    stack.end(next(name for name, program in stack.programs.items() if program.pid == pid))


def _wait_for_session(stack: ChaosStack, worker: Program) -> None:
    sql = "SELECT 1 AS n FROM worker_sessions WHERE pid = %(pid)s AND ended_at IS NULL"
    wait_for(
        lambda: stack.has_ended(worker.name) or bool(stack.rows(sql, pid=worker.pid)),
        what="its worker session",
    )


def _watch_it_end(stack: ChaosStack, cell: Cell, submitted: Submitted, armed: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not stack.is_finished(submitted.batch_id):
        stack.keep_up()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{cell}: the batch has not ended within {DEADLINE_SECONDS:g} s")
        time.sleep(0.05)
