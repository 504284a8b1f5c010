"""The program as a node runs it."""

import signal
import socket
import subprocess
import sys
import urllib.request
from uuid import UUID

import pytest

from core.errors import UnavailableError
from ingress.process import NodeId, listen
from launcher.ports import find_free_port
from launcher.probes import answers_ok
from launcher.programs import child_environment
from tests.support.execd import wait_for
from tests.support.ingress import read_until


@pytest.fixture
def environment(database_url, redis_url, tmp_path):
    return child_environment(
        {
            "SANDMILL_HOME": str(tmp_path),
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "SANDMILL_INGRESS_PORT": str(find_free_port()),
            "SANDMILL_RUNTIMES": '["fake"]',
        }
    )


def test_it_serves_until_it_is_told_to_end(environment):
    port = int(environment["SANDMILL_INGRESS_PORT"])
    with subprocess.Popen(
        [sys.executable, "-m", "ingress"], env=environment, stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait_for(lambda: answers_ok(port, "/status.ok"), seconds=60)
            with socket.create_connection(("127.0.0.1", port), 5) as client:
                client.sendall(b"GET /status.ok HTTP/1.1\r\nHost: h\r\n\r\n")
                read_until(client, b"OK")
                process.send_signal(signal.SIGTERM)
                assert client.recv(1) == b"", "idle connections are closed at once"
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_its_metrics_are_served_where_asked_for(environment):
    port = find_free_port()
    environment["SANDMILL_INGRESS_METRICS_PORT"] = str(port)
    with subprocess.Popen(
        [sys.executable, "-m", "ingress"], env=environment, stdout=subprocess.DEVNULL
    ) as process:
        try:
            wait_for(lambda: answers_ok(port, "/metrics"), seconds=60)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                assert "\nsandmill_ingress_connections 0.0\n" in answer.read().decode()
        finally:
            process.kill()


def test_a_taken_port_ends_it_with_one_line(environment):
    with socket.create_server(("127.0.0.1", int(environment["SANDMILL_INGRESS_PORT"]))):
        done = subprocess.run(
            [sys.executable, "-m", "ingress"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("ingress: cannot listen on 127.0.0.1:")
    assert "SANDMILL_INGRESS_PORT" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_host_that_is_none_is_told():
    with pytest.raises(UnavailableError, match="SANDMILL_INGRESS_HOST"):
        listen("256.0.0.1", 0)


def test_the_node_is_known_once_its_worker_has_said_so(tmp_path):
    node_id = NodeId(tmp_path)
    assert node_id() is None
    (tmp_path / "node.id").write_text("")
    assert node_id() is None
    (tmp_path / "node.id").write_text(f"{UUID(int=5)}\n")
    assert node_id() == UUID(int=5)
