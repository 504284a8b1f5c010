"""The client: one object per server and key."""

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload
from urllib.parse import quote

import httpx

from sandmill.batches import BatchInfo, Cancellation, JobInfo, PauseResult
from sandmill.dead_letters import DeadLetter, Replay
from sandmill.errors import NotFoundError, WaitTimeoutError
from sandmill.events import BatchEvent, follow_events
from sandmill.history import ArchivedBatch, ArchivedTrial
from sandmill.hooks import Schedule, ScheduleFire, Webhook, WebhookDelivery
from sandmill.jobs import Concurrency, Job, JobDefaults, Verdict
from sandmill.logs import LogStream
from sandmill.outputs import ArtifactInfo
from sandmill.record import Record
from sandmill.retry import RetryPolicy
from sandmill.transport import Call, Transport
from sandmill.trials import AttemptInfo, TrialDetail, TrialInfo

__all__ = ["Client"]

T = TypeVar("T")

_PAGE = 500
_FIRST_POLL_SECONDS = 0.05
_LAST_POLL_SECONDS = 0.5
_COPY_BYTES = 1 << 20


class Client:
    """A Sandmill server seen with one API key.

    Every call raises SandmillError and nothing else of the network; repeats after connection errors, 429 and 503 are
    made inside and are safe, since creates carry an Idempotency-Key. Safe to use from several threads. Close it, or
    use it as a context manager.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        retry: RetryPolicy | None = None,
        http: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connect to nothing yet.

        base_url, api_key: default to SANDMILL_API_URL and SANDMILL_API_KEY; ValueError when a part is missing or wrong.
        timeout_seconds: the longest silence of an answer. http, sleep: replace the network and the waiting, for tests.
        """
        self._transport = Transport(
            base_url or _from_environment("SANDMILL_API_URL", "base_url"),
            api_key or _from_environment("SANDMILL_API_KEY", "api_key"),
            timeout_seconds=timeout_seconds,
            retry=retry or RetryPolicy(),
            http=http,
            sleep=sleep,
        )

    def __repr__(self) -> str:
        """Show the address, never the key."""
        return f"Client({self._transport.base_url!r})"

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def submit_batch(
        self,
        jobs: Sequence[Job],
        *,
        name: str | None = None,
        defaults: JobDefaults | None = None,
        labels: Mapping[str, str] | None = None,
        priority: int | None = None,
        concurrency: Concurrency | None = None,
        matrix: Mapping[str, Sequence[str | float]] | None = None,
        stop_when: Mapping[str, int] | None = None,
        is_open: bool = False,
        on_complete: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> BatchInfo:
        """Submit jobs together; when this returns they are stored and will run, whatever crashes.

        priority: -100..100. concurrency: how many may run at a time. matrix: each job is made for each combination of
        values. stop_when: passed, failed or error to the number of such trials that ends the batch. is_open: takes more
        jobs (`append_jobs`) until it is closed. on_complete: `{"webhook": {"url", "secret_ref", "events"}}`, a receiver
        of its own. idempotency_key: of your own, when a restart of your program must not
        submit twice.
        """
        body = {
            "name": name,
            "labels": labels,
            "priority": priority,
            "concurrency": None if concurrency is None else concurrency.to_json(),
            "matrix": matrix,
            "stop_when": stop_when,
            "open": is_open or None,
            "on_complete": on_complete,
            "defaults": None if defaults is None else defaults.to_json(),
            "jobs": [job.to_json() for job in jobs],
        }
        return BatchInfo.from_json(self._create("/v1/batches", body, idempotency_key))

    def submit_job(self, job: Job, *, idempotency_key: str | None = None) -> JobInfo:
        """Submit a lone job. It gets a batch of its own, named in `batch_id`, to wait for and to cancel."""
        return JobInfo.from_json(self._create("/v1/jobs", job.to_json(), idempotency_key))

    def append_jobs(
        self,
        batch_id: str,
        jobs: Sequence[Job],
        *,
        defaults: JobDefaults | None = None,
        matrix: Mapping[str, Sequence[str | float]] | None = None,
        idempotency_key: str | None = None,
    ) -> BatchInfo:
        """Append jobs to an open batch, all or none. defaults: laid over those of the batch."""
        body = {
            "defaults": None if defaults is None else defaults.to_json(),
            "matrix": matrix,
            "jobs": [job.to_json() for job in jobs],
        }
        path = f"/v1/batches/{_part(batch_id)}/jobs"
        return BatchInfo.from_json(self._create(path, body, idempotency_key))

    def close_batch(self, batch_id: str) -> BatchInfo:
        """Take no more jobs: an open batch then ends with its last trial. Again is no error."""
        return BatchInfo.from_json(self._transport.json(Call("POST", f"/v1/batches/{_part(batch_id)}/close")))

    def get_batch(self, batch_id: str) -> BatchInfo:
        """Look at a batch."""
        return BatchInfo.from_json(self._get(f"/v1/batches/{_part(batch_id)}"))

    def get_job(self, job_id: str) -> JobInfo:
        """Look at a job, with its spec."""
        return JobInfo.from_json(self._get(f"/v1/jobs/{_part(job_id)}"))

    def get_trial(self, trial_id: str) -> TrialDetail:
        """Look at a trial with all its attempts."""
        return TrialDetail.from_json(self._get(f"/v1/trials/{_part(trial_id)}"))

    def get_attempt(self, attempt_id: str) -> AttemptInfo:
        """Look at an attempt."""
        return AttemptInfo.from_json(self._get(f"/v1/attempts/{_part(attempt_id)}"))

    def iter_batches(self) -> Iterator[BatchInfo]:
        """Give all batches, newest first."""
        return self._list("/v1/batches", BatchInfo.from_json)

    def iter_jobs(self, batch_id: str) -> Iterator[JobInfo]:
        """Give the jobs of a batch in the order in which they were submitted."""
        return self._list(f"/v1/batches/{_part(batch_id)}/jobs", JobInfo.from_json)

    def iter_trials(
        self, batch_id: str, *, state: str | None = None, outcome: str | None = None, job: str | None = None
    ) -> Iterator[TrialInfo]:
        """Give the trials of a batch by job, then index. job: key of one job."""
        params = {"state": state, "outcome": outcome, "job": job}
        return self._list(f"/v1/batches/{_part(batch_id)}/trials", TrialInfo.from_json, params)

    def wait(
        self,
        batch_id: str,
        *,
        timeout_seconds: float | None = None,
        on_progress: Callable[[BatchInfo], None] | None = None,
    ) -> BatchInfo:
        """Wait until the last trial has ended.

        on_progress: called with each look at the batch, every 50 to 500 ms, the last one included. Raises
        WaitTimeoutError; the batch goes on then.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        pause = _FIRST_POLL_SECONDS
        while True:
            batch = self.get_batch(batch_id)
            if on_progress is not None:
                on_progress(batch)
            if batch.is_finished:
                return batch
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                done, total = batch.trials.finished, batch.trials.total
                raise WaitTimeoutError(f"{done} of {total} trials ended within {timeout_seconds} s")
            self._transport.sleep(min(pause, left))
            pause = min(1.5 * pause, _LAST_POLL_SECONDS)

    def cancel(self, batch_id: str, *, mode: Literal["graceful", "force"] = "graceful") -> Cancellation:
        """Cancel what has not ended; again is no error. graceful: TERM, the grace, artifacts are kept."""
        return self._cancel(f"/v1/batches/{_part(batch_id)}/cancel", mode)

    def cancel_trial(self, trial_id: str, *, mode: Literal["graceful", "force"] = "graceful") -> Cancellation:
        """Cancel one trial; one that has ended stays as it is."""
        return self._cancel(f"/v1/trials/{_part(trial_id)}/cancel", mode)

    def cancel_job(self, job_id: str, *, mode: Literal["graceful", "force"] = "graceful") -> Cancellation:
        """Cancel the trials of one job that have not ended."""
        return self._cancel(f"/v1/jobs/{_part(job_id)}/cancel", mode)

    def pause(
        self, *, batch_id: str | None = None, job_id: str | None = None, trial_id: str | None = None
    ) -> PauseResult:
        """Let nothing of one of these start until it is resumed; what runs goes on."""
        return PauseResult.from_json(self._verb("pause", batch_id, job_id, trial_id))

    def resume(
        self, *, batch_id: str | None = None, job_id: str | None = None, trial_id: str | None = None
    ) -> int:
        """Undo every pause in one of these; gives how many trials that lets go."""
        return Record(self._verb("resume", batch_id, job_id, trial_id), "resume").integer("resumed")

    def retry(
        self,
        *,
        batch_id: str | None = None,
        job_id: str | None = None,
        trial_id: str | None = None,
        outcomes: Sequence[str] = ("error", "cancelled"),
    ) -> int:
        """Run finished trials with these outcomes again, each as a new trial in its place; gives how many."""
        found = self._verb("retry", batch_id, job_id, trial_id, {"outcomes": list(outcomes)})
        return Record(found, "retry").integer("retried")

    def regrade(
        self,
        *,
        batch_id: str | None = None,
        job_id: str | None = None,
        trial_id: str | None = None,
        verdict: Verdict | None = None,
    ) -> int:
        """Grade finished trials again from what is stored; gives how many will be. verdict None: each job's own."""
        body = {} if verdict is None else {"verdict": verdict.to_json()}
        found = self._verb("regrade", batch_id, job_id, trial_id, body)
        return Record(found, "regrade").integer("regrading")

    def iter_events(self, batch_id: str, *, after: int = 0) -> Iterator[BatchEvent]:
        """Give what happens in a batch as it happens, ends of trials first of all, until the batch is finished."""
        return follow_events(self._transport, _part(batch_id), after=after)

    def iter_dead_letters(
        self, *, state: Literal["open", "replayed", "discarded"] | None = "open"
    ) -> Iterator[DeadLetter]:
        """Give the trials that the infrastructure could not bring to a verdict, newest first. state None: all."""
        return self._list("/v1/dead-letters", DeadLetter.from_json, {"state": state})

    def replay_dead_letter(self, trial_id: str, *, force: bool = False) -> Replay:
        """Run a dead trial again, as a lone job. Once: another call gives the same replay, unless force is set."""
        path = f"/v1/dead-letters/{_part(trial_id)}/replay"
        return Replay.from_json(self._create(path, {"force": force}, None))

    def discard_dead_letter(self, trial_id: str) -> DeadLetter:
        """Take a dead letter off the open ones; again is no error."""
        path = f"/v1/dead-letters/{_part(trial_id)}/discard"
        return DeadLetter.from_json(self._transport.json(Call("POST", path)))

    def create_webhook(self, name: str, url: str, *, events: Sequence[str] = ("batch.finished",)) -> Webhook:
        """Tell a server of what happens from now on. The secret that signs is in the answer, this once."""
        return Webhook.from_json(
            self._create("/v1/webhooks", {"name": name, "url": url, "events": list(events)}, None)
        )

    def iter_webhooks(self) -> Iterator[Webhook]:
        """Give the tenant's webhooks, oldest first."""
        return self._list("/v1/webhooks", Webhook.from_json)

    def get_webhook(self, webhook_id: str) -> Webhook:
        """Look at a webhook."""
        return Webhook.from_json(self._get(f"/v1/webhooks/{_part(webhook_id)}"))

    def delete_webhook(self, webhook_id: str) -> None:
        """Send nothing to it any more; what waits for it is given up."""
        self._transport.call(Call("DELETE", f"/v1/webhooks/{_part(webhook_id)}"))

    def rotate_webhook(self, webhook_id: str, *, secret: str | None = None) -> Webhook:
        """Give it the next secret, which is in the answer, this once; the one before also signs for a day.

        secret None: one is made. A call whose answer was lost has rotated: rotate again.
        """
        body = {} if secret is None else {"secret": secret}
        path = f"/v1/webhooks/{_part(webhook_id)}/rotate"
        return Webhook.from_json(self._transport.json(Call.with_json("POST", path, body)))

    def enable_webhook(self, webhook_id: str) -> Webhook:
        """Send to it again, after its receiver had answered that it is gone."""
        return Webhook.from_json(
            self._transport.json(Call("POST", f"/v1/webhooks/{_part(webhook_id)}/enable"))
        )

    def iter_webhook_deliveries(
        self,
        *,
        webhook_id: str | None = None,
        state: Literal["pending", "delivered", "dead"] | None = None,
    ) -> Iterator[WebhookDelivery]:
        """Give what is and was sent to webhooks, newest first. None: all."""
        params = {"webhook_id": webhook_id, "state": state}
        return self._list("/v1/webhook-deliveries", WebhookDelivery.from_json, params)

    def get_webhook_delivery(self, delivery_id: str) -> WebhookDelivery:
        """Look at one message, and what became of it."""
        return WebhookDelivery.from_json(self._get(f"/v1/webhook-deliveries/{_part(delivery_id)}"))

    def redeliver_webhook(self, delivery_id: str) -> WebhookDelivery:
        """Send a message again, under the same id. One that waits goes on waiting."""
        path = f"/v1/webhook-deliveries/{_part(delivery_id)}/redeliver"
        return WebhookDelivery.from_json(self._transport.json(Call("POST", path)))

    def create_schedule(
        self,
        name: str,
        cron: str,
        jobs: Sequence[Job],
        *,
        timezone: str = "UTC",
        catch_up: Literal["none", "one", "all"] = "none",
        overlap: Literal["allow", "skip"] = "allow",
    ) -> Schedule:
        """Submit jobs together at every time of a cron expression."""
        body = {
            "name": name,
            "cron": cron,
            "timezone": timezone,
            "batch": {"name": name, "jobs": [job.to_json() for job in jobs]},
            "catch_up": catch_up,
            "overlap": overlap,
        }
        return Schedule.from_json(self._create("/v1/schedules", body, None))

    def iter_schedules(self) -> Iterator[Schedule]:
        """Give the tenant's schedules, oldest first."""
        return self._list("/v1/schedules", Schedule.from_json)

    def pause_schedule(self, schedule_id: str) -> Schedule:
        """Submit nothing until it is resumed."""
        return Schedule.from_json(
            self._transport.json(Call("POST", f"/v1/schedules/{_part(schedule_id)}/pause"))
        )

    def resume_schedule(self, schedule_id: str) -> Schedule:
        """Go on from now: what was due meanwhile is not caught up."""
        return Schedule.from_json(
            self._transport.json(Call("POST", f"/v1/schedules/{_part(schedule_id)}/resume"))
        )

    def delete_schedule(self, schedule_id: str) -> None:
        """Remove it; batches that it has submitted go on."""
        self._transport.call(Call("DELETE", f"/v1/schedules/{_part(schedule_id)}"))

    def iter_schedule_fires(self, schedule_id: str) -> Iterator[ScheduleFire]:
        """Give what became of its times, newest first."""
        return self._list(f"/v1/schedules/{_part(schedule_id)}/fires", ScheduleFire.from_json)

    def get_archived_batch(self, batch_id: str) -> ArchivedBatch:
        """Give what is left of a batch whose other calls raise ArchivedError."""
        return ArchivedBatch.from_json(self._get(f"/v1/history/batches/{_part(batch_id)}"))

    def iter_archived_trials(self, batch_id: str) -> Iterator[ArchivedTrial]:
        """Give what is left of the trials of an archived batch."""
        return self._list(f"/v1/history/batches/{_part(batch_id)}/trials", ArchivedTrial.from_json)

    @overload
    def report(self, batch_id: str, format: Literal["json"] = "json") -> dict[str, Any]: ...

    @overload
    def report(self, batch_id: str, format: Literal["jsonl", "junit"]) -> str: ...

    def report(
        self,
        batch_id: str,
        format: Literal["json", "jsonl", "junit"] = "json",  # noqa: A002 -- the wire's word for it
    ) -> dict[str, Any] | str:
        """Give the report: json as an object; jsonl with a line per trial and junit (XML) as text.

        A batch that still runs is reported with `complete: false`.
        """
        path = f"/v1/batches/{_part(batch_id)}/report"
        call = Call("GET", path, params={"format": format}, accept="*/*")
        if format == "json":
            return dict(self._transport.json(call))
        return self._transport.call(call).content.decode("utf-8")

    def iter_logs(
        self, attempt_id: str, *, after: int = -1, follow: bool = True, step: str | None = None
    ) -> LogStream:
        """Give the output of an attempt, each chunk with seq > after once and in order, over broken connections too.

        follow: wait for more until the log ends; else stop at what there is. step: only its output.
        """
        return LogStream(self._transport, _part(attempt_id), after=after, follow=follow, step=step)

    def upload_blob(self, source: bytes | Path) -> str:
        """Store bytes or a file and give the digest that inputs name; nothing is sent when it is there already."""
        digest = f"sha256:{_hash(source)}"
        try:
            self._transport.call(Call("HEAD", f"/v1/blobs/{digest}"))
        except NotFoundError:
            length = len(source) if isinstance(source, bytes) else source.stat().st_size
            call = Call(
                "POST",
                "/v1/blobs",
                params={"digest": digest},
                headers={"Content-Type": "application/octet-stream", "Content-Length": str(length)},
                content=lambda: source if isinstance(source, bytes) else _read_pieces(source),
            )
            self._transport.call(call)
        return digest

    def read_blob(self, digest: str) -> bytes:
        """Give the bytes of a blob."""
        return self._transport.call(Call("GET", f"/v1/blobs/{_part(digest)}", accept="*/*")).content

    def iter_artifacts(self, trial_id: str) -> Iterator[ArtifactInfo]:
        """Give the files kept from a trial's last attempt that kept any, by path."""
        return self._list(f"/v1/trials/{_part(trial_id)}/artifacts", ArtifactInfo.from_json)

    def read_artifact(self, trial_id: str, path: str) -> bytes:
        """Give the bytes of a file kept. path: as it was in the sandbox."""
        return self._transport.call(_artifact_call(trial_id, path)).content

    def download_artifact(self, trial_id: str, path: str, target: Path) -> None:
        """Write a file kept to target, whole or not at all. Raises OSError when target cannot be written."""
        draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")

        def once() -> None:
            with self._transport.stream(_artifact_call(trial_id, path)) as response, draft.open("wb") as file:
                for piece in response.iter_bytes(_COPY_BYTES):
                    file.write(piece)

        try:
            self._transport.repeat(once)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def _create(self, path: str, body: Mapping[str, Any], key: str | None) -> Any:
        # One key for all tries of this call: an answer that was lost on its way back is answered again.
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        sent = {name: value for name, value in body.items() if value is not None}
        return self._transport.json(Call.with_json("POST", path, sent, headers=headers))

    def _verb(
        self,
        verb: str,
        batch_id: str | None,
        job_id: str | None,
        trial_id: str | None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        ids = {"batches": batch_id, "jobs": job_id, "trials": trial_id}
        found = [(kind, key) for kind, key in ids.items() if key is not None]
        if len(found) != 1:
            raise ValueError(f"{verb}: give exactly one of batch_id, job_id and trial_id")
        kind, key = found[0]
        path = f"/v1/{kind}/{_part(key)}/{verb}"
        return self._transport.json(
            Call("POST", path) if body is None else Call.with_json("POST", path, body)
        )

    def _cancel(self, path: str, mode: str) -> Cancellation:
        return Cancellation.from_json(self._transport.json(Call.with_json("POST", path, {"mode": mode})))

    def _get(self, path: str, params: Mapping[str, str | int | None] | None = None) -> Any:
        return self._transport.json(Call("GET", path, params=params))

    def _list(
        self, path: str, parse: Callable[[Any], T], params: Mapping[str, str | int | None] | None = None
    ) -> Iterator[T]:
        cursor: str | None = None
        while True:
            page = Record(self._get(path, {**(params or {}), "limit": _PAGE, "cursor": cursor}), "page")
            yield from page.each("items", parse)
            cursor = page.text_or_none("next_cursor")
            if cursor is None:
                return


def _from_environment(name: str, argument: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ValueError(f"give {argument}, or set {name}")
    return value


def _part(text: str) -> str:
    """Quote one part of a path, so that an id from elsewhere cannot name another route."""
    quoted = quote(text, safe=":")
    if quoted in {"", ".", ".."}:
        raise ValueError(f"{text!r} is no id")
    return quoted


def _artifact_call(trial_id: str, path: str) -> Call:
    return Call("GET", f"/v1/trials/{_part(trial_id)}/artifacts/{quote(path.lstrip('/'))}", accept="*/*")


def _hash(source: bytes | Path) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_COPY_BYTES):
            yield piece
