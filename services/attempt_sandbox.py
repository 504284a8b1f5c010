"""The sandbox of one attempt: made, given by a warm pool, or found again where another worker had it; and removed."""

from dataclasses import replace
from uuid import UUID

from core.errors import RunFailure, RuntimeUnavailableError
from core.failpoints import failpoint
from core.logging import get_logger
from core.metrics import SANDBOX_START_SECONDS
from core.tracing import span
from repositories.attempts import ClaimedAttempt
from repositories.job_members import JobMemberRepository
from runtimes.base import Runtime, SandboxHandle, SandboxSpec, SandboxStats
from services.attempt_members import MemberTaker, answers
from services.attempt_writes import AttemptWriter, DisownedError
from services.job_sandbox import to_job_sandbox
from services.jobspec import JobSpec
from services.sandbox_handling import find_sandbox, remove_sandbox, sandbox_labels

__all__ = ["AttemptSandbox"]

log = get_logger(__name__)


class AttemptSandbox:
    """At most one sandbox, under the name that every worker knows it by: that of `claimed`."""

    def __init__(
        self,
        runtime: Runtime | None,
        claimed: ClaimedAttempt,
        spec: JobSpec,
        *,
        node_id: UUID,
        session_id: UUID,
        writer: AttemptWriter,
        taker: MemberTaker | None = None,
    ) -> None:
        """runtime: None if this node does not offer it, which `create` and `find` then say. writer: of the attempt.

        taker: finds it a member of a warm pool; None: it is not to have one.
        """
        self._offered = runtime
        self._claimed = claimed
        self._writer = writer
        self._taker = taker
        self._spec = spec
        self._node_id = node_id
        self._session_id = session_id
        self._handle: SandboxHandle | None = None

    @property
    def claimed(self) -> ClaimedAttempt:
        """The attempt, with the name of the sandbox that it has now."""
        return self._claimed

    @property
    def runtime(self) -> Runtime:
        """What it runs in. Raises RuntimeUnavailableError."""
        if self._offered is None:
            raise RuntimeUnavailableError(f"this node does not offer the runtime {self._claimed.runtime}")
        return self._offered

    def create(self, *, timeout_seconds: float) -> SandboxHandle:
        """Make it, or have a member of a pool instead; one that another worker had for this attempt is taken as it is.

        Raises RunFailure, DisownedError.
        """
        runtime = self.runtime
        given = self._given(runtime)
        if given is not None:
            self._handle = given
            failpoint("member.after_take")
            return given
        with span("sandbox.create"), SANDBOX_START_SECONDS.labels(runtime.name).time():
            self._handle = runtime.create(self._to_spec(), timeout_seconds=max(0.1, timeout_seconds))
        return self._handle

    def _given(self, runtime: Runtime) -> SandboxHandle | None:
        """Give the member of a pool that the attempt has, or can have. None: it needs one of its own."""
        if self._claimed.given_sandbox is not None:
            return self._still_given(runtime)
        if self._taker is None:
            return None
        taken = self._taker.take(self._claimed, self._to_spec(), runtime)
        if taken is None:
            return None
        self._claimed, handle = taken
        return handle

    def _still_given(self, runtime: Runtime) -> SandboxHandle | None:
        """Find what an earlier worker was given for this attempt; what does not answer any more is removed."""
        handle = runtime.find(self._claimed.sandbox_name)
        if handle is not None and answers(runtime, handle):
            return handle
        log.warning("given_sandbox_dead", sandbox=self._claimed.sandbox_name)
        self._handle = handle
        is_removed = self.remove()
        self._handle = None
        claimed, session_id = self._claimed, self._session_id
        is_mine = self._writer.ask(
            lambda connection: JobMemberRepository(connection).go_own_way(
                claimed, session_id, is_removed=is_removed
            )
        )
        if not is_mine:
            raise DisownedError
        self._claimed = replace(claimed, given_sandbox=None)
        return None

    def find(self) -> SandboxHandle:
        """Find what another worker has made. Raises NodeLostError, RuntimeUnavailableError."""
        self._handle = find_sandbox(self._offered, self._claimed)
        return self._handle

    def stats(self) -> SandboxStats:
        """What it used; nothing when it cannot be asked any more."""
        if self._handle is None:
            return SandboxStats()
        try:
            return self.runtime.stats(self._handle)
        except RunFailure:
            return SandboxStats()

    def remove(self) -> bool:
        """Remove it; False if it will not go now, see `remove_sandbox`."""
        return self._handle is None or remove_sandbox(self.runtime, self._handle)

    def environment(self) -> dict[str, str]:
        """Variables of everything that runs in it."""
        env = {**self._spec.env, "TRIAL_INDEX": str(self._claimed.index)}
        if self._claimed.seed is not None:
            env["TRIAL_SEED"] = str(self._claimed.seed)
        return env

    def _to_spec(self) -> SandboxSpec:
        claimed = self._claimed
        return to_job_sandbox(
            claimed.sandbox_name,
            self._spec.image,
            self._spec.resources,
            workdir=self._spec.workdir,
            env=self.environment(),
            labels=sandbox_labels(claimed, node_id=self._node_id, session_id=self._session_id),
        )
