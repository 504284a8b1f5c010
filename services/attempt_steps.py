"""Runs the steps of one attempt in its sandbox: inputs, commands, patches, artifacts."""

import fnmatch
import posixpath
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace

from core.blobstore import BlobStore
from core.errors import (
    ArtifactUploadError,
    ExecdUnreachableError,
    InvalidRequestError,
    NotFoundError,
    SandmillError,
    SpecInvalidError,
)
from core.logging import get_logger
from repositories.attempts import ArtifactRow
from runtimes.base import Command, CommandResult, ExecutionClient, FileInfo, FileUpload, StreamName
from services.attempt_control import AttemptControl
from services.idle_watch import IdleWatch
from services.jobspec import ArtifactRule, Input, JobSpec, PatchStep, Step, StepRole
from services.log_pump import LogPump
from services.outcomes import StepResult
from services.patches import FileContent, PatchRejectedError, apply_patch

__all__ = ["ArtifactCollector", "PatchPathMissingError", "SandboxSpoiledError", "SandboxTools", "StepRunner"]

log = get_logger(__name__)


class SandboxSpoiledError(Exception):
    """The code under test left the sandbox so that it cannot be judged: that is its failure, not ours."""


class PatchPathMissingError(SpecInvalidError):
    """The patch file a step names is not in the sandbox."""

    code = "patch_path_missing"

    def __init__(self, step: str, path: str) -> None:
        """step, path: as the job names them."""
        super().__init__(f"step {step}: there is no patch file {path} in the sandbox", field="patch.path")


_PATCH_BYTES = 16 << 20
_MAX_ARTIFACTS = 1000
_OUTER_MARGIN_SECONDS = 5.0
"""execd enforces a step's timeout; so long after it (and the grace) the sandbox is killed from outside."""


@dataclass(frozen=True, slots=True)
class SandboxTools:
    """What the parts of one attempt share. oom_kills, cpu_seconds: read the sandbox's counters; None: there is none."""

    client: ExecutionClient
    blobs: BlobStore
    pump: LogPump
    control: AttemptControl
    oom_kills: Callable[[], int | None]
    cpu_seconds: Callable[[], float | None]


class StepRunner:
    """Runs one step at a time, in the order the caller gives."""

    def __init__(
        self, spec: JobSpec, tools: SandboxTools, *, env: dict[str, str], left: Callable[[], float]
    ) -> None:
        """env: of every command. left: seconds until the trial's total deadline."""
        self._spec = spec
        self._tools = tools
        self._env = env
        self._left = left
        self._has_run_code = False

    @property
    def has_run_code(self) -> bool:
        """Whether a step of role run has begun: from then on the sandbox may be hostile."""
        return self._has_run_code

    def upload_inputs(self, before: str | None) -> None:
        """Put in the inputs that belong before this step (None: before all); none appears any earlier.

        Raises SandboxSpoiledError if code under test has left something in their way.
        """
        inputs = [item for item in self._spec.inputs if item.before == before]
        if not inputs:
            return
        with ExitStack() as stack:
            uploads = [self._to_upload(item, stack) for item in inputs]
            try:
                self._tools.client.upload(uploads)
            except SpecInvalidError as error:
                self._blame(error)
                raise

    def _blame(self, error: SandmillError) -> None:
        """Once the code under test has run, what stands in the way was put there by it."""
        if self._has_run_code:
            raise SandboxSpoiledError(error.message) from error

    def _to_upload(self, item: Input, stack: ExitStack) -> FileUpload:
        if item.text is not None:
            return FileUpload(item.path, item.text.encode(), item.mode)
        try:
            return FileUpload(
                item.path, stack.enter_context(self._tools.blobs.open(item.blob or "")), item.mode
            )
        except NotFoundError as error:
            message = f"input {item.path}: blob {item.blob} is not in the store; upload it again"
            raise SpecInvalidError(message, field="inputs") from error

    def run(self, step: Step) -> StepResult:
        """Run the step to its end. Raises RunFailure when the sandbox fails, not when the step does."""
        started = time.monotonic()
        oom_before = self._tools.oom_kills()
        if step.role is StepRole.RUN:
            self._has_run_code = True
        result = self._command(step) if step.patch is None else self._patch(step, step.patch)
        duration = round(1000 * (time.monotonic() - started))
        oom = False
        if result.signal or result.exit_code:
            oom_after = self._tools.oom_kills()
            oom = oom_after is not None and oom_after > (oom_before or 0)
        return replace(result, duration_ms=duration, oom=oom)

    def _command(self, step: Step) -> StepResult:
        timeout = min(step.timeout_seconds, max(self._left(), 0.0))
        command = Command(
            shell=step.run,
            argv=step.argv,
            cwd=step.cwd or self._spec.workdir,
            env={**self._env, **step.env},
            timeout_seconds=max(timeout, 0.001),
            merge_streams=step.merge_streams,
            # Setup may start services for later steps. What the code under test starts must not be there when it is
            # judged: it could rewrite the tests as they arrive.
            kill_leftovers=step.role is not StepRole.SETUP,
        )

        control = self._tools.control
        stop = control.begin_step()
        idle = self._spec.timeouts.idle
        watch = None if idle is None else self._idle_watch(idle)

        def on_output(stream: StreamName, data: bytes) -> None:
            if watch is not None:
                watch.note_output()
            self._tools.pump.write(step.name, stream, data)

        grace = self._spec.timeouts.grace
        control.set_deadline(timeout + grace + _OUTER_MARGIN_SECONDS)
        try:
            with watch or nullcontext():
                result = self._tools.client.run(
                    command, on_output=on_output, stop=stop, kill_grace_seconds=grace
                )
        finally:
            control.set_deadline(None)
        if result.error is not None:
            self._tools.pump.write(step.name, "stderr", f"{result.error}\n".encode())
        is_idle = watch is not None and watch.has_fired and result.interrupted
        return _to_step_result(step, result, is_idle=is_idle)

    def _idle_watch(self, limit_seconds: float) -> IdleWatch:
        tools = self._tools
        return IdleWatch(limit_seconds, cpu_seconds=tools.cpu_seconds, on_idle=tools.control.end_step)

    def _patch(self, step: Step, patch: PatchStep) -> StepResult:
        """Apply the patch out here, on bytes fetched through execd: the image needs no tool for it."""
        client, pump = self._tools.client, self._tools.pump
        try:
            text = client.download(patch.path, max_bytes=_PATCH_BYTES)
        except NotFoundError as error:
            raise PatchPathMissingError(step.name, patch.path) from error
        except InvalidRequestError as error:  # too large, or no regular file
            self._blame(error)
            message = f"step {step.name}: the patch {patch.path} cannot be read: {error.message}"
            raise SpecInvalidError(message, field="patch.path") from error
        folder = step.cwd or self._spec.workdir
        try:
            applied = apply_patch(
                text,
                lambda path: self._read_file(posixpath.join(folder, path)),
                strip=patch.strip,
                on_reject=patch.on_reject,
            )
        except (PatchRejectedError, InvalidRequestError) as error:
            # The latter: what the patch names is there, but no regular file that can be read, or far too large.
            pump.write(step.name, "stderr", f"{error}\n".encode("utf-8", "replace"))
            return StepResult(step.name, step.role, exit_code=1, patch_rejected=True)
        uploads = [
            FileUpload(posixpath.join(folder, change.path), change.content.data, change.content.mode)
            for change in applied.changes
            if change.content is not None
        ]
        removed = [
            posixpath.join(folder, change.path) for change in applied.changes if change.content is None
        ]
        try:
            if uploads:
                client.upload(uploads)
            if removed:
                client.delete(removed)
        except SpecInvalidError as error:
            pump.write(step.name, "stderr", f"{error}\n".encode("utf-8", "replace"))
            return StepResult(step.name, step.role, exit_code=1, patch_rejected=True)
        for change in applied.changes:
            verb = "removed" if change.content is None else "patched"
            pump.write(step.name, "stdout", f"{verb} {change.path}\n".encode("utf-8", "replace"))
        for reject in applied.rejects:
            pump.write(step.name, "stderr", f"{reject}\n".encode("utf-8", "replace"))
        return StepResult(step.name, step.role, exit_code=0, patch_rejected=bool(applied.rejects))

    def _read_file(self, path: str) -> FileContent | None:
        client = self._tools.client
        try:
            info = client.file_info(path)
            return FileContent(client.download(path, max_bytes=_PATCH_BYTES), info.mode)
        except NotFoundError:
            return None


def _to_step_result(step: Step, result: CommandResult, *, is_idle: bool) -> StepResult:
    return StepResult(
        step.name,
        step.role,
        exit_code=result.exit_code,
        signal=result.signal,
        timed_out=result.timed_out or is_idle,
        error=result.error,
        is_idle=is_idle,
    )


class ArtifactCollector:
    """Copies files out of the sandbox into the blob store, within the caps of their rules."""

    def __init__(self, tools: SandboxTools) -> None:
        """tools: of the attempt; its control may end the collection early."""
        self._tools = tools
        self._rows: dict[str, ArtifactRow] = {}

    @property
    def rows(self) -> list[ArtifactRow]:
        """All that was collected so far."""
        return list(self._rows.values())

    def collect(self, rule: ArtifactRule) -> None:
        """Keep what the rule names. What is missing or beyond the caps is noted in the log, never an error."""
        budget = rule.max_bytes
        try:
            matches = list(self._matches(rule.path))
        except (InvalidRequestError, ExecdUnreachableError) as error:
            # A tree too large to list, or a folder nobody may read: the code's doing, and its loss.
            self._note(f"artifacts {rule.path} not kept: {error.message}")
            return
        for info in matches:
            if info.path in self._rows:
                continue
            if len(self._rows) >= _MAX_ARTIFACTS or info.size > budget:
                self._note(f"artifact {info.path} not kept: over the limit of its rule")
                continue
            budget -= self._keep(info.path, max_bytes=budget)

    def read(self, path: str) -> bytes | None:
        """Give the stored bytes of a collected file; None if it was not there."""
        row = self._rows.get(path)
        return None if row is None else self._tools.blobs.read(row.digest)

    def _keep(self, path: str, *, max_bytes: int) -> int:
        try:
            data = self._tools.client.download(path, max_bytes=max_bytes)
        except (NotFoundError, InvalidRequestError) as error:
            self._note(f"artifact {path} not kept: {error}")
            return 0
        try:
            stored = self._tools.blobs.put([data], max_bytes=max_bytes)
        except OSError as error:
            message = f"artifact {path} could not be stored: {error.strerror}"
            raise ArtifactUploadError(message) from error
        self._rows[path] = ArtifactRow(path, stored.digest, stored.size_bytes)
        return stored.size_bytes

    def _matches(self, pattern: str) -> Iterator[FileInfo]:
        folder, name = posixpath.split(pattern)
        if name == "**":
            yield from self._tools.client.search(folder, "**")
        elif any(mark in name for mark in "*?["):
            for info in self._tools.client.search(folder, name):
                if posixpath.dirname(info.path) == folder and fnmatch.fnmatchcase(
                    posixpath.basename(info.path), name
                ):
                    yield info
        else:
            try:
                info = self._tools.client.file_info(pattern)
            except NotFoundError:
                return
            if info.type == "file":
                yield info

    def _note(self, text: str) -> None:
        self._tools.pump.write("collect", "stderr", f"{text}\n".encode("utf-8", "replace"))
