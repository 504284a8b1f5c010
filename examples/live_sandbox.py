"""Open a live sandbox with the published OpenSandbox client: a command, files, a server inside, a pause, a snapshot.

    pip install opensandbox
    OPEN_SANDBOX_DOMAIN=127.0.0.1:8080 OPEN_SANDBOX_API_KEY=sm_… python -m examples.live_sandbox

Nothing here is of Sandmill: the same program runs against any server of the protocol. Its server inside and its
snapshot need one that runs as root, if its runtime is `local`.
"""

import time
from datetime import timedelta

import httpx
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import WriteEntry
from opensandbox.sync import SandboxManagerSync, SandboxSync

KEEP_ALIVE = ["tail", "-f", "/dev/null"]


def main() -> None:
    """Go through it once; what it leaves behind is removed in the end."""
    sandbox = SandboxSync.create(
        "host", entrypoint=KEEP_ALIVE, env={"GREETING": "hello"}, timeout=timedelta(minutes=10)
    )
    with sandbox, SandboxManagerSync.create() as manager:
        print("command:", sandbox.commands.run('echo "$GREETING from $(uname -s)"').text)
        sandbox.files.write_files([WriteEntry(path="/tmp/index.html", data="served from inside\n", mode=644)])
        sandbox.commands.run(
            "python3 -m http.server 8080 --directory /tmp", opts=RunCommandOpts(background=True)
        )
        print("port:", fetch(sandbox, 8080))
        sandbox.pause()
        again = SandboxSync.resume(sandbox.id)
        print("after a pause:", fetch(again, 8080))
        snapshot = again.create_snapshot("with-index")
        while manager.get_snapshot(snapshot.id).status.state == "Creating":
            time.sleep(0.05)
        again.kill()
        with SandboxSync.create(snapshot_id=snapshot.id) as restored:
            print("restored:", restored.files.read_file("/tmp/index.html").strip())
            restored.kill()
        manager.delete_snapshot(snapshot.id)


def fetch(sandbox: SandboxSync, port: int) -> str:
    """Get the page of a server inside, once it listens."""
    endpoint = sandbox.get_endpoint(port)
    for _ in range(100):
        answer = httpx.get(f"http://{endpoint.endpoint}/", headers=endpoint.headers)
        if answer.status_code == 200:
            return answer.text.strip()
        time.sleep(0.1)
    raise SystemExit(f"nothing listens on port {port}: {answer.text}")


if __name__ == "__main__":
    main()
