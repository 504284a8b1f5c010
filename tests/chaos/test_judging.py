"""The judge of the chaos tests sees what it is there to see."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from runtimes.base import Command, ResourceLimits, SandboxSpec
from tests.chaos.cells import all_cells, rotating_cells
from tests.chaos.execlog import ExecLogRuntime, Execution, overlaps, parse_uptimes, read_exec_log
from tests.support.tcp_proxy import tcp_proxy


def execution(trial: str, fence: int, began: float, last: float) -> Execution:
    return Execution(trial, fence, began, last, has_ended=True)


def test_executions_of_one_trial_must_not_be_alive_together():
    apart = [execution("a", 1, 0, 1), execution("a", 2, 1, 2), execution("b", 1, 0, 5)]
    assert overlaps(apart) == []
    assert len(overlaps([*apart, execution("b", 3, 1, 2), execution("b", 2, 4.5, 6)])) == 2


def test_what_a_stored_log_says_is_read():
    (found,) = parse_uptimes([("t", 3, b"start 1.50\nnoise\nalive 1.55\n"), ("u", 1, b"")][:1])
    assert found == Execution("t", 3, 1.5, 1.55, has_ended=False)


def test_an_execution_writes_that_it_lives_until_it_is_killed(tmp_path: Path):
    log = tmp_path / "exec.log"
    runtime = ExecLogRuntime(str(log), orphan_seconds=1.0)
    trial = str(uuid4())
    limits = ResourceLimits(cpu_millicores=100, memory_bytes=64 << 20, disk_bytes=1 << 20, pids=10)
    labels = {"sandmill.trial": trial, "sandmill.fence": "7"}
    handle = runtime.create(SandboxSpec("sm-x-7", "fake", limits, labels=labels), timeout_seconds=1)
    done = runtime.executions(handle).run(Command(shell="work 0.2 3"), on_output=lambda *_: None)
    assert done.exit_code == 3
    (first,) = read_exec_log(log)
    assert (first.trial, first.fence, first.has_ended) == (trial, 7, True)
    assert first.last - first.began >= 0.15

    process = runtime.start(handle, 60, 0)
    while log.read_text().count("alive") < 8:
        time.sleep(0.01)
    runtime.remove(handle)
    assert process.poll() is not None
    assert [one.has_ended for one in read_exec_log(log)] == [True, False]


def test_the_same_day_chooses_the_same_cells_and_another_day_others():
    first = rotating_cells(10, runtimes=["fake"], seed="2030-01-01")
    assert first == rotating_cells(10, runtimes=["fake"], seed="2030-01-01")
    assert first != rotating_cells(10, runtimes=["fake"], seed="2030-01-02")
    assert len(set(map(str, all_cells(["fake", "local"])))) == len(all_cells(["fake", "local"])) > 200


def test_a_proxy_holds_back_cuts_off_and_heals():
    with echo_server() as port, tcp_proxy(port) as (proxy,):
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as client:
            client.sendall(b"a")
            assert client.recv(1) == b"a"
            proxy.hold(to_server=False)
            client.settimeout(0.3)
            client.sendall(b"b")
            with pytest.raises(TimeoutError):
                client.recv(1)
            proxy.heal()
            client.settimeout(5)
            assert client.recv(1) == b"b"
            proxy.cut()
            assert client.recv(1) == b""
        proxy.heal()
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as client:
            client.sendall(b"c")
            assert client.recv(1) == b"c"


@contextlib.contextmanager
def echo_server() -> Iterator[int]:
    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    while data := connection.recv(100):
                        connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
