"""One attempt from claim to end: sandbox, steps, verdict, and the fenced write of what became of it.

No transaction is held across a call to the sandbox: the intent is written and committed, the call made, its result
written. The sandbox is gone before the end of the attempt is committed.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from core.blobstore import BlobStore
from core.errors import (
    CreateTimeoutError,
    ExecdUnreachableError,
    FailureClass,
    NodeLostError,
    RunFailure,
    RuntimeUnavailableError,
)
from core.failpoints import failpoint
from core.jsonb import to_jsonb
from core.logging import get_logger
from core.metrics import (
    ATTEMPT_NUMBER,
    ATTEMPTS,
    FENCED_WRITES,
    LOG_BYTES,
    QUEUE_WAIT_SECONDS,
    SANDBOX_START_SECONDS,
)
from core.tracing import span
from models.states import AttemptState
from repositories.attempts import (
    COLLECT_SECONDS,
    ArtifactRow,
    AttemptEnd,
    AttemptRepository,
    ClaimedAttempt,
)
from repositories.log_chunks import LogChunkRepository
from runtimes.base import ResourceLimits, Runtime, SandboxHandle, SandboxSpec, SandboxStats
from services.attempt_control import AttemptControl, StopReason
from services.attempt_journal import AttemptJournal
from services.attempt_progress import Progress, boot_seconds
from services.attempt_steps import ArtifactCollector, SandboxSpoiledError, SandboxTools, StepRunner
from services.jobspec import ArtifactRule, JobSpec, JunitVerdict, RewardVerdict
from services.log_pump import LogPump, LogSummary, LogWriter
from services.outcomes import CANCELLED, Failure, Grade, Outcome, StepResult
from services.retries import RetryDecision, TriesUsed, decide_retry
from services.seen_images import SeenImages
from services.verdicts import grade, should_continue

__all__ = ["AttemptRunner", "WorkerParts"]

log = get_logger(__name__)

Result = TypeVar("Result")

_KILL_MARGIN_SECONDS = 10.0
"""Steps end by execd's hand, then at a deadline of their own; so long after that the attempt's own one comes."""

_PREEMPTED = Failure(
    FailureClass.INFRA, "preempted", "stopped to make room, or because its node is drained", retryable=True
)
_SHUTDOWN = Failure(FailureClass.INFRA, "worker_shutdown", "the worker was stopped", retryable=True)


class _Phase(Enum):
    """What a deadline of the attempt is about."""

    START = "start"
    STEPS = "steps"
    COLLECT = "collect"


@dataclass(frozen=True, slots=True)
class _End:
    """All that there is to write in the end."""

    attempt: AttemptEnd
    artifacts: tuple[ArtifactRow, ...]
    failure_class: str

    def to_json(self) -> dict[str, Any]:
        """Give JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "_End":
        """Read what `to_json` gave."""
        rows = tuple(ArtifactRow(**row) for row in value["artifacts"])
        return cls(AttemptEnd(**value["attempt"]), rows, value["failure_class"])


class _DisownedError(Exception):
    """The attempt belongs to somebody else: stop at once, write nothing."""


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What all attempts of a worker share. runtimes: by name, those this node offers. rng: for jitter.

    journal: where notes for the next worker of this node are kept; None: it could not go on with anything.
    """

    engine: Engine
    runtimes: Mapping[str, Runtime]
    blobs: BlobStore
    logs: LogWriter
    node_id: UUID
    log_cap_bytes: int
    journal: AttemptJournal | None = None
    rng: Random = field(default_factory=Random)
    images: SeenImages = field(default_factory=SeenImages)


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
            self._run(claimed, session_id, control)

    def _run(self, claimed: ClaimedAttempt, session_id: UUID, control: AttemptControl) -> None:
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
        run = _Run(self._parts, claimed, session_id, control=control, spec=spec, pump=pump, journal=journal)
        try:
            run.execute()
        except _DisownedError:
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
    ) -> None:
        self._parts = parts
        self._journal = journal
        self._statements = parts.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._claimed = claimed
        self._session_id = session_id
        self._control = control
        self._spec = spec
        self._pump = pump
        self._steps: list[StepResult] = []
        self._stats = SandboxStats()
        now = time.monotonic()
        self._started = now - claimed.elapsed_seconds
        left = claimed.total_left_seconds
        self._deadline = now + (spec.timeouts.total if left is None else left)
        self._start_deadline = now + claimed.start_left_seconds
        self._run_deadline = None if claimed.run_left_seconds is None else now + claimed.run_left_seconds
        # What has begun to run is gone on with; a start is simply made again.
        self._is_resumed = claimed.state != AttemptState.STARTING
        self._sandbox: tuple[Runtime, SandboxHandle] | None = None
        self._progress: Progress | None = None
        self._phase = _Phase.START
        self._collector: ArtifactCollector | None = None
        self._runner: StepRunner | None = None

    def execute(self) -> None:
        """Run, then write the end."""
        if self._claimed.desired == "cancel":
            self._control.request(StopReason.CANCEL)
        try:
            end = self._noted_end() or self._to_end(self._attempt())
            if self._control.disowned:
                raise _DisownedError
            if self._journal is not None:
                self._journal.note_end(self._claimed.attempt_id, end.to_json())
        finally:
            # After this nothing of the attempt runs any more, whatever is written next.
            is_removed = self._remove_sandbox()
        self._finish(end, is_removed=is_removed)

    def _noted_end(self) -> "_End | None":
        """Give the end that another worker came to, but could not write any more."""
        if self._journal is None or not self._is_resumed:
            return None
        noted = self._journal.end(self._claimed.attempt_id)
        if noted is None:
            return None
        with suppress(NodeLostError):
            self._find_sandbox()
        return _End.from_json(noted)

    def _remove_sandbox(self) -> bool:
        return self._sandbox is None or _remove(*self._sandbox)

    def give_up(self, error: Exception) -> None:
        """Record the least there is to say, when the end itself could not be written.

        If that fails as well, the heartbeat finds an attempt that nobody runs, and gives it back within its budget.
        """
        self._steps.clear()
        message = f"the result could not be recorded: {type(error).__name__}"
        failure = Failure(FailureClass.INFRA, "unknown", message, retryable=True)
        with suppress(_DisownedError, SQLAlchemyError):
            self._finish(self._to_end(_no_verdict(failure)), is_removed=self._remove_sandbox())

    def _left(self) -> float:
        """Seconds that the steps may still take, by the trial's total and the attempt's run time."""
        until = self._deadline if self._run_deadline is None else min(self._deadline, self._run_deadline)
        return until - time.monotonic()

    def _total_left(self) -> float:
        return self._deadline - time.monotonic()

    def _start_left(self) -> float:
        return self._start_deadline - time.monotonic()

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
            return self._failed(error)
        except SandboxSpoiledError as error:
            return Grade(Outcome.FAILED, Failure(FailureClass.TASK, "sandbox_spoiled", str(error)))
        except (_DisownedError, SQLAlchemyError):
            raise
        except Exception as error:
            # Nobody can say whose fault it is, so it is ours: class infra, and the trial gets another try.
            log.exception("attempt_failed", trial_id=str(self._claimed.trial_id), fence=self._claimed.fence)
            return _no_verdict(
                Failure(FailureClass.INFRA, "unknown", f"{type(error).__name__}: {error}", retryable=True)
            )

    def _failed(self, error: RunFailure) -> Grade:
        """Blame a failure of the sandbox on who caused it."""
        if isinstance(error, CreateTimeoutError) and self._left() <= 0:
            return _no_verdict(self._time_over())
        if isinstance(error, ExecdUnreachableError) and self._has_exhausted_memory():
            message = "the memory limit was reached, and the sandbox's own daemon fell with it"
            return Grade(Outcome.FAILED, Failure(FailureClass.TASK, "oom_limit", message, oom=True))
        return _no_verdict(
            Failure(
                error.failure_class,
                error.code,
                error.message,
                retryable=error.retryable,
                retry_after_seconds=error.retry_after_seconds,
            )
        )

    def _has_exhausted_memory(self) -> bool:
        """Whether the code under test has run and used up all it was allowed."""
        if self._runner is None or not self._runner.has_run_code:
            return False
        peak = self._stats.memory_peak_bytes or 0
        return bool(self._stats.oom_kills) or peak >= 0.98 * self._spec.resources.memory_bytes

    def _time_over(self) -> Failure:
        """Say which of the times the steps may take is over: that of this attempt, or that of the whole trial."""
        timeouts = self._spec.timeouts
        if timeouts.run is not None and self._total_left() > 0:
            code, text = "run_timeout", f"timeouts.run of {timeouts.run:g} s was over"
        else:
            code, text = "total_timeout", f"timeouts.total of {timeouts.total:g} s was over"
        return Failure(FailureClass.TASK, code, text, timed_out=True)

    def _stopped(self) -> Grade:
        match self._control.reason:
            case StopReason.SHUTDOWN:
                return _no_verdict(_SHUTDOWN)
            case StopReason.PREEMPT:
                return _no_verdict(_PREEMPTED)
            case StopReason.DEADLINE:
                return _no_verdict(self._killed_at_deadline())
            case _:
                return Grade(Outcome.CANCELLED, CANCELLED)

    def _killed_at_deadline(self) -> Failure:
        """Describe what did not end by itself: whatever its time limit, execd should have seen to it."""
        start = self._spec.timeouts.start
        code, text = {
            _Phase.START: ("start_timeout", f"not running within timeouts.start of {start:g} s"),
            _Phase.STEPS: ("execd_unreachable", "the sandbox did not end its step at the deadline"),
            _Phase.COLLECT: ("execd_unreachable", "the sandbox did not give its files in time"),
        }[self._phase]
        message = f"{text}, and was killed from outside"
        return Failure(FailureClass.INFRA, code, message, timed_out=True, retryable=True)

    def _enter_phase(self, phase: "_Phase") -> None:
        """Go on, with the time after which the sandbox is killed from outside, whatever stands still."""
        self._phase = phase
        margin = self._spec.timeouts.grace + _KILL_MARGIN_SECONDS
        seconds = {
            _Phase.START: self._start_left() + margin,
            _Phase.STEPS: self._left() + margin,
            # What was cut at the total deadline is collected and judged, too.
            _Phase.COLLECT: max(self._total_left(), COLLECT_SECONDS),
        }[phase]
        self._control.set_deadline(max(0.0, seconds), of="attempt")

    def _in_sandbox(self) -> Grade:
        runtime, handle = self._find_sandbox() if self._is_resumed else self._create_sandbox()
        try:
            failpoint("worker.after_create")
            self._parts.images.note(self._spec.image)
            self._control.arm(lambda: runtime.remove(handle))
            self._enter_phase(_Phase.STEPS if self._is_resumed else _Phase.START)
            return self._run_steps(runtime, handle)
        finally:
            self._control.set_deadline(None, of="attempt")
            self._stats = _read_stats(runtime, handle)

    def _runtime(self) -> Runtime:
        runtime = self._parts.runtimes.get(self._claimed.runtime)
        if runtime is None:
            raise RuntimeUnavailableError(f"this node does not offer the runtime {self._claimed.runtime}")
        return runtime

    def _create_sandbox(self) -> tuple[Runtime, SandboxHandle]:
        """Make it; one that another worker has made for this attempt is taken as it is."""
        runtime = self._runtime()
        with span("sandbox.create"), SANDBOX_START_SECONDS.labels(runtime.name).time():
            handle = runtime.create(
                self._sandbox_spec(), timeout_seconds=max(0.1, min(self._start_left(), self._left()))
            )
        self._sandbox = runtime, handle
        return self._sandbox

    def _find_sandbox(self) -> tuple[Runtime, SandboxHandle]:
        """Find what another worker has made. Raises NodeLostError."""
        runtime, name = self._runtime(), self._claimed.sandbox_name
        handle = next((each for each in runtime.list() if each.name == name), None)
        if handle is None:
            raise NodeLostError("the worker went away, and the sandbox with it")
        self._sandbox = runtime, handle
        return self._sandbox

    def _sandbox_spec(self) -> SandboxSpec:
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
            env=self._environment(),
            workdir=self._spec.workdir,
            labels={
                "sandmill.trial": str(claimed.trial_id),
                "sandmill.fence": str(claimed.fence),
                "sandmill.node": str(self._parts.node_id),
                "sandmill.session": str(self._session_id),
            },
        )

    def _environment(self) -> dict[str, str]:
        env = {**self._spec.env, "TRIAL_INDEX": str(self._claimed.index)}
        if self._claimed.seed is not None:
            env["TRIAL_SEED"] = str(self._claimed.seed)
        return env

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
        runner = self._runner = StepRunner(self._spec, tools, env=self._environment(), left=self._left)
        self._collector = ArtifactCollector(tools)
        try:
            begun = self._resume_steps(runner) if self._is_resumed else None
            if begun is None:
                runner.upload_inputs(None)
            for number in range(begun.step if begun else 0, len(self._spec.steps)):
                step = self._spec.steps[number]
                with span(
                    "step", attributes={"sandmill.step.role": step.role.value, "sandmill.step.number": number}
                ):
                    result = self._run_step(runner, number, begun)
                self._steps.append(result)
                failpoint("worker.after_exit")
                if self._control.stop.is_set():
                    return self._collect_after_stop()
                if not should_continue(step, result, self._spec) or self._left() <= 0:
                    break
            return self._collect_and_grade(self._collector)
        finally:
            client.close()

    def _resume_log(self) -> None:
        """Take over the log where another worker left it."""
        claimed = self._claimed
        stored = self._database(
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
        left = self._left_for_steps(first=number == 0)
        progress = runner.prepare(number, self._progress, self._steps, left_seconds=left)
        self._progress = progress
        if number == 0:
            mine = self._write(
                lambda attempts: attempts.mark_running(
                    self._claimed,
                    self._session_id,
                    phase=name,
                    progress=progress.to_json(),
                    total_seconds=timeouts.total,
                    run_seconds=timeouts.run,
                    grace_seconds=timeouts.grace,
                )
            )
            now = time.monotonic()
            if self._claimed.total_left_seconds is None:
                self._deadline = now + timeouts.total  # which begins with the first start, not with the claim
            if timeouts.run is not None:
                self._run_deadline = now + timeouts.run
            self._enter_phase(_Phase.STEPS)
        else:
            mine = self._write(
                lambda attempts: attempts.mark_phase(
                    self._claimed, self._session_id, name, progress=progress.to_json()
                )
            )
        if not mine:
            self._control.request(StopReason.DISOWNED)
            raise _DisownedError
        return progress

    def _left_for_steps(self, *, first: bool) -> float:
        """Seconds that the steps may take from now on; the times of the first begin with it."""
        timeouts = self._spec.timeouts
        if not first:
            return max(0.0, self._left())
        total = timeouts.total if self._claimed.total_left_seconds is None else self._total_left()
        return max(0.0, total if timeouts.run is None else min(total, timeouts.run))

    def _collect_after_stop(self) -> Grade:
        """A graceful cancel still keeps the artifacts, as far as the sandbox gives them."""
        if self._control.reason is StopReason.CANCEL and self._collector is not None:
            self._enter_phase(_Phase.COLLECT)
            self._write(lambda attempts: attempts.mark_stopping(self._claimed, self._session_id))
            with suppress(RunFailure):
                for rule in self._spec.artifacts:
                    self._collector.collect(rule)
        return self._stopped()

    def _collect_and_grade(self, collector: ArtifactCollector) -> Grade:
        spec = self._spec
        self._enter_phase(_Phase.COLLECT)
        if spec.artifacts or isinstance(spec.verdict, RewardVerdict | JunitVerdict):
            self._enter_collecting()
            for rule in (*_verdict_rules(spec), *spec.artifacts):
                if rule.when == "always":
                    collector.collect(rule)
        self._pump.store_tail()
        verdict = grade(spec, self._steps, self._read_log, collector.read)
        if self._left() <= 0 and verdict.failure and verdict.failure.code in {"step_timeout", "step_not_run"}:
            # The step was cut, or never came, because the whole was over, not for its own time.
            failure = replace(self._time_over(), step=verdict.failure.step)
            verdict = replace(verdict, failure=failure)
        for rule in spec.artifacts:
            if rule.when == verdict.outcome.value:
                collector.collect(rule)
        return verdict

    def _enter_collecting(self) -> None:
        if self._is_resumed and self._claimed.state == AttemptState.COLLECTING:
            return
        timeouts = self._progress.timeouts if self._progress else ()
        progress = Progress(len(self._spec.steps), timeouts, boot_seconds(), None, tuple(self._steps))
        mine = self._write(
            lambda attempts: attempts.mark_collecting(
                self._claimed, self._session_id, progress=progress.to_json()
            )
        )
        if not mine:
            self._control.request(StopReason.DISOWNED)
            raise _DisownedError

    def _read_log(self, step: str) -> bytes:
        claimed = self._claimed
        return self._database(
            lambda connection: LogChunkRepository(connection).read_step(claimed.trial_id, claimed.fence, step)
        )

    def _finish(self, ending: "_End", *, is_removed: bool) -> None:
        end = replace(ending.attempt, is_removed=is_removed)
        if ending.artifacts:
            # Before the end, each by its own commit: artifacts of an attempt that then turns out lost are harmless.
            self._write(lambda attempts: attempts.add_artifacts(self._claimed, ending.artifacts))
        failpoint("worker.before_finish")
        if not self._write(lambda attempts: attempts.finish(self._claimed, self._session_id, end)):
            raise _DisownedError
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

    def _to_end(self, verdict: Grade) -> "_End":
        summary = self._pump.close()
        rows = tuple(self._collector.rows) if self._collector else ()
        failure_class = verdict.failure.cls.value if verdict.failure else "none"
        return _End(self._to_attempt_end(verdict, summary), rows, failure_class)

    def _to_attempt_end(self, verdict: Grade, summary: LogSummary) -> AttemptEnd:
        failure = verdict.failure
        decision = self._decide(failure)
        usage = {
            "wall_seconds": round(time.monotonic() - self._started, 3),
            "cpu_seconds": self._stats.cpu_seconds,
            "memory_peak_bytes": self._stats.memory_peak_bytes,
            "log_bytes": summary.stored_bytes,
        }
        return AttemptEnd(
            outcome=verdict.outcome.value,
            reason=failure.code if failure else verdict.outcome.value,
            end_reason=self._control.reason.value if self._control.reason else "finished",
            failure=to_jsonb(failure.to_json()) if failure else None,
            steps=to_jsonb([_step_json(step) for step in self._steps]),
            grade=to_jsonb(verdict.to_json()),
            usage=to_jsonb(usage),
            rewards=to_jsonb(dict(verdict.rewards)) if verdict.rewards else None,
            next_seq=summary.next_seq,
            log_bytes=summary.stored_bytes,
            truncated_bytes=summary.truncated_bytes,
            retry_seconds=decision.delay_seconds if decision and decision.retry else None,
            infra_loss=decision.used.infra_losses - self._claimed.infra_losses if decision else 0,
            task_retry=decision.used.task_retries - self._claimed.task_retries if decision else 0,
            rule_retries=decision.used.rules if decision else None,
        )

    def _decide(self, failure: Failure | None) -> RetryDecision | None:
        """Say what becomes of the trial; None if nothing failed."""
        if failure is None:
            return None
        claimed = self._claimed
        used = TriesUsed(claimed.infra_losses, claimed.task_retries, tuple(claimed.rule_retries or ()))
        return decide_retry(failure, self._spec.retry, used, rng=self._parts.rng)

    def _write(self, action: Callable[[AttemptRepository], Result]) -> Result:
        return self._database(lambda connection: action(AttemptRepository(connection)))

    def _database(self, action: Callable[[Connection], Result]) -> Result:
        """Run one statement, again and again while the database is away and the attempt is ours.

        Each of them is a transaction of its own, so BEGIN and COMMIT would be two round trips for nothing.
        """
        pause = 0.1
        while True:
            if self._control.disowned:
                raise _DisownedError
            try:
                with self._statements.connect() as connection:
                    return action(connection)
            except DBAPIError as error:
                if not _is_outage(error):
                    raise
                log.warning("attempt_write_delayed", error=str(error).splitlines()[0])
            except SQLAlchemyError as error:
                log.warning("attempt_write_delayed", error=str(error).splitlines()[0])
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def _is_outage(error: DBAPIError) -> bool:
    """Tell a database that is away or restarting from a statement that it refuses."""
    return error.connection_invalidated or type(error).__name__ in {"OperationalError", "InterfaceError"}


def _no_verdict(failure: Failure) -> Grade:
    return Grade(Outcome.ERROR, failure)


def _verdict_rules(spec: JobSpec) -> list[ArtifactRule]:
    verdict = spec.verdict
    if isinstance(verdict, RewardVerdict | JunitVerdict):
        return [ArtifactRule(verdict.path)]
    return []


def _read_stats(runtime: Runtime, handle: SandboxHandle) -> SandboxStats:
    try:
        return runtime.stats(handle)
    except RunFailure:
        return SandboxStats()


def _remove(runtime: Runtime, handle: SandboxHandle) -> bool:
    """Remove the sandbox; False if it will not go now: no reason to throw a verdict away, the worker sweeps later."""
    for pause in (0.2, 1.0, 0.0):
        try:
            runtime.remove(handle)
        except RunFailure as error:
            log.exception("sandbox_not_removed", sandbox=handle.name, error=error.message)
            time.sleep(pause)
        else:
            return True
    return False


def _step_json(step: StepResult) -> dict[str, Any]:
    return asdict(step)
