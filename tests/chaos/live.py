"""Live sandboxes over the wire, as a client sees them that gives up on no answer; and what is to be true of them."""

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx

from core.ids import new_id
from runtimes.registry import build_runtime
from services.snapshots import is_of_node
from tests.chaos.harness import ChaosStack, wait_for
from tests.chaos.judge import sandboxes_left
from tests.support.images import BUSYBOX_IMAGE

__all__ = ["CONVERGE_SECONDS", "LiveClient", "held_by", "live_problems", "snapshots_left"]

CONVERGE_SECONDS = 60.0
"""So long after a fault all is as it should be."""

_IMAGES = {"fake": "fake", "local": "host", "docker": BUSYBOX_IMAGE}
_GONE = frozenset({"Terminated", "Failed"})

_HELD = """
SELECT 'attempt ' || a.fence || ' is ' || a.state AS held FROM attempts a
WHERE a.trial_id = %(id)s AND a.finished_at IS NULL
UNION ALL SELECT 'sandbox ' || b.name || ' is ' || b.state FROM sandboxes b
WHERE b.trial_id = %(id)s AND b.state <> 'removed'
UNION ALL SELECT 'trial is ' || t.state FROM trials t WHERE t.id = %(id)s AND t.state <> 'finished'
"""


@dataclass
class LiveClient:
    """One tenant's. runtime: of the sandboxes that it makes."""

    stack: ChaosStack
    tenant: str
    runtime: str

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask once. Raises httpx.HTTPError where nobody answers."""
        headers = {"OPEN-SANDBOX-API-KEY": self.stack.keys[self.tenant], **options.pop("headers", {})}
        return self.stack.client.request(method, f"/v1{path}", headers=headers, **options)

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask until there is an answer that is not about a fault of ours; what has ended is started again."""
        deadline = time.monotonic() + CONVERGE_SECONDS
        while True:
            with contextlib.suppress(httpx.HTTPError):
                answer = self.call(method, path, **options)
                if answer.status_code < 500 and answer.status_code != 429:
                    return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer to {method} {path}")
            self.stack.keep_up()
            time.sleep(0.05)

    def body(self, **changes: Any) -> dict[str, Any]:
        """What a create sends."""
        return {
            "image": {"uri": _IMAGES[self.runtime]},
            "timeout": 600,
            "resourceLimits": {"cpu": "0.5", "memory": "128Mi", "disk": "32Mi"},
            "entrypoint": ["tail", "-f", "/dev/null"],
            "extensions": {"sandmill.runtime": self.runtime},
            **changes,
        }

    def create(self, *, key: str | None = None, **changes: Any) -> UUID:
        """Make one, however often it has to be asked for."""
        headers = {"Idempotency-Key": key or str(new_id())}
        answer = self.ask("POST", "/sandboxes", json=self.body(**changes), headers=headers)
        assert answer.status_code == 202, answer.text
        return UUID(answer.json()["id"])

    def delete(self, sandbox_id: UUID) -> None:
        answer = self.ask("DELETE", f"/sandboxes/{sandbox_id}")
        assert answer.status_code == 204, answer.text

    def record(self, sandbox_id: UUID) -> dict[str, Any]:
        """What is known of it, also after its end."""
        return dict(self.ask("GET", f"/sandboxes/{sandbox_id}/record").json())

    def listed(self) -> set[UUID]:
        return {UUID(item["id"]) for item in self.ask("GET", "/sandboxes?pageSize=200").json()["items"]}

    def until_state(
        self, sandbox_id: UUID, *states: str, seconds: float = CONVERGE_SECONDS
    ) -> dict[str, Any]:
        """Wait for one of these states; gives the record. Raises TimeoutError that says where it stands."""
        return self._until(lambda: self.record(sandbox_id), states, f"sandbox {sandbox_id}", seconds)

    def snapshot(self, sandbox_id: UUID) -> UUID | None:
        """Ask for a snapshot; None if the sandbox does not run."""
        headers = {"Idempotency-Key": str(new_id())}
        answer = self.ask("POST", f"/sandboxes/{sandbox_id}/snapshots", json={}, headers=headers)
        return UUID(answer.json()["id"]) if answer.status_code == 202 else None

    def until_snapshot(self, snapshot_id: UUID, *states: str) -> dict[str, Any]:
        """Wait for one of these states."""

        def read() -> dict[str, Any]:
            answer = self.ask("GET", f"/snapshots/{snapshot_id}")
            return {"status": {"state": "gone"}} if answer.status_code == 404 else dict(answer.json())

        return self._until(read, states, f"snapshot {snapshot_id}", CONVERGE_SECONDS)

    def _until(
        self, read: Callable[[], dict[str, Any]], states: Collection[str], what: str, seconds: float
    ) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while (found := read())["status"]["state"] not in states:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{what} is {found['status']} after {seconds:g} s, not {', '.join(states)}"
                )
            self.stack.keep_up()
            time.sleep(0.05)
        return found


def held_by(stack: ChaosStack, sandbox_id: UUID) -> list[str]:
    """What of quota and node is still held for one that is over."""
    return [row["held"] for row in stack.rows(_HELD, id=sandbox_id)]


def live_problems(client: LiveClient, sandbox_id: UUID) -> list[str]:
    """What is wrong with one that was deleted, or has failed, once all had time to converge."""
    stack = client.stack
    with contextlib.suppress(TimeoutError):
        wait_for(
            lambda: not stack.keep_up() and not held_by(stack, sandbox_id) and not sandboxes_left(stack),
            what="the end",
            seconds=CONVERGE_SECONDS,
        )
    problems = [f"held: {line}" for line in held_by(stack, sandbox_id)] + sandboxes_left(stack)
    record = client.record(sandbox_id)
    state = record["status"]["state"]
    if state not in _GONE:
        problems.append(f"it is {state} though it is over")
    if not record.get("endedAt"):
        problems.append("nobody says when it ended")
    if state == "Failed" and not (record["status"].get("reason") and record["status"].get("message")):
        problems.append(f"it failed and nobody says why: {record['status']}")
    return problems


def snapshots_left(stack: ChaosStack) -> list[str]:
    """Snapshots that the runtimes of the nodes have and no row knows."""
    known = {row["runtime_name"] for row in stack.rows("SELECT runtime_name FROM snapshots")}
    left = []
    for home in stack.home.glob("worker-*"):
        node = home / "node" / "node.id"
        if not node.is_file():
            continue
        for name in set(stack.runtimes) - {"fake"}:
            runtime = build_runtime(name, home / "runtimes")
            of_node = [
                each for each in runtime.snapshots() if is_of_node(each, UUID(node.read_text().strip()))
            ]
            left += [f"left: snapshot {each} of {home.name}" for each in of_node if each not in known]
    return left
