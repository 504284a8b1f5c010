-- What must hold at every moment, whoever is killed whenever. Each query gives the rows that break it: subject, detail.
--
-- The line above a query names it: the invariant of docs/reliability.md, its own name, how it is judged, what is
-- wrong with its rows. always: in every committed state. live: only while a scheduler leads and the database answers,
-- `slack` seconds after the fact.
--
-- Time stands still within a query: read row by row, it would pass the edge of a window between the begin of an attempt
-- and its end, and each later one would count one more than there were.

-- I1 ends_twice always: a trial has more than one end
SELECT e.trial_id::text AS subject, count(*) || ' ends' AS detail
FROM trial_events e WHERE e.subject = 'trial' AND e.to_state = 'finished'
GROUP BY e.trial_id HAVING count(*) > 1;

-- I1 batch_ends_early always: a batch is finished and one of its trials is not
SELECT b.id::text AS subject, 'trial ' || t.id || ' is ' || t.state AS detail
FROM trials t JOIN batches b ON b.id = t.batch_id WHERE b.state = 'finished' AND t.state <> 'finished';

-- I2 two_live_attempts always: a trial has two live attempts
SELECT a.trial_id::text AS subject, 'fences ' || string_agg(a.fence::text, ', ' ORDER BY a.fence) AS detail
FROM attempts a WHERE a.state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')
GROUP BY a.trial_id HAVING count(*) > 1;

-- I2 attempts_overlap always: an attempt began before the one before it had ended
SELECT later.trial_id::text AS subject,
       'fence ' || later.fence || ' began ' || later.created_at - earlier.finished_at || ' after the end of '
       || earlier.fence AS detail
FROM (SELECT a.*, lag(a.fence) OVER (PARTITION BY a.trial_id ORDER BY a.fence) AS before FROM attempts a) later
JOIN attempts earlier ON earlier.trial_id = later.trial_id AND earlier.fence = later.before
WHERE earlier.finished_at > later.created_at;

-- I2 running_without_attempt always: a trial runs without a live attempt of its fence
SELECT t.id::text AS subject, t.state || ' at fence ' || t.fence AS detail
FROM trials t WHERE t.state IN ('running', 'cancelling') AND NOT EXISTS (
  SELECT 1 FROM attempts a WHERE a.trial_id = t.id AND a.fence = t.fence
    AND a.state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting'));

-- I2 attempt_without_running always: an attempt is live and its trial does not run at its fence
SELECT a.trial_id::text AS subject,
       'attempt ' || a.fence || ' is ' || a.state || ', the trial ' || t.state || ' at ' || t.fence AS detail
FROM attempts a JOIN trials t ON t.id = a.trial_id
WHERE a.state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting')
  AND (t.state NOT IN ('running', 'cancelling') OR t.fence <> a.fence);

-- I3 fence_not_newest always: the fence of a trial is not that of its newest attempt
SELECT t.id::text AS subject, 'trial ' || t.fence || ', attempts ' || a.fence AS detail
FROM trials t JOIN (SELECT trial_id, max(fence) AS fence FROM attempts GROUP BY trial_id) a ON a.trial_id = t.id
WHERE t.fence <> a.fence;

-- I3 fence_went_down always: an event of a trial has a lower fence than an earlier one
SELECT e.trial_id::text AS subject, 'event ' || e.n || ': ' || e.fence || ' after ' || e.before AS detail
FROM (SELECT trial_id, n, fence, max(fence) OVER (
        PARTITION BY trial_id ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM trial_events WHERE subject = 'trial') e
WHERE e.fence < e.before;

-- I4 tenant_over_quota always: an attempt was started beyond a limit of its tenant
WITH moves AS (
  SELECT tenant_id, created_at AS at, 1 AS n, cpu_millicores::bigint AS cpu, memory_bytes AS memory, gpu::bigint,
         trial_id, fence
  FROM attempts WHERE finished_at IS NULL OR finished_at > statement_timestamp() - make_interval(secs => %(window)s)
  UNION ALL
  SELECT tenant_id, finished_at, -1, -cpu_millicores, -memory_bytes, -gpu, trial_id, fence
  FROM attempts WHERE finished_at > statement_timestamp() - make_interval(secs => %(window)s)
), sums AS (
  SELECT tenant_id, at, n, trial_id, fence, sum(n) OVER w AS running, sum(cpu) OVER w AS cpu,
         sum(memory) OVER w AS memory, sum(gpu) OVER w AS gpu
  FROM moves WINDOW w AS (PARTITION BY tenant_id ORDER BY at, n ROWS UNBOUNDED PRECEDING)
)
SELECT s.trial_id::text AS subject,
       'tenant ' || t.id || ': running ' || s.running || ', cpu ' || s.cpu || ', memory ' || s.memory || ', gpu '
       || s.gpu AS detail
FROM sums s JOIN tenants t ON t.id = s.tenant_id
WHERE s.n = 1 AND s.at > coalesce(t.limits_lowered_at, '-infinity')
  AND s.at > statement_timestamp() - make_interval(secs => %(window)s)
  AND (s.running > t.max_running OR s.cpu > t.max_cpu_millicores OR s.memory > t.max_memory_bytes
       OR s.gpu > t.max_gpu);

-- I4 queue_over_limit always: an attempt was started beyond the limit of its named queue
WITH moves AS (
  SELECT queue, created_at AS at, 1 AS n, trial_id
  FROM attempts WHERE finished_at IS NULL OR finished_at > statement_timestamp() - make_interval(secs => %(window)s)
  UNION ALL
  SELECT queue, finished_at, -1, trial_id
  FROM attempts WHERE finished_at > statement_timestamp() - make_interval(secs => %(window)s)
), sums AS (
  SELECT queue, at, n, trial_id, sum(n) OVER (PARTITION BY queue ORDER BY at, n ROWS UNBOUNDED PRECEDING) AS running
  FROM moves
)
SELECT s.trial_id::text AS subject, 'queue ' || q.name || ': running ' || s.running AS detail
FROM sums s JOIN queues q ON q.name = s.queue
WHERE s.n = 1 AND s.at > coalesce(q.limits_lowered_at, '-infinity')
  AND s.at > statement_timestamp() - make_interval(secs => %(window)s) AND s.running > q.max_running;

-- I4 batch_over_cap always: more trials of a batch are past its gate than it allows
SELECT b.id::text AS subject, count(*) || ' are past it, allowed are ' || b.max_running AS detail
FROM trials t JOIN batches b ON b.id = t.batch_id
WHERE b.max_running IS NOT NULL
  AND (t.state IN ('running', 'cancelling') OR (t.state = 'queued' AND t.is_admitted))
GROUP BY b.id HAVING count(*) > b.max_running;

-- I4 label_over_cap always: more trials of a batch with one value of a label are past its gate than it allows
SELECT b.id::text AS subject, l.key || '=' || l.value || ': ' || count(*) || ' are past it' AS detail
FROM trials t JOIN batches b ON b.id = t.batch_id CROSS JOIN LATERAL jsonb_each_text(t.cap_labels) l
WHERE b.max_per_label ? l.key
  AND (t.state IN ('running', 'cancelling') OR (t.state = 'queued' AND t.is_admitted))
GROUP BY b.id, l.key, l.value HAVING count(*) > (b.max_per_label ->> l.key)::int;

-- I5 node_over_capacity always: an attempt was placed on a node without room for it
WITH moves AS (
  SELECT node_id, created_at AS at, 1 AS n, slots, cpu_millicores::bigint AS cpu, memory_bytes AS memory, gpu::bigint,
         trial_id
  FROM attempts WHERE finished_at IS NULL OR finished_at > statement_timestamp() - make_interval(secs => %(window)s)
  UNION ALL
  SELECT node_id, finished_at, -1, -slots, -cpu_millicores, -memory_bytes, -gpu, trial_id
  FROM attempts WHERE finished_at > statement_timestamp() - make_interval(secs => %(window)s)
), sums AS (
  SELECT node_id, at, n, trial_id, sum(slots) OVER w AS running, sum(cpu) OVER w AS cpu, sum(memory) OVER w AS memory,
         sum(gpu) OVER w AS gpu
  FROM moves WINDOW w AS (PARTITION BY node_id ORDER BY at, n ROWS UNBOUNDED PRECEDING)
)
SELECT s.trial_id::text AS subject,
       'node ' || n.id || ': running ' || s.running || ', cpu ' || s.cpu || ', memory ' || s.memory || ', gpu ' || s.gpu
       AS detail
FROM sums s JOIN nodes n ON n.id = s.node_id
WHERE s.n = 1 AND s.at > coalesce(n.limits_lowered_at, '-infinity')
  AND s.at > statement_timestamp() - make_interval(secs => %(window)s)
  AND (s.running > n.slots OR s.cpu > n.cpu_millicores OR s.memory > n.memory_bytes OR s.gpu > n.gpu);

-- I6 bell_unanswered live: nobody claimed an attempt, and nobody took it back
SELECT trial_id::text AS subject, 'fence ' || fence || ' since ' || created_at AS detail
FROM attempts WHERE state = 'dispatched'
  AND start_deadline < statement_timestamp() - make_interval(secs => %(slack)s);

-- I6 retry_overdue live: a retry is due and the trial still waits
SELECT id::text AS subject, 'due at ' || run_at AS detail
FROM trials WHERE state = 'retry_wait' AND run_at < statement_timestamp() - make_interval(secs => %(slack)s);

-- I6 waits_past_deadline live: a trial waits longer than its deadlines allow
SELECT id::text AS subject, state || ', deadline ' || deadline AS detail
FROM trials
WHERE state IN ('blocked', 'queued', 'retry_wait') AND deadline < statement_timestamp() - make_interval(secs => %(slack)s)
  AND (started_at IS NULL OR total_deadline < statement_timestamp() - make_interval(secs => %(slack)s));

-- I6 cancel_not_obeyed live: a trial is to be cancelled and still waits
SELECT t.id::text AS subject, t.state AS detail
FROM trials t WHERE t.desired = 'cancel' AND t.state IN ('blocked', 'paused', 'queued', 'retry_wait')
  AND NOT EXISTS (SELECT 1 FROM trial_events e WHERE e.trial_id = t.id
                  AND e.at > statement_timestamp() - make_interval(secs => %(slack)s));

-- I6 lease_not_ended live: a session lives on long after its lease
SELECT s.id::text AS subject, 'lease until ' || s.lease_until AS detail
FROM worker_sessions s
WHERE s.ended_at IS NULL AND s.lease_until < statement_timestamp() - make_interval(secs => %(lease)s + %(slack)s);

-- I6 attempt_of_dead_session live: a session has ended, its attempt lives on, and nobody may adopt it any more
SELECT a.trial_id::text AS subject, 'fence ' || a.fence || ', ended at ' || s.ended_at AS detail
FROM attempts a JOIN worker_sessions s ON s.id = a.session_id
WHERE a.state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting') AND s.ended_at IS NOT NULL
  AND greatest(s.ended_at, s.adoptable_until) < statement_timestamp() - make_interval(secs => %(slack)s);

-- I6 attempt_overdue live: an attempt is later than its owner may be, and nobody has taken it from there
SELECT trial_id::text AS subject, 'fence ' || fence || ', ' || state || ', overdue at ' || overdue_at AS detail
FROM attempts
WHERE state IN ('starting', 'running', 'stopping', 'collecting')
  AND overdue_at < statement_timestamp() - make_interval(secs => %(slack)s);

-- I6 batch_not_ended live: all trials of a batch are finished and the batch is not
SELECT b.id::text AS subject, 'last trial finished at ' || max(t.finished_at) AS detail
FROM batches b JOIN trials t ON t.batch_id = b.id
WHERE b.state = 'running'
GROUP BY b.id
HAVING bool_and(t.state = 'finished') AND max(t.finished_at) < statement_timestamp() - make_interval(secs => %(slack)s);

-- I6 queue_stands_still live: a trial waits, its tenant has room, a node is idle, and nothing has started for long
SELECT DISTINCT ON (t.tenant_id) t.id::text AS subject, 'queued at ' || t.queued_at AS detail
FROM trials t
JOIN tenants o ON o.id = t.tenant_id AND o.paused_at IS NULL AND o.rate_per_second IS NULL
  AND o.budget_cpu_seconds IS NULL AND o.max_cpu_millicores IS NULL AND o.max_memory_bytes IS NULL
  AND o.max_gpu IS NULL
JOIN queues q ON q.name = t.queue AND q.paused_at IS NULL AND q.max_running IS NULL
WHERE t.state = 'queued' AND t.desired = 'run' AND (t.cap_labels IS NULL OR t.is_admitted)
  AND t.queued_at < statement_timestamp() - make_interval(secs => %(slack)s)
  AND o.max_running > (SELECT count(*) FROM attempts a WHERE a.tenant_id = o.id
                       AND a.state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting'))
  AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.created_at > statement_timestamp() - make_interval(secs => %(slack)s))
  AND EXISTS (
    SELECT 1 FROM nodes n
    WHERE n.cordoned_at IS NULL AND n.drained_at IS NULL AND t.runtime = ANY(n.runtimes) AND n.labels @> t.node_labels
      AND n.slots > 0 AND n.cpu_millicores >= t.cpu_millicores AND n.memory_bytes >= t.memory_bytes AND n.gpu >= t.gpu
      AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.node_id = n.id
                      AND a.state IN ('dispatched', 'starting', 'running', 'stopping', 'collecting'))
      AND EXISTS (SELECT 1 FROM worker_sessions s WHERE s.node_id = n.id AND s.ended_at IS NULL AND NOT s.draining
                  AND s.lease_until > statement_timestamp()
                  AND s.created_at < statement_timestamp() - make_interval(secs => %(slack)s)))
ORDER BY t.tenant_id, t.queued_at;

-- I7 sandbox_left live: an attempt has ended and its sandbox is not gone, though its node works
SELECT b.name AS subject, b.state || ', attempt ' || a.state || ' at ' || a.finished_at AS detail
FROM sandboxes b JOIN attempts a ON a.trial_id = b.trial_id AND a.fence = b.fence
WHERE b.state <> 'removed' AND a.finished_at < statement_timestamp() - make_interval(secs => 60 + %(slack)s)
  AND EXISTS (SELECT 1 FROM worker_sessions s WHERE s.node_id = b.node_id AND s.ended_at IS NULL
              AND s.lease_until > statement_timestamp() AND s.created_at < statement_timestamp() - interval '60 s');

-- I8 retries_over_budget always: a trial was tried again more often than its job allows, which has no rules of its own
SELECT t.id::text AS subject,
       t.task_retries || ' of ' || (j.spec #>> '{retry,task_max}') || ' task retries, ' || t.infra_losses || ' of '
       || (j.spec #>> '{retry,infra_max}') || ' losses' AS detail
FROM trials t JOIN jobs j ON j.id = t.job_id
WHERE jsonb_array_length(coalesce(j.spec #> '{retry,rules}', '[]')) = 0
  AND (t.task_retries > (j.spec #>> '{retry,task_max}')::int
       OR t.infra_losses > (j.spec #>> '{retry,infra_max}')::int + 1
       OR (t.infra_losses > (j.spec #>> '{retry,infra_max}')::int AND t.state <> 'finished'));

-- I8 attempts_miscounted always: a trial does not count the attempts that were started for it
SELECT t.id::text AS subject, t.attempts_used || ' counted, there are ' || coalesce(a.n, 0) AS detail
FROM trials t LEFT JOIN (
  SELECT trial_id, count(*) AS n FROM attempts WHERE state <> 'never_started' GROUP BY trial_id) a ON a.trial_id = t.id
WHERE t.attempts_used <> coalesce(a.n, 0);

-- I8 retried_after_cancel always: an attempt was started for a trial that was cancelled before
SELECT e.trial_id::text AS subject, 'dispatched at ' || e.at AS detail
FROM trial_events e JOIN trial_events c ON c.trial_id = e.trial_id AND c.n < e.n
WHERE e.subject = 'attempt' AND e.from_state = '' AND c.subject = 'trial' AND c.to_state = 'cancelling';

-- I10 log_has_gap always: the stored log of an ended attempt is not what its end says
SELECT h.trial_id::text AS subject,
       'fence ' || h.fence || ': ' || count(c.seq) || ' of ' || h.next_seq || ' chunks, ' || coalesce(sum(length(c.bytes)), 0)
       || ' of ' || h.bytes || ' bytes' AS detail
FROM log_heads h LEFT JOIN log_chunks c ON c.trial_id = h.trial_id AND c.fence = h.fence
WHERE h.closed
GROUP BY h.trial_id, h.fence, h.next_seq, h.bytes
HAVING count(c.seq) <> h.next_seq OR coalesce(max(c.seq), -1) <> h.next_seq - 1
    OR coalesce(sum(length(c.bytes)), 0) <> h.bytes;

-- I10 end_without_log always: an attempt has finished and its log has no end
SELECT a.trial_id::text AS subject, 'fence ' || a.fence AS detail
FROM attempts a WHERE a.state = 'finished' AND NOT EXISTS (
  SELECT 1 FROM log_heads h WHERE h.trial_id = a.trial_id AND h.fence = a.fence AND h.closed);

-- I11 end_not_announced live: a webhook was there when a trial or batch ended and got no message
SELECT t.id::text AS subject, 'trial finished at ' || t.finished_at || ', webhook ' || e.id AS detail
FROM webhook_endpoints e JOIN trials t ON t.tenant_id = e.tenant_id
WHERE e.deleted_at IS NULL AND e.disabled_at IS NULL AND 'trial.finished' = ANY(e.events)
  AND t.finished_at > statement_timestamp() - make_interval(secs => %(window)s)
  -- One that was being added at that moment may have missed it.
  AND t.finished_at > e.enabled_at + make_interval(secs => %(slack)s)
  AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d
                  WHERE d.endpoint_id = e.id AND d.subject_id = t.id AND d.event = 'trial.finished' AND d.url IS NULL)
UNION ALL
SELECT b.id::text, 'batch finished at ' || b.finished_at || ', webhook ' || e.id
FROM webhook_endpoints e JOIN batches b ON b.tenant_id = e.tenant_id
WHERE e.deleted_at IS NULL AND e.disabled_at IS NULL AND 'batch.finished' = ANY(e.events)
  AND b.state = 'finished' AND b.finished_at > statement_timestamp() - make_interval(secs => %(window)s)
  AND b.finished_at > e.enabled_at + make_interval(secs => %(slack)s)
  AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d
                  WHERE d.endpoint_id = e.id AND d.subject_id = b.id AND d.event = 'batch.finished' AND d.url IS NULL);

-- I11 end_announced_twice always: a receiver got two messages about one end, so that it cannot tell them for one
SELECT d.subject_id::text AS subject, count(*) || ' messages to ' || coalesce(d.url, d.endpoint_id::text) AS detail
FROM webhook_deliveries d WHERE d.event = 'trial.finished'
GROUP BY d.subject_id, d.endpoint_id, d.url HAVING count(*) > 1;

-- I11 delivered_without_answer always: a message counts as delivered and its receiver did not say so
SELECT d.id::text AS subject, d.tries || ' tries, last answer ' || coalesce(d.last_status::text, 'none') AS detail
FROM webhook_deliveries d
WHERE d.state = 'delivered' AND (d.tries = 0 OR d.last_status IS NULL OR d.last_status NOT BETWEEN 200 AND 299);

-- I11 message_for_nobody live: a message is due to a receiver that was deleted, and nobody has given it up
SELECT d.id::text AS subject, 'webhook ' || e.id || ', deleted at ' || e.deleted_at AS detail
FROM webhook_deliveries d JOIN webhook_endpoints e ON e.id = d.endpoint_id
WHERE d.state = 'pending' AND e.deleted_at IS NOT NULL
  AND greatest(d.next_try_at, e.deleted_at) < statement_timestamp() - make_interval(secs => 60 + %(slack)s);

-- I12 trials_miscounted always: a job has not as many trials as it says, made or yet to be made
SELECT j.id::text AS subject, coalesce(t.n, 0) || ' made, ' || j.tail_count || ' to be made, of ' || j.trial_count AS detail
FROM jobs j LEFT JOIN (
  SELECT job_id, count(*) AS n FROM trials WHERE superseded_by IS NULL GROUP BY job_id) t ON t.job_id = j.id
WHERE coalesce(t.n, 0) + j.tail_count <> j.trial_count;

-- I12 jobs_miscounted always: a batch has not as many jobs and trials as it says
SELECT b.id::text AS subject,
       coalesce(j.n, 0) || ' of ' || b.job_count || ' jobs, ' || coalesce(j.trials, 0) || ' of ' || b.trial_count
       || ' trials' AS detail
FROM batches b LEFT JOIN (
  SELECT batch_id, count(*) AS n, sum(trial_count) AS trials FROM jobs GROUP BY batch_id) j ON j.batch_id = b.id
WHERE coalesce(j.n, 0) <> b.job_count OR coalesce(j.trials, 0) <> b.trial_count;

-- I12 batch_progress_wrong always: the counters of a batch, with what waits in its inbox, are not what its trials say
SELECT b.id::text AS subject, r.outcome || ': ' || r.n || ', counted ' || c.n AS detail
FROM batches b CROSS JOIN LATERAL (VALUES ('passed'), ('failed'), ('error'), ('cancelled'), ('skipped')) AS o(outcome)
CROSS JOIN LATERAL (
  SELECT o.outcome, count(*) AS n FROM trials t
  WHERE t.batch_id = b.id AND t.outcome = o.outcome AND t.superseded_by IS NULL) r
CROSS JOIN LATERAL (
  SELECT coalesce((SELECT (to_jsonb(p) ->> o.outcome)::int FROM batch_progress p WHERE p.batch_id = b.id), 0)
       + (SELECT count(*) FROM batch_inbox i WHERE i.batch_id = b.id AND i.outcome = o.outcome AND i.is_counted) AS n) c
WHERE r.n <> c.n AND b.archiving_at IS NULL;

-- I12 job_progress_wrong always: the counters of a job, with what waits in the inbox, are not what its trials say
SELECT j.id::text AS subject, r.outcome || ': ' || r.n || ', counted ' || c.n AS detail
FROM jobs j JOIN batches b ON b.id = j.batch_id AND b.archiving_at IS NULL
CROSS JOIN LATERAL (VALUES ('passed'), ('failed'), ('error'), ('cancelled'), ('skipped')) AS o(outcome)
CROSS JOIN LATERAL (
  SELECT o.outcome, count(*) AS n FROM trials t
  WHERE t.job_id = j.id AND t.outcome = o.outcome AND t.superseded_by IS NULL) r
CROSS JOIN LATERAL (
  SELECT coalesce((SELECT (to_jsonb(p) ->> o.outcome)::int FROM job_progress p WHERE p.job_id = j.id), 0)
       + (SELECT count(*) FROM batch_inbox i WHERE i.job_id = j.id AND i.outcome = o.outcome AND i.is_counted) AS n) c
WHERE r.n <> c.n;

-- I12 unmet_needs_wrong live: a job's count of unmet needs is not what the jobs it needs say
SELECT d.id::text AS subject, 'stored ' || d.unmet_needs || ', found ' || e.unmet AS detail
FROM jobs d JOIN (
  SELECT n.job_id, count(*) FILTER (WHERE (
    j.trial_count = p.passed + p.failed + p.error + p.cancelled + p.skipped
    AND CASE n.outcome
      WHEN 'finished' THEN true
      WHEN 'passed' THEN p.passed > 0 AND (j.stop = 'first_pass' OR p.failed + p.error + p.cancelled = 0)
      ELSE NOT (p.passed > 0 AND (j.stop = 'first_pass' OR p.failed + p.error + p.cancelled = 0))
           AND p.failed + p.error > 0 END) IS NOT TRUE) AS unmet
  FROM job_needs n JOIN jobs j ON j.id = n.needs_job_id LEFT JOIN job_progress p ON p.job_id = j.id
  GROUP BY n.job_id) e ON e.job_id = d.id
JOIN batches b ON b.id = d.batch_id AND b.archiving_at IS NULL
WHERE d.unmet_needs <> e.unmet;

-- I12 dead_letter_missing always: a trial ended by a failure of ours and is no dead letter
SELECT t.id::text AS subject, t.failure ->> 'code' AS detail
FROM trials t WHERE t.outcome = 'error' AND t.failure ->> 'class' = 'infra' AND t.slots > 0
  AND NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.trial_id = t.id);

-- I13 reservation_left live: an attempt has ended and its budget is still reserved
SELECT a.trial_id::text AS subject, 'fence ' || a.fence || ', ' || a.reserved_cpu_seconds || ' s' AS detail
FROM attempts a
WHERE a.reserved_cpu_seconds IS NOT NULL AND a.charged_at IS NULL
  AND a.finished_at < statement_timestamp() - make_interval(secs => 30 + %(slack)s);

-- I13 blob_use_left always: something that is gone keeps a blob
SELECT u.owner_id::text AS subject, u.digest AS detail
FROM blob_uses u
WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = u.owner_id)
  AND NOT EXISTS (SELECT 1 FROM schedules s WHERE s.id = u.owner_id);

-- I13 counter_left always: something that is gone still has counters, or entries that nobody will count
SELECT p.batch_id::text AS subject, 'batch_progress' AS detail
FROM batch_progress p WHERE NOT EXISTS (SELECT 1 FROM batches b WHERE b.id = p.batch_id)
UNION ALL
SELECT p.job_id::text, 'job_progress' FROM job_progress p WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = p.job_id)
UNION ALL
SELECT i.batch_id::text, 'batch_inbox' FROM batch_inbox i WHERE NOT EXISTS (SELECT 1 FROM batches b WHERE b.id = i.batch_id);

-- I13 session_left live: two sessions of one node are open
SELECT s.node_id::text AS subject, count(*) || ' open sessions' AS detail
FROM worker_sessions s WHERE s.ended_at IS NULL AND s.lease_until > statement_timestamp()
GROUP BY s.node_id HAVING count(*) > 1;

-- I14 trial_not_as_told always: the events of a trial do not lead to its present state
SELECT t.id::text AS subject, t.state || ', last told ' || coalesce(e.to_state, 'nothing') AS detail
FROM trials t LEFT JOIN LATERAL (
  SELECT to_state FROM trial_events e WHERE e.trial_id = t.id AND e.subject = 'trial' ORDER BY n DESC LIMIT 1) e ON true
WHERE t.state IS DISTINCT FROM e.to_state;

-- I14 attempt_not_as_told always: the events of an attempt do not lead to its present state
SELECT a.trial_id::text AS subject,
       'fence ' || a.fence || ': ' || a.state || ', last told ' || coalesce(e.to_state, 'nothing') AS detail
FROM attempts a LEFT JOIN LATERAL (
  SELECT to_state FROM trial_events e
  WHERE e.trial_id = a.trial_id AND e.subject = 'attempt' AND e.fence = a.fence ORDER BY n DESC LIMIT 1) e ON true
WHERE a.state IS DISTINCT FROM e.to_state;

-- I14 story_broken always: an event begins in another state than the one before it ended in
SELECT e.trial_id::text AS subject,
       'event ' || e.n || ' of the ' || e.subject || ': from ' || e.from_state || ' after ' || e.before AS detail
FROM (SELECT trial_id, n, subject, from_state, coalesce(lag(to_state) OVER (
        PARTITION BY trial_id, subject, CASE subject WHEN 'attempt' THEN fence END ORDER BY n), '') AS before
      FROM trial_events) e
WHERE e.from_state <> e.before;

-- I15 member_taken_twice always: a sandbox of a pool was given to more than one create
SELECT e.trial_id::text AS subject, count(*) || ' times' AS detail
FROM sandbox_events e WHERE e.reason = 'POOL_ALLOCATED' GROUP BY e.trial_id HAVING count(*) > 1;

-- I15 warm_and_visible always: somebody sees a sandbox that nobody was given
SELECT s.trial_id::text AS subject, 'visible in pool ' || s.pool_id AS detail
FROM sandbox_sessions s
WHERE s.is_warm AND (s.hidden_at IS NULL OR EXISTS (
  SELECT 1 FROM sandbox_events e WHERE e.trial_id = s.trial_id AND e.reason = 'POOL_ALLOCATED'));

-- I15 pool_over_max always: a member was made though the pool had as many as it may have
SELECT p.id::text AS subject, count(*) || ' members, the last made at ' || max(j.created_at) || ', of ' || p.pool_max AS detail
FROM sandbox_pools p JOIN sandbox_sessions s ON s.pool_id = p.id AND s.ended_at IS NULL
JOIN trials t ON t.id = s.trial_id JOIN jobs j ON j.id = t.job_id
GROUP BY p.id, p.pool_max, p.updated_at HAVING count(*) > p.pool_max AND max(j.created_at) > p.updated_at;

-- I15 member_too_old live: a free member of a pool waits longer than it may
SELECT s.trial_id::text AS subject, 'runs since ' || s.running_at AS detail
FROM sandbox_sessions s
WHERE s.is_warm AND s.state = 'Running'
  AND s.running_at < statement_timestamp() - make_interval(secs => %(pool_age)s + %(slack)s);

-- I15 member_without_pool live: a free member waits for a pool that is gone, or makes something else by now
SELECT s.trial_id::text AS subject, s.state || ' since ' || s.state_at AS detail
FROM sandbox_sessions s
WHERE s.is_warm AND s.state IN ('Pending', 'Running')
  AND s.state_at < statement_timestamp() - make_interval(secs => %(slack)s)
  AND NOT EXISTS (SELECT 1 FROM sandbox_pools p WHERE p.id = s.pool_id AND (
    p.revision = s.pool_revision OR p.updated_at > statement_timestamp() - make_interval(secs => %(slack)s)));

-- I15 member_used_twice always: a sandbox of a pool was given to more than one attempt, or to a create as well
SELECT a.sandbox_name AS subject, count(*) || ' times' AS detail
FROM attempts a WHERE a.sandbox_name IS NOT NULL GROUP BY a.sandbox_name HAVING count(*) > 1
UNION ALL
SELECT a.sandbox_name, 'also to a create' FROM attempts a JOIN sandbox_sessions s ON s.sandbox_name = a.sandbox_name
WHERE a.sandbox_name IS NOT NULL AND EXISTS (
  SELECT 1 FROM sandbox_events e WHERE e.trial_id = s.trial_id AND e.reason = 'POOL_ALLOCATED');

-- I15 given_and_kept always: an attempt has the sandbox of a member that is not over, is another tenant's or of the other form
SELECT a.trial_id::text AS subject, a.sandbox_name || ' is ' || s.state || ' by ' || coalesce(s.end_reason, 'nothing') AS detail
FROM attempts a JOIN sandbox_sessions s ON s.sandbox_name = a.sandbox_name
JOIN trials t ON t.id = s.trial_id JOIN jobs j ON j.id = t.job_id
WHERE a.sandbox_name IS NOT NULL AND (
  s.ended_at IS NULL OR s.end_reason <> 'POOL_GIVEN_TO_JOB' OR s.tenant_id <> a.tenant_id OR s.node_id <> a.node_id
  OR t.state <> 'finished' OR NOT j.spec ? 'job_workdir');

-- I15 given_to_nobody always: a member is over since a job was given it, and no attempt is known to have been
SELECT s.trial_id::text AS subject, s.state_message AS detail
FROM sandbox_sessions s
WHERE s.end_reason = 'POOL_GIVEN_TO_JOB'
  AND NOT EXISTS (SELECT 1 FROM sandboxes b JOIN attempts a ON a.trial_id = b.trial_id AND a.fence = b.fence
                  WHERE b.name = s.sandbox_name AND a.trial_id <> s.trial_id)
  AND EXISTS (SELECT 1 FROM sandboxes b WHERE b.name = s.sandbox_name);

-- I15 job_member_shown always: somebody sees a sandbox that is of the form of jobs
SELECT s.trial_id::text AS subject, s.state AS detail
FROM sandbox_sessions s JOIN trials t ON t.id = s.trial_id JOIN jobs j ON j.id = t.job_id
WHERE s.hidden_at IS NULL AND j.spec ? 'job_workdir';

-- I16 session_missing always: a trial of a live sandbox has no sandbox
SELECT t.id::text AS subject, t.state AS detail
FROM trials t JOIN jobs j ON j.id = t.job_id
WHERE j.kind = 'session' AND NOT EXISTS (SELECT 1 FROM sandbox_sessions s WHERE s.trial_id = t.id);

-- I16 session_ends_early always: a live sandbox is over and its trial is not
SELECT s.trial_id::text AS subject, s.state || ', the trial ' || t.state AS detail
FROM sandbox_sessions s JOIN trials t ON t.id = s.trial_id WHERE s.ended_at IS NOT NULL AND t.state <> 'finished';

-- I16 session_outlives_trial live: the trial of a live sandbox is over and the sandbox is not
SELECT s.trial_id::text AS subject, s.state || ', the trial ended at ' || t.finished_at AS detail
FROM sandbox_sessions s JOIN trials t ON t.id = s.trial_id
WHERE s.ended_at IS NULL AND t.finished_at < statement_timestamp() - make_interval(secs => %(slack)s);

-- I16 session_runs_unstarted always: a live sandbox is said to run, and its trial waits or has no node
SELECT s.trial_id::text AS subject, s.state || ', the trial ' || t.state AS detail
FROM sandbox_sessions s JOIN trials t ON t.id = s.trial_id
WHERE s.state IN ('Running', 'Pausing', 'Paused', 'Resuming')
  AND (t.state NOT IN ('running', 'cancelling', 'finished') OR s.node_id IS NULL OR s.sandbox_name IS NULL);

-- I16 session_runs_without_attempt always: a live sandbox is said to run, its trial does, and no attempt of it runs
SELECT s.trial_id::text AS subject, s.state || ', the trial ' || t.state AS detail
FROM sandbox_sessions s JOIN trials t ON t.id = s.trial_id AND t.state IN ('running', 'cancelling')
WHERE s.state IN ('Running', 'Pausing', 'Paused', 'Resuming') AND NOT EXISTS (
  SELECT 1 FROM attempts a WHERE a.trial_id = s.trial_id AND a.fence = t.fence
    AND a.state IN ('running', 'stopping', 'collecting'));

-- I16 session_stuck live: a live sandbox is on its way to another state for long
SELECT s.trial_id::text AS subject, s.state || ' since ' || s.state_at AS detail
FROM sandbox_sessions s
WHERE s.state IN ('Pausing', 'Resuming', 'Stopping')
  AND s.state_at < statement_timestamp() - make_interval(secs => 60 + %(slack)s);

-- I16 session_hidden_alive always: a live sandbox that somebody was given is said not to be there, and lives
SELECT s.trial_id::text AS subject, s.state AS detail
FROM sandbox_sessions s WHERE s.hidden_at IS NOT NULL AND s.ended_at IS NULL AND NOT s.is_warm;

-- I16 session_expired live: the time of a live sandbox is over and nobody ends it
SELECT s.trial_id::text AS subject, s.state || ', expired at ' || s.expires_at AS detail
FROM sandbox_sessions s
WHERE s.hidden_at IS NULL AND s.state <> 'Stopping'
  AND s.expires_at < statement_timestamp() - make_interval(secs => 10 + %(slack)s);

-- I16 session_not_as_told always: the events of a live sandbox do not tell of its acceptance and its present state
SELECT s.trial_id::text AS subject, s.state || ' by ' || coalesce(s.state_reason, 'nothing') AS detail
FROM sandbox_sessions s
WHERE NOT EXISTS (SELECT 1 FROM sandbox_events e WHERE e.trial_id = s.trial_id AND e.reason = 'SANDBOX_ACCEPTED')
   OR (s.state <> 'Pending' AND NOT EXISTS (
         SELECT 1 FROM sandbox_events e WHERE e.trial_id = s.trial_id AND e.reason = s.state_reason))
   OR (s.ended_at IS NOT NULL AND (SELECT count(*) FROM sandbox_events e WHERE e.trial_id = s.trial_id
                                   AND e.reason = s.end_reason AND e.at >= s.ended_at) = 0);

-- I16 session_end_untold always: a live sandbox is over, and it is not said why or by whom
SELECT s.trial_id::text AS subject, s.state AS detail
FROM sandbox_sessions s WHERE s.ended_at IS NOT NULL AND (s.end_reason IS NULL OR s.ended_by IS NULL);
