"""The published command line, every command and option of it. mark.docker"""

import ast
import contextlib
import itertools
import json
import os
import signal
import subprocess
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_environment import client_environment
from tests.support.execd import wait_for
from tests.support.live import LiveServer


class Osb:
    """`osb` as a user has it: in an environment and with a home of its own.

    One process takes all commands, since starting the program takes longer than most of what it does; each command is
    parsed and run from its beginning, with an environment of its own.
    """

    def __init__(self, driver: "Driver", server: LiveServer, home: Path) -> None:
        self._driver = driver
        self.server = server
        self._env = {
            "HOME": str(home),
            "OPENSANDBOX_DISABLE_METRICS": "1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
            **server.variables,
        }

    def run(
        self, *words: str, fails: bool = False, stdin: str = "", env: dict[str, str] | None = None
    ) -> str:
        answer = self._driver.ask({"words": words, "stdin": stdin, "env": {**self._env, **(env or {})}})
        assert (answer["code"] != 0) == fails, (words, answer)
        return str(answer["out"] + answer["err"] if fails else answer["out"])

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "-o", "json"))

    @contextlib.contextmanager
    def opened(self, *words: str) -> Iterator[str]:
        """The sandbox that a command makes, killed when the block ends."""
        made = str(self.json(*words)["id"])
        try:
            yield made
        finally:
            self.run("sandbox", "kill", made)

    def refused(self, code: str, *words: str) -> None:
        """A command that the server answers with this error code, and the program tells so."""
        assert code in self.run(*words, fails=True), words

    @contextlib.contextmanager
    def running(self, *words: str) -> Iterator["subprocess.Popen[str]"]:
        """A command that goes on until it is interrupted, in a process of its own."""
        process = subprocess.Popen(
            # By `env`: whoever runs the tests in the background has interrupts ignored, and programs inherit that.
            ["env", "--default-signal=INT", client_environment("requirements.lock") / "osb", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"], **self._env},
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


class Driver:
    """A process with the official program, which takes commands by lines."""

    PROGRAM = textwrap.dedent(
        """
        import json, os, sys
        import click
        from click.testing import CliRunner
        from opensandbox_cli.main import cli

        def leaves(command, words):
            if isinstance(command, click.Group):
                return [leaf for name, each in command.commands.items() for leaf in leaves(each, (*words, name))]
            return [[words, [each.opts for each in command.params if isinstance(each, click.Option)]]]

        kept = dict(os.environ)
        for line in sys.stdin:
            asked = json.loads(line)
            os.environ.clear()
            os.environ.update(kept, **asked["env"])
            if "words" not in asked:
                print(json.dumps(leaves(cli, ())), flush=True)
                continue
            result = CliRunner().invoke(cli, asked["words"], input=asked["stdin"])
            answer = {"code": result.exit_code, "out": result.stdout, "err": result.stderr}
            print(json.dumps(answer), flush=True)
        """
    )

    def __init__(self, python: Path, folder: Path) -> None:
        self._process = subprocess.Popen(
            [python, "-c", self.PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            # The program looks up some paths in the home folder once, when it is loaded.
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        )

    def commands(self) -> dict[tuple[str, ...], list[list[str]]]:
        """All commands that the program has: their words, and the names of each of their options."""
        return {tuple(words): options for words, options in self.ask({"env": {}})}

    def ask(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the program ended with {self._process.wait()}"
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("osb")
    made = Driver(client_environment("requirements.lock") / "python", folder)
    yield made
    made.close()


@pytest.fixture
def osb(driver: Driver, server: LiveServer, tmp_path: Path) -> Osb:
    return Osb(driver, server, tmp_path)


@pytest.fixture
def box(osb: Osb) -> Iterator[str]:
    made = osb.json(
        *("sandbox", "create", "-i", osb.server.image, "-t", "10m", "-e", "GREETING=hi", "-m", "team=a"),
        *("--entrypoint", "tail", "--entrypoint", "-f", "--entrypoint", "/dev/null"),
    )
    yield made["id"]
    osb.run("sandbox", "kill", made["id"])


def test_sandbox_commands(osb: Osb, box: str) -> None:
    assert osb.json("sandbox", "get", box)["status"]["state"] == "Running"
    assert box in osb.run("sandbox", "list", "-m", "team=a", "-s", "Running", "-o", "json")
    page = osb.json("sandbox", "list", "--page", "1", "--page-size", "1", "-m", "team=a")
    assert [each["id"] for each in page["items"]] == [box]
    assert page["pagination"]["page_size"] == 1
    assert "44772" in osb.run("sandbox", "endpoint", box, "-p", "44772", "-o", "json")
    assert "true" in osb.run("sandbox", "health", box, "-o", "json").lower()
    assert "cpu" in osb.run("sandbox", "metrics", box, "-o", "json").lower()
    osb.run("sandbox", "renew", box, "-t", "30m")
    osb.run("sandbox", "pause", box)
    assert osb.json("sandbox", "get", box)["status"]["state"] == "Paused"
    osb.run("sandbox", "resume", box)
    assert osb.json("sandbox", "get", box)["status"]["state"] == "Running"
    osb.run("sandbox", "pause", box)
    osb.run("sandbox", "resume", box, "--skip-health-check", "--resume-timeout", "30s")
    assert osb.run("command", "run", box, "--", "echo", "awake") == "awake\n"


def test_metrics_are_watched_until_an_interrupt(osb: Osb, box: str) -> None:
    with osb.running("sandbox", "metrics", box, "--watch") as watching:
        assert watching.stdout is not None
        for line in itertools.islice(watching.stdout, 2):
            assert "cpu=" in line
            assert "mem=" in line
        watching.send_signal(signal.SIGINT)
        watching.wait(timeout=30)


def test_a_sandbox_by_a_file(osb: Osb, tmp_path: Path) -> None:
    asked = tmp_path / "asked.json"
    asked.write_text(
        json.dumps(
            {
                "image": {"uri": osb.server.image},
                "timeout": 600,
                "entrypoint": ["tail", "-f", "/dev/null"],
                "env": {"GREETING": "of the file"},
                "metadata": {"from": "file"},
                "resourceLimits": {"cpu": "500m", "memory": "256Mi"},
            }
        )
    )
    with osb.opened("sandbox", "create", "-f", str(asked)) as made:
        assert osb.run("command", "run", made, "--", "printenv", "GREETING") == "of the file\n"
        assert osb.json("sandbox", "get", made)["metadata"] == {"from": "file"}
        assert osb.json("sandbox", "metrics", made)["memory_total_in_mib"] == 256


def test_limits_and_waiting_are_asked_for(osb: Osb) -> None:
    limits = ("--resource", "cpu=500m", "--resource", "memory=128Mi")
    waiting = ("--skip-health-check", "--ready-timeout", "40s")
    with osb.opened("sandbox", "create", "-i", osb.server.image, *limits, *waiting) as made:
        wait_for(lambda: osb.json("sandbox", "get", made)["status"]["state"] == "Running", seconds=60)
        assert osb.json("sandbox", "metrics", made)["memory_total_in_mib"] == 128


def test_a_volume_is_mounted_where_the_runtime_has_volumes(osb: Osb, tmp_path: Path) -> None:
    name = f"sandmill-test-{uuid.uuid4().hex[:12]}"
    asked = tmp_path / "volumes.json"
    asked.write_text(
        json.dumps(
            [{"name": "data", "pvc": {"claimName": name, "createIfNotExists": True}, "mountPath": "/data"}]
        )
    )
    words = ("sandbox", "create", "-i", osb.server.image, "--volumes-file", str(asked))
    if osb.server.runtime == "local":
        osb.refused("VOLUME::UNSUPPORTED_BACKEND", *words)
        return
    try:
        for said in ("none", "first"):
            with osb.opened(*words) as made:
                program = "cat /data/a 2>/dev/null || echo none; echo first >/data/a"
                assert osb.run("command", "run", made, "--", "sh", "-c", program) == f"{said}\n"
    finally:
        wait_for(lambda: _remove_volumes(name), seconds=60)


def _remove_volumes(claim: str) -> bool:
    """Remove what the engine keeps for it, which has more in its name; False: a container still has it."""
    found = _docker("volume", "ls", "-q", "--filter", f"name={claim}").stdout.split()
    assert found, claim
    return _docker("volume", "rm", *found).returncode == 0


def _docker(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["docker", *words], check=False, capture_output=True, text=True)


def test_command_commands(osb: Osb, box: str) -> None:
    assert osb.run("command", "run", box, "--", "sh", "-c", "echo $GREETING; echo b") == "hi\nb\n"
    assert osb.run("command", "run", box, "-w", "/tmp", "--", "pwd") == "/tmp\n"
    osb.run("command", "run", box, "--", "false", fails=True)
    assert osb.run("command", "run", box, "--argv", "--", "printf", "%s|", "a  b", "$HOME") == "a  b|$HOME|\n"
    said = osb.run("command", "run", box, "-t", "1s", "--", "sleep", "60", fails=True)
    assert "CommandTimeoutError" in said
    started = osb.run("command", "run", box, "-d", "-o", "json", "--", "sh", "-c", "echo late; sleep 60")
    execution = json.loads(started)["execution_id"]
    assert json.loads(osb.run("command", "status", box, execution, "-o", "json"))["running"] is True
    wait_for(lambda: "late" in osb.run("command", "logs", box, execution))
    assert "late" not in osb.run("command", "logs", box, execution, "--cursor", "1")
    osb.run("command", "interrupt", box, execution)
    session = json.loads(osb.run("command", "session", "create", box, "-w", "/tmp", "-o", "json"))[
        "session_id"
    ]
    osb.run("command", "session", "run", box, session, "--", "export", "A=1")
    osb.run("command", "session", "run", box, session, "--", "cd", "/")
    assert osb.run("command", "session", "run", box, session, "--", "printenv", "A") == "1\n"
    assert osb.run("command", "session", "run", box, session, "--", "pwd") == "/\n"
    assert (
        osb.run("command", "session", "run", box, session, "-w", "/usr", "-t", "30s", "--", "pwd") == "/usr\n"
    )
    osb.run("command", "session", "delete", box, session)


def test_file_commands(osb: Osb, box: str, tmp_path: Path) -> None:
    osb.run("file", "mkdir", box, "/tmp/d", "--mode", "755")
    osb.run("file", "write", box, "/tmp/d/a.txt", "-c", "one two")
    assert osb.run("file", "cat", box, "/tmp/d/a.txt").rstrip("\n") == "one two"
    osb.run("file", "replace", box, "/tmp/d/a.txt", "--old", "two", "--new", "three")
    osb.run("file", "mv", box, "/tmp/d/a.txt", "/tmp/d/b.txt")
    osb.run("file", "chmod", box, "/tmp/d/b.txt", "--mode", "600")
    assert "600" in osb.run("file", "info", box, "/tmp/d/b.txt", "-o", "json")
    assert "/tmp/d/b.txt" in osb.run("file", "search", box, "/tmp/d", "-p", "*.txt", "-o", "json")
    local = tmp_path / "local.bin"
    local.write_bytes(bytes(range(256)) * 100)
    osb.run("file", "upload", box, str(local), "/tmp/d/c.bin")
    osb.run("file", "download", box, "/tmp/d/c.bin", str(tmp_path / "back.bin"))
    assert (tmp_path / "back.bin").read_bytes() == local.read_bytes()
    own = (
        osb.run("command", "run", box, "--", "id", "-u").strip(),
        osb.run("command", "run", box, "--", "id", "-g").strip(),
    )
    osb.run("file", "mkdir", box, "/tmp/d/e", "--owner", own[0], "--group", own[1])
    osb.run(
        *("file", "write", box, "/tmp/d/e/in", "--encoding", "latin-1", "--mode", "640"),
        *("--owner", own[0], "--group", own[1]),
        stdin="caf\u00e9 by a pipe",
    )
    assert (
        osb.run("file", "cat", box, "/tmp/d/e/in", "--encoding", "latin-1").rstrip("\n")
        == "caf\u00e9 by a pipe"
    )
    assert (
        osb.run("command", "run", box, "--", "stat", "-c", "%a %s %u %g", "/tmp/d/e/in")
        == f"640 14 {own[0]} {own[1]}\n"
    )
    osb.run("file", "chmod", box, "/tmp/d/e/in", "--mode", "600", "--owner", own[0], "--group", own[1])
    assert osb.run("command", "run", box, "--", "stat", "-c", "%a", "/tmp/d/e/in") == "600\n"
    osb.run("file", "rm", box, "/tmp/d/b.txt")
    osb.run("file", "rmdir", box, "/tmp/d")
    osb.run("file", "info", box, "/tmp/d/b.txt", "-o", "json", fails=True)


def test_snapshot_commands(osb: Osb, box: str) -> None:
    osb.run("file", "write", box, "/tmp/kept", "-c", "before\n")
    made = osb.json("snapshot", "create", box, "--name", "mine")
    wait_for(lambda: osb.json("snapshot", "get", made["id"])["status"]["state"] != "Creating", seconds=60)
    assert osb.json("snapshot", "get", made["id"])["status"]["state"] == "Ready"

    def ids(page: Any) -> list[str]:
        return [each["id"] for each in page["items"]]

    of_box = ("snapshot", "list", "--sandbox-id", box)
    assert ids(osb.json(*of_box, "--page", "1", "--page-size", "5")) == [made["id"]]
    assert ids(osb.json(*of_box, "--name", "mine", "--state", "Ready")) == [made["id"]]
    assert ids(osb.json(*of_box, "--name", "another")) == []
    assert ids(osb.json(*of_box, "--state", "Creating", "--state", "Failed")) == []
    waits = ("--entrypoint", "tail", "--entrypoint", "-f", "--entrypoint", "/dev/null")
    with osb.opened("sandbox", "create", "--snapshot-id", made["id"], *waits) as restored:
        assert osb.run("command", "run", restored, "--", "cat", "/tmp/kept") == "before\n"
    osb.run("snapshot", "delete", made["id"])
    osb.refused("SNAPSHOT::NOT_FOUND", "snapshot", "get", made["id"])


def test_diagnostics_and_devops_commands(osb: Osb, box: str) -> None:
    osb.run("diagnostics", "logs", box, "-s", "container")
    assert "RUNNING" in osb.run("diagnostics", "events", box, "-s", "runtime").upper()
    osb.run("devops", "logs", box, "-n", "10", "--since", "10m")
    assert box in osb.run("devops", "inspect", box)
    osb.run("devops", "events", box, "-l", "10")
    assert box in osb.run("devops", "summary", box, "--tail", "5", "--event-limit", "5")


def test_relays_of_traffic_are_refused(osb: Osb, box: str, tmp_path: Path) -> None:
    vault = tmp_path / "vault.json"
    vault.write_text('{"credentials": [{"name": "c", "source": {"value": "secret"}}], "bindings": []}')
    change = tmp_path / "change.json"
    change.write_text('{"expectedRevision": 1, "credentials": {"delete": ["c"]}}')
    refused = "EGRESS::API_NOT_SUPPORTED"
    osb.refused(refused, "egress", "get", box)
    osb.refused(refused, "egress", "patch", box, "--rule", "allow=example.org")
    osb.refused(refused, "credential-vault", "create", box, "--file", str(vault))
    osb.refused(refused, "credential-vault", "get", box)
    osb.refused(refused, "credential-vault", "patch", box, "--file", str(change))
    osb.refused(refused, "credential-vault", "delete", box)
    osb.refused(refused, "credential-vault", "credential", "list", box)
    osb.refused(refused, "credential-vault", "credential", "get", box, "c")
    osb.refused(refused, "credential-vault", "binding", "list", box)
    osb.refused(refused, "credential-vault", "binding", "get", box, "b")


def test_templates_are_refused(osb: Osb, tmp_path: Path) -> None:
    asked = tmp_path / "template.json"
    asked.write_text('{"image": "a", "publish": "s3://b/c"}')
    refused = "FSB::API_NOT_SUPPORTED"
    osb.refused(refused, "template", "list", "-m", "a=b", "--page", "1", "--page-size", "5")
    osb.refused(refused, "template", "get", "tpl-1")
    osb.refused(refused, "template", "delete", "tpl-1")
    osb.refused(refused, "template", "create", "-f", str(asked))
    osb.refused(
        *(refused, "template", "create", "-i", "a", "-p", "s3://b/c", "--resource", "cpu=1", "-e", "A=1"),
        *("-m", "a=b", "--entrypoint", "sleep", "--format", "native", "--warmup-seconds", "1"),
        *("--readiness-probe", "tcp://127.0.0.1:44772"),
    )
    osb.refused(refused, "sandbox", "create", "--template", "tpl-1", "-t", "10m")


def test_what_a_sandbox_cannot_have_is_refused(osb: Osb, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text('{"defaultAction": "deny", "egress": [{"action": "allow", "target": "example.org"}]}')
    create = ("sandbox", "create", "-i", osb.server.image)
    osb.refused("API_NOT_SUPPORTED", *create, "--network-policy-file", str(policy))
    osb.refused("API_NOT_SUPPORTED", *create, "--network-policy-file", str(policy), "--credential-proxy")
    osb.refused("KUBERNETES::POOL_NOT_FOUND", *create, "--extension", "poolRef=no-such-pool")
    # Passwords are kept sealed, and this installation was given no key to seal them with.
    osb.refused(
        "SANDMILL_SECRET_KEY",
        *(*create, "--image-auth-username", "somebody", "--image-auth-password", "secret"),
    )
    osb.refused("SANDBOX_NOT_FOUND", "sandbox", "get", "00000000-0000-0000-0000-000000000000")


def test_settings(osb: Osb) -> None:
    osb.run("config", "init")
    osb.run("config", "set", "connection.domain", osb.server.domain)
    assert osb.server.domain in osb.run("config", "show")
    osb.run("config", "init")
    assert osb.server.domain in osb.run("config", "show", env={"OPEN_SANDBOX_DOMAIN": ""})
    osb.run("config", "init", "--force")
    assert osb.server.domain not in osb.run("config", "show", env={"OPEN_SANDBOX_DOMAIN": ""})
    said = osb.run("sandbox", "list", fails=True, env={"OPEN_SANDBOX_API_KEY": "wrong"})
    assert "INVALID_API_KEY" in said


def test_skills(osb: Osb) -> None:
    """They speak to no server: that all of them are there is looked at, and no more."""
    where = ("-t", "claude", "--scope", "project")
    assert "file-operations" in osb.run("skills", "list")
    assert "osb file" in osb.run("skills", "show", "file-operations")
    assert "installed" in osb.run("skills", "install", "file-operations", *where, "-o", "json")
    osb.run("skills", "install", "--all-builtins", "--force", *where)
    assert "removed" in osb.run("skills", "uninstall", "file-operations", *where, "-o", "json")


def test_the_program_itself(server: LiveServer, tmp_path: Path) -> None:
    done = subprocess.run(
        [client_environment("requirements.lock") / "osb", "sandbox", "list", "-o", "json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **server.variables},
    )
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


BINARY = b"\x00\x01\x02\xff\n\x80"


@pytest.mark.parametrize(
    ("reads", "written"),
    [
        # The program reads text. Where each byte is a character, what comes is what is written.
        ("latin-1:replace", BINARY),
        # Where it is none, nothing is: not something else.
        ("utf-8", None),
        # As it is where no locale is set.
        ("utf-8:surrogateescape", None),
    ],
    ids=["bytes-as-characters", "text", "text-with-escapes"],
)
def test_what_is_piped_in_is_written_to_the_byte_or_not_at_all(
    osb: Osb, box: str, tmp_path: Path, reads: str, written: bytes | None
) -> None:
    """B-155."""
    done = subprocess.run(
        [
            client_environment("requirements.lock") / "osb",
            *("file", "write", box, "/tmp/piped", "--encoding", reads.partition(":")[0]),
        ],
        check=False,
        input=BINARY,
        capture_output=True,
        timeout=60,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONIOENCODING": reads,
            "OPENSANDBOX_DISABLE_METRICS": "1",
            **osb.server.variables,
        },
    )
    assert (done.returncode == 0) == (written is not None), done.stderr
    if written is None:
        osb.run("file", "info", box, "/tmp/piped", "-o", "json", fails=True)
    else:
        osb.run("file", "download", box, "/tmp/piped", str(tmp_path / "back"))
        assert (tmp_path / "back").read_bytes() == written


def test_through_the_server_proxy(osb: Osb, box: str) -> None:
    assert osb.run("--use-server-proxy", "command", "run", box, "--", "echo", "there") == "there\n"


def words_of_tests() -> list[list[str]]:
    """What the tests of this file give the program; variables are left out, tuples of words filled in."""
    tree = ast.parse(Path(__file__).read_text())
    return [
        [word for each in node.args for word in _words(each, tree)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"run", "json", "opened", "refused", "running"}
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "osb"
    ]


def _words(node: ast.AST, tree: ast.AST) -> list[str]:
    match node:
        case ast.Constant(value=str(word)):
            return [word]
        case ast.Starred(value=inner):
            return _words(inner, tree)
        case ast.Tuple(elts=elements):
            return [word for each in elements for word in _words(each, tree)]
        case ast.Name(id=name):
            return [
                word
                for each in ast.walk(tree)
                if isinstance(each, ast.Assign)
                and isinstance(each.value, ast.Tuple)
                and any(isinstance(target, ast.Name) and target.id == name for target in each.targets)
                for word in _words(each.value, tree)
            ]
    return []


def test_every_command_and_option_has_a_test(driver: Driver) -> None:
    given = words_of_tests()
    # An error code, or an option of the whole program, stands before the command.
    groups = {words[0] for words in driver.commands()}
    given = [words[next((n for n, word in enumerate(words) if word in groups), 0) :] for words in given]
    left = []
    for command, options in driver.commands().items():
        tried = [words[len(command) :] for words in given if tuple(words[: len(command)]) == command]
        seen = {word for words in tried for word in itertools.takewhile(lambda word: word != "--", words)}
        left += [] if tried else [command]
        left += [(*command, names[0]) for names in options if "-o" not in names and not seen & set(names)]
    assert left == []
