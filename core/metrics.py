"""What scheduler, worker and ingress count, and the small server that tells it to Prometheus.

One registry per process. Labels come from closed sets (states, outcomes, names of loops and runtimes), never from ids,
tenants or clients' words. What each is for, and when to be alarmed: `docs/observability.md`.
"""

import socket
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from core.errors import UnavailableError
from core.logging import get_logger

__all__ = [
    "ATTEMPTS",
    "ATTEMPTS_RUNNING",
    "ATTEMPT_NUMBER",
    "BELLS",
    "BELLS_RUNG",
    "CANARIES",
    "DISPATCHED",
    "FENCED_WRITES",
    "HEARTBEATS",
    "INGRESS_CONNECTIONS",
    "INGRESS_CONNECT_SECONDS",
    "INGRESS_REFUSED",
    "INGRESS_RELAYED",
    "JOB_POOL_CLAIMS",
    "JOB_POOL_CLAIM_SECONDS",
    "LEADER",
    "LEADER_CHANGES",
    "LEAKED",
    "LEFTOVERS",
    "LIVE_SANDBOXES",
    "LOG_BYTES",
    "LOOP_FAILURES",
    "LOOP_SUCCESS",
    "POOL_MEMBERS_ENDED",
    "POOL_MEMBERS_STARTED",
    "QUEUE_WAIT_SECONDS",
    "REAPED",
    "REGISTRY",
    "SANDBOX_START_SECONDS",
    "TICK_SECONDS",
    "serve_metrics",
]

log = get_logger(__name__)

REGISTRY = CollectorRegistry()

_FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WAIT = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
_START = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)

# Scheduler.
LEADER = Gauge("sandmill_scheduler_leader", "1 while this scheduler leads.", registry=REGISTRY)
LEADER_CHANGES = Counter(
    "sandmill_scheduler_leader_changes", "Times this scheduler began to lead.", registry=REGISTRY
)
TICK_SECONDS = Histogram(
    "sandmill_scheduler_tick_seconds", "One look at the queue.", buckets=_FAST, registry=REGISTRY
)
DISPATCHED = Counter("sandmill_trials_dispatched", "Attempts given to a node.", registry=REGISTRY)
BELLS_RUNG = Counter(
    "sandmill_bells_rung",
    "Bells sent: first, again for those nobody answered, failed for those the broker did not take.",
    ["kind"],
    registry=REGISTRY,
)
REAPED = Counter(
    "sandmill_reaped",
    "What the scheduler took back: recalled (never claimed), lost and overdue attempts, lapsed sessions.",
    ["kind"],
    registry=REGISTRY,
)
POOL_MEMBERS_STARTED = Counter(
    "sandmill_pool_members_started", "Members of warm pools that were put into the queue.", registry=REGISTRY
)
POOL_MEMBERS_ENDED = Counter(
    "sandmill_pool_members_ended",
    "Members of warm pools that nobody took: too many, too old, or of an older template.",
    ["reason"],
    registry=REGISTRY,
)
LOOP_SUCCESS = Gauge(
    "sandmill_scheduler_loop_last_success_timestamp_seconds",
    "When each of the scheduler's loops last did its work without an error.",
    ["loop"],
    registry=REGISTRY,
)
LOOP_FAILURES = Counter(
    "sandmill_scheduler_loop_failures", "Calls of a loop that raised.", ["loop"], registry=REGISTRY
)

# Worker.
ATTEMPTS = Counter(
    "sandmill_attempts_finished",
    "Attempts ended by this worker, by outcome and class of failure.",
    ["outcome", "failure_class"],
    registry=REGISTRY,
)
ATTEMPTS_RUNNING = Gauge("sandmill_attempts_running", "Attempts under way here.", registry=REGISTRY)
BELLS = Counter(
    "sandmill_bells_answered",
    "Bells that came in: claimed, duplicate (already here), stale (not to be claimed), refused (no valid lease).",
    ["result"],
    registry=REGISTRY,
)
ATTEMPT_NUMBER = Histogram(
    "sandmill_attempt_number",
    "Which try of its trial an attempt was.",
    buckets=(1, 2, 3, 4, 6, 10),
    registry=REGISTRY,
)
QUEUE_WAIT_SECONDS = Histogram(
    "sandmill_queue_wait_seconds", "From queued to claimed.", buckets=_WAIT, registry=REGISTRY
)
CANARIES = Counter(
    "sandmill_canaries",
    "Bells the worker rang for itself: answered, missed, or unsent for want of a broker.",
    ["result"],
    registry=REGISTRY,
)
FENCED_WRITES = Counter(
    "sandmill_fenced_writes",
    "Writes about an attempt that was not ours any more. Each one is a ghost: look at it.",
    registry=REGISTRY,
)
HEARTBEATS = Counter(
    "sandmill_heartbeats", "Renewals of the lease: ok, failed, or lost with the session.", ["result"],
    registry=REGISTRY,
)  # fmt: skip
JOB_POOL_CLAIMS = Counter(
    "sandmill_job_pool_claims",
    "Attempts of jobs that a warm pool with members on this node could give a sandbox: hit; dead (a member that did "
    "not answer, so another was tried); miss (none was free: one was started).",
    ["result"],
    registry=REGISTRY,
)
JOB_POOL_CLAIM_SECONDS = Histogram(
    "sandmill_job_pool_claim_seconds",
    "From an attempt that wants a sandbox to a member of a pool that is its own.",
    buckets=_FAST,
    registry=REGISTRY,
)
LIVE_SANDBOXES = Gauge("sandmill_live_sandboxes", "Live sandboxes kept here.", registry=REGISTRY)
LEAKED = Gauge(
    "sandmill_leaked",
    "Sandboxes nobody knows, and the rest of such (volumes, images), that the last sweep could not remove: must be 0.",
    ["runtime", "kind"],
    registry=REGISTRY,
)
LEFTOVERS = Counter(
    "sandmill_leftovers",
    "Sandboxes found that no attempt here runs: removed, or failed to be removed.",
    ["runtime", "result"],
    registry=REGISTRY,
)
SANDBOX_START_SECONDS = Histogram(
    "sandmill_sandbox_start_seconds", "Create to answering daemon.", ["runtime"], buckets=_START,
    registry=REGISTRY,
)  # fmt: skip
LOG_BYTES = Counter("sandmill_log_bytes", "Output stored.", registry=REGISTRY)

# Ingress.
INGRESS_CONNECTIONS = Gauge(
    "sandmill_ingress_connections", "Connections of clients that are open.", registry=REGISTRY
)
INGRESS_RELAYED = Counter(
    "sandmill_ingress_relayed",
    "Requests that a program in a sandbox answered, by class of status; 101 are those that became a tunnel.",
    ["status"],
    registry=REGISTRY,
)
INGRESS_REFUSED = Counter(
    "sandmill_ingress_refused",
    "Requests that the ingress answered with an error.",
    ["status"],
    registry=REGISTRY,
)
INGRESS_CONNECT_SECONDS = Histogram(
    "sandmill_ingress_connect_seconds",
    "To a port of a sandbox, where no connection was kept.",
    buckets=_FAST,
    registry=REGISTRY,
)


def serve_metrics(host: str, port: int | None) -> WSGIServer | None:
    """Answer GET /metrics on a thread of its own; None: not asked for.

    host, port: where to listen. Raises UnavailableError that names the setting's kind of value when the port is taken.
    """
    if port is None:
        return None
    try:
        server, _ = start_http_server(port, addr=host, registry=REGISTRY)
    except (OSError, socket.gaierror) as error:
        message = (
            f"cannot serve metrics on {host}:{port}: {error.strerror}; choose another metrics port or none"
        )
        raise UnavailableError(message) from error
    log.info("metrics_served", host=host, port=server.server_port)
    return server
