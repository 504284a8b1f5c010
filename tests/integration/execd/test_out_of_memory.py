"""Commands that are killed because the memory of the sandbox is used up."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.execd import RunningExecd, running_execd

LIMIT_BYTES = 96 << 20
EAT = "python3 -c 'x = [bytearray(b\"x\" * 1000000) for _ in range(1000)]'"

VERSION_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
ROOT = Path("/sys/fs/cgroup") if VERSION_2 else Path("/sys/fs/cgroup/memory")


@pytest.fixture
def execd(bundle: Path, tmp_path: Path) -> Iterator[RunningExecd]:
    """A daemon in a control group with little memory, told of its kills as in a sandbox."""
    group = ROOT / f"sandmill-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        names = (
            ("memory.max", "memory.events") if VERSION_2 else ("memory.limit_in_bytes", "memory.oom_control")
        )
        limit, events = (group / name for name in names)
        if not limit.exists():
            pytest.skip("the memory controller is not handed down")
        limit.write_text(str(LIMIT_BYTES))
        script = f'echo $$ >{group}/cgroup.procs && exec 50<{events} && exec "$@"'
        prefix = ["bash", "-c", script, "bash"]
        with running_execd(
            bundle, tmp_path, prefix=prefix, flags=["--account", "memory_events=50"]
        ) as daemon:
            yield daemon
    finally:
        group.rmdir()


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.mark.parametrize(
    ("script", "signal"), [(f"exec {EAT}", 9), (f"{EAT}; exit $?", None)], ids=["the program", "its child"]
)
def test_it_is_a_reason_of_its_own_and_the_daemon_lives(
    execd: RunningExecd, script: str, signal: int | None
) -> None:
    last = execd.run(script).last
    assert (last["reason"], last["signal"]) == ("oom", signal)
    assert last["error"]["traceback"][0] == "out of memory"
    document = execd.client.get("/commands").json()["commands"][0]
    assert (document["reason"], document["oom_killed"]) == ("oom", True)
    assert execd.run("echo fine").output() == b"fine\n"
    assert execd.client.get("/commands").json()["commands"][0]["oom_killed"] is False


def test_a_program_that_gets_over_it_has_its_own_end(execd: RunningExecd) -> None:
    outcome = execd.run(f"{EAT} || echo went on; exit 4")
    assert outcome.output() == b"went on\n"
    assert (outcome.last["reason"], outcome.last["exit_code"]) == ("exit", 4)
    assert execd.client.get("/commands").json()["commands"][0]["oom_killed"] is True


def test_other_kills_are_not_taken_for_it(execd: RunningExecd) -> None:
    assert execd.run("kill -9 $$").last["reason"] == "signal"
    assert execd.run("sh -c 'kill -9 $$'; exit $?").last["reason"] == "exit"
    assert execd.run("sleep 99", timeout=100).last["reason"] == "timeout"
