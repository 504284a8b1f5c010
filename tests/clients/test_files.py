"""Files and directories by the published client."""

import io
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from opensandbox.exceptions import InvalidArgumentException, SandboxApiException
from opensandbox.models.filesystem import (
    ContentReplaceEntry,
    DirectoryListEntry,
    MoveEntry,
    SearchEntry,
    SetPermissionEntry,
    WriteEntry,
)
from opensandbox.models.sandboxes import SandboxEndpoint
from opensandbox.sync.services import FilesystemSync

from tests.support.execd import names_in
from tests.support.sdk import FLAVOURS, connected

ODD_NAME = 'ü "quoted" 50% +&#;name\'s\\x'


@pytest.fixture(params=[False, True], ids=["direct", "through the server proxy"])
def writers(request: pytest.FixtureRequest, endpoint: SandboxEndpoint) -> Iterator[list[FilesystemSync]]:
    """Both flavours; how they write differs: in chunks, or with a length and full paths as file names."""
    with (
        connected("sync", endpoint, use_server_proxy=request.param) as one,
        connected("async", endpoint, use_server_proxy=request.param) as other,
    ):
        yield [one.files, other.files]


@pytest.mark.parametrize("flavour", range(len(FLAVOURS)), ids=FLAVOURS)
def test_files_of_all_kinds_of_content_are_written_in_one_call(
    writers: list[FilesystemSync], flavour: int, tmp_path: Path
) -> None:
    files = writers[flavour]
    data = bytes(range(256)) * 1000
    files.write_files(
        [
            WriteEntry(path=f"{tmp_path}/new/{ODD_NAME}", data="grüße\r\n", mode=600),
            WriteEntry(path=f"{tmp_path}/latin", data="grüße", encoding="latin-1"),
            WriteEntry(path=f"{tmp_path}/bytes", data=data, mode=4755),
            WriteEntry(path=f"{tmp_path}/stream", data=io.BytesIO(data)),
            WriteEntry(path=f"{tmp_path}/empty", data=b""),
        ]
    )
    assert (tmp_path / "new" / ODD_NAME).read_bytes() == "grüße\r\n".encode()
    assert (tmp_path / "new" / ODD_NAME).stat().st_mode & 0o7777 == 0o600
    assert (tmp_path / "latin").read_bytes() == "grüße".encode("latin-1")
    assert (tmp_path / "bytes").read_bytes() == (tmp_path / "stream").read_bytes() == data
    assert (tmp_path / "bytes").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "empty").read_bytes() == b""
    files.write_files([])


@pytest.mark.parametrize("flavour", range(len(FLAVOURS)), ids=FLAVOURS)
def test_a_large_file_goes_and_comes_whole(
    writers: list[FilesystemSync], flavour: int, tmp_path: Path
) -> None:
    path, data = f"{tmp_path}/large", os.urandom(30 << 20)
    writers[flavour].write_files([WriteEntry(path=path, data=io.BytesIO(data))])
    assert b"".join(writers[flavour].read_bytes_stream(path)) == data


@pytest.mark.parametrize("flavour", range(len(FLAVOURS)), ids=FLAVOURS)
def test_of_files_one_of_which_cannot_be_written_none_is(
    writers: list[FilesystemSync], flavour: int, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(SandboxApiException) as refused:
        writers[flavour].write_files(
            [
                WriteEntry(path=f"{tmp_path}/one", data="x"),
                WriteEntry(path=f"{tmp_path}/folder", data="x"),
            ]
        )
    assert refused.value.status_code == 400
    assert "folder" in str(refused.value)
    assert names_in(tmp_path) == ["folder"]


def test_a_file_is_written_with_mode_and_owner(files: FilesystemSync, tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    files.write_file(path, "one")
    assert files.get_file_info([path])[path].mode == 755
    files.write_file(path, b"two", mode=640, owner=str(os.geteuid()), group=str(os.getegid()))
    info = files.get_file_info([path])[path]
    assert (info.mode, info.size) == (640, 3)
    with pytest.raises(SandboxApiException) as refused:
        files.write_file(path, "three", owner="no-such-user")
    assert refused.value.status_code == 400
    assert files.read_file(path) == "two"


def test_text_is_read_whole_by_range_and_by_lines(files: FilesystemSync, tmp_path: Path) -> None:
    path = f"{tmp_path}/{ODD_NAME}"
    files.write_file(path, "one\nzwölf\nthree\n")
    assert files.read_file(path) == "one\nzwölf\nthree\n"
    assert files.read_file(path, range_header="bytes=0-2") == "one"
    assert files.read_file(path, offset=2, limit=1) == "zwölf"
    assert files.read_file(path, offset=3) == "three"
    assert files.read_file(path, limit=2) == "one\nzwölf"
    assert files.read_file(path, encoding="latin-1").splitlines()[1] == "zwÃ¶lf"


def test_bytes_are_read_whole_by_range_and_by_lines(files: FilesystemSync, tmp_path: Path) -> None:
    path, data = f"{tmp_path}/b", bytes(range(256)) * 4
    files.write_file(path, data)
    assert files.read_bytes(path) == data
    assert files.read_bytes(path, range_header="bytes=1-3") == b"\x01\x02\x03"
    assert files.read_bytes(path, range_header="bytes=-2") == b"\xfe\xff"
    assert files.read_bytes(path, range_header="bytes=1020-") == b"\xfc\xfd\xfe\xff"
    assert files.read_bytes(path, offset=1, limit=1) == bytes(range(10))
    with pytest.raises(SandboxApiException) as refused:
        files.read_bytes(path, range_header="bytes=5000-")
    assert refused.value.status_code == 416


def test_bytes_are_read_as_a_stream(files: FilesystemSync, tmp_path: Path) -> None:
    path, data = f"{tmp_path}/b", os.urandom(1_000_000)
    files.write_file(path, data)
    pieces = list(files.read_bytes_stream(path, chunk_size=10_000))
    assert (b"".join(pieces), len(pieces)) == (data, 100)
    assert b"".join(files.read_bytes_stream(path, range_header="bytes=999990-")) == data[-10:]
    files.write_file(path, b"1\n2\n3\n")
    assert b"".join(files.read_bytes_stream(path, offset=2, limit=1)) == b"2"
    with pytest.raises(SandboxApiException) as missing:
        list(files.read_bytes_stream(f"{tmp_path}/no"))
    assert missing.value.status_code == 404


def test_what_is_told_of_files(files: FilesystemSync, tmp_path: Path) -> None:
    names = {kind: str(tmp_path / kind) for kind in ("file", "directory", "symlink")}
    files.write_file(names["file"], "12345", mode=644)
    (tmp_path / "directory").mkdir(mode=0o750)
    (tmp_path / "symlink").symlink_to("file")
    told = files.get_file_info(list(names.values()))
    assert {entry.path: entry.entry_type for entry in told.values()} == {
        path: kind for kind, path in names.items()
    }
    file = told[names["file"]]
    assert (file.size, file.mode, told[names["directory"]].mode) == (5, 644, 750)
    assert (file.owner, file.group) == ((tmp_path / "file").owner(), (tmp_path / "file").group())
    for moment in (file.modified_at, file.created_at):
        assert abs(datetime.now(UTC) - moment) < timedelta(minutes=1)
    for call in (files.get_file_info, lambda paths: files.read_bytes(paths[0])):
        with pytest.raises(SandboxApiException) as missing:
            call([f"{tmp_path}/no"])
        assert missing.value.status_code == 404


def test_files_are_moved(files: FilesystemSync, tmp_path: Path) -> None:
    files.write_files([WriteEntry(path=f"{tmp_path}/{name}", data=name) for name in ("a", "b", "d/c")])
    files.move_files(
        [
            MoveEntry(src=f"{tmp_path}/a", dest=f"{tmp_path}/new/{ODD_NAME}"),
            MoveEntry(src=f"{tmp_path}/d", dest=f"{tmp_path}/e"),
        ]
    )
    assert files.read_file(f"{tmp_path}/new/{ODD_NAME}") == "a"
    assert files.read_file(f"{tmp_path}/e/c") == "d/c"
    with pytest.raises(SandboxApiException) as missing:
        files.move_files([MoveEntry(src=f"{tmp_path}/a", dest=f"{tmp_path}/x")])
    assert missing.value.status_code == 404
    assert sorted(names_in(tmp_path)) == ["b", "e", "new"]


def test_permissions_are_set(files: FilesystemSync, tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    files.write_file(path, "x")
    files.set_permissions([SetPermissionEntry(path=path, mode=600)])
    assert files.get_file_info([path])[path].mode == 600
    me = files.get_file_info([path])[path]
    files.set_permissions([SetPermissionEntry(path=path, mode=640, owner=me.owner, group=me.group)])
    assert files.get_file_info([path])[path].mode == 640
    with pytest.raises(SandboxApiException) as missing:
        files.set_permissions([SetPermissionEntry(path=f"{tmp_path}/no", mode=600)])
    assert missing.value.status_code == 404


def test_contents_are_replaced(files: FilesystemSync, tmp_path: Path) -> None:
    path = f"{tmp_path}/{ODD_NAME}"
    files.write_file(path, "eins\nzwölf\nzwölf\n", mode=600)
    files.replace_contents([ContentReplaceEntry(path=path, old_content="eins\n", new_content="1\n")])
    (result,) = files.replace_contents_detailed(
        [ContentReplaceEntry(path=path, old_content="zwölf", new_content="12")]
    )
    assert (result.path, result.replaced_count) == (path, 2)
    assert files.read_file(path) == "1\n12\n12\n"
    assert files.get_file_info([path])[path].mode == 600
    (nothing,) = files.replace_contents_detailed(
        [ContentReplaceEntry(path=path, old_content="not there", new_content="x")]
    )
    assert nothing.replaced_count == 0
    for call in (files.replace_contents, files.replace_contents_detailed):
        with pytest.raises(SandboxApiException) as missing:
            call([ContentReplaceEntry(path=f"{tmp_path}/no", old_content="a", new_content="b")])
        assert missing.value.status_code == 404


def test_files_are_found_by_pattern(files: FilesystemSync, tmp_path: Path) -> None:
    files.write_files(
        [WriteEntry(path=f"{tmp_path}/{name}", data="x") for name in ("a.py", "b.txt", "d/c.py")]
    )
    found = files.search(SearchEntry(path=str(tmp_path), pattern="*.py"))
    assert sorted(entry.path for entry in found) == [f"{tmp_path}/a.py", f"{tmp_path}/d/c.py"]
    assert {(entry.size, entry.entry_type) for entry in found} == {(1, "file")}
    assert files.search(SearchEntry(path=str(tmp_path), pattern="*.rs")) == []
    with pytest.raises(SandboxApiException) as missing:
        files.search(SearchEntry(path=f"{tmp_path}/no", pattern="*"))
    assert missing.value.status_code == 404


def test_directories_are_made_listed_and_deleted(files: FilesystemSync, tmp_path: Path) -> None:
    files.create_directories(
        [
            WriteEntry(path=f"{tmp_path}/d/e", mode=750),
            WriteEntry(path=f"{tmp_path}/d/{ODD_NAME}", mode=700),
        ]
    )
    files.write_file(f"{tmp_path}/d/e/f", "x")
    assert [entry.path for entry in files.list_directory(DirectoryListEntry(path=str(tmp_path)))] == [
        f"{tmp_path}/d"
    ]
    listed = files.list_directory(DirectoryListEntry(path=f"{tmp_path}/d", depth=2))
    assert {(entry.path, entry.entry_type, entry.mode) for entry in listed} == {
        (f"{tmp_path}/d/e", "directory", 750),
        (f"{tmp_path}/d/{ODD_NAME}", "directory", 700),
        (f"{tmp_path}/d/e/f", "file", 755),
    }
    files.delete_directories([f"{tmp_path}/d/{ODD_NAME}", f"{tmp_path}/d", f"{tmp_path}/missing"])
    assert names_in(tmp_path) == []
    with pytest.raises(SandboxApiException) as missing:
        files.list_directory(DirectoryListEntry(path=f"{tmp_path}/d"))
    assert missing.value.status_code == 404


def test_files_are_deleted(files: FilesystemSync, tmp_path: Path) -> None:
    names = ["a", ODD_NAME, "c"]
    files.write_files([WriteEntry(path=f"{tmp_path}/{name}", data="x") for name in names])
    files.delete_files([f"{tmp_path}/a", f"{tmp_path}/{ODD_NAME}", f"{tmp_path}/missing"])
    assert names_in(tmp_path) == ["c"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(SandboxApiException):
        files.delete_files([f"{tmp_path}/folder"])
    assert sorted(names_in(tmp_path)) == ["c", "folder"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_users_files_are_handled_with_that_users_rights(
    files: FilesystemSync, open_folder: Path
) -> None:
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, 1234, 4321)
    theirs = files.with_identity(1234, 4321)
    theirs.write_file(f"{home}/f", "one")
    assert ((home / "f").stat().st_uid, (home / "f").stat().st_gid) == (1234, 4321)
    assert theirs.read_file(f"{home}/f") == "one"
    theirs.create_directories([WriteEntry(path=f"{home}/d")])
    theirs.move_files([MoveEntry(src=f"{home}/f", dest=f"{home}/d/g")])
    assert [entry.path for entry in theirs.search(SearchEntry(path=str(home), pattern="g"))] == [
        f"{home}/d/g"
    ]
    for refused in (
        lambda: theirs.write_file(f"{open_folder}/f", "x"),
        lambda: theirs.delete_directories([str(home)]),
        lambda: theirs.read_bytes("/etc/shadow"),
    ):
        with pytest.raises(SandboxApiException) as error:
            refused()
        assert error.value.status_code == 403
    files.write_file(f"{open_folder}/f", "x")
    with pytest.raises(InvalidArgumentException):
        files.with_identity(-1, 0)
