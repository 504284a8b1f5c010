"""Every code that a trial's failure can have, by class. A test compares this with what the source makes.

Retry rules name codes from here, so that a slip of the pen is refused instead of never matching. What each means:
`docs/jobs.md`.
"""

from core.errors import FailureClass

__all__ = ["ALL_CODES", "FAILURE_CODES", "RULE_CODES"]

FAILURE_CODES: dict[FailureClass, frozenset[str]] = {
    FailureClass.TASK: frozenset({
        "idle_timeout", "junit_exit_mismatch", "junit_incomplete", "junit_missing", "junit_unparsable",
        "log_exit_mismatch", "log_incomplete", "log_unparsable", "no_tests", "nonzero_exit", "oom_limit",
        "patch_rejected", "reward_below_pass", "reward_missing", "reward_non_finite", "reward_unparsable",
        "run_timeout", "sandbox_spoiled", "setup_failed", "step_not_started", "step_timeout", "tests_failed",
        "total_timeout",
    }),
    FailureClass.INFRA: frozenset({
        "artifact_upload", "create_timeout", "daemon_error", "execd_unreachable", "image_store_full",
        "node_disk_full", "node_lost", "orphaned", "poison", "preempted", "registry_error", "registry_rate_limited",
        "registry_tls", "registry_unreachable", "regrade_failed", "regrade_timeout", "runtime_unavailable",
        "start_timeout", "step_not_run", "unknown", "worker_shutdown", "worker_stuck",
    }),
    FailureClass.SPEC: frozenset({
        "bad_image", "entrypoint_failed", "image_not_found", "patch_path_missing", "platform_not_found",
        "registry_auth", "spec_invalid",
    }),
    FailureClass.QUOTA: frozenset({"queue_timeout"}),
    FailureClass.CANCELLED: frozenset({
        "cancelled", "needs_unmet", "stop_first_fail", "stop_first_pass", "stop_when",
    }),
}  # fmt: skip
"""The class is the usual one: a setup step with `blame: infra` fails with the codes of a task in class infra."""

ALL_CODES = frozenset[str]().union(*FAILURE_CODES.values())

RULE_CODES = (FAILURE_CODES[FailureClass.TASK] | FAILURE_CODES[FailureClass.INFRA]) - {
    "poison",
    "regrade_failed",
    "total_timeout",
}
"""Those that a retry rule can decide about: poison ends retries, after total_timeout no time is left, and a grade is
not an attempt."""
