"""Snapshots and forks of what hostile code has left: copied and deleted by root, on the host."""

import pytest

from core.errors import DaemonError, RunFailure
from tests.support.sandboxes import START_SECONDS, Box, is_root, local_kind

pytestmark = pytest.mark.skipif(not is_root(), reason="snapshots and forks need root")

LIMITS = {"disk_bytes": 512 << 20, "memory_bytes": 512 << 20}

TREES = {
    "deeper than a path can be": (
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')\nopen('bottom', 'w').close()",
        "n = 0\nwhile os.path.isdir('d'): os.chdir('d'); n += 1\nprint(n, os.listdir())",
        "3000 ['bottom']",
    ),
    "names that are no text": (
        "for name in (b'a\\nb', b'\\xff\\xfe', b'-rf', b'x' * 255, b'.wh.a'): open(name, 'w').close()",
        "print(len(os.listdir(b'.')), b'\\xff\\xfe' in os.listdir(b'.'))",
        "5 True",
    ),
    "a socket of two names": (
        "socket.socket(socket.AF_UNIX).bind('s'); os.link('s', 't'); os.mkfifo('f'); os.link('f', 'g')",
        "print(sorted(os.listdir()), os.stat('f').st_nlink)",
        "['f', 'g'] 2",
    ),
    "more names than ext4 counts": (
        "open('a', 'w').close()\nfor n in range(66_000): os.link('a', f'l{n}')",
        "print(len(os.listdir()), os.stat('a').st_nlink > 1)",
        "66001 True",
    ),
    "a file of holes": (
        "f = open('sparse', 'wb'); f.truncate(500 << 20); f.seek(400 << 20); f.write(b'x')",
        "s = os.stat('sparse'); print(s.st_size >> 20, s.st_blocks < 64)",
        "500 True",
    ),
    "marks of what was deleted": (
        "os.mknod('m', 0o020000, 0)",
        "print(os.listdir())",
        "[]",
    ),
    "attributes that overlay could take for its own": (
        "os.mkdir('o'); os.setxattr('o', 'user.overlay.opaque', b'y'); os.setxattr('o', 'user.kept', b'1')",
        "print(os.getxattr('o', 'user.kept'))",
        "b'1'",
    ),
}
GO = "import os, socket\nos.makedirs('/home/sandbox/t', exist_ok=True); os.chdir('/home/sandbox/t')\n"


@pytest.fixture(scope="module")
def kind(tmp_path_factory, runtime_folder):
    del runtime_folder
    with local_kind(tmp_path_factory.mktemp("hostile")) as made:
        yield made


def left_of(kind):
    folder = kind.runtime._config.state_dir / "snapshots"
    # Who stands on which is noted beside them.
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(name for name in names if name != ".users" or any((folder / name).iterdir()))


@pytest.mark.parametrize(("make", "look", "said"), TREES.values(), ids=TREES)
def test_a_snapshot_has_whatever_tree_code_has_built_and_goes_away_whole(kind, make, look, said):
    with kind.box(limits=LIMITS) as box:
        made = box.python(GO + make)
        assert made.code == 0, made.order
        kind.runtime.snapshot(box.handle, "tree")
    try:
        with kind.box(image="snapshot:tree", limits=LIMITS) as again:
            assert again.python(GO + look).out.strip() == said
    finally:
        kind.runtime.remove_snapshot("tree")
    assert left_of(kind) == []


def test_an_attribute_too_large_for_the_disk_is_named_and_leaves_nothing(kind):
    with kind.box(limits=LIMITS) as box:
        box.python(GO + "open('a', 'w').close(); os.setxattr('a', 'user.big', b'x' * 60_000)")
        with pytest.raises(DaemonError, match=r"user\.big"):
            kind.runtime.snapshot(box.handle, "big")
        assert box.sh("echo goes on").out == "goes on\n"
    assert left_of(kind) == []


@pytest.mark.parametrize(
    "trick",
    ["rm -r /tmp; touch /tmp", "cd /; rm -rf /home; touch /home", "rm -rf /mnt; ln -s /mnt /mnt"],
)
def test_a_fork_that_files_make_impossible_leaves_the_first_as_it_was(kind, trick):
    with kind.box() as box:
        box.sh(f"sleep 1000 & echo kept > /var/tmp/kept; {trick}", cwd="/")
        with pytest.raises(RunFailure):
            kind.runtime.fork(box.handle, kind.spec(), timeout_seconds=START_SECONDS)
        assert [handle.name for handle in kind.runtime.list()] == [box.handle.name]
        assert box.sh("cat /var/tmp/kept", cwd="/").out == "kept\n"


def test_a_paused_sandbox_can_be_forked(kind):
    handle = kind.runtime.create(kind.spec(), timeout_seconds=START_SECONDS)
    client = kind.runtime.executions(handle)
    Box(kind.runtime, handle, client).sh("echo kept > /tmp/f")
    client.close()
    kind.runtime.pause(handle)
    for fork in kind.runtime.fork(handle, kind.spec(), timeout_seconds=START_SECONDS):
        client = kind.runtime.executions(fork)
        assert Box(kind.runtime, fork, client).sh("cat /tmp/f").out == "kept\n"
        client.close()
        kind.runtime.remove(fork)
