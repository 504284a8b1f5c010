import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import StartupError
from launcher.ports import LOOPBACK, check_port_is_free, find_free_port, is_port_free
from tests.support.launching import as_user, launcher_environment

FIRST_OPEN_PORT = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())


def test_free_port_can_be_listened_on():
    port = find_free_port()
    assert is_port_free(port)
    check_port_is_free(port, purpose="API")


def test_taken_port_is_named_with_the_way_out():
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        assert not is_port_free(port)
        with pytest.raises(StartupError, match=rf"port {port} for the API is taken .*--port"):
            check_port_is_free(port, purpose="API")


def test_port_of_a_connection_that_just_ended_is_free():
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)), server.accept()[0] as accepted:
            accepted.shutdown(socket.SHUT_RDWR)  # the server's side closes first, so it keeps TIME_WAIT
    assert is_port_free(port)


@pytest.mark.skipif(FIRST_OPEN_PORT < 2, reason="every user may listen on every port here")
def test_privileged_port_is_named():
    script = "from launcher.ports import check_port_is_free; check_port_is_free(1, purpose='API')"
    prefix = as_user("games") if os.geteuid() == 0 else []
    done = subprocess.run(
        [*prefix, sys.executable, "-c", script],
        env=launcher_environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "this user may not listen on port 1 for the API: choose one above 1023" in done.stderr


def test_the_way_out_is_that_of_the_port():
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StartupError, match="choose another one with SANDMILL_INGRESS_PORT"):
            check_port_is_free(port, purpose="ingress", setting="SANDMILL_INGRESS_PORT")


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.1", "192.0.2.1 is no address of this machine"),
        ("no.invalid", "no.invalid is no address for the API"),
    ],
)
def test_an_address_that_is_not_ours_is_named(host, why):
    with pytest.raises(StartupError, match=why):
        check_port_is_free(find_free_port(), purpose="API", host=host)


def test_a_port_is_looked_at_on_its_own_address():
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        check_port_is_free(port, purpose="API", host="127.0.0.2")
        with pytest.raises(StartupError, match="is taken"):
            check_port_is_free(port, purpose="API", host="0.0.0.0")
