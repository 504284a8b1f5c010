"""What every runtime promises that starts real processes."""

import threading
import time

import pytest

from core.errors import CreateTimeoutError, SpecInvalidError
from runtimes.base import Command, FileUpload


def test_streams_are_kept_apart(shared_box):
    said = shared_box.sh("echo out; echo err >&2")
    assert said.of("stdout") == b"out\n"
    assert said.of("stderr") == b"err\n"


def test_merged_streams_keep_their_order(shared_box):
    script = "i=0; while [ $i -lt 200 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done"
    said = shared_box.sh(script, merge_streams=True)
    assert said.of("stdout").split() == [b"%c%d" % (c, i) for i in range(200) for c in b"oe"]
    assert said.of("stderr") == b""


def test_bytes_that_are_no_text_arrive_unchanged(shared_box):
    said = shared_box.python("import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)")
    assert said.of("stdout") == bytes(range(256)) * 300


def test_slow_reader_gets_all_of_the_output(shared_box):
    numbers = b"".join(b"%d\n" % n for n in range(1, 40_001))
    got = []

    def slow(_stream, data):
        got.append(data)
        if len(got) < 4:
            time.sleep(0.4)

    result = shared_box.client.run(Command(shell="seq 1 40000"), on_output=slow)
    assert result.exit_code == 0
    assert b"".join(got) == numbers


def test_environment_and_folder_reach_the_command(shared_box):
    said = shared_box.sh('echo "$GREETING|$PWD"', env={"GREETING": "a 'b' $c"}, cwd="/tmp")
    assert said.out == "a 'b' $c|/tmp\n"


def test_spec_gives_environment_and_workdir(real_kind):
    with real_kind.box(workdir="/deep/work", env={"FROM_SPEC": "1"}) as box:
        assert box.sh("echo $FROM_SPEC $PWD; echo x > file && cat file").out == "1 /deep/work\nx\n"


def test_loader_settings_of_the_job_reach_commands_but_not_execd(real_kind):
    with real_kind.box(env={"LD_LIBRARY_PATH": "/nowhere"}) as box:
        assert box.sh("echo $LD_LIBRARY_PATH").out == "/nowhere\n"


def test_variables_of_each_command_are_as_good_as_those_of_its_sandbox(real_kind):
    """On this rely attempts that are given a sandbox which was made before anybody knew theirs."""
    env = {"OWN": "1", "LD_LIBRARY_PATH": "/nowhere", "PATH": "/odd:/usr/bin:/bin", "HOME": "/tmp/home"}
    script = "env | grep -v ^SANDMILL_EXECUTION_ID= | sort; command -v sort"
    with real_kind.box(workdir="/work", env=env) as made_with:
        with_sandbox = made_with.sh(script, env=env)
    with real_kind.box(workdir="/work") as made_without:
        with_command = made_without.sh(script, env=env)
    assert with_command.out == with_sandbox.out
    assert "OWN=1\n" in with_command.out


def test_program_that_does_not_exist_is_an_error_not_an_exit(shared_box):
    result = shared_box.run(Command(argv=["/no/such/program"])).result
    assert result.exit_code is None
    assert "/no/such/program" in (result.error or "")


def test_argv_is_passed_as_it_is(shared_box):
    said = shared_box.run(Command(argv=["printf", "%s|", "--help", "$HOME", "a b", ";", ""]))
    assert said.out == "--help|$HOME|a b|;||"


def test_signal_is_told_from_exit_code(shared_box):
    result = shared_box.sh("kill -USR1 $$; sleep 5").result
    assert (result.exit_code, result.signal) == (None, 10)


def test_term_proof_command_is_killed_after_the_grace(shared_box):
    stop = threading.Event()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    began = time.monotonic()
    said = shared_box.sh("trap '' TERM; echo on; while :; do sleep 1; done", stop=stop, grace=1.0)
    timer.join()
    assert said.out == "on\n"
    assert said.result.interrupted
    assert 1.0 < time.monotonic() - began < 8


def test_term_gives_the_command_time_to_finish(shared_box):
    stop = threading.Event()
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    said = shared_box.sh("trap 'echo bye; exit 7' TERM; while :; do sleep 0.1; done", stop=stop, grace=5.0)
    timer.join()
    assert said.out == "bye\n"
    assert said.result.interrupted


def test_timeout_of_create_leaves_nothing(real_kind):
    spec = real_kind.spec()
    with pytest.raises(CreateTimeoutError):
        real_kind.runtime.create(spec, timeout_seconds=0.0001)
    assert spec.name not in {handle.name for handle in real_kind.runtime.list()}
    with real_kind.box(name=spec.name) as box:
        box.client.ping()


@pytest.mark.parametrize(
    "changes",
    [
        {"workdir": "relative"},
        {"workdir": "/a\0b"},
        {"env": {"": "x"}},
        {"env": {"A=B": "x"}},
        {"env": {"A": "x\0"}},
    ],
    ids=["relative", "nul-in-path", "empty-name", "equals", "nul-in-value"],
)
def test_spec_no_process_can_have_is_refused(real_kind, changes):
    with pytest.raises(SpecInvalidError):
        real_kind.runtime.create(real_kind.spec(**changes), timeout_seconds=5)


def test_file_where_a_folder_is_or_none_may_be_is_refused(shared_box):
    for path in ("/tmp", "/proc/x", "/.sbx/x"):
        with pytest.raises(SpecInvalidError):
            shared_box.client.upload([FileUpload(path, b"x")])


def test_use_is_accounted_for(real_kind):
    with real_kind.box() as box:
        box.python("s = bytearray(60 << 20); [None for _ in range(2_000_000)]")
        stats = real_kind.runtime.stats(box.handle)
    if stats.memory_peak_bytes is None:
        pytest.skip("this user may not make control groups here, so nothing is accounted for")
    assert stats.memory_peak_bytes > 60 << 20
    assert stats.cpu_seconds is not None
    assert stats.cpu_seconds > 0.01
    assert stats.oom_kills == 0
