"""What users of similar services found wrong with files, tried against execd."""

import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.execd import RunningExecd, file_parts, names_in


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SIZES = [0, 1, 16_000, 17_000, 18_000, 19_000, 65_535, 65_536, 65_537, 1_000_000, 100_000_000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
def test_an_upload_of_any_size_is_there_whole_when_it_is_answered(
    shared_execd: RunningExecd, tmp_path: Path, size: int, *, is_chunked: bool
) -> None:
    """B-059."""
    block = os.urandom(100_003)
    content = (block * (size // len(block) + 1))[:size]
    target = tmp_path / "f"
    request = shared_execd.client.build_request("POST", "/files/upload", files=file_parts(target, content))
    body = request.read()
    headers = {"content-type": request.headers["content-type"]}

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    sent = pieces() if is_chunked else body
    response = shared_execd.client.post("/files/upload", content=sent, headers=headers)
    assert response.status_code == 200
    assert digest_of(target) == hashlib.sha256(content).hexdigest()
    received = hashlib.sha256()
    with shared_execd.client.stream("GET", "/files/download", params={"path": str(target)}) as download:
        for chunk in download.iter_raw():
            received.update(chunk)
    assert received.digest() == hashlib.sha256(content).digest()


def test_a_command_right_after_an_upload_sees_all_of_the_file(
    shared_execd: RunningExecd, tmp_path: Path
) -> None:
    """B-061, a hundred times."""
    for number in range(100):
        content = os.urandom(20_000)
        assert shared_execd.upload(file_parts(tmp_path / "f", content)).status_code == 200
        seen = shared_execd.run(argv=["sha256sum", f"{tmp_path}/f"]).output().split()[0]
        assert seen.decode() == hashlib.sha256(content).hexdigest(), number


def test_making_a_directory_leaves_its_parents_as_they_were(
    shared_execd: RunningExecd, tmp_path: Path
) -> None:
    """B-062."""
    (tmp_path / "x").mkdir(mode=0o711)
    before = [(path.stat().st_mode, path.stat().st_uid) for path in (tmp_path, tmp_path / "x")]
    permission = {"mode": 700} | ({"owner": "1000"} if os.geteuid() == 0 else {})
    body = {f"{tmp_path}/x/y": permission}
    assert shared_execd.client.post("/directories", json=body).status_code == 200
    assert [(path.stat().st_mode, path.stat().st_uid) for path in (tmp_path, tmp_path / "x")] == before
    made = (tmp_path / "x" / "y").stat()
    assert (made.st_mode & 0o7777, made.st_uid) == (0o700, 1000 if os.geteuid() == 0 else os.geteuid())


def test_the_right_file_is_fetched_whatever_its_name(shared_execd: RunningExecd, tmp_path: Path) -> None:
    """B-064."""
    names = [
        "a#b",
        "a?b",
        "a%2Fb",
        "a+b",
        "a&b=c",
        "..a",
        "a b",
        "a",
        "b",
        "a;b",
        "%41",
        "~",
        "$HOME",
        "a\\b",
    ]
    files = [file_parts(tmp_path / name, name.encode()) for name in names]
    assert shared_execd.upload(*files).status_code == 200
    assert sorted(names_in(tmp_path)) == sorted(names)
    for name in names:
        response = shared_execd.client.get("/files/download", params={"path": f"{tmp_path}/{name}"})
        assert response.text == name
    assert shared_execd.client.delete("/files", params={"path": f"{tmp_path}/a?b"}).status_code == 200
    assert sorted(names_in(tmp_path)) == sorted(set(names) - {"a?b"})


def test_what_is_no_file_is_refused_at_once(shared_execd: RunningExecd, tmp_path: Path) -> None:
    """B-065."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        paths = [f"{tmp_path}/{name}" for name in ("..", ".", "", "fifo", "to-fifo", "loop", "socket")]
        for path in [*paths, "/dev/zero", "/dev/urandom", "/dev/tty", "/proc/kmsg", "/proc/self/mem"]:
            started = time.monotonic()
            response = shared_execd.client.get("/files/download", params={"path": path})
            assert response.status_code in (400, 403, 500), path
            assert time.monotonic() - started < 1, path


def test_a_link_leads_where_the_sandbox_sees_it(shared_execd: RunningExecd, tmp_path: Path) -> None:
    """B-065: a link to /proc/self/environ shows execd's own, which holds no secret of the host."""
    (tmp_path / "link").symlink_to("/proc/self/environ")
    response = shared_execd.client.get("/files/download", params={"path": f"{tmp_path}/link"})
    assert response.status_code == 200
    assert {line.partition("=")[0] for line in response.text.split("\0") if line} <= {"PATH", "HOME"}


def test_a_thousand_small_files_go_in_one_request(shared_execd: RunningExecd, tmp_path: Path) -> None:
    """B-068: one stream; all appear or none, and the error names the file."""
    files = [file_parts(tmp_path / f"d{n % 10}" / f"f{n}", b"x" * 4000) for n in range(1000)]
    started = time.monotonic()
    assert shared_execd.upload(*files).status_code == 200
    assert time.monotonic() - started < 3
    assert sum(1 for _ in tmp_path.rglob("f*")) == 1000
    (tmp_path / "new" / "in-the-way").mkdir(parents=True)
    mixed = [file_parts(tmp_path / "new" / name, b"x") for name in ("first", "in-the-way", "last")]
    response = shared_execd.upload(*mixed)
    assert response.status_code == 400
    assert f"{tmp_path}/new/in-the-way" in response.json()["message"]
    assert names_in(tmp_path / "new") == ["in-the-way"]


def test_a_listing_neither_follows_links_nor_loops(shared_execd: RunningExecd, tmp_path: Path) -> None:
    """B-070."""

    def listing(path: Path, depth: int) -> httpx.Response:
        return shared_execd.client.get("/directories/list", params={"path": str(path), "depth": depth})

    (tmp_path / "root").symlink_to("/")
    assert listing(tmp_path / "root", 1).status_code == 400
    deep = tmp_path / "tree"
    for _ in range(200):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "loop").symlink_to(tmp_path / "tree")
    assert len(listing(tmp_path / "tree", 10**6).json()) == 201


def test_a_huge_directory_is_listed_with_little_memory(shared_execd: RunningExecd, open_folder: Path) -> None:
    """B-070: more entries than are held at once; the answer comes as a stream."""
    count = 120_000
    subprocess.run(f"seq {count} | xargs touch", shell=True, cwd=open_folder, check=True)
    before = shared_execd.rss_kib()
    received = 0
    last = ""
    query = {"path": str(open_folder), "pattern": "*9"}
    with shared_execd.client.stream("GET", "/files/search", params=query, timeout=60) as response:
        for chunk in response.iter_text():
            received += chunk.count('"path"')
            last = (last + chunk)[-400:]
    assert received == count // 10
    assert f'"{open_folder}/99999"' in last
    assert shared_execd.rss_kib() - before < 40 * 1024
