"""Runs the steps of one attempt in its sandbox: inputs, commands, patches, artifacts."""

import fnmatch
import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from uuid import UUID

from core.blobstore import BlobStore
from core.errors import (
    ArtifactUploadError,
    ExecdUnreachableError,
    InvalidRequestError,
    NodeLostError,
    NotFoundError,
    SandmillError,
    SpecInvalidError,
)
from core.logging import get_logger
from repositories.attempts import ArtifactRow
from runtimes.base import Command, CommandResult, ExecutionClient, FileInfo, FileUpload, KeptRun, StreamName
from services.attempt_control import AttemptControl
from services.attempt_journal import AttemptJournal
from services.attempt_progress import Progress, boot_seconds
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


_Said = list[tuple[str, str]]
"""Lines for the log: stream and text."""

_PATCH_BYTES = 16 << 20
_MAX_ARTIFACTS = 1000
_OUTER_MARGIN_SECONDS = 5.0
"""execd enforces a step's timeout; so long after it (and the grace) the sandbox is killed from outside."""


@dataclass(frozen=True, slots=True)
class SandboxTools:
    """What the parts of one attempt share. oom_kills, cpu_seconds: read the sandbox's counters; None: there is none.

    journal: of an attempt whose sandbox outlives this process; None: there is nothing to go on with then.
    """

    client: ExecutionClient
    blobs: BlobStore
    pump: LogPump
    control: AttemptControl
    oom_kills: Callable[[], int | None]
    cpu_seconds: Callable[[], float | None]
    attempt_id: UUID
    journal: AttemptJournal | None = None


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

    def prepare(
        self, number: int, before: Progress | None, results: Sequence[StepResult], *, left_seconds: float
    ) -> Progress:
        """Fix what the step of this number gets, so that it is found again by it. before, results: of all before.

        left_seconds: for all further steps.
        """
        timeout = max(min(self._spec.steps[number].timeout_seconds, left_seconds), 0.001)
        timeouts = (*(before.timeouts if before else ()), timeout)
        return Progress(number, timeouts, boot_seconds(), self._tools.oom_kills(), tuple(results))

    def fetch_output(self, progress: Progress) -> None:
        """Take what the steps before this one have printed and another worker had not stored when it went away."""
        for number, step in enumerate(self._spec.steps[: len(progress.results)]):
            with suppress(NotFoundError):
                if step.patch is None:
                    self._command(step, replace(progress, step=number), is_started=True)
                else:
                    self._noted_patch(step)

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

    def run(self, progress: Progress) -> StepResult:
        """Run the step to its end. Raises RunFailure when the sandbox fails, not when the step does."""
        step = self._spec.steps[progress.step]
        started = time.monotonic()
        self._note_code(progress.step)
        if step.patch is None:
            result = self._command(step, progress, is_started=False)
        else:
            result = self._patch(step, step.patch)
        return self._judge(result, progress, seconds=time.monotonic() - started)

    def resume(self, progress: Progress) -> StepResult | None:
        """Go on with a step that another worker may have begun; None if it has not, and nothing has happened.

        Raises NodeLostError if nobody can say how far it came.
        """
        step = self._spec.steps[progress.step]
        self._note_code(progress.step - 1)
        if step.patch is not None:
            result = self._noted_patch(step)
        else:
            try:
                result = self._command(step, progress, is_started=True)
            except NotFoundError:
                result = None
        if result is None:
            return None
        self._note_code(progress.step)
        return self._judge(result, progress, seconds=progress.elapsed_seconds)

    def _note_code(self, number: int) -> None:
        """Remember whether code under test has run by then."""
        self._has_run_code = any(step.role is StepRole.RUN for step in self._spec.steps[: number + 1])

    def _judge(self, result: StepResult, progress: Progress, *, seconds: float) -> StepResult:
        oom = False
        if result.signal or result.exit_code:
            oom_after = self._tools.oom_kills()
            oom = oom_after is not None and oom_after > (progress.oom_kills or 0)
        return replace(result, duration_ms=round(1000 * seconds), oom=oom)

    def _command(self, step: Step, progress: Progress, *, is_started: bool) -> StepResult:
        timeout = progress.timeout_seconds
        command = Command(
            shell=step.run,
            argv=step.argv,
            cwd=step.cwd or self._spec.workdir,
            env={**self._env, **step.env},
            timeout_seconds=timeout,
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
            pump.write(step.name, stream, data)

        pump = self._tools.pump
        kept = None
        if self._tools.journal is not None:
            kept = KeptRun(f"step-{progress.step}", pump.offset_of(step.name), is_started)
        elif is_started:
            raise NotFoundError("command", step.name)
        grace = self._spec.timeouts.grace
        gone = progress.elapsed_seconds if is_started else 0.0
        control.set_deadline(max(0.0, timeout - gone) + grace + _OUTER_MARGIN_SECONDS)
        try:
            with watch or nullcontext():
                result = self._tools.client.run(
                    command, on_output=on_output, stop=stop, kill_grace_seconds=grace, kept=kept
                )
        finally:
            control.set_deadline(None)
        pump.note_missing(result.missing_bytes)
        if result.error is not None:
            pump.note(step.name, "stderr", f"{result.error}\n".encode())
        is_idle = watch is not None and watch.has_fired and result.interrupted
        return _to_step_result(step, result, is_idle=is_idle)

    def _idle_watch(self, limit_seconds: float) -> IdleWatch:
        tools = self._tools
        return IdleWatch(limit_seconds, cpu_seconds=tools.cpu_seconds, on_idle=tools.control.end_step)

    def _patch(self, step: Step, patch: PatchStep) -> StepResult:
        """Put the patch in, and say what was changed."""
        with self._tools.control.undivided():
            result, said = self._put_in(step, patch)
            if self._tools.journal is not None:
                note = {"result": asdict(result), "said": said}
                self._tools.journal.note_patch(self._tools.attempt_id, step.name, note)
        return self._say(step, result, said)

    def _say(self, step: Step, result: StepResult, said: "_Said") -> StepResult:
        for stream, text in said:
            self._tools.pump.note(step.name, stream, f"{text}\n".encode("utf-8", "replace"))
        return result

    def _noted_patch(self, step: Step) -> StepResult | None:
        """Give what came of a patch that another worker put in; None if it had not begun to."""
        tools = self._tools
        note = None if tools.journal is None else tools.journal.patch(tools.attempt_id, step.name)
        if note is None:
            return None
        if note["result"] is None:
            raise NodeLostError(f"the worker went away while it put in the patch of step {step.name}")
        facts = note["result"]["result"]
        return self._say(step, StepResult(**{**facts, "role": step.role}), note["result"]["said"])

    def _put_in(self, step: Step, patch: PatchStep) -> "tuple[StepResult, _Said]":
        """Apply the patch out here, on bytes fetched through execd: the image needs no tool for it.

        Also gives what is to be said of it in the log, by stream.
        """
        client = self._tools.client
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
            return StepResult(step.name, step.role, exit_code=1, patch_rejected=True), [
                ("stderr", str(error))
            ]
        uploads = [
            FileUpload(posixpath.join(folder, change.path), change.content.data, change.content.mode)
            for change in applied.changes
            if change.content is not None
        ]
        removed = [
            posixpath.join(folder, change.path) for change in applied.changes if change.content is None
        ]
        if self._tools.journal is not None:
            self._tools.journal.note_patch(self._tools.attempt_id, step.name, None)
        try:
            if uploads:
                client.upload(uploads)
            if removed:
                client.delete(removed)
        except SpecInvalidError as error:
            return StepResult(step.name, step.role, exit_code=1, patch_rejected=True), [
                ("stderr", str(error))
            ]
        said: _Said = [
            ("stdout", f"{'removed' if change.content is None else 'patched'} {change.path}")
            for change in applied.changes
        ]
        said += [("stderr", str(reject)) for reject in applied.rejects]
        return StepResult(step.name, step.role, exit_code=0, patch_rejected=bool(applied.rejects)), said

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
        self._tools.pump.note("collect", "stderr", f"{text}\n".encode("utf-8", "replace"))
