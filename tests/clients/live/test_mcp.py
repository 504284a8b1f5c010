"""The published MCP server, each of its tools, by a real MCP client over stdio. mark.docker"""

import json
import os
import subprocess
import textwrap
from pathlib import Path

from tests.support.client_environment import client_environment
from tests.support.live import LiveServer

PROGRAM = textwrap.dedent(
    """
    import asyncio, json, os, sys
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server, image = sys.argv[1:3]

    async def main():
        parameters = StdioServerParameters(command=server, args=[], env=dict(os.environ))
        async with stdio_client(parameters) as (reads, writes), ClientSession(reads, writes) as session:
            await session.initialize()
            called = {}
            names = {tool.name for tool in (await session.list_tools()).tools}

            async def call(name, **arguments):
                answer = await session.call_tool(name, arguments)
                is_error = getattr(answer, "is_error", None) or getattr(answer, "isError", False)
                text = "".join(getattr(part, "text", "") for part in answer.content)
                assert not is_error, (name, text)
                called[name] = text
                return text

            box = json.loads(await call("sandbox_create", image=image, entrypoint=["tail", "-f", "/dev/null"],
                                        env={"A": "B"}, metadata={"by": "mcp"}))
            box = box.get("sandbox_id") or box["id"]
            await call("sandbox_connect", sandbox_id=box)
            await call("sandbox_get_info", sandbox_id=box)
            await call("sandbox_list")
            await call("sandbox_renew", sandbox_id=box, timeout_seconds=900)
            await call("sandbox_get_metrics", sandbox_id=box)
            await call("sandbox_healthcheck", sandbox_id=box)
            await call("sandbox_get_endpoint", sandbox_id=box, port=8080)
            said = await call("command_run", sandbox_id=box, command="echo $A")
            started = json.loads(await call("command_run", sandbox_id=box, command="sleep 60", background=True))
            await call("command_interrupt", sandbox_id=box, execution_id=started.get("id") or started["execution_id"])
            await call("file_create_directories", sandbox_id=box, entries=[{"path": "/tmp/m", "mode": 755}])
            await call("file_write", sandbox_id=box, path="/tmp/m/a", content="old text", mode=644)
            await call("file_replace_contents", sandbox_id=box,
                       entries=[{"path": "/tmp/m/a", "old_content": "old", "new_content": "new"}])
            await call("file_move", sandbox_id=box, entries=[{"src": "/tmp/m/a", "dest": "/tmp/m/b"}])
            await call("file_search", sandbox_id=box, path="/tmp/m", pattern="*")
            await call("file_read", sandbox_id=box, path="/tmp/m/b")
            await call("file_delete", sandbox_id=box, paths=["/tmp/m/b"])
            await call("file_delete_directories", sandbox_id=box, paths=["/tmp/m"])
            await call("sandbox_kill", sandbox_id=box)
            print(json.dumps({"left": sorted(names - set(called)), "called": called, "said": said}))

    asyncio.run(main())
    """
)


def test_every_tool(server: LiveServer, tmp_path: Path) -> None:
    programs = client_environment("requirements.lock")
    script = tmp_path / "tools.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [programs / "python", script, programs / "opensandbox-mcp", server.image],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "OPENSANDBOX_DISABLE_METRICS": "1",
            **server.variables,
        },
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["left"] == []
    called = told["called"]
    said = json.loads(told["said"])
    assert ([part["text"] for part in said["logs"]["stdout"]], said["exit_code"]) == (["B\n"], 0)
    assert "new text" in called["file_read"]
    assert "/tmp/m/b" in called["file_search"]
    assert "true" in called["sandbox_healthcheck"].lower()
