import threading
import time

import pytest

from core.errors import (
    CreateTimeoutError,
    DaemonError,
    ExecdUnreachableError,
    ImageNotFoundError,
    NotSupportedError,
)
from runtimes.base import Command
from runtimes.fake import FakeClock, FakeOutcome, FakeRuntime
from tests.support.sandboxes import make_spec


def start(runtime, **changes):
    handle = runtime.create(make_spec(**changes), timeout_seconds=1)
    return handle, runtime.executions(handle)


def run(client, command, **options):
    got = []
    result = client.run(command, on_output=lambda *entry: got.append(entry), **options)
    return result, got


@pytest.mark.parametrize(
    ("image", "error"),
    [("missing", ImageNotFoundError), ("broken", DaemonError), ("slow-start", CreateTimeoutError)],
)
def test_some_images_fail_on_purpose(image, error):
    runtime = FakeRuntime()
    with pytest.raises(error):
        start(runtime, image=image)
    assert runtime.list() == []


def test_script_decides_first_and_may_pass():
    def script(image, command):
        return FakeOutcome(7, stdout=image.encode(), stderr=b"e") if command.shell == "mine" else None

    _, client = start(FakeRuntime(script), image="any")
    result, got = run(client, Command(shell="mine"))
    assert (result.exit_code, got) == (7, [("stdout", b"any"), ("stderr", b"e")])
    assert run(client, Command(shell="exit 3"))[0].exit_code == 3
    assert run(client, Command(shell="mine", merge_streams=True))[1] == [("stdout", b"any"), ("stdout", b"e")]


@pytest.mark.parametrize(
    ("command", "code", "out"),
    [
        (Command(argv=["echo", "a", "b"]), 0, b"a b\n"),
        (Command(shell="echo"), 0, b"\n"),
        (Command(shell="cat /none"), 1, b""),
        (Command(shell="sleep forever"), 1, b""),
        (Command(shell="make -j"), 0, b""),
    ],
    ids=["argv", "empty-echo", "no-file", "bad-sleep", "unknown"],
)
def test_default_commands(command, code, out):
    result, got = run(start(FakeRuntime())[1], command)
    assert (result.exit_code, b"".join(data for _, data in got)) == (code, out)


def test_time_passes_by_the_injected_clock():
    clock = FakeClock()
    _, client = start(FakeRuntime(clock=clock))
    result, _ = run(client, Command(shell="sleep 3600", timeout_seconds=60))
    assert result.timed_out
    assert clock.now == 60
    assert run(client, Command(shell="sleep 5"))[0].exit_code == 0
    assert clock.now == 65


def test_outcome_may_kill_execd_or_run_out_of_memory():
    outcomes = {"oom": FakeOutcome(signal=9, oom=True), "die": FakeOutcome(dies=True)}
    runtime = FakeRuntime(lambda _image, command: outcomes.get(command.shell or ""))
    handle, client = start(runtime)
    assert run(client, Command(shell="oom"))[0].signal == 9
    assert runtime.stats(handle).oom_kills == 1
    with pytest.raises(ExecdUnreachableError):
        run(client, Command(shell="die"))
    with pytest.raises(ExecdUnreachableError):
        client.ping()


def test_files_of_an_outcome_can_be_collected():
    runtime = FakeRuntime(lambda *_: FakeOutcome(files={"/logs/reward.txt": b"1\n"}))
    _, client = start(runtime)
    run(client, Command(shell="grade"))
    assert client.download("/logs/reward.txt", max_bytes=10) == b"1\n"


def test_stop_is_seen_while_waiting():
    stop = threading.Event()
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    result, _ = run(start(FakeRuntime())[1], Command(shell="sleep 60"), stop=stop)
    timer.join()
    assert result.interrupted


def test_there_is_no_port_to_connect_to():
    runtime = FakeRuntime()
    handle, _ = start(runtime)
    with pytest.raises(NotSupportedError):
        runtime.connect(handle, 80, timeout_seconds=1)


def test_whole_life_of_a_sandbox_costs_little():
    """It is the yardstick of the queue: far below the 50 microseconds that would show there."""
    runtime, command = FakeRuntime(), Command(shell="true")
    specs = [make_spec() for _ in range(2000)]
    began = time.perf_counter()
    for spec in specs:
        handle = runtime.create(spec, timeout_seconds=1)
        runtime.executions(handle).run(command, on_output=lambda *_: None)
        runtime.remove(handle)
    assert (time.perf_counter() - began) / len(specs) < 50e-6 * 5  # five times, for a busy machine


def test_scripted_output_comes_piece_by_piece_until_the_command_is_stopped():
    stop = threading.Event()

    def endless():
        yield "stdout", b"1"
        yield "stderr", b"2"
        stop.set()
        while True:
            yield "stdout", b"more"

    _, client = start(FakeRuntime(lambda *_: FakeOutcome(output=endless(), seconds=5)))
    result, got = run(client, Command(shell="anything"), stop=stop)
    assert got == [("stdout", b"1"), ("stderr", b"2")]
    assert result.interrupted
