"""Sessions where there is no bash."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.execd import Outcome, RunningExecd, read_events, running_execd

BUSYBOX = shutil.which("busybox")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(BUSYBOX is None, reason="needs busybox"),
]


@pytest.fixture
def execd(bundle: Path, tmp_path: Path) -> Iterator[RunningExecd]:
    """A daemon in a root file system with no other shell than busybox's."""
    root = tmp_path / "root"
    for folder in ("bin", "proc", "dev", "a b"):
        (root / folder).mkdir(parents=True)
    shutil.copytree(bundle, root / bundle.relative_to("/"))
    shutil.copy(BUSYBOX or "", root / "bin" / "busybox")
    for name in ("sh", "cat", "ls", "readlink"):
        (root / "bin" / name).symlink_to("busybox")
    script = f'mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && exec chroot {root} "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", script, "sh"]
    with running_execd(bundle, tmp_path, prefix=prefix, env={"PATH": "/bin:/usr/sbin"}) as daemon:
        yield daemon


def run(execd: RunningExecd, session_id: str, command: str) -> Outcome:
    with execd.client.stream("POST", f"/session/{session_id}/run", json={"command": command}) as response:
        return Outcome(list(read_events(response)))


def test_exports_umask_and_directory_are_carried_by_any_shell(execd: RunningExecd) -> None:
    session_id = execd.client.post("/session", json={"cwd": "/a b"}).json()["session_id"]
    first = run(execd, session_id, "pwd; export A='it'\\''s \"so\"'; umask 027; cd /bin; exit 3")
    assert (first.output(), first.last["exit_code"], first.last["state_saved"]) == (b"/a b\n", 3, True)
    second = run(
        execd, session_id, 'echo "$A"; umask; pwd; ls /proc/self/fd; readlink /proc/self/fd/0; nosuch'
    )
    lines = second.output().decode().splitlines()
    assert lines[:3] == ['it\'s "so"', "0027", "/bin"]
    assert lines[3:7] == ["0", "1", "2", "3"]
    assert lines[7] == "/dev/null"
    assert "nosuch" in lines[8]
    assert second.last["exit_code"] == 127
    for broken in ("echo 'unbalanced", "exec true", "kill -9 $$"):
        run(execd, session_id, broken)
    assert run(execd, session_id, 'echo "$A"').output() == b'it\'s "so"\n'
