"""Pools of the published client, in both flavours: it keeps sandboxes of its own ready, also by Redis. mark.docker"""

import os
import subprocess
import textwrap
import uuid
from pathlib import Path

import pytest
from opensandbox.models.sandboxes import SandboxFilter

from tests.support.client_environment import client_environment
from tests.support.execd import wait_for
from tests.support.live import LiveServer, live_client

PROGRAM = textwrap.dedent(
    """
    import asyncio, inspect, os, sys, time
    from datetime import timedelta
    import opensandbox, opensandbox.config, opensandbox.config.connection_sync, opensandbox.pool_redis
    import redis, redis.asyncio

    flavour, kind, image, mark, redis_url = sys.argv[1:6]
    pools, redis_client, store_kinds, config_kind = {
        "sync": (("SandboxPoolSync", "SandboxPoolManagerSync"), redis.Redis,
                 ("InMemoryPoolStateStore", "RedisPoolStateStore"),
                 opensandbox.config.connection_sync.ConnectionConfigSync),
        "async": (("SandboxPoolAsync", "SandboxPoolManagerAsync"), redis.asyncio.Redis,
                  ("InMemoryAsyncPoolStateStore", "AsyncRedisPoolStateStore"),
                  opensandbox.config.ConnectionConfig),
    }[flavour]
    pool_kind, manager_kind = (getattr(opensandbox, name) for name in pools)

    def new_store():
        if kind == "redis":
            return getattr(opensandbox.pool_redis, store_kinds[1])(redis_client.from_url(redis_url))
        return getattr(opensandbox, store_kinds[0])()

    def new_config():
        return config_kind(domain=os.environ["OPEN_SANDBOX_DOMAIN"], api_key=os.environ["OPEN_SANDBOX_API_KEY"],
                           disable_metrics=True)

    async def done(result):
        return await result if inspect.isawaitable(result) else result

    async def filled(pool):
        deadline = time.monotonic() + 60
        while (await done(pool.snapshot())).idle_count < 2 and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return (await done(pool.snapshot())).idle_count

    async def main():
        store = new_store()
        spec = opensandbox.PoolCreationSpec(image=image, entrypoint=["tail", "-f", "/dev/null"],
                                            metadata={"mark": mark})

        def new_pool(name):
            return pool_kind(pool_name=name, max_idle=2, state_store=store, connection_config=new_config(),
                             creation_spec=spec)

        pool = new_pool(mark)
        await done(pool.start())
        print("idle", await filled(pool), flush=True)
        box = await done(pool.acquire(sandbox_timeout=timedelta(minutes=5)))
        print("said", (await done(box.commands.run("echo from the pool"))).text, flush=True)
        await done(box.kill())
        await done(pool.release_all_idle())
        await done(pool.shutdown())
        await done(pool.release_all_idle())

        # One whose owner has gone: what it kept ready is left for a manager.
        left = new_pool(mark + "-left")
        await done(left.start())
        await filled(left)
        await done(left.shutdown())
        manager = manager_kind(state_store=store, connection_config=new_config())
        result = await done(manager.destroy(mark + "-left"))
        again = await done(manager.destroy(mark + "-left"))
        print("destroyed", result.state.name, result.drained_idle_count, result.killed_idle_count, flush=True)
        print("again", again.state.name, again.drained_idle_count, flush=True)

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_a_pool_of_the_client(server: LiveServer, tmp_path: Path, kind: str, flavour: str) -> None:
    programs, mark = client_environment("requirements.lock"), f"pool-{uuid.uuid4().hex[:12]}"
    script = tmp_path / "pool.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [programs / "python", script, flavour, kind, server.image, mark, server.redis_url],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **server.variables},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.splitlines() == [
        "idle 2",
        "said from the pool",
        "destroyed DESTROYED 2 2",
        "again DESTROYED 0",
    ]

    with live_client("sync", server) as client, client.managed() as manager:
        mine = SandboxFilter(metadata={"mark": mark})
        wait_for(lambda: manager.list_sandbox_infos(mine).sandbox_infos == [])
