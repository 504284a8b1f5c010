"""Follows the entrypoints of this node's live sandboxes: now and then, when somebody asks, and before the end."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sqlalchemy import Engine

from core.errors import EntrypointFailedError, SandmillError
from core.logging import get_logger
from repositories.sandbox_outputs import OutputKeepingRepository, WantedOutput
from runtimes.base import Runtime, SandboxHandle
from services.entrypoints import OUTPUT_BYTES, describe_end, read_entrypoint

__all__ = ["Entrypoint", "OutputKeeper"]

log = get_logger(__name__)

_FIRST_SECONDS = 3.0
_MOST_SECONDS = 60.0
"""Between two looks, which grow apart: what ends does so soon, or after long."""
_GLANCE_BYTES = 16 << 10
"""Kept now and then, for a sandbox that is killed and cannot be asked any more."""


@dataclass(slots=True)
class Entrypoint:
    """What is known of one. argv: empty if there is none. is_over: its end is written; nothing more will come."""

    argv: tuple[str, ...]
    is_over: bool = False
    seen_bytes: int = 0
    pause: float = _FIRST_SECONDS
    look_at: float = field(default_factory=lambda: time.monotonic() + _FIRST_SECONDS)


class OutputKeeper:
    """Outputs of one node. The caller sees to it that each sandbox is worked on by one thread at a time."""

    def __init__(self, statements: Engine, *, node_id: UUID, tell: Callable[[UUID], None]) -> None:
        """statements: commits each by itself. tell: called with a sandbox's id after it was read."""
        self._statements = statements
        self._node_id = node_id
        self._tell = tell

    def wanted(self) -> list[WantedOutput]:
        """What somebody waits for."""
        with self._statements.connect() as connection:
            return OutputKeepingRepository(connection).wanted(self._node_id)

    def glance(self, trial_id: UUID, entrypoint: Entrypoint, runtime: Runtime, handle: SandboxHandle) -> None:
        """Look if it is time to, and keep what is new."""
        now = time.monotonic()
        if not entrypoint.argv or entrypoint.is_over or now < entrypoint.look_at:
            return
        entrypoint.pause = min(2 * entrypoint.pause, _MOST_SECONDS)
        entrypoint.look_at = now + entrypoint.pause
        self._read(trial_id, entrypoint, runtime, handle, tail_bytes=_GLANCE_BYTES)

    def answer(
        self, wanted: WantedOutput, entrypoint: Entrypoint, runtime: Runtime, handle: SandboxHandle
    ) -> None:
        """Read for those who wait; what cannot be read now they get as it was."""
        if not self._read(
            wanted.trial_id, entrypoint, runtime, handle, tail_bytes=OUTPUT_BYTES, read_at=wanted.now
        ):
            self.refuse(wanted)
        self._tell(wanted.trial_id)

    def refuse(self, wanted: WantedOutput) -> None:
        """Let those who wait have what there is."""
        with self._statements.connect() as connection:
            OutputKeepingRepository(connection).refuse(wanted)

    def keep_last(
        self, trial_id: UUID, entrypoint: Entrypoint, runtime: Runtime, handle: SandboxHandle
    ) -> None:
        """Keep what there is before the sandbox goes."""
        if entrypoint.argv and not entrypoint.is_over:
            self._read(trial_id, entrypoint, runtime, handle, tail_bytes=OUTPUT_BYTES)

    def keep_failure(self, trial_id: UUID, error: EntrypointFailedError) -> None:
        """Keep what an entrypoint wrote that failed at once; its sandbox is gone."""
        with self._statements.connect() as connection:
            OutputKeepingRepository(connection).store(
                trial_id,
                node_id=self._node_id,
                output=error.output,
                total_bytes=error.total_bytes,
                ended=error.ended,
            )

    def _read(
        self,
        trial_id: UUID,
        entrypoint: Entrypoint,
        runtime: Runtime,
        handle: SandboxHandle,
        *,
        tail_bytes: int,
        read_at: datetime | None = None,
    ) -> bool:
        try:
            run = read_entrypoint(runtime, handle, entrypoint.argv, tail_bytes=tail_bytes)
        except SandmillError as error:
            log.debug("output_not_read", trial_id=str(trial_id), error=error.message)
            return False
        if run is None:
            return False
        if run.is_running and run.total_bytes == entrypoint.seen_bytes and read_at is None:
            return True
        ended = None if run.is_running else describe_end(run)
        with self._statements.connect() as connection:
            OutputKeepingRepository(connection).store(
                trial_id,
                node_id=self._node_id,
                output=run.output,
                total_bytes=run.total_bytes,
                ended=ended,
                read_at=read_at,
            )
        entrypoint.seen_bytes = run.total_bytes
        # A glance keeps less than the end of it all is worth.
        entrypoint.is_over = ended is not None and tail_bytes >= min(OUTPUT_BYTES, run.total_bytes)
        return True
