"""Listing, making and deleting directories over the wire."""

import os
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.execd import RunningExecd, names_in, wait_for


@pytest.fixture
def execd(shared_execd: RunningExecd) -> RunningExecd:
    return shared_execd


def listed(execd: RunningExecd, path: str, **query: Any) -> list[str]:
    response = execd.client.get("/directories/list", params={"path": path, **query})
    assert response.status_code == 200, response.text
    return [item["path"].removeprefix(f"{path}/") for item in response.json()]


def delete(execd: RunningExecd, *paths: str | Path) -> httpx.Response:
    return execd.client.delete("/directories", params=[("path", str(path)) for path in paths])


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_tree(root: Path) -> None:
    (root / "b" / "deep" / "er").mkdir(parents=True)
    (root / "a").write_text("")
    (root / "b" / "f").write_text("12345")
    (root / "b" / "deep" / "er" / "leaf").write_text("")
    (root / "b-link").symlink_to("b")
    (root / "loop").symlink_to(".")


@pytest.mark.parametrize(
    ("depth", "paths"),
    [
        (0, []),
        (1, ["a", "b", "b-link", "loop"]),
        (2, ["a", "b", "b/deep", "b/f", "b-link", "loop"]),
        (10**9, ["a", "b", "b/deep", "b/deep/er", "b/deep/er/leaf", "b/f", "b-link", "loop"]),
    ],
)
def test_a_directory_is_listed_in_order_down_to_a_depth(
    execd: RunningExecd, tmp_path: Path, depth: int, paths: list[str]
) -> None:
    make_tree(tmp_path)
    assert listed(execd, str(tmp_path), depth=depth) == paths


def test_a_listing_tells_what_info_tells(execd: RunningExecd, tmp_path: Path) -> None:
    make_tree(tmp_path)
    items = execd.client.get("/directories/list", params={"path": str(tmp_path), "depth": 2}).json()
    assert [item["type"] for item in items] == [
        "file", "directory", "directory", "file", "symlink", "symlink",
    ]  # fmt: skip
    paths = [item["path"] for item in items]
    info = execd.client.get("/files/info", params=[("path", path) for path in paths]).json()
    assert items == [info[path] for path in paths]


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("f", 400, "INVALID_FILE"),
        ("link", 400, "INVALID_FILE"),
        ("fifo", 400, "INVALID_FILE"),
        ("no", 404, "FILE_NOT_FOUND"),
        ("f/x", 400, "INVALID_FILE"),
    ],
)
def test_only_directories_are_listed(
    execd: RunningExecd, tmp_path: Path, name: str, status: int, code: str
) -> None:
    (tmp_path / "f").write_text("")
    (tmp_path / "link").symlink_to("/")
    os.mkfifo(tmp_path / "fifo")
    response = execd.client.get("/directories/list", params={"path": f"{tmp_path}/{name}"})
    assert (response.status_code, response.json()["code"]) == (status, code)


@pytest.mark.parametrize(
    "query", ["path=/&depth=-1", "path=/&depth=x", "path=/&depth=1.5", "path=", "path=%00"]
)
def test_a_bad_listing_is_refused(execd: RunningExecd, query: str) -> None:
    response = execd.client.get(f"/directories/list?{query}")
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_QUERY")
    assert execd.client.get("/directories/list").json()["code"] == "MISSING_QUERY"


def test_new_directories_get_the_mode_and_old_ones_keep_theirs(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o711)
    body = {
        f"{tmp_path}/old/x/y": {"mode": 500},
        f"{tmp_path}/old": {"mode": 700},
        f"{tmp_path}/plain": None,
        f"{tmp_path}/special": {"mode": 7777},
        f"{tmp_path}//dots/./z/": {"mode": 0, "owner": None, "group": None},
    }
    assert execd.client.post("/directories", json=body).status_code == 200
    modes = {
        name: mode_of(tmp_path / name) for name in ("old", "old/x", "old/x/y", "plain", "special", "dots/z")
    }
    assert modes == {
        "old": 0o711, "old/x": 0o500, "old/x/y": 0o500, "plain": 0o755, "special": 0o1777, "dots/z": 0o755,
    }  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_only_new_directories_get_the_owner(execd: RunningExecd, tmp_path: Path) -> None:
    body = {f"{tmp_path}/x/y": {"mode": 700, "owner": "nobody", "group": "4321"}}
    assert execd.client.post("/directories", json=body).status_code == 200
    owners = [
        (path.stat().st_uid, path.stat().st_gid) for path in (tmp_path, tmp_path / "x", tmp_path / "x/y")
    ]
    assert owners == [(0, 0), (65534, 4321), (65534, 4321)]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("f", 400, "INVALID_FILE"),
        ("f/x", 400, "INVALID_FILE"),
        ("n" * 256, 400, "INVALID_FILE"),
        ("d/" * 3000, 400, "INVALID_FILE"),
        ("dangling/x", 404, "FILE_NOT_FOUND"),
    ],
)
def test_what_cannot_be_a_directory_is_refused(
    execd: RunningExecd, tmp_path: Path, path: str, status: int, code: str
) -> None:
    (tmp_path / "f").write_text("kept")
    (tmp_path / "dangling").symlink_to("nowhere")
    response = execd.client.post("/directories", json={f"{tmp_path}/{path}": {"mode": 755}})
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert sorted(names_in(tmp_path)) == ["dangling", "f"]
    assert execd.client.post("/directories", json={f"{tmp_path}/g": {"owner": "no-such"}}).status_code == 500
    assert not (tmp_path / "g").exists()


def test_a_tree_is_deleted_and_its_links_are_not_followed(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "precious").write_text("")
    make_tree(tmp_path / "tree")
    os.mkfifo(tmp_path / "tree" / "fifo")
    (tmp_path / "tree" / "odd\nname").write_text("")
    (tmp_path / "tree" / "b" / "out").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to("kept")
    (tmp_path / "file").write_text("")
    targets = [tmp_path / name for name in ("tree", "missing", "link", "file", "missing/below")]
    assert delete(execd, *targets).status_code == 200
    assert names_in(tmp_path) == ["kept"]
    assert names_in(tmp_path / "kept") == ["precious"]
    assert delete(execd, f"{tmp_path}/kept/").status_code == 200
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("path", ["/", "//", ".", "..", "x/.", "x/.."])
def test_roots_and_relative_ends_are_not_deleted(execd: RunningExecd, path: str) -> None:
    response = delete(execd, path)
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_FILE")


def test_deleting_needs_a_path(execd: RunningExecd) -> None:
    assert delete(execd).json()["code"] == "MISSING_QUERY"
    assert delete(execd, "").json()["code"] == "INVALID_QUERY"


def test_a_tree_deeper_than_any_path_is_deleted(execd: RunningExecd, tmp_path: Path) -> None:
    depth = 3000
    (tmp_path / "top").mkdir()
    place = os.open(tmp_path / "top", os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a-directory", dir_fd=place)
        deeper = os.open("a-directory", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = deeper
    os.close(place)
    before = execd.descriptors()
    assert len(listed(execd, f"{tmp_path}/top", depth=10**9)) >= 300
    assert delete(execd, tmp_path / "top").status_code == 200
    assert names_in(tmp_path) == []
    assert execd.descriptors() <= before


def test_many_entries_are_listed_and_deleted_while_others_are_served(
    execd: RunningExecd, tmp_path: Path
) -> None:
    (tmp_path / "many").mkdir()
    script = "seq 1 8000 | xargs touch; seq 8001 8500 | xargs mkdir"
    subprocess.run(["sh", "-c", script], cwd=tmp_path / "many", check=True)
    slowest = 0.0
    done = threading.Event()

    def ping() -> None:
        nonlocal slowest
        with httpx.Client(base_url=execd.url) as client:
            while not done.is_set():
                started = time.monotonic()
                assert client.get("/ping").status_code == 200
                slowest = max(slowest, time.monotonic() - started)

    pinger = threading.Thread(target=ping)
    pinger.start()
    try:
        names = listed(execd, f"{tmp_path}/many")
        assert delete(execd, tmp_path / "many").status_code == 200
    finally:
        done.set()
        pinger.join()
    assert names == sorted(str(number) for number in range(1, 8501))
    assert names_in(tmp_path) == []
    assert slowest < 1


def test_a_client_that_leaves_ends_a_deletion(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    subprocess.run(["sh", "-c", "seq 1 30000 | xargs touch"], cwd=tmp_path / "many", check=True)
    with httpx.Client(base_url=execd.url, timeout=0.02) as client, pytest.raises(httpx.TimeoutException):
        client.delete("/directories", params={"path": f"{tmp_path}/many"})
    before = len(names_in(tmp_path / "many"))
    wait_for(lambda: execd.client.get("/ping").status_code == 200)
    assert 0 < len(names_in(tmp_path / "many")) <= before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_deleted_is_said(execd: RunningExecd, tmp_path: Path) -> None:
    (tmp_path / "closed" / "inner").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o500)
    response = delete(execd, tmp_path / "closed")
    assert (response.status_code, response.json()["code"]) == (403, "PERMISSION_DENIED")
    (tmp_path / "closed").chmod(0o700)
