"""Debian's `docker-registry`, the registry that most people run, on a free port of this machine."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from launcher.ports import find_free_port
from tests.support.execd import wait_for

__all__ = ["PASSWORD", "USER", "needs_registry", "running_registry"]

USER, PASSWORD = "me", "secret"

# As `htpasswd -B` writes it.
_HTPASSWD = "me:$2y$05$tz3QM6H5ky6fC1KmM3POzuv2kUjLKINYNVscefKI4TTHAopHvM2ya\n"

needs_registry = pytest.mark.skipif(
    not shutil.which("docker-registry") and os.environ.get("CI") != "true",
    reason="no docker-registry here (Debian: apt install docker-registry)",
)


@contextmanager
def running_registry(folder: Path, *, with_password: bool) -> Iterator[str]:
    """Start one; gives its address. folder: made for it."""
    folder.mkdir()
    port = find_free_port()
    lines = ["version: 0.1", "log: {level: error}", f"http: {{addr: '127.0.0.1:{port}'}}"]
    lines += [f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}"]
    if with_password:
        (folder / "htpasswd").write_text(_HTPASSWD)
        lines += [f"auth: {{htpasswd: {{realm: test, path: {folder / 'htpasswd'}}}}}"]
    (folder / "config.yml").write_text("\n".join(lines))
    with (folder / "log").open("wb") as log:
        argv = ["docker-registry", "serve", str(folder / "config.yml")]
        server = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/v2/"), seconds=20)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code in (200, 401)
    except httpx.TransportError:
        return False
