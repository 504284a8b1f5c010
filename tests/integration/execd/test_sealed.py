"""execd as process 1 of a namespace of its own, steered from inside and not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.execd import RunningExecd, running_execd

PROCESS_1 = [
    "unshare",
    "--user",
    "--map-root-user",
    "--pid",
    "--mount-proc",
    "--mount",
    "--fork",
    "--kill-child",
]


@contextmanager
def process_1(bundle: Path, work: Path, **options: Any) -> Iterator[RunningExecd]:
    """Killed from outside in the end: unshare passes on no signal."""
    with running_execd(bundle, work, prefix=PROCESS_1, **options) as execd:
        try:
            yield execd
        finally:
            execd.process.kill()


@pytest.mark.parametrize(
    "name", ["TERM", "INT", "HUP", "QUIT", "USR1", "ALRM", "KILL", "STOP", "CHLD", "PIPE"]
)
def test_sealed_process_1_hears_no_signal_from_inside(bundle: Path, tmp_path: Path, name: str) -> None:
    with process_1(bundle, tmp_path, flags=["--sealed", "--graceful-shutdown-timeout", "0"]) as execd:
        assert execd.run(f"kill -{name} 1; sleep 0.2; echo on").output() == b"on\n"
        assert execd.run("cat /proc/1/comm").output() == b"execd\n"


def test_bare_process_1_obeys_term(bundle: Path, tmp_path: Path) -> None:
    with process_1(bundle, tmp_path) as execd:
        with pytest.raises(httpx.TransportError):
            execd.run("kill -TERM 1; sleep 60")
        assert execd.process.wait(10) == 0


@pytest.mark.parametrize(
    ("flags", "shown"), [([], b"1 file\n"), (["--sealed"], b" \n")], ids=["bare", "sealed"]
)
def test_file_of_variables_counts_unless_sealed(
    bundle: Path, tmp_path: Path, flags: list[str], shown: bytes
) -> None:
    (tmp_path / "file").write_text("FORGED=1\n")
    env = {"PATH": "/usr/bin:/bin", "EXECD_ENVS": str(tmp_path / "file")}
    with process_1(bundle, tmp_path, flags=flags, env=env) as execd:
        assert execd.run('echo "$FORGED ${EXECD_ENVS##*/}"').output() == shown


def test_sealed_elsewhere_is_told(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path, flags=["--sealed"]) as execd:
        assert execd.run("true").last["exit_code"] == 0
        assert "sealed_but_not_process_1" in execd.log.read_text()
