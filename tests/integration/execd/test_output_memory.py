"""However much a command writes, the daemon's memory stays what it is."""

import http.client
import json
import time

import pytest

from tests.support.execd import RunningExecd, status_field

ALLOWED_KIB = 32 * 1024
"""What all logs may keep together is half of it; the rest is for frames on their way."""


def peak_kib(execd: RunningExecd) -> int:
    return int(status_field(execd.pid, "VmHWM").split()[0])


def drain(execd: RunningExecd, command: str) -> tuple[int, bytes]:
    """Run a command and give how many bytes its stream had, and its last ones."""
    connection = http.client.HTTPConnection("127.0.0.1", execd.port, timeout=60)
    connection.request("POST", "/command", json.dumps({"command": command}))
    response = connection.getresponse()
    count, tail = 0, b""
    while part := response.read(1 << 20):
        count += len(part)
        tail = (tail + part)[-1000:]
    connection.close()
    return count, tail


@pytest.mark.slow
def test_a_gigabyte_without_a_reader_changes_nothing(execd: RunningExecd) -> None:
    execd.run("true")
    before = peak_kib(execd)
    execution_id = execd.run("head -c 1G /dev/zero; yes | head -c 50M; echo end", background=True).id
    slowest, document = 0.0, {"running": True}
    while document["running"]:
        started = time.monotonic()
        assert execd.client.get("/ping").status_code == 200
        slowest = max(slowest, time.monotonic() - started)
        document = execd.client.get(f"/command/{execution_id}/wait?timeout_ms=200").json()
    assert document["stdout_bytes"] == (1 << 30) + 50 * (1 << 20) + len("end\n")
    assert document["truncated"] is True
    logs = execd.client.get(f"/command/{execution_id}/logs").content
    assert logs.startswith(b"\0" * 60_000)
    assert logs.endswith(b"y\nend\n")
    assert len(logs) < 2.5 * 1024 * 1024
    assert peak_kib(execd) - before < ALLOWED_KIB
    assert slowest < 2


@pytest.mark.slow
def test_a_line_of_200_megabytes_arrives_whole(execd: RunningExecd) -> None:
    execd.run("true")
    before = peak_kib(execd)
    count, tail = drain(execd, "head -c 200M /dev/zero | tr '\\0' x")
    assert count > 200 << 20
    assert b'"type":"execution_complete"' in tail
    assert f'"offset":{200 << 20},'.encode() in tail
    assert peak_kib(execd) - before < ALLOWED_KIB


@pytest.mark.slow
def test_many_commands_share_the_room(execd: RunningExecd) -> None:
    execd.run("true")
    before = peak_kib(execd)
    ids = [execd.run("seq 1 600000; sleep 99", background=True).id for _ in range(40)]
    for execution_id in ids:
        url = f"/command/status/{execution_id}"
        while execd.client.get(url).json()["stdout_bytes"] < 4_000_000:
            execd.client.get(f"/command/{execution_id}/wait?timeout_ms=50")
    assert peak_kib(execd) - before < ALLOWED_KIB
    assert execd.client.get(f"/command/{ids[0]}/logs").content.endswith(b"\n600000\n")
    for execution_id in ids:
        execd.client.delete("/command", params={"id": execution_id, "grace_ms": 0})
