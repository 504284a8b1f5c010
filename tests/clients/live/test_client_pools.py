"""Pools of the published client: it keeps sandboxes of its own ready, also by Redis. mark.docker"""

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

pytestmark = pytest.mark.one_a_day("server")

PROGRAM = textwrap.dedent(
    """
    import os, sys, time
    from datetime import timedelta
    from opensandbox.config.connection_sync import ConnectionConfigSync
    from opensandbox.pool_types import PoolConfig, PoolCreationSpec
    from opensandbox.sync.pool import SandboxPoolSync

    kind, image, mark, redis_url = sys.argv[1:5]
    if kind == "redis":
        import redis
        from opensandbox.pool_redis import RedisPoolStateStore
        store = RedisPoolStateStore(redis.Redis.from_url(redis_url))
    else:
        from opensandbox import InMemoryPoolStateStore
        store = InMemoryPoolStateStore()
    config = ConnectionConfigSync(domain=os.environ["OPEN_SANDBOX_DOMAIN"],
                                  api_key=os.environ["OPEN_SANDBOX_API_KEY"], disable_metrics=True)
    pool = SandboxPoolSync(pool_name=mark, max_idle=2, state_store=store, connection_config=config,
                           creation_spec=PoolCreationSpec(image=image, entrypoint=["tail", "-f", "/dev/null"],
                                                          metadata={"mark": mark}))
    pool.start()
    deadline = time.monotonic() + 60
    while pool.snapshot().idle_count < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    print("idle", pool.snapshot().idle_count, flush=True)
    box = pool.acquire(sandbox_timeout=timedelta(minutes=5))
    print("said", box.commands.run("echo from the pool").text, flush=True)
    box.kill()
    pool.release_all_idle()
    pool.shutdown()
    pool.release_all_idle()
    print("done", flush=True)
    """
)


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_a_pool_of_the_client(server: LiveServer, tmp_path: Path, kind: str) -> None:
    programs, mark = client_environment("requirements.lock"), f"pool-{uuid.uuid4().hex[:12]}"
    script = tmp_path / "pool.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [programs / "python", script, kind, server.image, mark, server.redis_url],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **server.variables},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert done.stdout.splitlines()[:2] == ["idle 2", "said from the pool"]

    with live_client("sync", server) as client, client.managed() as manager:
        mine = SandboxFilter(metadata={"mark": mark})
        wait_for(lambda: manager.list_sandbox_infos(mine).sandbox_infos == [])
