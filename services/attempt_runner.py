"""One attempt from claim to end: sandbox, steps, verdict, and the fenced write of what became of it.

No transaction is held across a call to the sandbox: the intent is written and committed, the call made, its result
written. The sandbox is gone before the end of the attempt is committed.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from core.blobstore import BlobStore
from core.errors import FailureClass, NodeLostError, RunFailure
from core.failpoints import failpoint
from core.logging import get_logger
from core.metrics import ATTEMPT_NUMBER, ATTEMPTS, FENCED_WRITES, LOG_BYTES, QUEUE_WAIT_SECONDS
from core.tracing import span
from models.states import AttemptState
from repositories.attempts import AttemptStart, ClaimedAttempt
from repositories.log_chunks import LogChunkRepository
from runtimes.base import Runtime, SandboxHandle, SandboxStats
from services.attempt_clock import AttemptClock, Phase
from services.attempt_control import AttemptControl, StopReason
from services.attempt_endings import (
    Ending,
    Measured,
    blame,
    grade_of_stop,
    no_verdict,
    time_over,
    to_attempt_end,
    unknown_failure,
)
from services.attempt_journal import AttemptJournal
from services.attempt_members import MemberSource, MemberTaker
from services.attempt_progress import Progress, boot_seconds
from services.attempt_sandbox import AttemptSandbox
from services.attempt_steps import ArtifactCollector, SandboxSpoiledError, SandboxTools, StepRunner
from services.attempt_writes import AttemptStatements, AttemptWriter, DisownedError
from services.jobspec import ArtifactRule, JobSpec, JunitVerdict, RewardVerdict
from services.log_pump import LogPump, LogWriter
from services.outcomes import Failure, Grade, Outcome, StepResult
from services.seen_images import SeenImages
from services.verdicts import grade, should_continue

__all__ = ["AttemptRunner", "WorkerParts"]

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What all attempts of a worker share. runtimes: by name, those this node offers. rng: for jitter.

    journal: where notes for the next worker of this node are kept; None: it could not go on with anything.
    members: of warm pools for jobs; None: there are none here.
    """

    statements: AttemptStatements
    runtimes: Mapping[str, Runtime]
    blobs: BlobStore
    logs: LogWriter
    node_id: UUID
    log_cap_bytes: int
    journal: AttemptJournal | None = None
    rng: Random = field(default_factory=Random)
    images: SeenImages = field(default_factory=SeenImages)
    members: MemberSource | None = None


class AttemptRunner:
    """Runs attempts; one object for all threads of a worker."""

    def __init__(self, parts: WorkerParts) -> None:
        """parts: stay open as long as this object is used."""
        self._parts = parts
        self._specs = _SpecCache()

    def run(
        self,
        claimed: ClaimedAttempt,
        session_id: UUID,
        control: AttemptControl,
        *,
        rung_by: str | None = None,
        is_adopted: bool = False,
    ) -> None:
        """Run a claimed attempt to its end. Never raises: whatever happens becomes the attempt's failure.

        rung_by: traceparent of the dispatch that led here. is_adopted: another worker has claimed it before.
        """
        attributes: dict[str, str | int] = {
            "sandmill.trial.id": str(claimed.trial_id),
            "sandmill.attempt.id": str(claimed.attempt_id),
            "sandmill.attempt.fence": claimed.fence,
            "sandmill.runtime": claimed.runtime,
        }
        if not is_adopted:
            QUEUE_WAIT_SECONDS.observe(claimed.waited_seconds)
        with span(
            "attempt", parent=claimed.traceparent, link=rung_by, kind="consumer", attributes=attributes
        ):
            self._run(claimed, session_id, control, is_adopted=is_adopted)

    def _run(
        self, claimed: ClaimedAttempt, session_id: UUID, control: AttemptControl, *, is_adopted: bool
    ) -> None:
        spec = self._specs.get(claimed)
        logs, journal = self._parts.logs, self._parts.journal
        runtime = self._parts.runtimes.get(claimed.runtime)
        if runtime is None or not runtime.outlives:
            journal = None
        control.is_kept = journal is not None
        pump = logs.open(
            claimed.attempt_id,
            claimed.trial_id,
            claimed.fence,
            cap_bytes=self._parts.log_cap_bytes,
            spool=journal.spool(claimed.attempt_id) if journal else None,
        )
        run = _Run(
            self._parts,
            claimed,
            session_id,
            control=control,
            spec=spec,
            pump=pump,
            journal=journal,
            is_adopted=is_adopted,
        )
        try:
            run.execute()
        except DisownedError:
            FENCED_WRITES.inc()
            log.warning("attempt_disowned", trial_id=str(claimed.trial_id), fence=claimed.fence)
        except Exception as error:
            log.exception("attempt_not_recorded", trial_id=str(claimed.trial_id), fence=claimed.fence)
            run.give_up(error)
        finally:
            logs.forget(claimed.attempt_id)
            if journal is not None:
                journal.forget(claimed.attempt_id)


class _SpecCache:
    """Parses a spec once for all trials of its job, which tend to come together. A job's spec never changes."""

    _SIZE = 64

    def __init__(self) -> None:
        self._specs: OrderedDict[UUID, JobSpec] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, claimed: ClaimedAttempt) -> JobSpec:
        with self._lock:
            spec = self._specs.get(claimed.job_id)
            if spec is None:
                spec = self._specs[claimed.job_id] = JobSpec.from_json(claimed.spec)
            self._specs.move_to_end(claimed.job_id)
            if len(self._specs) > self._SIZE:
                self._specs.popitem(last=False)
            return spec


class _Run:
    """State of one attempt under way."""

    def __init__(
        self,
        parts: WorkerParts,
        claimed: ClaimedAttempt,
        session_id: UUID,
        *,
        control: AttemptControl,
        spec: JobSpec,
        pump: LogPump,
        journal: AttemptJournal | None,
        is_adopted: bool,
    ) -> None:
        self._parts = parts
        self._journal = journal
        self._session_id = session_id
        self._control = control
        self._spec = spec
        self._pump = pump
        self._writer = AttemptWriter(parts.statements, control)
        self._clock = AttemptClock(claimed, spec.timeouts, control)
        # One that an earlier worker began to make itself is not exchanged for a member.
        taker = None
        if parts.members is not None and not is_adopted:
            taker = MemberTaker(
                parts.members, self._writer, control, node_id=parts.node_id, session_id=session_id
            )
        self._sandbox = AttemptSandbox(
            parts.runtimes.get(claimed.runtime),
            claimed,
            spec,
            node_id=parts.node_id,
            session_id=session_id,
            writer=self._writer,
            taker=taker,
        )
        # What has begun to run is gone on with; a start is simply made again.
        self._is_resumed = claimed.state != AttemptState.STARTING
        self._steps: list[StepResult] = []
        self._stats = SandboxStats()
        self._progress: Progress | None = None
        self._collector: ArtifactCollector | None = None
        self._runner: StepRunner | None = None

    @property
    def _claimed(self) -> ClaimedAttempt:
        """The attempt with the sandbox that it has now."""
        return self._sandbox.claimed

    def execute(self) -> None:
        """Run, then write the end."""
        if self._claimed.desired == "cancel":
            self._control.request(StopReason.CANCEL)
        try:
            ending = self._noted_ending() or self._to_ending(self._attempt())
            if self._control.disowned:
                raise DisownedError
            if self._journal is not None:
                self._journal.note_end(self._claimed.attempt_id, ending.to_json())
        finally:
            # After this nothing of the attempt runs any more, whatever is written next.
            is_removed = self._sandbox.remove()
        self._finish(ending, is_removed=is_removed)

    def give_up(self, error: Exception) -> None:
        """Record the least there is to say, when the end itself could not be written.

        If that fails as well, the heartbeat finds an attempt that nobody runs, and gives it back within its budget.
        """
        self._steps.clear()
        failure = unknown_failure(f"the result could not be recorded: {type(error).__name__}")
        with suppress(DisownedError, SQLAlchemyError):
            self._finish(self._to_ending(no_verdict(failure)), is_removed=self._sandbox.remove())

    def _noted_ending(self) -> Ending | None:
        """Give the end that another worker came to, but could not write any more."""
        if self._journal is None or not self._is_resumed:
            return None
        noted = self._journal.end(self._claimed.attempt_id)
        if noted is None:
            return None
        with suppress(NodeLostError):
            self._sandbox.find()
        return Ending.from_json(noted)

    def _attempt(self) -> Grade:
        """Give the verdict, or an error outcome that says why there is none."""
        if self._control.stop.is_set() and not self._is_resumed:
            return self._stopped()
        if self._is_resumed:
            self._resume_log()
        try:
            return self._in_sandbox()
        except RunFailure as error:
            if self._control.stop.is_set():
                return self._stopped()
            exhausted = self._has_exhausted_memory()
            return blame(error, self._spec, self._clock, has_exhausted_memory=exhausted)
        except SandboxSpoiledError as error:
            return Grade(Outcome.FAILED, Failure(FailureClass.TASK, "sandbox_spoiled", str(error)))
        except (DisownedError, SQLAlchemyError):
            raise
        except Exception as error:
            log.exception("attempt_failed", trial_id=str(self._claimed.trial_id), fence=self._claimed.fence)
            return no_verdict(unknown_failure(f"{type(error).__name__}: {error}"))

    def _stopped(self) -> Grade:
        return grade_of_stop(self._control.reason, self._spec, self._clock.phase)

    def _has_exhausted_memory(self) -> bool:
        """Whether the code under test has run and used up all it was allowed."""
        if self._runner is None or not self._runner.has_run_code:
            return False
        peak = self._stats.memory_peak_bytes or 0
        return bool(self._stats.oom_kills) or peak >= 0.98 * self._spec.resources.memory_bytes

    def _in_sandbox(self) -> Grade:
        if self._is_resumed:
            handle = self._sandbox.find()
        else:
            timeout = min(self._clock.start_left(), self._clock.left())
            handle = self._sandbox.create(timeout_seconds=timeout)
        runtime = self._sandbox.runtime
        try:
            failpoint("worker.after_create")
            self._parts.images.note(self._spec.image)
            self._control.arm(lambda: runtime.remove(handle))
            self._clock.enter(Phase.STEPS if self._is_resumed else Phase.START)
            return self._run_steps(runtime, handle)
        finally:
            self._clock.leave()
            self._stats = self._sandbox.stats()

    def _run_steps(self, runtime: Runtime, handle: SandboxHandle) -> Grade:
        client = runtime.executions(handle)
        tools = SandboxTools(
            client=client,
            blobs=self._parts.blobs,
            pump=self._pump,
            control=self._control,
            oom_kills=lambda: runtime.stats(handle).oom_kills,
            cpu_seconds=lambda: runtime.stats(handle).cpu_seconds,
            attempt_id=self._claimed.attempt_id,
            journal=self._journal,
        )
        runner = self._runner = StepRunner(
            self._spec, tools, env=self._sandbox.environment(), left=self._clock.left
        )
        self._collector = ArtifactCollector(tools)
        try:
            begun = self._resume_steps(runner) if self._is_resumed else None
            if begun is None:
                runner.upload_inputs(None)
            for number in range(begun.step if begun else 0, len(self._spec.steps)):
                step = self._spec.steps[number]
                attributes = {"sandmill.step.role": step.role.value, "sandmill.step.number": number}
                with span("step", attributes=attributes):
                    result = self._run_step(runner, number, begun)
                self._steps.append(result)
                failpoint("worker.after_exit")
                if self._control.stop.is_set():
                    return self._collect_after_stop()
                if not should_continue(step, result, self._spec) or self._clock.left() <= 0:
                    break
            return self._collect_and_grade(self._collector)
        finally:
            client.close()

    def _resume_log(self) -> None:
        """Take over the log where another worker left it."""
        claimed = self._claimed
        stored = self._writer.ask(
            lambda connection: LogChunkRepository(connection).stored(claimed.trial_id, claimed.fence)
        )
        self._pump.resume(stored)

    def _resume_steps(self, runner: StepRunner) -> Progress:
        """Take over the steps where another worker left them. Raises NodeLostError if it left no word."""
        if self._claimed.progress is None:
            raise NodeLostError("the worker went away, and had not kept how far it came")
        progress = self._progress = Progress.from_json(self._claimed.progress)
        self._steps = list(progress.results)
        runner.fetch_output(progress)
        return progress

    def _run_step(self, runner: StepRunner, number: int, begun: Progress | None) -> StepResult:
        if begun is not None and begun.step == number:
            result = runner.resume(begun)
            if result is not None:
                return result
            progress = begun
        else:
            progress = self._enter_step(runner, number)
        failpoint("worker.after_start")
        runner.upload_inputs(self._spec.steps[number].name)
        return runner.run(progress)

    def _enter_step(self, runner: StepRunner, number: int) -> Progress:
        """Write which step runs now; the first one also moves the attempt to running."""
        name, timeouts = self._spec.steps[number].name, self._spec.timeouts
        left = self._clock.left_for_steps(first=number == 0)
        progress = runner.prepare(number, self._progress, self._steps, left_seconds=left)
        self._progress = progress
        if number == 0:
            start = AttemptStart(
                phase=name,
                total_seconds=timeouts.total,
                run_seconds=timeouts.run,
                grace_seconds=timeouts.grace,
                progress=progress.to_json(),
            )
            self._writer.mark_running(self._claimed, self._session_id, start)
            self._clock.begin_steps()
        else:
            self._writer.write_mine(
                lambda attempts: attempts.mark_phase(
                    self._claimed, self._session_id, name, progress=progress.to_json()
                )
            )
        return progress

    def _collect_after_stop(self) -> Grade:
        """A graceful cancel still keeps the artifacts, as far as the sandbox gives them."""
        if self._control.reason is StopReason.CANCEL and self._collector is not None:
            self._clock.enter(Phase.COLLECT)
            self._writer.write(lambda attempts: attempts.mark_stopping(self._claimed, self._session_id))
            with suppress(RunFailure):
                for rule in self._spec.artifacts:
                    self._collector.collect(rule)
        return self._stopped()

    def _collect_and_grade(self, collector: ArtifactCollector) -> Grade:
        spec = self._spec
        self._clock.enter(Phase.COLLECT)
        if spec.artifacts or isinstance(spec.verdict, RewardVerdict | JunitVerdict):
            self._enter_collecting()
            for rule in (*_verdict_rules(spec), *spec.artifacts):
                if rule.when == "always":
                    collector.collect(rule)
        self._pump.store_tail()
        verdict = grade(spec, self._steps, self._read_log, collector.read)
        failure = verdict.failure
        if self._clock.left() <= 0 and failure and failure.code in {"step_timeout", "step_not_run"}:
            # The step was cut, or never came, because the whole was over, not for its own time.
            verdict = replace(verdict, failure=replace(time_over(spec, self._clock), step=failure.step))
        for rule in spec.artifacts:
            if rule.when == verdict.outcome.value:
                collector.collect(rule)
        return verdict

    def _enter_collecting(self) -> None:
        if self._is_resumed and self._claimed.state == AttemptState.COLLECTING:
            return
        timeouts = self._progress.timeouts if self._progress else ()
        progress = Progress(len(self._spec.steps), timeouts, boot_seconds(), None, tuple(self._steps))
        self._writer.write_mine(
            lambda attempts: attempts.mark_collecting(
                self._claimed, self._session_id, progress=progress.to_json()
            )
        )

    def _read_log(self, step: str) -> bytes:
        claimed = self._claimed
        return self._writer.ask(
            lambda connection: LogChunkRepository(connection).read_step(claimed.trial_id, claimed.fence, step)
        )

    def _to_ending(self, verdict: Grade) -> Ending:
        measured = Measured(self._steps, self._stats, self._pump.close(), self._clock.elapsed())
        end = to_attempt_end(
            verdict,
            measured,
            self._claimed,
            self._spec,
            reason=self._control.reason,
            rng=self._parts.rng,
        )
        rows = tuple(self._collector.rows) if self._collector else ()
        return Ending(end, rows, verdict.failure.cls.value if verdict.failure else "none")

    def _finish(self, ending: Ending, *, is_removed: bool) -> None:
        end = replace(ending.attempt, is_removed=is_removed)
        if ending.artifacts:
            # Before the end, each by its own commit: artifacts of an attempt that then turns out lost are harmless.
            self._writer.write(lambda attempts: attempts.add_artifacts(self._claimed, ending.artifacts))
        failpoint("worker.before_finish")
        if not self._writer.finish(self._claimed, self._session_id, end):
            raise DisownedError
        failpoint("worker.after_finish")
        ATTEMPTS.labels(end.outcome, ending.failure_class).inc()
        ATTEMPT_NUMBER.observe(self._claimed.number)
        LOG_BYTES.inc(end.log_bytes)
        log.info(
            "attempt_finished",
            trial_id=str(self._claimed.trial_id),
            fence=self._claimed.fence,
            outcome=end.outcome,
            reason=end.reason,
        )


def _verdict_rules(spec: JobSpec) -> list[ArtifactRule]:
    verdict = spec.verdict
    if isinstance(verdict, RewardVerdict | JunitVerdict):
        return [ArtifactRule(verdict.path)]
    return []
