"""The sandbox of one attempt: made, or found again where another worker of the node has made it; measured; removed."""

import time
from uuid import UUID

from core.errors import NodeLostError, RunFailure, RuntimeUnavailableError
from core.logging import get_logger
from core.metrics import SANDBOX_START_SECONDS
from core.tracing import span
from repositories.attempts import ClaimedAttempt
from runtimes.base import ResourceLimits, Runtime, SandboxHandle, SandboxSpec, SandboxStats
from services.jobspec import JobSpec

__all__ = ["AttemptSandbox"]

log = get_logger(__name__)


class AttemptSandbox:
    """At most one sandbox, under the name that every worker knows it by."""

    def __init__(
        self,
        runtime: Runtime | None,
        claimed: ClaimedAttempt,
        spec: JobSpec,
        *,
        node_id: UUID,
        session_id: UUID,
    ) -> None:
        """runtime: None if this node does not offer it, which `create` and `find` then say."""
        self._offered = runtime
        self._claimed = claimed
        self._spec = spec
        self._node_id = node_id
        self._session_id = session_id
        self._handle: SandboxHandle | None = None

    @property
    def runtime(self) -> Runtime:
        """What it runs in. Raises RuntimeUnavailableError."""
        if self._offered is None:
            raise RuntimeUnavailableError(f"this node does not offer the runtime {self._claimed.runtime}")
        return self._offered

    def create(self, *, timeout_seconds: float) -> SandboxHandle:
        """Make it; one that another worker has made for this attempt is taken as it is. Raises RunFailure."""
        runtime = self.runtime
        with span("sandbox.create"), SANDBOX_START_SECONDS.labels(runtime.name).time():
            self._handle = runtime.create(self._to_spec(), timeout_seconds=max(0.1, timeout_seconds))
        return self._handle

    def find(self) -> SandboxHandle:
        """Find what another worker has made. Raises NodeLostError."""
        name = self._claimed.sandbox_name
        handle = next((each for each in self.runtime.list() if each.name == name), None)
        if handle is None:
            raise NodeLostError("the worker went away, and the sandbox with it")
        self._handle = handle
        return handle

    def stats(self) -> SandboxStats:
        """What it used; nothing when it cannot be asked any more."""
        if self._handle is None:
            return SandboxStats()
        try:
            return self.runtime.stats(self._handle)
        except RunFailure:
            return SandboxStats()

    def remove(self) -> bool:
        """Remove it; False if it will not go now: no reason to throw a verdict away, the worker sweeps later."""
        if self._handle is None:
            return True
        for pause in (0.2, 1.0, 0.0):
            try:
                self.runtime.remove(self._handle)
            except RunFailure as error:
                log.exception("sandbox_not_removed", sandbox=self._handle.name, error=error.message)
                time.sleep(pause)
            else:
                return True
        return False

    def environment(self) -> dict[str, str]:
        """Variables of everything that runs in it."""
        env = {**self._spec.env, "TRIAL_INDEX": str(self._claimed.index)}
        if self._claimed.seed is not None:
            env["TRIAL_SEED"] = str(self._claimed.seed)
        return env

    def _to_spec(self) -> SandboxSpec:
        resources = self._spec.resources
        claimed = self._claimed
        return SandboxSpec(
            name=claimed.sandbox_name,
            image=self._spec.image,
            limits=ResourceLimits(
                cpu_millicores=resources.cpu_millicores,
                memory_bytes=resources.memory_bytes,
                disk_bytes=resources.disk_bytes,
                pids=resources.pids,
                gpu=resources.gpu,
            ),
            env=self.environment(),
            workdir=self._spec.workdir,
            labels={
                "sandmill.trial": str(claimed.trial_id),
                "sandmill.fence": str(claimed.fence),
                "sandmill.node": str(self._node_id),
                "sandmill.session": str(self._session_id),
            },
        )
