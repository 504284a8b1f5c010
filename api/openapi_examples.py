"""What answers look like: one example per kind of answer, put into the OpenAPI document wherever it is given.

`tests/unit/api/test_openapi_examples.py` reads each with the class that writes the real ones.
"""

from typing import Any, Final

from api.openapi_admin_examples import ADMIN_EXAMPLES

__all__ = ["EXAMPLES", "TEXT_EXAMPLES", "add_response_examples"]

_BATCH = "01a22df2-35d4-7fc7-889d-d5987cdb0c9f"
_JOB = "01a22df2-35d5-7744-b92f-7dcb04bd22e9"
_TRIAL = "01a22df2-35d5-765c-a605-5c5639c39936"
_ATTEMPT = "01a22df2-35fa-76bf-86ba-5df6c58280b3"
_DIGEST = "sha256:e6cf0c02a9f612bf2690cdff73a2b483a3fd9cf8b296c7ff796be5a8d4e5c786"
_SUBMITTED = "2026-11-30T19:32:57.944606Z"
_STARTED = "2026-11-30T19:32:58.439655Z"
_FINISHED = "2026-11-30T19:32:58.526791Z"

_COUNTS: Final = {"total": 2, "by_state": {"finished": 2}, "by_outcome": {"passed": 1, "failed": 1}}
_FAILURE: Final = {
    "class": "task",
    "code": "nonzero_exit",
    "message": "step run ended with exit code 3",
    "step": "run",
    "exit_code": 3,
    "signal": None,
    "oom": False,
    "timed_out": False,
    "retryable": False,
    "retry_after_seconds": None,
}
_BATCH_VIEW: Final = {
    "id": _BATCH,
    "name": "nightly",
    "labels": {"model": "m1"},
    "priority": 0,
    "concurrency": {"max": 64, "per_label": {"repo": 8}},
    "state": "finished",
    "implicit": False,
    "open": False,
    "paused": False,
    "stopped": None,
    "jobs": 1,
    "trials": _COUNTS,
    "cancel_requested": False,
    "created_at": _SUBMITTED,
    "finished_at": _FINISHED,
}
_WARNING: Final = {
    "field": "jobs[0].resources.memory_mb",
    "message": "is 65536; no node that takes work now and could run this has more than 12800: it waits for one, for at "
    "most 86400 s (timeouts.queue)",
}
_JOB_VIEW: Final = {
    "id": _JOB,
    "batch_id": _BATCH,
    "key": "hello",
    "kind": "run",
    "digest": _DIGEST,
    "labels": {},
    "paused": False,
    "trials": _COUNTS,
    "created_at": _SUBMITTED,
}
_TRIAL_VIEW: Final = {
    "id": _TRIAL,
    "batch_id": _BATCH,
    "job_id": _JOB,
    "job_key": "hello",
    "index": 0,
    "seed": None,
    "state": "finished",
    "state_reason": "nonzero_exit",
    "outcome": "failed",
    "failure": _FAILURE,
    "rewards": {"reward": 0.0},
    "priority": 0,
    "runtime": "local",
    "paused": False,
    "cancel_requested": False,
    "cancel_reason": None,
    "retry_of": None,
    "superseded_by": None,
    "grade_no": 0,
    "attempts_used": 1,
    "infra_losses": 0,
    "task_retries": 0,
    "replay_of": None,
    "created_at": _SUBMITTED,
    "started_at": _STARTED,
    "finished_at": _FINISHED,
}
_ATTEMPT_VIEW: Final = {
    "id": _ATTEMPT,
    "trial_id": _TRIAL,
    "number": 1,
    "state": "finished",
    "phase": None,
    "node": "node-1",
    "outcome": "failed",
    "failure": _FAILURE,
    "steps": [
        {
            "name": "run",
            "role": "run",
            "exit_code": 3,
            "signal": None,
            "timed_out": False,
            "oom": False,
            "duration_ms": 66,
            "error": None,
            "patch_rejected": False,
            "is_idle": False,
        }
    ],
    "tests": {"counts": {}, "fail_to_pass": None, "pass_to_pass": None},
    "usage": {"wall_seconds": 0.276, "cpu_seconds": 0.106, "memory_peak_bytes": 17428480, "log_bytes": 147},
    "log": {"bytes": 147, "truncated_bytes": 0, "closed": True},
    "created_at": _SUBMITTED,
    "claimed_at": _SUBMITTED,
    "started_at": _STARTED,
    "finished_at": _FINISHED,
}
_DEAD_LETTER_VIEW: Final = {
    "trial_id": _TRIAL,
    "batch_id": _BATCH,
    "job_id": _JOB,
    "job_key": "hello",
    "state": "open",
    "code": "poison",
    "failure": {
        **_FAILURE,
        "class": "infra",
        "code": "poison",
        "message": "its worker was lost 3 times, on 3 nodes: it is not tried again; last: the worker that ran"
        " this attempt went away",
        "step": None,
        "exit_code": None,
    },
    "attempts": 3,
    "nodes_lost": 3,
    "created_at": _FINISHED,
    "replayed_as": None,
    "replayed_at": None,
    "discarded_at": None,
}
_EVENT: Final = {
    "seq": 1,
    "type": "trial.finished",
    "at": _FINISHED,
    "trial_id": _TRIAL,
    "job_id": _JOB,
    "job_key": "hello",
    "index": 0,
    "outcome": "failed",
    "failure_code": "nonzero_exit",
    "rewards": {"reward": 0.0},
    "detail": None,
}
_CHUNK: Final = {
    "seq": 0,
    "t": _STARTED,
    "stream": "stdout",
    "step": "run",
    "b64": "NDIK",
    "text": "42\n",
}
_SCHEDULE: Final = {
    "id": "01a22df2-35d6-7c41-a1f0-4f7a9b0d2e33",
    "name": "nightly",
    "cron": "0 3 * * *",
    "timezone": "Europe/Berlin",
    "batch": {"jobs": [{"key": "hello", "image": "host", "steps": [{"name": "run", "run": "exit 3"}]}]},
    "catch_up": "one",
    "overlap": "skip",
    "paused_at": None,
    "next_fires": ["2026-12-01T02:00:00Z", "2026-12-02T02:00:00Z"],
    "created_at": _SUBMITTED,
    "updated_at": _SUBMITTED,
}
_HISTORY_BATCH: Final = {
    "id": _BATCH,
    "name": "nightly",
    "labels": {"model": "m1"},
    "trials": 2,
    "outcomes": {"passed": 1, "failed": 1},
    "created_at": _SUBMITTED,
    "finished_at": _FINISHED,
    "archived_at": "2026-12-30T19:32:58.526791Z",
}
_HISTORY_TRIAL: Final = {
    "id": _TRIAL,
    "batch_id": _BATCH,
    "job_key": "hello",
    "labels": {},
    "index": 0,
    "outcome": "failed",
    "failure": _FAILURE,
    "rewards": {"reward": 0.0},
    "attempts": 1,
    "started_at": _STARTED,
    "finished_at": _FINISHED,
}
_FIRE: Final = {
    "fire_at": "2026-11-30T02:00:00Z",
    "outcome": "submitted",
    "batch_id": _BATCH,
    "detail": None,
    "fired_at": "2026-11-30T02:00:00.412345Z",
}
_WEBHOOK: Final = {
    "id": "01a22df2-35d5-7a3e-8a55-6f6f3a2d5c11",
    "name": "ci",
    "url": "https://ci.example.org/hooks/sandmill",
    "events": ["batch.finished"],
    "created_at": _SUBMITTED,
    "disabled_at": None,
    "disabled_reason": None,
}
_DELIVERY: Final = {
    "id": "01a22df2-35fb-7b0e-9c52-2f8c4d1f7a20",
    "webhook_id": _WEBHOOK["id"],
    "url": _WEBHOOK["url"],
    "event": "batch.finished",
    "subject_id": _BATCH,
    "state": "delivered",
    "tries": 1,
    "next_try_at": None,
    "last_status": 204,
    "last_error": None,
    "payload": {
        "type": "batch.finished",
        "timestamp": _FINISHED,
        "data": {
            "batch_id": _BATCH,
            "name": "nightly",
            "trials": 2,
            "outcomes": {"passed": 1, "failed": 1},
        },
    },
    "created_at": _FINISHED,
    "finished_at": _FINISHED,
}


def _page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next_cursor": None}


EXAMPLES: Final[dict[str, Any]] = {
    **ADMIN_EXAMPLES,
    "AttemptView": _ATTEMPT_VIEW,
    "BatchView": _BATCH_VIEW,
    "BlobView": {"digest": _DIGEST, "size_bytes": 147},
    "CancelView": {"cancelled": 1, "cancelling": 1},
    "DeadLetterView": _DEAD_LETTER_VIEW,
    "ReplayView": {
        "trial_id": "01a22df2-9d11-7c2e-9a40-5f3c86e1b2d7",
        "job_id": "01a22df2-9d10-7a55-8b0e-3c1f0c9d7e42",
        "batch_id": "01a22df2-9d0f-7d31-b6a7-0e5a4b8f9c13",
        "replay_of": _TRIAL,
    },
    "ErrorView": {
        "code": "invalid_request",
        "message": "jobs[0].steps[0].timeout: must be more than 0",
        "field": "jobs[0].steps[0].timeout",
        "request_id": "5f0c6f0e6f0a4a0f8f4f0c6f0e6f0a4a",
        "details": [{"field": "jobs[0].steps[0].timeout", "message": "must be more than 0"}],
    },
    "EventPageView": {"items": [_EVENT], "next_cursor": "1"},
    "HealthView": {"status": "ok"},
    "JobDetail": {
        **_JOB_VIEW,
        "spec": {"key": "hello", "image": {"ref": "host"}, "steps": [{"name": "run", "run": "exit 3"}]},
    },
    "SubmittedBatchView": {**_BATCH_VIEW, "warnings": [_WARNING]},
    "SubmittedJobView": {
        **_JOB_VIEW,
        "spec": {"key": "hello", "image": {"ref": "host"}, "steps": [{"name": "run", "run": "exit 3"}]},
        "warnings": [],
    },
    "LogPageView": {**_page(_CHUNK), "closed": True, "truncated_bytes": 0},
    "Page_ArtifactView_": _page(
        {
            "path": "/logs/out.txt",
            "digest": _DIGEST,
            "size_bytes": 147,
            "created_at": _FINISHED,
        }
    ),
    "Page_BatchView_": _page(_BATCH_VIEW),
    "Page_DeadLetterView_": _page(_DEAD_LETTER_VIEW),
    "Page_JobView_": _page(_JOB_VIEW),
    "Page_TrialView_": _page(_TRIAL_VIEW),
    "HistoryBatchView": _HISTORY_BATCH,
    "Page_HistoryTrialView_": _page(_HISTORY_TRIAL),
    "Page_FireView_": _page(_FIRE),
    "Page_ScheduleView_": _page(_SCHEDULE),
    "ScheduleView": _SCHEDULE,
    "Page_WebhookDeliveryView_": _page(_DELIVERY),
    "Page_WebhookView_": _page(_WEBHOOK),
    "TrialDetailView": {**_TRIAL_VIEW, "attempts": [_ATTEMPT_VIEW], "grades": []},
    "WebhookDeliveryView": _DELIVERY,
    "WebhookSecretView": {**_WEBHOOK, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
    "WebhookView": _WEBHOOK,
    "PauseView": {"paused": 3, "running": 1},
    "RegradeView": {"regrading": 4, "not_gradable": 0},
    "ResumeView": {"resumed": 3},
    "RetryView": {"retried": 2},
    "VersionView": {"name": "sandmill", "version": "0.1.0"},
}
"""By the name of the schema."""

TEXT_EXAMPLES: Final[dict[tuple[str, str], Any]] = {
    ("/metrics", "text/plain"): 'sandmill_trials_finished_total{outcome="passed"} 1\n',
    ("/v1/attempts/{attempt_id}/logs", "text/plain"): "42\n",
    ("/v1/batches/{batch_id}/report", "application/json"): {
        "batch_id": _BATCH,
        "complete": True,
        "trials": 2,
        "trials_by_outcome": {"passed": 1, "failed": 1},
    },
    ("/v1/batches/{batch_id}/report", "application/jsonl"): (
        f'{{"job_key": "hello", "index": 0, "outcome": "failed", "trial_id": "{_TRIAL}"}}\n'
    ),
    ("/v1/batches/{batch_id}/report", "application/xml"): (
        '<testsuites><testsuite name="nightly" tests="1"><testcase name="hello[0]"/></testsuite></testsuites>'
    ),
    ("/v1/blobs", "application/octet-stream"): "any bytes",
    ("/v1/blobs/{digest}", "application/octet-stream"): "any bytes",
    ("/v1/trials/{trial_id}/artifacts/{path}", "application/octet-stream"): "any bytes",
}
"""By path and media type, for bodies that have no schema of their own."""


def add_response_examples(document: dict[str, Any]) -> None:
    """Give every body of every answer an example, and the bodies of requests that have none."""
    for path, operations in document["paths"].items():
        for operation in operations.values():
            bodies = [response.get("content", {}) for response in operation["responses"].values()]
            bodies.append(operation.get("requestBody", {}).get("content", {}))
            for content in bodies:
                for media_type, body in content.items():
                    _add(path, media_type, body)


def _add(path: str, media_type: str, body: dict[str, Any]) -> None:
    if "example" in body or "examples" in body:
        return
    name = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
    example = EXAMPLES.get(name, TEXT_EXAMPLES.get((path, media_type)))
    if example is not None:
        body["example"] = example
