"""Where sandboxes are, asked of a real database."""

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest

from core.database import create_database_engine
from core.errors import NotFoundError, UnavailableError
from models.live_sandboxes import WireState
from services.sandbox_directory import DatabaseDirectory, SandboxEndedError
from services.wake import Wake
from tests.support.invariants import SANDBOXES_BY_HAND
from tests.support.statements import noting_statements

pytestmark = SANDBOXES_BY_HAND

INSERT = """
INSERT INTO sandbox_sessions (trial_id, tenant_id, entrypoint, access_token, node_id, runtime, sandbox_name,
                              state, is_secure, expires_at, ended_at, hidden_at)
VALUES (%(id)s, %(tenant)s, '{}', 'token', %(node)s, 'local', 'sm-x', %(state)s, true,
        clock_timestamp() + make_interval(secs => %(seconds)s::float8),
        CASE WHEN %(state)s IN ('Terminated', 'Failed') THEN clock_timestamp() END,
        CASE WHEN %(hidden)s THEN clock_timestamp() END)
"""


@pytest.fixture
def node(world) -> UUID:
    node = world.session().node_id
    world.execute("UPDATE nodes SET ingress_url = 'http://10.0.0.1:28888' WHERE id = %(id)s", id=node)
    return node


class Lookups:
    def __init__(self, statements: list[str]):
        self._statements = statements

    def __len__(self) -> int:
        return sum("FROM sandbox_sessions s" in sql for sql in self._statements)


@pytest.fixture
def lookups():
    """Statements that looked a sandbox up."""
    with noting_statements() as statements:
        yield Lookups(statements)


def add(world, node, *, state="Running", seconds=3600.0, hidden=False) -> UUID:
    tenant = world.tenant(f"acme-{uuid4()}")
    (trial,) = world.trials(tenant)
    values = {"tenant": tenant, "node": node, "state": state, "seconds": seconds, "hidden": hidden}
    world.execute(INSERT, id=trial, **values)
    return trial


@asynccontextmanager
async def opened(engine, **options):
    directory = DatabaseDirectory(engine, **options)
    try:
        yield directory
    finally:
        await directory.aclose()


def test_a_running_sandbox_is_told_whole_and_looked_up_once(world, node, lookups):
    sandbox = add(world, node)

    async def run():
        async with opened(world.engine) as directory:
            targets = await asyncio.gather(*[directory.resolve(sandbox) for _ in range(5)])
            return [*targets, await directory.resolve(sandbox)]

    first, *others = asyncio.run(run())
    assert set(others) == {first}
    assert (first.id, first.state, first.access_token, first.is_secure) == (
        sandbox,
        WireState.RUNNING,
        "token",
        True,
    )
    assert (first.node_id, first.runtime, first.sandbox_name) == (node, "local", "sm-x")
    assert first.ingress_url == "http://10.0.0.1:28888"
    assert len(lookups) == 1


@pytest.mark.parametrize(
    "changes",
    [{"state": "Terminated"}, {"state": "Failed"}, {"hidden": True}, {"seconds": -0.01}],
    ids=lambda changes: next(iter(changes)),
)
def test_one_that_has_ended_is_hidden_or_is_over_is_not_there(world, node, changes):
    sandbox = add(world, node, **changes)

    async def run(which):
        async with opened(world.engine) as directory:
            await directory.resolve(which)

    for which in (sandbox, uuid4()):
        with pytest.raises(NotFoundError):
            asyncio.run(run(which))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"state": "Failed"}, "Failed (BAD_IMAGE: no such image)"),
        ({"state": "Failed", "hidden": True}, "Failed (BAD_IMAGE: no such image)"),
        ({"state": "Failed", "seconds": -0.01}, "Failed (BAD_IMAGE: no such image)"),
        ({"state": "Terminated", "hidden": True}, "Terminated (BAD_IMAGE: no such image)"),
        ({"state": "Running", "seconds": -0.01}, "Terminated (SANDBOX_EXPIRED)"),
    ],
)
def test_what_has_become_of_one_that_has_ended_is_told_with_whose_it_was(world, node, changes, told):
    sandbox = add(world, node, **changes)
    sql = """UPDATE sandbox_sessions SET state_reason = 'BAD_IMAGE', state_message = 'no such image'
             WHERE trial_id = %(id)s RETURNING tenant_id"""
    (row,) = world.execute(sql, id=sandbox)

    async def run():
        async with opened(world.engine) as directory:
            await directory.resolve(sandbox)

    with pytest.raises(SandboxEndedError) as caught:
        asyncio.run(run())
    assert caught.value.told == f"sandbox {sandbox} has ended, it is {told}"
    assert (caught.value.tenant_id, caught.value.access_token) == (row["tenant_id"], "token")
    assert caught.value.message == f"no sandbox {sandbox}"


def test_a_member_of_a_pool_that_was_given_to_nobody_has_never_been_there(world, node):
    sandbox = add(world, node, state="Failed", hidden=True)
    sql = "UPDATE sandbox_sessions SET is_warm = true, pool_id = trial_id, pool_revision = 1 WHERE trial_id = %(id)s"
    world.execute(sql, id=sandbox)

    async def run():
        async with opened(world.engine) as directory:
            await directory.resolve(sandbox)

    with pytest.raises(NotFoundError) as caught:
        asyncio.run(run())
    assert type(caught.value) is NotFoundError


def test_one_that_does_not_run_is_asked_for_each_time(world, node, lookups):
    sandbox = add(world, node, state="Paused")

    async def run():
        async with opened(world.engine) as directory:
            await directory.resolve(sandbox)
            world.execute("UPDATE sandbox_sessions SET state = 'Running' WHERE trial_id = %(id)s", id=sandbox)
            return await directory.resolve(sandbox)

    assert asyncio.run(run()).state is WireState.RUNNING
    assert len(lookups) == 2


def test_what_is_remembered_ends_with_its_time_and_with_that_of_the_sandbox(world, node, lookups):
    lasting, short = add(world, node), add(world, node, seconds=2.0)
    now = [0.0]

    async def run():
        async with opened(world.engine, keep_seconds=5.0, monotonic=lambda: now[0]) as directory:
            for second, sandbox, count in (
                (0, lasting, 1),
                (4.9, lasting, 1),
                (5, lasting, 2),
                (5, short, 3),
                (6.5, short, 3),
                (7.1, short, 4),
            ):
                now[0] = second
                await directory.resolve(sandbox)
                assert len(lookups) == count, (second, count)

    asyncio.run(run())


def test_a_change_is_heard_at_once(world, node, redis_url):
    sandbox = add(world, node)
    client = Wake.connect(redis_url)

    async def run():
        async with opened(world.engine, keep_seconds=600.0) as directory:
            directory.listen(redis_url)
            assert (await directory.resolve(sandbox)).state is WireState.RUNNING
            world.execute("UPDATE sandbox_sessions SET state = 'Paused' WHERE trial_id = %(id)s", id=sandbox)
            async with asyncio.timeout(10):
                while (await directory.resolve(sandbox)).state is WireState.RUNNING:
                    # Until it is subscribed nobody hears.
                    Wake(client).sandbox(sandbox)
                    await asyncio.sleep(0.01)

    asyncio.run(run())
    client.close()


def test_what_has_just_begun_to_run_is_told_with_its_node(world, node, redis_url):
    sandbox, other = add(world, node), add(world, node)
    client = Wake.connect(redis_url)
    started: list[tuple[UUID, UUID]] = []

    async def run():
        async with opened(world.engine) as directory:
            directory.listen(redis_url, on_start=lambda *ids: started.append(ids))
            async with asyncio.timeout(10):
                while not started:
                    Wake(client).sandbox(other)  # it has changed, and that is all
                    Wake(client).sandbox(sandbox, started_on=node)
                    await asyncio.sleep(0.01)

    asyncio.run(run())
    client.close()
    assert set(started) == {(sandbox, node)}


def test_an_answer_from_before_a_change_is_not_remembered(world, node, lookups):
    sandbox = add(world, node)

    async def run():
        async with opened(world.engine) as directory:
            asking = asyncio.create_task(directory.resolve(sandbox))
            await asyncio.sleep(0)
            directory.forget(sandbox)
            await asking
            await directory.resolve(sandbox)

    asyncio.run(run())
    assert len(lookups) == 2


def test_who_leaves_does_not_take_the_answer_along(world, node, lookups):
    sandbox = add(world, node)

    async def run():
        async with opened(world.engine) as directory:
            leaving = asyncio.create_task(directory.resolve(sandbox))
            staying = asyncio.create_task(directory.resolve(sandbox))
            await asyncio.sleep(0)
            leaving.cancel()
            return await staying

    assert asyncio.run(run()).id == sandbox
    assert len(lookups) == 1


def test_a_database_that_is_away_is_unavailable():
    engine = create_database_engine("postgresql://u:p@127.0.0.1:1/none", actor="test", pool_size=1)

    async def run():
        async with opened(engine) as directory:
            await directory.resolve(uuid4())

    with pytest.raises(UnavailableError):
        asyncio.run(run())
    engine.dispose()
