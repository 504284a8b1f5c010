"""Gives an attempt a sandbox that runs already, where a warm pool for jobs has just the one it would make.

The node's worker holds free members in memory, so an attempt that no pool is for costs no statement more. Whether one
is still free, and the attempt still ours, decides one transaction.
"""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from sqlalchemy import Connection

from core.errors import RunFailure
from core.failpoints import failpoint
from core.logging import get_logger
from core.metrics import JOB_POOL_CLAIM_SECONDS, JOB_POOL_CLAIMS
from models.states import AttemptState
from repositories.attempts import AttemptRepository, ClaimedAttempt
from repositories.job_members import GIVEN_TO_JOB, JobMemberRepository, Member, Taking
from runtimes.base import Runtime, SandboxHandle, SandboxSpec, SandboxStats
from services.attempt_control import AttemptControl, StopReason
from services.attempt_writes import AttemptWriter, DisownedError
from services.job_sandbox import sandbox_key
from services.session_endings import SessionEnd, to_session_attempt_end

__all__ = ["HeldMember", "MemberSource", "MemberTaker", "answers"]

log = get_logger(__name__)

_MOST_ENVIRONMENT = 64 << 10
"""Characters. Whether a larger one is possible at all is for the runtime to say, which a member asks no more."""


class HeldMember(Protocol):
    """A free member that nobody else on this node touches until one of the last three was called."""

    @property
    def handle(self) -> SandboxHandle:
        """Its sandbox."""

    @property
    def member(self) -> Member:
        """Its rows."""

    @property
    def held_seconds(self) -> float:
        """For how long it has been running."""

    @property
    def gone(self) -> Callable[[], None]:
        """It was given away: its sandbox is the attempt's now."""

    @property
    def put_back(self) -> Callable[[], None]:
        """It was not given away."""

    @property
    def end(self) -> Callable[[], None]:
        """It does not answer: it ends as what died by itself."""


class MemberSource(Protocol):
    """Whoever keeps the live sandboxes of the node. Thread-safe."""

    def hold(
        self, tenant_id: int, runtime: str, key: str, *, but: Collection[UUID] = ()
    ) -> HeldMember | None:
        """Give the free member that is here for longest, but none of these; None: there is none now."""

    def has_pool(self, tenant_id: int, runtime: str, key: str) -> bool:
        """Whether members of that kind were here lately."""

    def note_taken(self) -> None:
        """One was given away: somebody should fill its pool up."""


class MemberTaker:
    """For one attempt."""

    def __init__(
        self,
        source: MemberSource,
        writer: AttemptWriter,
        control: AttemptControl,
        *,
        node_id: UUID,
        session_id: UUID,
    ) -> None:
        """writer, control: of the attempt."""
        self._source = source
        self._writer = writer
        self._control = control
        self._node_id = node_id
        self._session_id = session_id

    def take(
        self, claimed: ClaimedAttempt, spec: SandboxSpec, runtime: Runtime
    ) -> tuple[ClaimedAttempt, SandboxHandle] | None:
        """Give the attempt as it is with a member, and the member's sandbox. None: it has to have one made.

        Each that does not answer is ended, and the next is asked. Raises DisownedError.
        """
        if not _is_small(spec.env):
            return None
        began = time.monotonic()
        key = sandbox_key(spec)
        tried: set[UUID] = set()
        while (held := self._source.hold(claimed.tenant_id, runtime.name, key, but=tried)) is not None:
            tried.add(held.member.claimed.trial_id)
            if not answers(runtime, held.handle):
                JOB_POOL_CLAIMS.labels("dead").inc()
                log.warning("pool_member_dead", sandbox=held.handle.name, trial_id=str(claimed.trial_id))
                held.end()
                continue
            if self._take(claimed, held):
                JOB_POOL_CLAIMS.labels("hit").inc()
                JOB_POOL_CLAIM_SECONDS.observe(time.monotonic() - began)
                self._source.note_taken()
                return replace(claimed, given_sandbox=held.handle.name), held.handle
        if self._source.has_pool(claimed.tenant_id, runtime.name, key):
            JOB_POOL_CLAIMS.labels("miss").inc()
        return None

    def _take(self, claimed: ClaimedAttempt, held: HeldMember) -> bool:
        """Do it. Whatever comes between, the sandbox is either the attempt's, or the keeper looks after it again."""
        end = to_session_attempt_end(
            SessionEnd(GIVEN_TO_JOB),
            SandboxStats(),  # all of its use counts for the attempt
            wall_seconds=held.held_seconds,
            is_removed=False,
            retry_seconds=None,
        )

        def write(connection: Connection) -> Taking:
            taking = JobMemberRepository(connection).take(
                claimed,
                self._session_id,
                held.member,
                node_id=self._node_id,
                actor=f"worker:{self._node_id}",
            )
            if taking != "taken":
                return taking
            attempts = AttemptRepository(connection)
            member, session_id = held.member.claimed, held.member.session_id
            if not attempts.finish(member, session_id, end) and not attempts.is_in(
                member, session_id, AttemptState.FINISHED
            ):
                raise DisownedError
            return taking

        # From here on the sweep knows it as the attempt's, too.
        self._control.given_sandbox = held.handle.name
        taking: Taking = "not_free"
        try:
            failpoint("member.before_take")
            taking = self._writer.ask_whole(write)
        finally:
            if taking == "taken":
                held.gone()
            else:
                held.put_back()
                self._control.given_sandbox = None
        if taking == "not_mine":
            self._control.request(StopReason.DISOWNED)
            raise DisownedError
        return taking == "taken"


def answers(runtime: Runtime, handle: SandboxHandle) -> bool:
    """Whether execd of a sandbox answers now, within seconds."""
    with suppress(RunFailure):
        client = runtime.executions(handle)
        try:
            client.ping()
        finally:
            client.close()
        return True
    return False


def _is_small(environment: Mapping[str, str]) -> bool:
    return sum(len(name) + len(value) for name, value in environment.items()) <= _MOST_ENVIRONMENT
