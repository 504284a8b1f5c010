"""Where trials go, what is kept free for them, and who has to make room."""

from psycopg.types.json import Jsonb

from services.dispatch import Dispatcher, DispatchPolicy
from services.preemption import Preemptor
from tests.support.queue import QueueWorld, make_spec

OLD = "UPDATE trials SET queued_at = now() - interval '2 minutes' WHERE id = %(id)s"


def with_policy(world: QueueWorld, **changes) -> None:
    values = {"slots_per_tick": 100, "rering_seconds": 2.0, "claim_timeout_seconds": 30.0, **changes}
    world.dispatcher = Dispatcher(world.engine, world.bells, DispatchPolicy(**values))


def node_of(world: QueueWorld, trial):
    return {bell.trial_id: bell.node_id for bell in world.bells.rung}.get(trial)


def test_labels_and_gpus_decide_where_a_trial_can_go(world: QueueWorld):
    tenant = world.tenant()
    plain = world.session()
    labelled = world.session(labels={"zone": "a", "disk": "ssd"}, gpu=2)
    (zone,) = world.trials(tenant, 1, node_labels=Jsonb({"zone": "a"}))
    (nowhere,) = world.trials(tenant, 1, node_labels=Jsonb({"zone": "b"}), priority=50)
    (gpu,) = world.trials(tenant, 1, gpu=1)
    (many,) = world.trials(tenant, 1, gpu=2)
    (anywhere,) = world.trials(tenant, 1)
    while world.dispatcher.tick():
        pass
    assert node_of(world, zone) == labelled.node_id
    assert node_of(world, nowhere) is None
    assert (node_of(world, gpu), node_of(world, many)) == (labelled.node_id, None)
    assert node_of(world, anywhere) == plain.node_id


def test_the_node_that_has_the_image_is_taken(world: QueueWorld):
    tenant = world.tenant()
    seats = [world.session(cpu_millicores=cores) for cores in (2000, 64_000)]
    world.execute("UPDATE nodes SET images = '{big:1}' WHERE id = %(id)s", id=seats[1].node_id)
    (trial,) = world.trials(tenant, 1, spec=make_spec(image="big:1"))
    world.dispatcher.tick()
    assert node_of(world, trial) == seats[1].node_id


def test_a_retry_goes_to_another_node_or_waits_a_little_for_one(world: QueueWorld):
    with_policy(world, avoid_node_seconds=30.0)
    first = world.session(slots=8)
    tenant = world.tenant()
    world.trials(tenant, 1)
    world.dispatcher.tick()
    failure = '{"class": "infra", "code": "daemon_error"}'
    assert first.finish(first.claim(world.bells.rung[0]), outcome="error", reason="daemon_error", failure=failure,
                        retry_seconds=0.0, infra_loss=1)  # fmt: skip
    second = world.session(slots=1)
    (other,) = world.trials(tenant, 1, runtime="docker")
    world.execute("UPDATE nodes SET runtimes = '{fake,docker}' WHERE id = %(id)s", id=second.node_id)
    world.dispatcher.tick()
    assert node_of(world, other) == second.node_id
    world.execute(
        "UPDATE trials SET state = 'queued', run_at = NULL, queued_at = now() WHERE state = 'retry_wait'"
    )
    assert world.dispatcher.tick() == 0

    assert second.finish(second.claim(world.bells.rung[-1]))
    assert world.dispatcher.tick() == 1
    assert world.bells.rung[-1].node_id == second.node_id


def test_a_retry_takes_the_same_node_where_there_is_no_other(world: QueueWorld):
    with_policy(world, avoid_node_seconds=30.0)
    seat = world.session(slots=8)
    world.trials(world.tenant(), 1)
    world.dispatcher.tick()
    failure = '{"class": "infra", "code": "daemon_error"}'
    assert seat.finish(seat.claim(world.bells.rung[0]), outcome="error", reason="daemon_error", failure=failure,
                       retry_seconds=0.0, infra_loss=1)  # fmt: skip
    world.execute("UPDATE trials SET state = 'queued', run_at = NULL, queued_at = now()")
    assert world.dispatcher.tick() == 1


def test_a_node_is_kept_for_a_large_trial_that_has_waited_long(world: QueueWorld):
    seat = world.session(slots=8, cpu_millicores=4000)
    tenant = world.tenant()
    world.trials(tenant, 3)
    world.dispatcher.tick()
    (large,) = world.trials(tenant, 1, cpu_millicores=4000)
    world.execute(OLD, id=large)
    small = world.trials(tenant, 5)
    with_policy(world)
    assert world.dispatcher.tick() == 0

    for bell in list(world.bells.rung):
        assert seat.finish(seat.claim(bell))
    while world.dispatcher.tick():
        pass
    assert world.trial(large)["state"] == "running"
    assert {world.trial(trial)["state"] for trial in small} == {"queued"}


def test_part_of_the_slots_is_kept_for_newcomers(world: QueueWorld):
    with_policy(world, newcomer_reserve=0.5)
    world.session(slots=8)
    first, late = world.tenant("first"), world.tenant("late")
    world.trials(first, 20)
    while world.dispatcher.tick():
        pass
    assert world.states(first).count("running") < 8
    (trial,) = world.trials(late, 1)
    world.dispatcher.tick()
    assert world.trial(trial)["state"] == "running"


def test_past_use_counts_against_who_had_more(world: QueueWorld):
    with_policy(world, usage_weight=1.0)
    world.session(slots=4)
    hungry, modest = world.tenant("hungry"), world.tenant("modest")
    world.execute("INSERT INTO tenant_schedule (tenant_id, usage) VALUES (%(id)s, 0.5)", id=hungry)
    for tenant in (hungry, modest):
        world.trials(tenant, 8, cpu_millicores=8000)
    world.dispatcher.tick()
    assert [world.states(tenant).count("running") for tenant in (hungry, modest)] == [0, 4]


def preempt(world: QueueWorld):
    told = {}
    Preemptor(world.engine, told.update, after_seconds=30.0).run()
    return told


def test_a_tenant_below_its_guarantee_takes_a_preemptible_attempt(world: QueueWorld):
    seat = world.session(slots=4, cpu_millicores=4000)
    greedy, owed = world.tenant("greedy"), world.tenant("owed", guaranteed_share=0.5)
    world.trials(greedy, 2)
    preemptible = world.trials(greedy, 2, preemptible=True)
    while world.dispatcher.tick():
        pass
    bells = {bell.trial_id: bell for bell in world.bells.rung}
    claimed = {trial: seat.claim(bell) for trial, bell in bells.items()}
    (waiting,) = world.trials(owed, 1)
    assert preempt(world) == {}

    world.execute(OLD, id=waiting)
    told = preempt(world)
    (victim,) = told[seat.node_id]
    assert victim in preemptible
    assert world.attempt(victim, 1)["desired"] == "preempt"
    assert preempt(world) == {}

    # As the worker ends it: by a failure that uses no budget, and it waits at its old place.
    failure = '{"class": "infra", "code": "preempted"}'
    assert seat.finish(
        claimed[victim], outcome="error", reason="preempted", failure=failure, retry_seconds=0.0
    )
    world.dispatcher.tick()
    assert world.trial(waiting)["state"] == "running"


def test_a_drained_node_gives_back_what_runs_and_what_nobody_claimed(world: QueueWorld):
    seat = world.session(slots=4)
    tenant = world.tenant()
    first, second = world.trials(tenant, 2)
    world.dispatcher.tick()
    bells = {bell.trial_id: bell for bell in world.bells.rung}
    seat.claim(bells[first])
    world.execute("UPDATE nodes SET drained_at = now()")
    assert set(preempt(world)[seat.node_id]) == {first, second}
    world.dispatcher.ring_again()
    assert (world.trial(first)["state"], world.trial(second)["state"]) == ("running", "queued")
    assert world.dispatcher.tick() == 0
