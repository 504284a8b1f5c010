import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import launcher.children
from launcher.children import Child, ChildSpec, check_call
from launcher.errors import StartupError
from launcher.service import Service, stop_services, wait_until_ready
from launcher.termination import Termination
from tests.support.launching import REPOSITORY, wait_until

SHIM = REPOSITORY / "launcher" / "exec_shim.py"


def shell(tmp_path: Path, script: str, **fields) -> ChildSpec:
    return ChildSpec(
        name="part",
        argv=("/bin/sh", "-c", script),
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "GIVEN": "yes"},
        log=tmp_path / "part.log",
        **fields,
    )


def test_child_gets_exactly_its_environment_input_and_folder(tmp_path):
    script = "cat; pwd; env | grep -v -e ^PWD= -e ^OLDPWD= -e ^SHLVL= -e ^_=; echo err >&2"
    check_call(shell(tmp_path, script, stdin=b"fed\n", cwd=tmp_path), timeout_seconds=10)
    lines = (tmp_path / "part.log").read_text().splitlines()
    assert lines[:2] == ["fed", str(tmp_path)]
    assert sorted(lines[2:]) == ["GIVEN=yes", "LC_ALL=C.UTF-8", f"PATH={os.defpath}", "err"]


def test_failure_is_told_in_one_line_with_the_end_of_the_log(tmp_path):
    with pytest.raises(StartupError) as caught:
        check_call(shell(tmp_path, "echo first; echo why it failed; exit 3"), timeout_seconds=10)
    assert (
        "part failed with exit code 3; its last words: first | why it failed; log: " in caught.value.message
    )
    assert "\n" not in caught.value.message


def test_missing_program_is_named(tmp_path):
    spec = ChildSpec(name="part", argv=("/nowhere/program",), env={}, log=tmp_path / "part.log")
    with pytest.raises(StartupError, match="cannot run /nowhere/program: No such file"):
        check_call(spec, timeout_seconds=10)


def test_program_that_takes_too_long_is_killed(tmp_path):
    with pytest.raises(StartupError, match="did not end within 0 s"):
        check_call(shell(tmp_path, "sleep 600"), timeout_seconds=0.2)


def test_child_has_a_process_group_of_its_own_and_default_signals(tmp_path):
    child = Child.start(shell(tmp_path, "sleep 600 & wait"))
    try:
        wait_until(lambda: b"sh" in Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")[0])
        assert os.getpgid(child.pid) == child.pid
        ignored = next(
            line
            for line in Path(f"/proc/{child.pid}/status").read_text().splitlines()
            if line.startswith("SigIgn")
        )
        assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGINT - 1)) == 0
    finally:
        child.kill()


def test_kill_takes_the_whole_process_group(tmp_path):
    child = Child.start(shell(tmp_path, "sleep 600 & echo $!; wait"))
    wait_until(lambda: (tmp_path / "part.log").read_text().endswith("\n"))
    grandchild = int((tmp_path / "part.log").read_text())
    child.kill()
    wait_until(lambda: not is_running(grandchild))
    assert child.exit_code() == -signal.SIGKILL


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_child_dies_with_the_process_that_started_it(tmp_path):
    script = (
        "import sys; from pathlib import Path; from launcher.children import Child, ChildSpec;"
        "child = Child.start(ChildSpec(name='part', argv=('/bin/sleep', '600'), env={}, log=Path(sys.argv[1])));"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "part.log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(REPOSITORY)},
    )
    with parent:
        pid = int(parent.stdout.readline())
        # Not before: the shim would find the parent gone, which is another test.
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        parent.kill()
    wait_until(lambda: not is_running(pid))


def test_shim_does_not_run_for_a_parent_that_is_gone():
    done = subprocess.run(
        [sys.executable, "-I", "-S", SHIM, "1", "9", "-1", "/bin/echo", "ran"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"the launcher is gone\n")


class Part(Service):
    name = "part"
    start_timeout_seconds = 0.3

    def __init__(self, spec: ChildSpec, *, ready: bool) -> None:
        super().__init__()
        self._spec = spec
        self._ready = ready

    def spec(self) -> ChildSpec:
        return self._spec

    def is_ready(self) -> bool:
        return self._ready


def test_part_that_ends_while_starting_is_told_at_once(tmp_path):
    part = Part(shell(tmp_path, "echo no luck; exit 7"), ready=False)
    part.start_timeout_seconds = 30
    part.start()
    with pytest.raises(
        StartupError, match=r"part ended while starting: exit code 7; its last words: no luck"
    ):
        wait_until_ready([part])


def test_part_that_never_answers_is_told_after_its_timeout(tmp_path):
    part = Part(shell(tmp_path, "sleep 600"), ready=False)
    part.start()
    try:
        with pytest.raises(StartupError, match="part did not answer within 0 s"):
            wait_until_ready([part])
    finally:
        stop_services([part])


@pytest.mark.parametrize("hurried", [False, True], ids=["its time is up", "somebody is in a hurry"])
def test_part_that_ignores_the_stop_signal_is_killed(tmp_path, hurried):
    seconds = 600 if hurried else 0.2
    script = "trap '' TERM; echo armed; while :; do sleep 0.1; done"
    part = Part(shell(tmp_path, script, stop_timeout_seconds=seconds), ready=True)
    part.start()
    child = part.child
    wait_until(lambda: (tmp_path / "part.log").read_text() == "armed\n")
    stop_services([part], is_hurried=lambda: hurried)
    assert child.exit_code() == -signal.SIGKILL
    assert part.child is None


def test_part_is_asked_to_stop_before_it_is_killed(tmp_path):
    script = "trap 'echo bye; exit 0' TERM; echo armed; while :; do sleep 0.05; done"
    part = Part(shell(tmp_path, script), ready=True)
    part.start()
    wait_until(lambda: (tmp_path / "part.log").read_text() == "armed\n")
    stop_services([part])
    assert (tmp_path / "part.log").read_text() == "armed\nbye\n"


def interrupted_in_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the request to end come when the child is there and nobody has it yet."""
    spawn = launcher.children._spawn

    def spawn_and_be_asked(*arguments):
        process = spawn(*arguments)
        # To this thread: unlike the launcher, a process of tests may have others.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        return process

    monkeypatch.setattr(launcher.children, "_spawn", spawn_and_be_asked)


def test_part_that_an_interrupt_meets_in_its_start_is_stopped_with_the_others(tmp_path, monkeypatch):
    script = "trap 'echo bye; exit 0' TERM; echo armed; while :; do sleep 0.05; done"
    part = Part(shell(tmp_path, script), ready=True)
    interrupted_in_its_start(monkeypatch)
    with Termination(), pytest.raises(KeyboardInterrupt):
        part.start()
    wait_until(lambda: (tmp_path / "part.log").read_text() == "armed\n")
    stop_services([part])
    assert (tmp_path / "part.log").read_text() == "armed\nbye\n"


def test_what_is_held_back_in_a_start_is_not_held_back_in_the_part(tmp_path):
    part = Part(ChildSpec(name="part", argv=("/bin/sleep", "600"), env={}, log=tmp_path / "log"), ready=True)
    part.start()
    try:
        status = Path(f"/proc/{part.child.pid}/status")
        wait_until(lambda: "Name:\tsleep" in status.read_text())
        assert "SigBlk:\t0000000000000000" in status.read_text()
    finally:
        part.child.kill()


def test_program_that_an_interrupt_meets_in_its_start_is_killed(tmp_path, monkeypatch):
    interrupted_in_its_start(monkeypatch)
    started = []
    start = Child.start.__func__
    monkeypatch.setattr(
        Child, "start", classmethod(lambda cls, spec: started.append(start(cls, spec)) or started[0])
    )
    with Termination(), pytest.raises(KeyboardInterrupt):
        check_call(shell(tmp_path, "exec sleep 600"), timeout_seconds=10)
    assert started[0].exit_code() == -signal.SIGKILL
