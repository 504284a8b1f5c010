"""Renaming, permissions, replacing and windows of lines over the wire."""

import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.execd import RunningExecd, names_in, running_execd


@pytest.fixture
def execd(shared_execd: RunningExecd) -> RunningExecd:
    return shared_execd


def outcome(execd: RunningExecd, route: str, body: Any) -> tuple[int, str]:
    """Status, and the code of an error."""
    response = execd.client.post(route, json=body)
    return response.status_code, response.json()["code"] if response.content else ""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_files_links_and_directories_are_renamed(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("file")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "inner").write_text("inner")
    (tmp_path / "link").symlink_to("nowhere")
    moves = [("file", "new/deep/file"), ("dir", "dir2/"), ("link", "link2"), ("new/deep/file", "odd\nname é")]
    body = [{"src": f"{tmp_path}/{src}", "dest": f"{tmp_path}/{dest}"} for src, dest in moves]
    assert outcome(execd, "/files/mv", body) == (200, "")
    assert sorted(names_in(tmp_path)) == ["dir2", "link2", "new", "odd\nname é"]
    assert (tmp_path / "odd\nname é").read_text() == "file"
    assert (tmp_path / "dir2" / "inner").read_text() == "inner"
    assert (tmp_path / "link2").readlink() == Path("nowhere")


@pytest.mark.parametrize("target", ["file", "dir", "empty", "dangling"])
def test_a_rename_replaces_nothing(execd: RunningExecd, tmp_path: Path, target: str) -> None:
    (tmp_path / "src").write_text("src")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "dir" / "x").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    body = [{"src": f"{tmp_path}/src", "dest": f"{tmp_path}/{target}"}]
    assert outcome(execd, "/files/mv", body) == (500, "RUNTIME_ERROR")
    assert (tmp_path / "src").read_text() == "src"
    assert (tmp_path / "file").read_text() == "kept"


def test_a_rename_that_cannot_be_is_refused(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    into_itself = [{"src": f"{tmp_path}/dir", "dest": f"{tmp_path}/dir/sub"}]
    assert outcome(execd, "/files/mv", into_itself) == (400, "INVALID_FILE")
    missing = [{"src": f"{tmp_path}/no", "dest": f"{tmp_path}/parent/x"}]
    assert outcome(execd, "/files/mv", missing) == (404, "FILE_NOT_FOUND")
    assert names_in(tmp_path) == ["dir"]


@pytest.mark.parametrize(
    ("route", "body", "named"),
    [
        ("/files/mv", {}, "array"),
        ("/files/mv", ["x"], "[0]"),
        ("/files/mv", [{"src": "/a"}], "[0].dest"),
        ("/files/mv", [{"src": "/a", "dest": "/b"}, {"src": "", "dest": "/b"}], "[1].src"),
        ("/files/mv", [{"src": "/a\0", "dest": "/b"}], "[0].src"),
        ("/files/mv", [{"src": "/a", "dest": "/b", "force": True}], "force"),
        ("/files/mv", [{"src": 1, "dest": "/b"}], "[0].src"),
        ("/files/permissions", [], "object"),
        ("/files/permissions", {"/x": 644}, "/x"),
        ("/files/permissions", {"/x": {"mode": "644"}}, "/x.mode"),
        ("/files/permissions", {"/x": {"mode": 888}}, "/x.mode"),
        ("/files/permissions", {"/x": {"owner": 0}}, "/x.owner"),
        ("/files/permissions", {"/x": {"user": "root"}}, "user"),
        ("/files/permissions", {"": {"mode": 644}}, "path"),
        ("/files/permissions", {"\0": {"mode": 644}}, "path"),
        ("/files/replace", [], "object"),
        ("/files/replace", {"/x": None}, "/x"),
        ("/files/replace", {"/x": {"old": "", "new": "a"}}, "/x.old"),
        ("/files/replace", {"/x": {"new": "a"}}, "/x.old"),
        ("/files/replace", {"/x": {"old": "a"}}, "/x.new"),
        ("/files/replace", {"/x": {"old": "a", "new": "b", "regex": True}}, "regex"),
        ("/directories", {"/x": {"mode": 99}}, "/x.mode"),
        ("/directories", {"/x": {"recursive": True}}, "recursive"),
    ],
)  # fmt: skip
def test_a_body_that_is_wrong_is_refused_by_field(
    execd: RunningExecd, route: str, body: Any, named: str
) -> None:
    response = execd.client.post(route, json=body)
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST_BODY")
    assert named in response.json()["message"]


def test_modes_are_changed_without_special_bits(execd: RunningExecd, tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o640)
    (tmp_path / "dir").mkdir()
    body = {
        f"{tmp_path}/a": {"mode": 6755},
        f"{tmp_path}/b": {"mode": 0},
        f"{tmp_path}/c": {"mode": None, "owner": None, "group": None},
        f"{tmp_path}/d": None,
        f"{tmp_path}/dir": {"mode": 1777},
    }
    assert outcome(execd, "/files/permissions", body) == (200, "")
    assert [mode_of(tmp_path / name) for name in "abcd"] == [0o755, 0o640, 0o640, 0o640]
    assert mode_of(tmp_path / "dir") == 0o1777


def test_permissions_of_what_is_missing_or_owned_by_nobody_known_fail(
    execd: RunningExecd, tmp_path: Path
) -> None:
    for item in ({"mode": 644}, {}):
        body: dict[str, Any] = {f"{tmp_path}/no": item}
        assert outcome(execd, "/files/permissions", body) == (404, "FILE_NOT_FOUND")
    for item in ({"owner": "no-such-user"}, {"group": "no-such-group"}, {"owner": "4294967295"}):
        assert outcome(execd, "/files/permissions", {str(tmp_path): item}) == (500, "RUNTIME_ERROR")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_owner_and_group_are_changed(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    body = {f"{tmp_path}/f": {"mode": 600, "owner": "nobody", "group": "4321"}}
    assert outcome(execd, "/files/permissions", body) == (200, "")
    status = (tmp_path / "f").stat()
    assert (status.st_uid, status.st_gid, mode_of(tmp_path / "f")) == (65534, 4321, 0o600)


def test_text_is_replaced_everywhere_and_counted(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("é-é-x" * 100_000)
    (tmp_path / "a").chmod(0o751)
    (tmp_path / "none").write_text("nothing here")
    untouched = (tmp_path / "none").stat()
    body = {
        f"{tmp_path}/a": {"old": "é-", "new": "ü"},
        f"{tmp_path}/none": {"old": "absent", "new": "x"},
    }
    response = execd.client.post("/files/replace", params={"verbose": True}, json=body)
    assert response.json() == {
        f"{tmp_path}/a": {"replacedCount": 200_000},
        f"{tmp_path}/none": {"replacedCount": 0},
    }
    assert (tmp_path / "a").read_text() == "üüx" * 100_000
    assert mode_of(tmp_path / "a") == 0o751
    assert (tmp_path / "none").stat().st_ctime_ns == untouched.st_ctime_ns
    response = execd.client.post("/files/replace", json={f"{tmp_path}/a": {"old": "ü", "new": ""}})
    assert (response.status_code, response.content) == (200, b"")
    assert (tmp_path / "a").read_text() == "x" * 100_000


def test_all_files_are_changed_or_none(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    os.mkfifo(tmp_path / "fifo")
    for other, expected in (("no", 404), ("fifo", 400), ("./a", 400), (".", 400)):
        body = {f"{tmp_path}/{name}": {"old": "old", "new": "new"} for name in ("a", other)}
        started = time.monotonic()
        assert outcome(execd, "/files/replace", body)[0] == expected, other
        assert time.monotonic() - started < 1
        assert (tmp_path / "a").read_text() == "old"
    assert sorted(names_in(tmp_path)) == ["a", "fifo"]


def test_replacing_through_a_link_changes_the_file_and_keeps_the_link(
    execd: RunningExecd, tmp_path: Path
) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "f").write_text("old")
    (tmp_path / "link").symlink_to("dir/f")
    body = {f"{tmp_path}/link": {"old": "old", "new": "new"}}
    assert outcome(execd, "/files/replace", body) == (200, "")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "dir" / "f").read_text() == "new"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_replacing_on_a_full_disk_leaves_the_old_content(bundle: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
    try:
        with running_execd(bundle, tmp_path) as execd:
            (disk / "f").write_text("a" * 1000)
            body = {f"{disk}/f": {"old": "a", "new": "b" * 10_000}}
            assert outcome(execd, "/files/replace", body) == (507, "DISK_FULL")
            assert names_in(disk) == ["f"]
            assert (disk / "f").read_text() == "a" * 1000
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_that_is_a_mount_point_is_written_in_place(bundle: Path, tmp_path: Path) -> None:
    # As /etc/hosts in a container: nothing can be renamed over it.
    (tmp_path / "source").write_text("old and long")
    (tmp_path / "mounted").write_text("")
    subprocess.run(["mount", "--bind", tmp_path / "source", tmp_path / "mounted"], check=True)
    try:
        with running_execd(bundle, tmp_path) as execd:
            body = {f"{tmp_path}/mounted": {"old": "old", "new": "new"}}
            assert outcome(execd, "/files/replace", body) == (200, "")
            assert (tmp_path / "source").read_text() == "new and long"
            files = [
                ("metadata", ("metadata", f'{{"path":"{tmp_path}/mounted"}}', "application/json")),
                ("file", ("f", b"short", "text/plain")),
            ]
            assert execd.client.post("/files/upload", files=files).status_code == 200
            assert (tmp_path / "source").read_text() == "short"
            assert sorted(names_in(tmp_path)) == ["execd.log", "mounted", "source"]
    finally:
        subprocess.run(["umount", tmp_path / "mounted"], check=True)


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ({"offset": 2}, b"two\r\n\n\xff4"),
        ({"offset": 2, "limit": 1}, b"two\r"),
        ({"limit": 2}, b"one\ntwo\r"),
        ({"offset": 3, "limit": 1}, b""),
        ({"offset": 3, "limit": 99}, b"\n\xff4"),
        ({"offset": 5}, b""),
        ({"offset": 10**18}, b""),
    ],
)
def test_a_window_of_lines_is_sent(
    execd: RunningExecd, tmp_path: Path, query: dict[str, int], body: bytes
) -> None:
    (tmp_path / "f").write_bytes(b"one\ntwo\r\n\n\xff4\n")
    response = execd.client.get("/files/download", params={"path": f"{tmp_path}/f", **query})
    assert (response.status_code, response.content) == (200, body)
    assert response.headers["content-type"] == "text/plain"


@pytest.mark.parametrize(
    "query", ["offset=0", "offset=-1", "limit=0", "limit=x", "offset=1&offset=2", "limit="]
)
def test_a_window_that_is_none_is_refused(execd: RunningExecd, tmp_path: Path, query: str) -> None:
    (tmp_path / "f").write_bytes(b"one\n")
    response = execd.client.get(f"/files/download?path={tmp_path}/f&{query}")
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_QUERY")


def test_a_window_of_lines_and_a_range_exclude_each_other(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"one\n")
    response = execd.client.get(f"/files/download?path={tmp_path}/f&limit=1", headers={"range": "bytes=0-1"})
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_QUERY")


def test_one_huge_line_takes_no_memory(execd: RunningExecd, tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.write(b"first\n")
        file.truncate(200_000_000)
    before = execd.rss_kib()
    received = 0
    with execd.client.stream(
        "GET", "/files/download", params={"path": f"{tmp_path}/f", "offset": 2, "limit": 1}
    ) as response:
        for chunk in response.iter_raw():
            received += len(chunk)
    assert received == 200_000_000 - 6
    assert execd.rss_kib() - before < 8 * 1024


@pytest.fixture
def other_disk() -> Iterator[Path]:
    """A folder on another file system."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="execd-test-") as name:
        yield Path(name)


def test_a_tree_is_moved_to_another_file_system(
    execd: RunningExecd, tmp_path: Path, other_disk: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "closed").mkdir(parents=True)
    (tree / "big").write_bytes(os.urandom(1_000_000))
    (tree / "a" / "run").write_text("x")
    (tree / "a" / "run").chmod(0o4751)
    os.utime(tree / "a" / "run", ns=(0, 1_500_000_000_000_000_000))
    (tree / "a" / "closed" / "odd\nname").write_text("y")
    (tree / "link").symlink_to("/nowhere")
    (tree / "a" / "closed").chmod(0o500)
    content = (tree / "big").read_bytes()
    body = [{"src": str(tree), "dest": f"{other_disk}/new/tree"}]
    if os.geteuid() == 0:
        os.chown(tree / "big", 1234, 4321)
    assert outcome(execd, "/files/mv", body) == (200, "")
    assert names_in(tmp_path) == []
    moved = other_disk / "new" / "tree"
    assert names_in(moved.parent) == ["tree"]
    assert (moved / "big").read_bytes() == content
    assert (moved / "link").readlink() == Path("/nowhere")
    assert (moved / "a" / "closed" / "odd\nname").read_text() == "y"
    assert mode_of(moved / "a" / "closed") == 0o500
    assert mode_of(moved / "a" / "run") == 0o751
    assert (moved / "a" / "run").stat().st_mtime_ns == 1_500_000_000_000_000_000
    if os.geteuid() == 0:
        assert ((moved / "big").stat().st_uid, (moved / "big").stat().st_gid) == (1234, 4321)
    (moved / "a" / "closed").chmod(0o700)


def test_a_file_and_a_link_are_moved_to_another_file_system(
    execd: RunningExecd, tmp_path: Path, other_disk: Path
) -> None:
    (tmp_path / "f").write_text("x")
    (tmp_path / "link").symlink_to("f")
    body = [{"src": f"{tmp_path}/{name}", "dest": f"{other_disk}/{name}"} for name in ("f", "link")]
    assert outcome(execd, "/files/mv", body) == (200, "")
    assert (other_disk / "link").read_text() == "x"
    assert names_in(tmp_path) == []


def test_a_move_that_fails_on_the_way_leaves_the_source_and_nothing_else(
    execd: RunningExecd, tmp_path: Path, other_disk: Path
) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "f").write_text("x")
    os.mkfifo(tmp_path / "tree" / "fifo")
    for source in ("tree", "tree/fifo"):
        body = [{"src": f"{tmp_path}/{source}", "dest": f"{other_disk}/x"}]
        assert outcome(execd, "/files/mv", body) == (400, "INVALID_FILE")
    assert names_in(other_disk) == []
    assert (tmp_path / "tree" / "a" / "f").read_text() == "x"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_tree_is_not_moved_into_a_file_system_mounted_in_it(bundle: Path, tmp_path: Path) -> None:
    inner = tmp_path / "data" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "data" / "f").write_text("kept")
    (tmp_path / "link").symlink_to(inner)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", inner], check=True)
    try:
        with running_execd(bundle, tmp_path) as execd:
            for target in (f"{inner}/x", f"{tmp_path}/link/new/x"):
                body = [{"src": f"{tmp_path}/data", "dest": target}]
                assert outcome(execd, "/files/mv", body) == (400, "INVALID_FILE")
        assert not [path for path in inner.rglob("*") if path.is_file() or path.name == "x"]
        assert (tmp_path / "data" / "f").read_text() == "kept"
    finally:
        subprocess.run(["umount", inner], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_what_may_not_be_deleted_is_not_copied_to_another_file_system(
    execd: RunningExecd, open_folder: Path, other_disk: Path
) -> None:
    (open_folder / "tree").mkdir()
    (open_folder / "f").write_text("x")
    other_disk.chmod(0o777)
    for name in ("tree", "f"):
        body = [{"src": f"{open_folder}/{name}", "dest": f"{other_disk}/{name}"}]
        assert outcome(execd, "/v1/filesystem/1234/1234/files/mv", body) == (403, "PERMISSION_DENIED")
    assert names_in(other_disk) == []
    assert sorted(names_in(open_folder)) == ["f", "tree"]
