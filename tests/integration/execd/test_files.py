"""Upload, download, info and search over the wire."""

import base64
import json
import os
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.execd import Part, RunningExecd, file_parts, names_in, running_execd, wait_for


@pytest.fixture
def execd(shared_execd: RunningExecd) -> RunningExecd:
    return shared_execd


def upload(execd: RunningExecd, *files: list[Part]) -> httpx.Response:
    return execd.upload(*files)


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob(".execd-*"))


def test_files_come_back_as_they_went(execd: RunningExecd, tmp_path: Path) -> None:
    big = os.urandom(3_000_000)
    tricky = b"\r\n--boundary\r\n\r\n--\r\n" * 1000
    response = upload(
        execd,
        file_parts(f"{tmp_path}/new/deep/big", big, mode=600),
        file_parts(f"{tmp_path}/tricky", tricky, mode=755),
        file_parts(f"{tmp_path}/empty", b""),
    )
    assert response.status_code == 200, response.text
    for name, data, mode in (("new/deep/big", big, 0o600), ("tricky", tricky, 0o755), ("empty", b"", 0o644)):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode
        assert execd.client.get("/files/download", params={"path": f"{tmp_path}/{name}"}).content == data
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o755
    assert leftovers(tmp_path) == []


def test_an_upload_replaces_and_keeps_the_mode_unless_told(execd: RunningExecd, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_text("old and longer")
    target.chmod(0o750)
    assert upload(execd, file_parts(str(target), b"new")).status_code == 200
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o750


@pytest.mark.parametrize(
    ("mode", "bits"), [(644, 0o644), (4755, 0o755), (2755, 0o755), (1777, 0o1777), (7777, 0o1777)]
)
def test_of_the_special_mode_bits_only_sticky_is_kept(
    execd: RunningExecd, tmp_path: Path, mode: int, bits: int
) -> None:
    assert upload(execd, file_parts(f"{tmp_path}/f", b"x", mode=mode)).status_code == 200
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == bits


@pytest.mark.parametrize(
    "name",
    [
        "new\nline",
        "cr\rlf",
        "quo\"te'",
        "-rf",
        "spa ce",
        "ünïcode",
        "\u202eltr",
        "a" * 255,
        "%41+&=?#",
        "back\\slash",
    ],
)
def test_odd_names_make_the_round_trip(execd: RunningExecd, tmp_path: Path, name: str) -> None:
    path = f"{tmp_path}/{name}"
    assert upload(execd, file_parts(path, b"data")).status_code == 200
    assert name in names_in(tmp_path)
    response = execd.client.get("/files/download", params={"path": path})
    assert response.content == b"data"
    assert "\n" not in response.headers["content-disposition"]
    assert execd.client.get("/files/info", params={"path": path}).json()[path]["size"] == 4
    found = execd.client.get("/files/search", params={"path": str(tmp_path), "pattern": "*"}).json()
    assert path in [item["path"] for item in found]


def test_a_name_that_is_not_utf8_is_found_and_fetched(execd: RunningExecd, tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/bad\xff\xfename"
    Path(os.fsdecode(raw)).write_bytes(b"x")
    response = execd.client.get("/files/search", params={"path": str(tmp_path), "pattern": "bad*"})
    (item,) = json.loads(response.content.decode("utf-8"))
    assert item["path"].endswith("bad\ufffd\ufffdname")
    assert base64.b64decode(item["path_b64"]) == raw
    target = "/files/download?path=" + "".join(f"%{byte:02X}" for byte in raw)
    assert execd.client.get(target).content == b"x"


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        (b"{", "INVALID_FILE_METADATA"),
        (b"[]", "INVALID_FILE_METADATA"),
        (b"{}", "INVALID_FILE_METADATA"),
        (b'{"path":""}', "INVALID_FILE_METADATA"),
        (b'{"path":5}', "INVALID_FILE_METADATA"),
        (b'{"path":"a\\u0000"}', "INVALID_FILE_METADATA"),
        (b'{"path":"\\ud800"}', "INVALID_FILE_METADATA"),
        (b'{"path":"f","mode":888}', "INVALID_FILE_METADATA"),
        (b'{"path":"f","mode":-1}', "INVALID_FILE_METADATA"),
        (b'{"path":"f","mode":"644"}', "INVALID_FILE_METADATA"),
        (b'{"path":"f","mode":77777}', "INVALID_FILE_METADATA"),
        (b'{"path":"f","owner":"no-such-user"}', "INVALID_FILE_METADATA"),
        (b'{"path":"f","group":"no-such-group"}', "INVALID_FILE_METADATA"),
        (b'{"path":"/"}', "INVALID_FILE"),
        (b'{"path":"x/"}', "INVALID_FILE"),
        (b'{"path":"x/.."}', "INVALID_FILE"),
        (b'{"path":"/etc/passwd/x"}', "INVALID_FILE"),
        (b'{"path":"' + b"n" * 256 + b'"}', "INVALID_FILE"),
        (b'{"path":"' + b"d/" * 3000 + b'f"}', "INVALID_FILE"),
    ],
)  # fmt: skip
def test_bad_metadata_is_refused_and_nothing_is_written(
    execd: RunningExecd, tmp_path: Path, metadata: bytes, code: str
) -> None:
    before = sorted(path for path in tmp_path.rglob("*") if path.name != "d")
    parts = [("metadata", ("metadata", metadata, "application/json")), ("file", ("f", b"data", "text/plain"))]
    response = execd.client.post("/files/upload", files=parts)
    assert response.status_code == 400, response.text
    assert response.json()["code"] == code
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "d") == before


def test_pairs_must_be_complete_and_all_or_nothing_is_written(execd: RunningExecd, tmp_path: Path) -> None:
    good = file_parts(f"{tmp_path}/good", b"x")
    cases = {
        "metadata without file": [*good, file_parts("y", b"")[0]],
        "file without metadata": [*good, file_parts("y", b"")[1]],
        "second is bad": [*good, *file_parts("", b"")],
        "unknown part": [*good, ("extra", ("e", b"", "text/plain"))],
    }
    for name, parts in cases.items():
        response = execd.client.post("/files/upload", files=parts)
        assert (response.status_code, response.json()["code"]) == (400, "INVALID_FILE_METADATA"), name
        assert not (tmp_path / "good").exists(), name
    assert execd.client.post("/files/upload", files=[]).status_code == 400
    response = execd.client.post(
        "/files/upload", content=b"--b--\r\n", headers={"content-type": "multipart/form-data; boundary=b"}
    )
    assert response.json()["code"] == "INVALID_FILE"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "content_type", ["application/json", "multipart/form-data", "multipart/form-data; boundary="]
)
def test_a_body_that_is_no_form_is_refused(execd: RunningExecd, content_type: str) -> None:
    response = execd.client.post("/files/upload", content=b"x", headers={"content-type": content_type})
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_FILE_CONTENT")


def special_files(folder: Path) -> dict[str, str]:
    os.mkfifo(folder / "fifo")
    (folder / "dir").mkdir()
    (folder / "link-to-fifo").symlink_to("fifo")
    return {
        "fifo": f"{folder}/fifo",
        "directory": f"{folder}/dir",
        "link to a fifo": f"{folder}/link-to-fifo",
        "endless device": "/dev/zero",
        "terminal": "/dev/tty",
    }


def test_only_regular_files_are_read_and_replaced(execd: RunningExecd, tmp_path: Path) -> None:
    for name, path in special_files(tmp_path).items():
        started = time.monotonic()
        for response in (
            execd.client.get("/files/download", params={"path": path}),
            upload(execd, file_parts(path, b"x")),
        ):
            assert (response.status_code, response.json()["code"]) == (400, "INVALID_FILE"), name
        assert time.monotonic() - started < 1, name
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)
    assert execd.client.get("/ping").status_code == 200


def test_an_upload_does_not_write_through_a_link(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to("precious")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert (
        upload(
            execd, file_parts(f"{tmp_path}/link", b"new"), file_parts(f"{tmp_path}/dangling", b"new")
        ).status_code
        == 200
    )
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "link").read_text() == (tmp_path / "dangling").read_text() == "new"
    assert not (tmp_path / "nowhere").exists()


def test_no_reader_ever_sees_part_of_an_upload(execd: RunningExecd, tmp_path: Path) -> None:
    target = tmp_path / "f"
    target.write_bytes(b"a" * 500_000)
    seen: set[bytes] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.add(bytes({target.read_bytes()[0]}) + str(len(target.read_bytes())).encode())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for letter in (b"b", b"c") * 10:
            assert upload(execd, file_parts(str(target), letter * 500_000)).status_code == 200
    finally:
        stop.set()
        watcher.join()
    assert seen <= {b"a500000", b"b500000", b"c500000"}


def test_an_aborted_upload_leaves_nothing(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")

    def body() -> Iterator[bytes]:
        document = json.dumps({"path": f"{tmp_path}/f"}).encode()
        yield (
            b'--b\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n\r\n' + document
        )
        yield b'\r\n--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"x" * 100_000
        wait_for(lambda: leftovers(tmp_path))
        raise RuntimeError("client dies")

    with pytest.raises(RuntimeError, match="client dies"):
        execd.client.post(
            "/files/upload", content=body(), headers={"content-type": "multipart/form-data; boundary=b"}
        )
    wait_for(lambda: leftovers(tmp_path) == [])
    assert (tmp_path / "f").read_text() == "old"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_leaves_the_old_content(bundle: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
    try:
        with running_execd(bundle, tmp_path) as execd:
            (disk / "f").write_text("old")
            response = upload(
                execd, file_parts(f"{disk}/first", b"x" * 1000), file_parts(f"{disk}/f", b"x" * 2_000_000)
            )
            assert (response.status_code, response.json()["code"]) == (507, "DISK_FULL")
            assert names_in(disk) == ["f"]
            assert (disk / "f").read_text() == "old"
            assert upload(execd, file_parts(f"{disk}/f", b"fits")).status_code == 200
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_file_limit_is_answered_and_not_fatal(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path, flags=["--rlimit", "fsize=100000"]) as execd:
        assert upload(execd, file_parts(f"{tmp_path}/f", b"x" * 200_000)).status_code == 413
        assert leftovers(tmp_path) == []
        assert execd.client.get("/ping").status_code == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_owner_and_group_are_set_by_name_or_number(execd: RunningExecd, tmp_path: Path) -> None:
    assert upload(execd, file_parts(f"{tmp_path}/f", b"", owner="nobody", group="4321")).status_code == 200
    status = (tmp_path / "f").stat()
    assert (status.st_uid, status.st_gid) == (65534, 4321)
    info = execd.client.get("/files/info", params={"path": f"{tmp_path}/f"}).json()[f"{tmp_path}/f"]
    assert (info["owner"], info["group"]) == ("nobody", "4321")


@pytest.mark.parametrize(
    ("header", "body", "content_range"),
    [
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-30", b"0123456789", "bytes 0-9/10"),
        ("bytes=0-99", b"0123456789", "bytes 0-9/10"),
    ],
)
def test_a_range_is_served(
    execd: RunningExecd, tmp_path: Path, header: str, body: bytes, content_range: str
) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    response = execd.client.get(
        "/files/download", params={"path": f"{tmp_path}/f"}, headers={"range": header}
    )
    assert (response.status_code, response.content) == (206, body)
    assert response.headers["content-range"] == content_range
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"] == "attachment; filename*=UTF-8''f"


@pytest.mark.parametrize(
    "header",
    ["bytes=10-", "bytes=5-2", "bytes=-", "bytes=-0", "bytes=a-b", "bytes=0-1,3-4", "lines=1-2"],
)
def test_a_range_that_does_not_fit_is_416(execd: RunningExecd, tmp_path: Path, header: str) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    response = execd.client.get(
        "/files/download", params={"path": f"{tmp_path}/f"}, headers={"range": header}
    )
    assert (response.status_code, response.json()["code"]) == (416, "UNKNOWN")
    assert response.headers["content-range"] == "bytes */10"


def test_a_missing_file_is_404_everywhere(execd: RunningExecd, tmp_path: Path) -> None:
    for route in ("download", "info", "search"):
        response = execd.client.get(f"/files/{route}", params={"path": f"{tmp_path}/no", "pattern": "*"})
        assert (response.status_code, response.json()["code"]) == (404, "FILE_NOT_FOUND")


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/files/download", "MISSING_QUERY"),
        ("/files/search", "MISSING_QUERY"),
        ("/files/download?path=", "INVALID_QUERY"),
        ("/files/download?path=%00", "INVALID_QUERY"),
        ("/files/download?path=%zz", "INVALID_QUERY"),
        ("/files/download?path=a&path=b", "INVALID_QUERY"),
        ("/files/info?path=a%00", "INVALID_QUERY"),
        ("/files/search?path=/&pattern=" + "{a,b}" * 9, "INVALID_QUERY"),
        ("/files/search?path=/&pattern=" + "a" * 1025, "INVALID_QUERY"),
        ("/files/download?path=" + "n" * 300, "INVALID_FILE"),
        ("/files/search?path=/etc/passwd", "INVALID_FILE"),
    ],
)
def test_a_bad_query_is_refused(execd: RunningExecd, target: str, code: str) -> None:
    response = execd.client.get(target)
    assert (response.status_code, response.json()["code"]) == (400, code)


def test_files_are_deleted_and_links_not_followed(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "new\nline").write_text("")
    paths = [f"{tmp_path}/{name}" for name in ("link", "missing", "new\nline")]
    assert execd.client.delete("/files", params=[("path", path) for path in paths]).status_code == 200
    assert names_in(tmp_path) == ["kept"]


def test_a_directory_is_not_deleted_as_a_file(execd: RunningExecd, tmp_path: Path) -> None:
    response = execd.client.delete("/files", params={"path": str(tmp_path)})
    assert (response.status_code, response.json()["code"]) == (500, "RUNTIME_ERROR")
    assert execd.client.delete("/files").json()["code"] == "MISSING_QUERY"


def test_files_of_the_kernel_without_a_size_are_read(execd: RunningExecd) -> None:
    assert b"MemTotal" in execd.client.get("/files/download", params={"path": "/proc/meminfo"}).content


def test_info_describes_links_and_odd_times(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "f").chmod(0o1644)
    os.utime(tmp_path / "f", ns=(0, 1_500_000_000_123_456_789))
    paths = [f"{tmp_path}/f", f"{tmp_path}/link", str(tmp_path), "/dev/null"]
    found = execd.client.get("/files/info", params=[("path", path) for path in paths]).json()
    assert [found[path]["type"] for path in paths] == ["file", "symlink", "directory", "other"]
    assert found[paths[0]]["mode"] == 1644
    assert found[paths[0]]["modified_at"] == "2017-07-14T02:40:00.123456Z"
    assert execd.client.get("/files/info").json() == {}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**", ["a.py", "b.txt", "link", "sub/.hidden", "sub/c.py", "sub/deep/d.PY"]),
        ("*.py", ["a.py", "sub/c.py"]),
        ("**/*.py", ["a.py", "sub/c.py"]),
        ("?.py", ["a.py", "sub/c.py"]),
        ("[ab].*", ["a.py", "b.txt"]),
        ("[!a]*.py", ["sub/c.py"]),
        ("*.{txt,PY}", ["b.txt", "sub/deep/d.PY"]),
        ("{a,{b,c}}.*", ["a.py", "b.txt", "sub/c.py"]),
        ("sub", []),
        ("{", []),
    ],
)
def test_search_matches_base_names_of_files(
    execd: RunningExecd, tmp_path: Path, pattern: str, names: list[str]
) -> None:
    root = tmp_path / "root"
    (root / "sub" / "deep").mkdir(parents=True)
    for name in ("a.py", "b.txt", "sub/c.py", "sub/deep/d.PY", "sub/.hidden"):
        (root / name).write_text("")
    (root / "link").symlink_to("sub")
    found = execd.client.get("/files/search", params={"path": str(root), "pattern": pattern}).json()
    assert sorted(item["path"] for item in found) == [f"{root}/{name}" for name in names]


def test_a_hostile_pattern_and_a_large_tree_do_not_stop_the_daemon(
    execd: RunningExecd, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(3000):
        (root / f"{'a' * 200}{number}").touch()
    started = time.monotonic()
    found = execd.client.get("/files/search", params={"path": str(root), "pattern": "*a" * 100 + "b"})
    assert found.json() == []
    assert time.monotonic() - started < 5
    assert len(execd.client.get("/files/search", params={"path": str(root)}).json()) == 3000
    shutil.rmtree(root)


def form(path: Path, data: bytes) -> bytes:
    """The body of an upload of one file, with the boundary b."""
    document = json.dumps({"path": str(path)}).encode()
    return (
        b'--b\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n\r\n%b\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n%b\r\n--b--\r\n'
        % (document, data)
    )


def head_of(version: bytes = b"1.1", *fields: bytes) -> bytes:
    """The head of an upload without its end."""
    lines = [
        b"POST /files/upload HTTP/" + version, b"Host: x", b"Content-Type: multipart/form-data; boundary=b", *fields
    ]  # fmt: skip
    return b"".join(line + b"\r\n" for line in lines)


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("data", [b"", b"small", os.urandom(3_000_000)], ids=["empty", "small", "large"])
@pytest.mark.parametrize("chunk_bytes", [None, 7000, 10**7])
def test_the_connection_serves_on_after_an_upload(
    execd: RunningExecd, tmp_path: Path, data: bytes, chunk_bytes: int | None
) -> None:
    body = form(tmp_path / "f", data)
    if chunk_bytes is None:
        request = head_of(b"1.1", b"Content-Length: %d" % len(body)) + b"\r\n" + body
    else:
        request = head_of(b"1.1", b"Transfer-Encoding: chunked") + b"\r\n" + chunked(body, chunk_bytes)
    # All in one go: what follows the body lies in the same buffers.
    ping = b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answers = execd.raw(request + ping + request + last)
    assert answers.count(b"HTTP/1.1 200") == 4
    assert (tmp_path / "f").read_bytes() == data


@pytest.mark.parametrize(("version", "fields"), [(b"1.0", ()), (b"1.1", (b"Connection: close",))])
def test_the_connection_closes_after_an_upload_if_asked(
    execd: RunningExecd, tmp_path: Path, version: bytes, fields: tuple[bytes, ...]
) -> None:
    body = form(tmp_path / "f", b"data")
    head = head_of(version, b"Content-Length: %d" % len(body), *fields)
    started = time.monotonic()
    answer = execd.raw(head + b"\r\n" + body)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer.lower()
    assert time.monotonic() - started < 1.5


def test_a_client_that_asks_first_is_told_to_go_on(execd: RunningExecd, tmp_path: Path) -> None:
    body = form(tmp_path / "f", b"data")
    with socket.create_connection(("127.0.0.1", execd.port), timeout=5) as connection:
        fields = (b"Content-Length: %d" % len(body), b"Expect: 100-continue")
        connection.sendall(head_of(b"1.1", *fields) + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    assert (tmp_path / "f").read_bytes() == b"data"


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ((b"Content-Length: 100000",), b"x"),
        ((b"Transfer-Encoding: chunked",), b"5\r\nabc"),
        ((b"Transfer-Encoding: chunked",), b"zz\r\n"),
    ],
    ids=["short", "short chunk", "no chunk"],
)
def test_a_broken_body_is_refused_and_nothing_is_left(
    execd: RunningExecd, tmp_path: Path, fields: tuple[bytes, ...], body: bytes
) -> None:
    before = execd.descriptors()
    with socket.create_connection(("127.0.0.1", execd.port), timeout=5) as connection:
        connection.sendall(head_of(b"1.1", *fields) + b"\r\n" + body)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")
    wait_for(lambda: execd.descriptors() <= before)
    assert names_in(tmp_path) == []


def test_an_upload_of_many_megabytes_takes_no_memory_and_others_are_served(
    execd: RunningExecd, tmp_path: Path
) -> None:
    before = execd.rss_kib()
    slowest = 0.0

    def body() -> Iterator[bytes]:
        nonlocal slowest
        head, _, tail = form(tmp_path / "f", b"@").partition(b"@")
        yield head
        for number in range(100):
            yield b"\r\n--" * 250_000
            if number % 25 == 0:
                started = time.monotonic()
                assert execd.client.get("/ping").status_code == 200
                slowest = max(slowest, time.monotonic() - started)
        yield tail

    with httpx.Client(base_url=execd.url, timeout=60) as client:
        headers = {"content-type": "multipart/form-data; boundary=b"}
        assert client.post("/files/upload", content=body(), headers=headers).status_code == 200
    assert (tmp_path / "f").stat().st_size == 100_000_000
    assert execd.rss_kib() - before < 8 * 1024
    assert slowest < 1
