"""What the sandbox uses, over the wire."""

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from opensandbox.adapters.factory import AdapterFactory
from opensandbox.config import ConnectionConfig
from opensandbox.models.sandboxes import SandboxEndpoint

from tests.support.execd import RunningExecd, running_execd, wait_for

FIELDS = {"cpu_count", "cpu_used_pct", "mem_total_mib", "mem_used_mib", "timestamp"}


@contextmanager
def counted_execd(bundle: Path, work: Path, limits: Sequence[str] = ()) -> Iterator[RunningExecd]:
    """A daemon whose accounts are files of the test."""
    contents = {"memory_usage": f"{64 << 20}\n", "cpu_usage": "0\n", "memory_events": "oom_kill 0\n"}
    flags = [part for limit in limits for part in ("--limit", limit)]
    descriptors = []
    for name, content in contents.items():
        (work / name).write_text(content)
        descriptors.append(os.open(work / name, os.O_RDONLY))
        flags += ["--account", f"{name}={descriptors[-1]}"]
    try:
        with running_execd(bundle, work, flags=flags, pass_fds=descriptors) as execd:
            yield execd
    finally:
        for fd in descriptors:
            os.close(fd)


def test_metrics_tell_the_sandboxes_own_use_and_limits(bundle: Path, tmp_path: Path) -> None:
    with counted_execd(bundle, tmp_path, ["cpu_millicores=500", "memory_bytes=134217728"]) as execd:
        first = execd.client.get("/metrics").json()
        assert set(first) == FIELDS
        assert (first["cpu_count"], first["mem_total_mib"], first["mem_used_mib"]) == (0.5, 128.0, 64.0)
        assert abs(first["timestamp"] / 1000 - time.time()) < 5
        assert first["cpu_used_pct"] == 0
        (tmp_path / "cpu_usage").write_text("3600000000000\n")
        assert wait_for(lambda: execd.client.get("/metrics").json()["cpu_used_pct"]) == 100


def test_commands_do_not_inherit_the_accounts(bundle: Path, tmp_path: Path) -> None:
    with counted_execd(bundle, tmp_path) as execd:
        assert execd.client.get("/metrics").json()["mem_used_mib"] == 64.0
        assert execd.run(argv=["ls", "/proc/self/fd"]).output() == b"0\n1\n2\n3\n"


def test_a_descriptor_that_is_not_there_is_named(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path, flags=["--account", "cpu_usage=999"]) as execd:
        assert execd.process.wait(10) == 1
        assert "--account: cpu_usage=999" in execd.log.read_text()


def test_a_busy_sandbox_shows(shared_execd: RunningExecd) -> None:
    # Without accounts from outside: whatever this machine offers.
    sample = shared_execd.client.get("/metrics").json()
    assert sample["cpu_count"] > 0
    assert 0 < sample["mem_used_mib"] <= sample["mem_total_mib"]
    shared_execd.run("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
    assert 0 < shared_execd.client.get("/metrics").json()["cpu_used_pct"] <= 100


def test_the_watch_sends_one_line_a_second(shared_execd: RunningExecd) -> None:
    with shared_execd.client.stream("GET", "/metrics/watch") as response:
        assert response.headers["content-type"] == "text/event-stream"
        received, arrivals = b"", []
        for chunk in response.iter_raw():
            received += chunk
            arrivals.append(time.monotonic())
            if received.count(b"\n") == 3:
                break
    assert b"\n\n" not in received
    lines = [json.loads(line) for line in received.decode().splitlines()]
    assert [set(line) for line in lines] == [FIELDS] * 3
    assert 1.5 < arrivals[-1] - arrivals[0] < 4


def test_a_watcher_who_leaves_is_let_go(execd: RunningExecd) -> None:
    execd.client.get("/ping")
    before = execd.descriptors()
    clients = [httpx.Client(base_url=execd.url) for _ in range(5)]
    try:
        for client in clients:
            request = client.build_request("GET", "/metrics/watch")
            assert client.send(request, stream=True).status_code == 200
        assert execd.descriptors() == before + 5
    finally:
        for client in clients:
            client.close()
    wait_for(lambda: execd.descriptors() == before)


@pytest.mark.parametrize("path", ["/metrics", "/metrics/watch"])
def test_the_routes_only_read(shared_execd: RunningExecd, path: str) -> None:
    assert shared_execd.client.post(path).status_code == 405


def test_the_sdk_reads_them(shared_execd: RunningExecd) -> None:
    config = ConnectionConfig(protocol="http", disable_metrics=True).with_transport_if_missing()
    service = AdapterFactory(config).create_metrics_service(
        SandboxEndpoint(endpoint=f"127.0.0.1:{shared_execd.port}")
    )

    async def ask() -> float:
        try:
            return (await service.get_metrics("any")).memory_total_in_mib
        finally:
            await config.close_transport_if_owned()

    assert asyncio.run(ask()) > 0
