"""Cells of the crash matrix about live sandboxes: one is made, copied and deleted while its worker breaks."""

import contextlib
from uuid import UUID

from tests.chaos.cell import Cell
from tests.chaos.harness import ChaosStack, Program, wait_for
from tests.chaos.live import CONVERGE_SECONDS, LiveClient, live_problems, snapshots_left
from tests.support.invariants import InvariantWatch

__all__ = ["is_live", "run_live_cell"]


_LOSSES = frozenset({"NODE_LOST", "SANDBOX_LOST"})
"""Reasons of ends of sandboxes whose next worker came when the lease had lapsed: leases are short here."""


def is_live(point: str) -> bool:
    """Whether only live sandboxes come to a failpoint."""
    return point.startswith(("session.", "snapshot."))


def run_live_cell(
    stack: ChaosStack, cell: Cell, watch: InvariantWatch, armed: Program, tenant: str
) -> list[str]:
    """Make one on the worker that breaks, copy it, delete it; gives what is wrong, nothing if all is right."""
    client = LiveClient(stack, tenant, cell.runtime)
    try:
        sandbox_id = client.create()
        problems = _start_problems(client, cell, sandbox_id)
        if cell.point.startswith("snapshot."):
            problems += _snapshot_problems(client, cell, sandbox_id)
        client.delete(sandbox_id)
        client.until_state(sandbox_id, "Terminated", "Failed")
    except (TimeoutError, AssertionError) as error:
        return [str(error)]
    problems += live_problems(client, sandbox_id)
    if sandbox_id in client.listed():
        problems.append("it is listed after its delete")
    if "failpoint_reached" not in armed.said():
        problems.append(f"{cell.point} was never reached")
    return problems + [str(violation) for violation in watch.ask(live=False)]


def _start_problems(client: LiveClient, cell: Cell, sandbox_id: UUID) -> list[str]:
    """Say what is wrong with how its start ended."""
    record = client.until_state(sandbox_id, "Running", "Failed")
    status = record["status"]
    if status["state"] == "Running":
        return []
    if _outlives(cell):
        return [f"it was started, and its worker killed; the next one did not go on: {status}"]
    return [] if status.get("message") else [f"nobody says why it failed: {status}"]


def _snapshot_problems(client: LiveClient, cell: Cell, sandbox_id: UUID) -> list[str]:
    problems = []
    snapshot_id = client.snapshot(sandbox_id)
    if snapshot_id is None:
        return ["its snapshot was refused"]
    status = client.until_snapshot(snapshot_id, "Ready", "Failed")["status"]
    if status["state"] == "Failed":
        source = client.record(sandbox_id)["status"]
        if _outlives(cell) and source.get("reason") not in _LOSSES:
            problems.append(
                f"its worker was killed, and the next one did not make the snapshot: {status}, {source}"
            )
        elif not status.get("message"):
            problems.append(f"nobody says why the snapshot failed: {status}")
    answer = client.ask("DELETE", f"/snapshots/{snapshot_id}")
    if answer.status_code != 204:
        problems.append(f"the snapshot was not deleted: {answer.text}")
    with contextlib.suppress(TimeoutError):
        wait_for(
            lambda: not client.stack.keep_up() and not snapshots_left(client.stack),
            what="the end of the snapshot",
            seconds=CONVERGE_SECONDS,
        )
    client.until_snapshot(snapshot_id, "gone")
    return problems + snapshots_left(client.stack)


def _outlives(cell: Cell) -> bool:
    """Whether nothing but the worker is lost, so that its successor has to go on."""
    return cell.runtime != "fake" and cell.action == "kill9"
