"""A worker around the fake runtime, without Celery: bells are answered by the test."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from core.blobstore import BlobStore
from repositories.dispatch import Bell
from repositories.log_chunks import Chunk
from runtimes.base import Runtime
from services.attempt_control import AttemptControl
from services.attempt_runner import AttemptRunner, WorkerParts
from services.attempt_writes import AttemptStatements
from services.jobspec import JobSpec
from services.log_pump import LogWriter
from tests.support.queue import QueueWorld, Seat

__all__ = ["Bench", "running_bench"]


class Bench:
    """Runs one trial after the other through the real AttemptRunner."""

    def __init__(
        self,
        world: QueueWorld,
        runtime: Runtime,
        folder: Path,
        *,
        publish: Callable[[Sequence[Chunk]], None] | None = None,
        log_cap_bytes: int = 1 << 20,
        **session: Any,
    ) -> None:
        self.world = world
        self.runtime = runtime
        self.published: list[Chunk] = []
        self.seat: Seat = world.session(**session)
        self.logs = LogWriter(world.engine, publish or self.published.extend, node_id=self.seat.node_id)
        self.blobs = BlobStore(folder / "blobs")
        self.tenant = world.tenant()
        self.runner = AttemptRunner(
            WorkerParts(
                statements=AttemptStatements(world.engine, world.engine, node_id=self.seat.node_id),
                runtimes={"fake": runtime},
                blobs=self.blobs,
                logs=self.logs,
                node_id=self.seat.node_id,
                log_cap_bytes=log_cap_bytes,
            )
        )

    def dispatch(self, spec: JobSpec, **columns: Any) -> Bell:
        self.world.trials(self.tenant, 1, spec=spec, **columns)
        self.world.dispatcher.tick()
        return self.world.bells.rung[-1]

    def run(self, spec: JobSpec, **columns: Any) -> dict[str, Any]:
        """Run a trial of the spec to the end of its first attempt; gives the trial's row."""
        return self.answer(self.dispatch(spec, **columns))

    def answer(self, bell: Bell, control: AttemptControl | None = None) -> dict[str, Any]:
        claimed = self.seat.claim(bell)
        assert claimed is not None
        self.runner.run(claimed, self.seat.session_id, control or AttemptControl())
        return self.world.trial(bell.trial_id)

    def start(self, spec: JobSpec) -> tuple[Bell, AttemptControl, threading.Thread]:
        """Run a trial on a thread; join it."""
        bell = self.dispatch(spec)
        control = AttemptControl()
        thread = threading.Thread(target=self.answer, args=(bell, control))
        thread.start()
        return bell, control, thread

    def log_of(self, trial: UUID, fence: int = 1) -> list[tuple[str, str, bytes]]:
        sql = "SELECT step, stream, bytes FROM log_chunks WHERE trial_id = %(id)s AND fence = %(f)s ORDER BY seq"
        rows = self.world.execute(sql, id=trial, f=fence)
        return [(row["step"], row["stream"], row["bytes"]) for row in rows]


@contextmanager
def running_bench(world: QueueWorld, runtime: Runtime, folder: Path, **options: Any) -> Iterator[Bench]:
    bench = Bench(world, runtime, folder, **options)
    bench.logs.start()
    try:
        yield bench
    finally:
        bench.logs.stop()
