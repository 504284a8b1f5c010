"""The protocol's published first example, as far as commands and files go. mark.docker"""

import asyncio
from datetime import timedelta

from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.models.filesystem import WriteEntry

from tests.support.live import LiveServer


def test_the_first_example(server: LiveServer) -> None:
    async def example() -> tuple[str, str]:
        config = ConnectionConfig(domain=server.domain, api_key=server.key)
        sandbox = await Sandbox.create(
            server.image,
            entrypoint=["tail", "-f", "/dev/null"],
            env={"PYTHON_VERSION": "3.11"},
            timeout=timedelta(minutes=10),
            connection_config=config,
        )
        async with sandbox:
            execution = await sandbox.commands.run("echo 'Hello OpenSandbox!'")
            said = execution.logs.stdout[0].text
            await sandbox.files.write_files([WriteEntry(path="/tmp/hello.txt", data="Hello World", mode=644)])
            content = await sandbox.files.read_file("/tmp/hello.txt")
            await sandbox.kill()
        return said, content

    said, content = asyncio.run(example())
    assert (said.rstrip("\n"), content) == ("Hello OpenSandbox!", "Hello World")
