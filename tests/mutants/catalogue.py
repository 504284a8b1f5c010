"""Guards, each taken out by one replacement in the source, and the tests of which one at least must then fail."""

from dataclasses import dataclass

__all__ = ["MUTANTS", "NOT_APPLICABLE", "Mutant"]

QUEUE = "tests/integration/queue"
API = "tests/integration/api"
POOLS = f"{API}/test_pools.py"
OFFERS = f"{API}/test_wire_offers.py"
JOB_POOLS = f"{QUEUE}/test_job_pools.py"


@dataclass(frozen=True)
class Mutant:
    """One missing guard. old is found exactly `times` times in the file. tests: pytest ids that see it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    times: int = 1


MUTANTS = (
    Mutant(
        "no fence in what a worker writes",
        "repositories/attempts.py",
        '_EACH = "a.trial_id = {of}.trial_id AND a.fence = {of}.fence AND a.session_id = {of}.session_id"',
        '_EACH = "a.trial_id = {of}.trial_id AND a.session_id = {of}.session_id"',
        (
            f"{QUEUE}/test_fences.py::test_finish_of_an_older_fence_does_not_end_the_newer_attempt_of_the_same_session",
        ),
    ),
    Mutant(
        "no session in what a worker writes",
        "repositories/attempts.py",
        '_EACH = "a.trial_id = {of}.trial_id AND a.fence = {of}.fence AND a.session_id = {of}.session_id"',
        '_EACH = "a.trial_id = {of}.trial_id AND a.fence = {of}.fence"',
        (f"{QUEUE}/test_fences.py::test_finish_needs_the_session_that_claimed",),
    ),
    Mutant(
        "a claim takes what is claimed already",
        "repositories/attempts.py",
        "AND a.fence = w.fence AND a.state || '' = 'dispatched'\n",
        "AND a.fence = w.fence\n",
        (
            f"{QUEUE}/test_fences.py::test_second_copy_of_a_bell_claims_nothing",
            f"{QUEUE}/test_interleavings.py::test_two_bells_claim_once",
        ),
    ),
    Mutant(
        "a claim without a lease",
        "repositories/attempts.py",
        "WHERE s.id = %(session_id)s AND s.ended_at IS NULL\n                AND s.lease_until > clock_timestamp())",
        "WHERE s.id = %(session_id)s AND s.ended_at IS NULL)",
        (f"{QUEUE}/test_fences.py::test_session_without_a_valid_lease_claims_nothing",),
    ),
    Mutant(
        "no index of one live attempt",
        "migrations/versions/0001_the_foundation.py",
        '        ["trial_id"],\n        unique=True,\n',
        '        ["trial_id"],\n',
        (f"{QUEUE}/test_fences.py::test_database_refuses_a_second_live_attempt",),
    ),
    Mutant(
        "counting without the lock before it",
        "repositories/dispatch.py",
        '        self._rows(_LOCK, {"lock": _DISPATCH_LOCK, "is_durable": is_durable})',
        "        self._connection.exec_driver_sql('SELECT 1')",
        (f"{QUEUE}/test_interleavings.py::test_dispatch_and_dispatch_keep_the_quota",),
    ),
    Mutant(
        "the time of the transaction after a wait for the lock",
        "migrations/versions/0006_lowered_limits.py",
        "NEW.limits_lowered_at := clock_timestamp();",
        "NEW.limits_lowered_at := now();",
        (f"{QUEUE}/test_lowered_limits.py::test_lowering_waits_for_the_tick_that_has_read_the_old_limit",),
    ),
    Mutant(
        "a heartbeat that counts from its reply",
        "workers/lease.py",
        "        self._note_lease(asked)\n        self._tell()\n        HEARTBEATS",
        "        self._note_lease(boot_seconds())\n        self._tell()\n        HEARTBEATS",
        (f"{QUEUE}/test_guards.py::test_a_lease_counts_from_before_it_was_asked_for",),
    ),
    Mutant(
        "reaping without the grace",
        "repositories/dispatch.py",
        "AND lease_until + make_interval(secs => %(grace)s) < clock_timestamp()",
        "AND lease_until < clock_timestamp()",
        (f"{QUEUE}/test_reaping.py::test_session_within_its_grace_is_left_alone",),
    ),
    Mutant(
        "no lease time without judgement for a new leader",
        "scheduler/process.py",
        "settled = since is not None and time.monotonic() - since > self._settings.lease_seconds",
        "settled = since is not None",
        (f"{QUEUE}/test_guards.py::test_a_new_leader_judges_no_lease_before_one_lease_time",),
    ),
    Mutant(
        "bells before the commit",
        "services/dispatch.py",
        '            failpoint("dispatch.before_commit")\n',
        '            failpoint("dispatch.before_commit")\n            self._ringer.ring(bells)\n',
        (f"{QUEUE}/test_guards.py::test_bells_are_rung_after_the_commit",),
    ),
    Mutant(
        "containers that remove themselves",
        "runtimes/container_spec.py",
        '"AutoRemove": False,',
        '"AutoRemove": True,',
        ("tests/unit/runtimes/test_container_spec.py",),
    ),
    Mutant(
        "no bell is rung again",
        "services/dispatch.py",
        "            bells = repository.ring_again(age_seconds=self._policy.rering_seconds)",
        "            bells = repository.ring_again(age_seconds=self._policy.rering_seconds)[:0]",
        (f"{QUEUE}/test_dispatch.py::test_unanswered_bell_is_rung_again",),
    ),
    Mutant(
        "one budget of retries for both classes",
        "services/retries.py",
        '(used.infra_losses, policy.infra_max) if kind == "infra" else (used.task_retries, policy.task_max)',
        "(used.infra_losses + used.task_retries, policy.infra_max)",
        ("tests/unit/services/retries/test_retries.py",),
    ),
    Mutant(
        "output is told before it is stored",
        "services/log_pump.py",
        "            if self._store(chunks):\n",
        "            self._publish(chunks)\n            if self._store(chunks):\n",
        (f"{QUEUE}/test_guards.py::test_output_is_stored_before_it_is_told",),
    ),
    Mutant(
        "a cancel ends what runs",
        "repositories/trial_ending.py",
        "_WAITING = \"state IN ('blocked', 'paused', 'queued', 'retry_wait')\"",
        "_WAITING = \"state IN ('blocked', 'paused', 'queued', 'retry_wait', 'running')\"",
        (f"{QUEUE}/test_interleavings.py::test_dispatch_and_cancel_of_a_waiting_trial",),
    ),
    Mutant(
        "a repeatable snapshot in the dispatcher",
        "services/dispatch.py",
        "        with TICK_SECONDS.time(), self._engine.begin() as connection:\n",
        '        snapshot = self._engine.execution_options(isolation_level="REPEATABLE READ")\n'
        "        with TICK_SECONDS.time(), snapshot.begin() as connection:\n",
        (f"{QUEUE}/test_dispatch.py::test_max_running_holds_with_three_dispatchers_at_once",),
    ),
    Mutant(
        "a message that is written apart from the end it tells of",
        "migrations/versions/0008_hooks_schedules_retention.py",
        "CREATE TRIGGER {table}_announce AFTER UPDATE OF state ON {table} FOR EACH ROW",
        "CREATE TRIGGER {table}_announce AFTER UPDATE OF id ON {table} FOR EACH ROW",
        (f"{QUEUE}/test_webhooks.py::test_message_and_end_are_committed_together_or_not_at_all",),
    ),
    Mutant(
        "a trial taken back loses its attempt",
        "repositories/dispatch.py",
        "attempts_used = attempts_used - 1,",
        "attempts_used = attempts_used,",
        (
            f"{QUEUE}/test_dispatch.py::test_unclaimed_attempt_goes_back_to_the_head_without_using_an_attempt",
            f"{QUEUE}/test_state_machine.py",
        ),
    ),
    Mutant(
        "a scheduler that remembers why it gave up",
        "scheduler/loops.py",
        "        loop.forget_failures()\n",
        "        pass\n",
        ("tests/unit/scheduler/test_loops.py::test_who_gave_up_starts_anew_when_it_leads_again",),
    ),
    Mutant(
        "pool: a member of an older template is given away",
        "repositories/pools.py",
        "ON s.pool_id = p.id AND s.pool_revision = p.revision\n",
        "ON s.pool_id = p.id\n",
        (f"{QUEUE}/test_pools.py::test_members_of_an_older_template_are_given_to_nobody_and_replaced",),
    ),
    Mutant(
        "pool: a member is given away on a node that takes no work",
        "repositories/pools.py",
        "s.state = 'Running' AND {TAKES_WORK}\n",
        "s.state = 'Running'\n",
        (f"{QUEUE}/test_pools.py::test_nothing_is_given_away_on_a_node_that_takes_no_work",),
    ),
    Mutant(
        "pool: whoever ends a member does not look again whether it was taken",
        "repositories/pool_keeping.py",
        "= old.trial_id AND s.is_warm AND s.ended_at IS NULL AND s.state IN ('Pending', 'Running')\n",
        "= old.trial_id\n",
        (f"{QUEUE}/test_pools.py::test_a_member_is_not_ended_that_somebody_takes_at_this_moment",),
    ),
    Mutant(
        "pool: schedulers do not wait for each other",
        "repositories/pool_keeping.py",
        "FROM sandbox_pools p WHERE p.id = %(id)s FOR UPDATE",
        "FROM sandbox_pools p WHERE p.id = %(id)s",
        (f"{QUEUE}/test_pools.py::test_two_schedulers_at_once_make_no_member_too_many",),
    ),
    Mutant(
        "pool: a create is given a member that is for jobs",
        "repositories/pools.py",
        " AND NOT p.spec ? 'job_workdir'",
        "",
        (f"{JOB_POOLS}::test_a_pool_for_jobs_is_never_for_creates",),
    ),
    Mutant(
        "pool: a job is given a member that is for creates",
        "repositories/job_members.py",
        " AND p.spec ? 'job_workdir'",
        "",
        (f"{JOB_POOLS}::test_a_live_pool_is_never_for_jobs",),
    ),
    Mutant(
        "pool: a job is given another tenant's member",
        "repositories/job_members.py",
        "s.trial_id = %(member)s AND s.tenant_id = %(tenant_id)s AND",
        "s.trial_id = %(member)s AND",
        (f"{JOB_POOLS}::test_nobody_is_given_another_tenants_member",),
    ),
    Mutant(
        "pool: a job is given a member that was given up",
        "repositories/job_members.py",
        "s.is_warm AND s.state = 'Running' AND s.ended_at IS NULL AND p.spec",
        "s.ended_at IS NULL AND p.spec",
        (f"{JOB_POOLS}::test_a_member_whose_end_is_wished_is_not_given",),
    ),
    Mutant(
        "pool: a job is given a member of an older template",
        "repositories/job_members.py",
        "ON p.id = s.pool_id AND p.revision = s.pool_revision AND",
        "ON p.id = s.pool_id AND",
        (f"{JOB_POOLS}::test_a_member_of_an_older_template_is_not_given",),
    ),
    Mutant(
        "pool: a ghost is given a member",
        "repositories/job_members.py",
        "a.fence = %(fence)s AND a.session_id = %(session_id)s AND a.state = 'starting'",
        "a.fence = %(fence)s AND a.state = 'starting'",
        (f"{JOB_POOLS}::test_an_attempt_that_is_not_ours_any_more_is_given_nothing",),
    ),
    Mutant(
        "pool: what was given is removed by whoever kept it",
        "workers/session_starts.py",
        "if live.control.disowned and self._kept.is_ours(live):",
        "if live.control.disowned:",
        (f"{JOB_POOLS}::test_what_was_given_is_left_alone_by_whoever_kept_it",),
    ),
    Mutant(
        "pool: the next worker removes what an attempt was given",
        "workers/node.py",
        "is_its_own or self._registry.has_sandbox(handle.name)",
        "is_its_own",
        (
            "tests/integration/worker/test_job_pool_crashes.py::test_attempt_goes_on_with_what_it_was_given_wherever_its_worker_is_killed",
        ),
    ),
    Mutant(
        "pool: a start that another worker began is given a member",
        "services/attempt_runner.py",
        "if parts.members is not None and not is_adopted:",
        "if parts.members is not None:",
        (f"{JOB_POOLS}::test_a_start_that_another_worker_began_is_given_nothing",),
    ),
    Mutant(
        "pool: a job is given what does not answer",
        "services/attempt_members.py",
        "if not answers(runtime, held.handle):",
        "if False:",
        (f"{JOB_POOLS}::test_dead_members_are_ended_and_the_next_is_asked",),
    ),
    Mutant(
        "pool: a member with variables of its own is for jobs",
        "services/session_starting.py",
        "if spec.job_workdir is None or spec.env:",
        "if spec.job_workdir is None:",
        ("tests/unit/services/test_job_sandbox.py::test_nothing_else_is_for_jobs",),
    ),
    Mutant(
        "pool: free members are shown",
        "repositories/live_sandboxes.py",
        "s.tenant_id = %(tenant_id)s AND NOT s.is_warm\n",
        "s.tenant_id = %(tenant_id)s\n",
        (f"{POOLS}::test_members_nobody_has_are_not_to_be_seen",),
        times=2,
    ),
    Mutant(
        "pool: what does not answer is given away",
        "api/wire/creating.py",
        "is not Probe.DEAD:",
        "is not None:",
        (f"{POOLS}::test_a_member_is_asked_before_it_is_given_and_one_that_does_not_answer_is_ended",),
    ),
    Mutant(
        "wire: an early answer is lost in a reset",
        "api/lingering.py",
        "if _is_last(message) and not self._is_over:",
        "if False:",
        (f"{API}/test_errors.py::test_an_early_answer_reaches_a_client_that_closes_and_first_sends_all",),
    ),
    Mutant(
        "wire: what a runtime can do nothing with is taken",
        "services/runtime_offers.py",
        "        if is_asked:\n",
        "        if False:\n",
        (f"{OFFERS}::test_what_a_runtime_can_do_nothing_with_is_refused",),
    ),
    Mutant(
        "wire: what no node that takes work can do is taken",
        "services/node_capabilities.py",
        "        if not any(ask.fits(name) for name in names):\n            raise",
        "        if not any(ask.fits(name) for name in names):\n            continue\n            raise",
        (f"{OFFERS}::test_oci_runtime_and_folders_are_held_against_nodes_that_take_work",),
    ),
    Mutant(
        "wire: a member of a pool is placed where its OCI runtime is not",
        "services/live_sandboxes.py",
        "        new = self._placed(new)\n",
        "",
        (f"{OFFERS}::test_oci_runtime_and_folders_are_held_against_nodes_that_take_work",),
    ),
    Mutant(
        "wire: a snapshot is accepted on a node that can make none",
        "services/snapshots.py",
        "if not may_make_snapshots(",
        "if None is may_make_snapshots(",
        (f"{API}/test_snapshots.py::test_node_that_can_make_none_is_told_at_once",),
    ),
    Mutant(
        "wire: what was deleted and will not go is said to be gone",
        "workers/session_ends.py",
        "if not is_removed and end is not None and end.failure is None and not live.control.disowned:",
        "if False:",
        (
            "tests/integration/worker/test_sessions.py::test_delete_of_what_will_not_go_is_stopping_until_it_is_gone",
        ),
    ),
    Mutant(
        "pool: members for jobs leave no room for an attempt",
        "services/pool_keeping.py",
        "plan = replace(plan, create=min(plan.create, room))",
        "plan = replace(plan, create=max(plan.create, room))",
        (f"{JOB_POOLS}::test_a_pool_leaves_room_for_the_attempt_that_takes_a_member",),
    ),
    Mutant(
        "pool: members do not give way to what waits",
        "services/pool_keeping.py",
        "in_the_way(own) or {}",
        "in_the_way([]) or {}",
        (f"{JOB_POOLS}::test_members_give_way_to_what_their_quota_keeps_waiting",),
    ),
    Mutant(
        "pool: placement does not look where members are",
        "services/placement.py",
        "return not has_spare, trial.image",
        "return False, trial.image",
        (f"{JOB_POOLS}::test_a_job_goes_where_a_member_is_that_it_can_have",),
    ),
    Mutant(
        "wire: a runtime that no node offers is taken",
        "services/runtime_offers.py",
        "    if not offers:\n",
        "    if True:\n",
        (
            f"{OFFERS}::test_runtime_that_no_node_offers_is_refused",
            f"{OFFERS}::test_more_gpus_than_any_node_has_are_refused",
            f"{OFFERS}::test_platform_that_no_node_has_is_refused_and_another_is_placed",
        ),
    ),
    Mutant(
        "wire: a state that is none matches nothing",
        "api/wire/requests.py",
        "    if unknown is not None:\n",
        "    if False:\n",
        (f"{API}/test_wire_calls.py::test_state_that_is_none_is_refused_by_name",),
    ),
    Mutant(
        "wire: an expiry beyond all measure",
        "services/live_sandboxes.py",
        "if left > timedelta(seconds=MAX_TIMEOUT_SECONDS):",
        "if False:",
        (f"{API}/test_wire_calls.py::test_expiry_that_cannot_be_is_refused",),
    ),
    Mutant(
        "live: what never came to be is held for ever",
        "workers/node.py",
        "for name in ended.difference(handle.name for handle in there):",
        "for name in set[str]():",
        ("tests/integration/worker/test_sweep.py::test_what_is_over_and_nowhere_to_be_found_is_gone",),
    ),
)

NOT_APPLICABLE = {
    "MAXLEN exact": "live output goes over pub/sub and the store; there is no stream whose length could be cut",
}
"""Of the usual list, what cannot be left out here."""
