"""Files with the rights of another user of the sandbox."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.bundled import in_docker
from tests.support.execd import RunningExecd, file_parts, names_in, running_execd
from tests.support.images import BUSYBOX_IMAGE, ensure_images, require_docker

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

UID, GID = 1234, 4321
PREFIX = f"/v1/filesystem/{UID}/{GID}"


@pytest.fixture
def execd(shared_execd: RunningExecd) -> RunningExecd:
    return shared_execd


@pytest.fixture
def home(open_folder: Path) -> Path:
    """A folder of the user, beside a file and a folder that only root may read."""
    (open_folder / "secret").write_text("secret")
    (open_folder / "secret").chmod(0o600)
    (open_folder / "closed").mkdir(mode=0o700)
    (open_folder / "closed" / "inner").write_text("secret")
    (open_folder / "closed" / "open").mkdir(mode=0o777)
    home = open_folder / "home"
    home.mkdir()
    os.chown(home, UID, GID)
    return home


def upload(execd: RunningExecd, path: Path, **metadata: Any) -> int:
    return execd.upload(file_parts(path, b"new", **metadata), prefix=PREFIX).status_code


def owner_of(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid


def test_new_files_and_directories_belong_to_the_user(execd: RunningExecd, home: Path) -> None:
    assert upload(execd, home / "a" / "f") == 200
    assert execd.client.post(f"{PREFIX}/directories", json={f"{home}/d/e": {"mode": 700}}).status_code == 200
    moves = [{"src": f"{home}/a/f", "dest": f"{home}/b/f"}]
    assert execd.client.post(f"{PREFIX}/files/mv", json=moves).status_code == 200
    replaced = {f"{home}/b/f": {"old": "new", "new": "newer"}}
    assert execd.client.post(f"{PREFIX}/files/replace", json=replaced).status_code == 200
    for name in ("a", "b", "b/f", "d", "d/e"):
        assert owner_of(home / name) == (UID, GID), name
    assert (home / "b" / "f").read_text() == "newer"


REFUSED = [
    ("GET", "/files/download?path={closed}", None),
    ("GET", "/files/download?path={secret}", None),
    ("GET", "/files/download?path={secret}&limit=1", None),
    ("GET", "/files/download?path={home}/link", None),
    ("GET", "/files/info?path={closed}", None),
    ("GET", "/directories/list?path={folder}", None),
    ("DELETE", "/files?path={secret}", None),
    ("DELETE", "/directories?path={folder}", None),
    ("DELETE", "/directories?path={secret}", None),
    ("POST", "/directories", {"{folder}/new": {"mode": 777}}),
    ("POST", "/files/mv", [{"src": "{secret}", "dest": "{home}/stolen"}]),
    ("POST", "/files/mv", [{"src": "{home}/own", "dest": "{folder}/open/own"}]),
    ("POST", "/files/permissions", {"{secret}": {"mode": 666}}),
    ("POST", "/files/permissions", {"{home}/link": {"mode": 666}}),
    ("POST", "/files/permissions", {"{home}/own": {"owner": "root"}}),
    ("POST", "/files/replace", {"{secret}": {"old": "s", "new": "x"}}),
    ("POST", "/files/replace", {"{home}/link": {"old": "s", "new": "x"}}),
]


@pytest.mark.parametrize(("method", "target", "body"), REFUSED, ids=[f"{m} {t} {b}" for m, t, b in REFUSED])
def test_nothing_is_done_with_more_rights_than_the_users(
    execd: RunningExecd, home: Path, method: str, target: str, body: Any
) -> None:
    (home / "link").symlink_to(home.parent / "secret")
    (home / "own").write_text("own")
    os.chown(home / "own", UID, GID)
    names = {
        "home": str(home),
        "secret": str(home.parent / "secret"),
        "folder": str(home.parent / "closed"),
        "closed": str(home.parent / "closed" / "inner"),
    }

    def filled(text: str) -> str:
        for name, path in names.items():
            text = text.replace(f"{{{name}}}", path)
        return text

    content = filled(json.dumps(body)).encode() if body else None
    response = execd.client.request(method, PREFIX + filled(target), content=content)
    assert (response.status_code, response.json()["code"]) == (403, "PERMISSION_DENIED"), response.text
    # The same request by execd's own rights: it was the rights that kept it from being done.
    assert execd.client.request(method, filled(target), content=content).status_code == 200


def test_what_may_not_be_read_is_left_out_of_a_search(execd: RunningExecd, home: Path) -> None:
    found = execd.client.get(f"{PREFIX}/files/search", params={"path": str(home.parent)}).json()
    assert [item["path"] for item in found] == [f"{home.parent}/secret"]
    own = execd.client.get("/files/search", params={"path": str(home.parent)}).json()
    assert len(own) == 2


def test_uploads_go_only_where_the_user_may_write(execd: RunningExecd, home: Path) -> None:
    assert upload(execd, home.parent / "f") == 403
    assert upload(execd, home.parent / "closed" / "open" / "f") == 403
    (home / "link").symlink_to(home.parent / "closed" / "open")
    assert upload(execd, home / "link" / "f") == 403
    assert upload(execd, home / "f", owner="root") == 403
    (home / "to-secret").symlink_to(home.parent / "secret")
    assert upload(execd, home / "to-secret") == 200
    assert (home.parent / "secret").read_text() == "secret"
    assert owner_of(home / "to-secret") == (UID, GID)
    assert sorted(names_in(home)) == ["link", "to-secret"]


def test_execd_is_itself_again_afterwards(execd: RunningExecd, home: Path) -> None:
    def identity() -> bytes:
        return execd.run("id; grep -E 'Cap|Groups' /proc/self/status").output()

    before = identity()
    for path in (f"{home}", f"{home.parent}/closed/inner", f"{home}/no"):
        execd.client.get(f"{PREFIX}/files/info", params={"path": path})
    execd.client.get(f"{PREFIX}/files/search", params={"path": "/etc"})
    assert identity() == before
    assert execd.client.get("/files/download", params={"path": f"{home.parent}/secret"}).text == "secret"


@contextmanager
def execd_as(bundle: Path, folder: Path, *flags: str) -> Iterator[RunningExecd]:
    """execd started by setpriv, from a copy of the bundle that every user may read."""
    shutil.copytree(bundle, folder / "bundle")
    with running_execd(folder / "bundle", folder, prefix=["setpriv", *flags]) as execd:
        yield execd


def test_groups_of_execd_do_not_come_along(bundle: Path, open_folder: Path) -> None:
    (open_folder / "f").write_text("x")
    (open_folder / "f").chmod(0o040)
    os.chown(open_folder / "f", 0, 777)
    query = {"path": f"{open_folder}/f"}
    with execd_as(bundle, open_folder, "--groups=777") as execd:
        assert execd.client.get(f"{PREFIX}/files/download", params=query).status_code == 403
        assert execd.client.get(f"/v1/filesystem/{UID}/777/files/download", params=query).text == "x"
        assert b"777" in execd.run("id -G").output()


WITHOUT_RIGHTS = {
    "an ordinary user": ["--reuid=1234", "--regid=4321", "--clear-groups"],
    "root without capabilities": ["--bounding-set=-setuid,-setgid", "--inh-caps=-setuid,-setgid"],
    "root that keeps capabilities": ["--securebits=+no_setuid_fixup"],
    "a user with capabilities": [
        "--reuid=1235", "--regid=4321", "--clear-groups", "--inh-caps=+setuid,+setgid,+dac_override",
        "--ambient-caps=+setuid,+setgid,+dac_override",
    ],
}  # fmt: skip


@pytest.mark.parametrize("flags", WITHOUT_RIGHTS.values(), ids=WITHOUT_RIGHTS)
def test_where_execd_may_not_become_another_user_it_says_so(
    bundle: Path, open_folder: Path, flags: Sequence[str]
) -> None:
    with execd_as(bundle, open_folder, *flags) as execd:
        for uid, gid in ((1236, 4321), (1236, 0), (1237, 1237)):
            response = execd.client.get(f"/v1/filesystem/{uid}/{gid}/files/info", params={"path": "/"})
            assert (response.status_code, response.json()["code"]) == (403, "PERMISSION_DENIED")
            assert f"user {uid}, group {gid}" in response.json()["message"]
        assert execd.client.get("/files/info", params={"path": "/"}).status_code == 200


def test_its_own_identity_needs_no_rights(bundle: Path, open_folder: Path) -> None:
    with execd_as(bundle, open_folder, *WITHOUT_RIGHTS["an ordinary user"]) as execd:
        assert execd.client.get(f"{PREFIX}/files/info", params={"path": "/"}).status_code == 200
        assert execd.client.get("/v1/filesystem/0/0/files/info", params={"path": "/"}).status_code == 403


@pytest.mark.parametrize(
    "ids", ["4294967295/1", "1/4294967295", "-1/1", "root/root", "1/1e3", "9" * 30 + "/1"]
)
def test_numbers_that_are_no_ids_are_refused(execd: RunningExecd, ids: str) -> None:
    response = execd.client.get(f"/v1/filesystem/{ids}/files/info", params={"path": "/"})
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_QUERY")
    assert execd.client.get("/v1/filesystem/1/files/info").status_code == 404


@pytest.mark.docker
@pytest.mark.parametrize(
    "kept", [["SETUID", "SETGID"], ["SETUID", "SETGID", "DAC_OVERRIDE", "FOWNER", "CHOWN"]]
)
def test_root_in_a_container_becomes_another_user_and_loses_its_capabilities(
    bundle: Path, kept: list[str]
) -> None:
    require_docker()
    ensure_images()
    options = ["--user=0:0", "--tmpfs=/home:mode=0777", *(f"--cap-add={name}" for name in kept)]
    with in_docker(BUSYBOX_IMAGE, str(bundle), options=options) as execd:
        execd.run("sh", "-c", "umask 077; echo secret > /home/secret; mkdir /home/closed")
        assert execd.ask("GET", f"{PREFIX}/files/download?path=/home/secret").status == 403
        assert execd.ask("POST", f"{PREFIX}/directories", {"/home/closed/new": {"mode": 777}}).status == 403
        assert execd.ask("POST", f"{PREFIX}/directories", {"/home/new": {"mode": 700}}).status == 200
        assert f"{UID} {GID}" in execd.run("stat", "-c", "%u %g", "/home/new").output()
        assert execd.ask("GET", "/files/download?path=/home/secret").body == "secret\n"


@pytest.mark.docker
def test_a_container_without_capabilities_serves_only_its_own_user(bundle: Path) -> None:
    require_docker()
    ensure_images()
    with in_docker(BUSYBOX_IMAGE, str(bundle)) as execd:
        assert execd.ask("GET", "/v1/filesystem/1234/1234/files/info?path=/tmp").status == 200
        assert execd.ask("GET", "/v1/filesystem/0/0/files/info?path=/tmp").status == 403


def test_a_slow_client_does_not_keep_the_identity(execd: RunningExecd, home: Path) -> None:
    with (home / "big").open("wb") as file:
        file.truncate(50_000_000)
    os.chown(home / "big", UID, GID)
    with (
        httpx.Client(base_url=execd.url) as client,
        client.stream("GET", f"{PREFIX}/files/download", params={"path": f"{home}/big"}) as response,
    ):
        assert response.status_code == 200
        assert execd.client.get("/files/download", params={"path": f"{home.parent}/secret"}).text == "secret"
        assert execd.run("id -u").output() == b"0\n"
