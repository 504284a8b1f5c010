"""Clients that make and end many things in one process leave nothing open (B-149). mark.docker"""

import json
import subprocess
import sys

import pytest

from tests.support.live import ENTRYPOINT, LiveServer

TIMES = 30
WARM_UP = 3
"""What a process opens once it opens within so many rounds."""

ROUNDS = """
import gc, json, os, sys

def count():
    gc.collect()  # what is only not referred to any more counts as closed, but its warning is an error
    return len(os.listdir("/proc/self/fd"))

def rounds(one, times, warm_up):
    counts = []
    for number in range(times):
        one(number)
        counts.append(count())
    print(json.dumps(counts[warm_up:]))

asked = json.loads(sys.argv[1])
"""

PUBLISHED = """
from datetime import timedelta
from opensandbox.config.connection_sync import ConnectionConfigSync
from opensandbox.sync import SandboxSync

def one(number):
    config = ConnectionConfigSync(domain=asked["domain"], api_key=asked["key"], disable_metrics=True)
    made = SandboxSync.create(
        asked["image"], entrypoint=asked["entrypoint"], timeout=timedelta(minutes=5), connection_config=config
    )
    if number % 2:
        with made:
            made.kill()
    else:
        made.kill()
        made.close()
"""

PUBLISHED_ASYNC = """
import asyncio
from datetime import timedelta
from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig

async def make_and_kill(number):
    config = ConnectionConfig(domain=asked["domain"], api_key=asked["key"], disable_metrics=True)
    made = await Sandbox.create(
        asked["image"], entrypoint=asked["entrypoint"], timeout=timedelta(minutes=5), connection_config=config
    )
    if number % 2:
        async with made:
            await made.kill()
    else:
        await made.kill()
        await made.close()

runner = asyncio.Runner()

def one(number):
    runner.run(make_and_kill(number))
"""

OURS = """
from sandmill import Client, Job, Step

def one(number):
    job = Job(key="j", image=asked["image"], runtime=asked["runtime"], steps=[Step("run", "sleep 60")])
    if number % 2:
        with Client(asked["url"], asked["key"]) as client:
            client.cancel(client.submit_job(job).batch_id)
    else:
        client = Client(asked["url"], asked["key"])
        client.cancel(client.submit_job(job).batch_id)
        client.close()
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "client", [PUBLISHED, PUBLISHED_ASYNC, OURS], ids=["published", "asynchronous", "ours"]
)
def test_create_and_kill_leave_no_descriptor_and_no_warning(server: LiveServer, client: str) -> None:
    asked = {
        "url": server.stack.api_url,
        "domain": server.domain,
        "key": server.key,
        "image": server.image,
        "runtime": server.runtime,
        "entrypoint": ENTRYPOINT,
    }
    ending = "runner.close()\n" if client is PUBLISHED_ASYNC else ""
    program = f"{ROUNDS}{client}\nrounds(one, {TIMES}, {WARM_UP})\n{ending}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, json.dumps(asked)],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
    )
    # A warning in a finaliser cannot be raised: it is written instead.
    assert (done.returncode, done.stderr) == (0, "")
    counts = json.loads(done.stdout)
    assert len(counts) == TIMES - WARM_UP
    assert set(counts) == {counts[0]}
