"""Run by the interpreter of ROCK's environment: its own operator and backend, against the server of its arguments."""

import asyncio
import io
import json
import sys

from fakeredis import aioredis
from fastapi import UploadFile
from rock.actions.sandbox.response import State
from rock.admin.core.redis_key import alive_sandbox_key
from rock.admin.proto.request import (
    SandboxBashAction,
    SandboxCommand,
    SandboxCreateBashSessionRequest,
    SandboxReadFileRequest,
    SandboxWriteFileRequest,
)
from rock.config import OpenSandboxConfig
from rock.deployments.config import DockerDeploymentConfig
from rock.rocklet.exceptions import CommandTimeoutError, NonZeroExitCodeError
from rock.sandbox.operator.opensandbox.client import OpenSandboxClient
from rock.sandbox.operator.opensandbox.operator import OpenSandboxOperator
from rock.sandbox.service.backends.opensandbox import OpenSandboxBackend
from rock.utils.providers import RedisProvider

NAME = "rock-1"
START_SECONDS = 60


async def started(operator, redis, deployment):
    """Start a sandbox as ROCK's service does, and ask until it runs."""
    info = await operator.submit(deployment, {"user_id": "u", "experiment_id": "e", "namespace": "n"})
    await redis.json_set(alive_sandbox_key(NAME), "$", {**info, "state": str(info["state"])})
    for _ in range(START_SECONDS * 5):
        now = await operator.get_status(NAME)
        if now is not None and now["state"] == State.RUNNING:
            return now
        await asyncio.sleep(0.2)
    raise TimeoutError(f"it does not run: {now}")


async def seen_failure(kind, awaitable):
    """Give what it raises, which has to be of this kind."""
    try:
        await awaitable
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


async def use(backend, info):
    """Do what ROCK can have done by this kind of backend; give what came of it."""

    async def sh(text, **options):
        done = await backend.execute(
            NAME, info, SandboxCommand(sandbox_id=NAME, command=text, shell=True, **options)
        )
        return [done.exit_code, done.stdout, done.stderr]

    async def in_session(text, **options):
        action = SandboxBashAction(sandbox_id=NAME, command=text, session="s", **options)
        done = await backend.run_session(NAME, info, session, action)
        return [done.exit_code, done.output]

    found = {
        "command": await sh("echo out; echo err >&2; exit 3"),
        "folder and variables": await sh('pwd; echo "$X"', cwd="/tmp", env={"X": "a b"}),
        "argv": (
            await backend.execute(
                NAME, info, SandboxCommand(sandbox_id=NAME, command=["printf", "%s", "a  b"])
            )
        ).stdout,
        "checked": await seen_failure(NonZeroExitCodeError, sh("exit 4", check=True)),
        "too long": await seen_failure(CommandTimeoutError, sh("sleep 60", timeout=1)),
    }
    wanted = SandboxCreateBashSessionRequest(sandbox_id=NAME, session="s", env={"Y": "of the session"})
    session, _ = await backend.create_session(NAME, info, wanted)
    found["session"] = [await in_session("cd /tmp; Z=1; echo $Y"), await in_session("pwd; echo $Z")]
    found["session too long"] = await seen_failure(CommandTimeoutError, in_session("sleep 60", timeout=1))
    await backend.close_session(NAME, info, session)
    await backend.write_file(
        NAME, info, SandboxWriteFileRequest(sandbox_id=NAME, path="/tmp/dir/f", content="written\n")
    )
    await backend.upload(NAME, info, UploadFile(io.BytesIO(b"sent\0"), filename="x"), "/tmp/dir/g")
    read = await backend.read_file(NAME, info, SandboxReadFileRequest(sandbox_id=NAME, path="/tmp/dir/f"))
    found["files"] = [
        read.content,
        (await sh("cat /tmp/dir/f; wc -c < /tmp/dir/g; stat -c %a /tmp/dir/f"))[1],
    ]
    endpoint = await backend.get_endpoint(NAME, info, 8080)
    found["endpoint"] = endpoint.endpoint
    return found


async def main(domain, key, image, proxied):
    """Live a sandbox's whole life, and print what was seen as one JSON object."""
    config = OpenSandboxConfig(
        endpoint=domain, api_key=key, protocol="http", use_server_proxy=proxied == "proxied"
    )
    redis = RedisProvider(host=None, port=None, password="")
    redis.client = aioredis.FakeRedis(decode_responses=True)
    operator = OpenSandboxOperator(config, redis)
    backend = OpenSandboxBackend(OpenSandboxClient(config))
    deployment = DockerDeploymentConfig(
        image=image, cpus=0.5, memory="256m", container_name=NAME, startup_timeout=120
    )
    info = await started(operator, redis, deployment)
    try:
        found = await use(backend, info)
    finally:
        await operator.delete(deployment)
    found["status at the end"] = await operator.get_status(NAME)
    await backend.aclose()
    print(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
