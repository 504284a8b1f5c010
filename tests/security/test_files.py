"""Files through execd's routes (threat model, T25 to T33): the sandbox's view, the user's rights, no waiting."""

import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest

from execd.bundle import bundle_command
from runtimes.base import EXECD_PORT, Command
from tests.support.execd import file_parts, running_execd
from tests.support.outside import background

BOUNDARY = "boundary"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


def ask(box, method, target, body=b"", content_type="application/json"):
    """Send execd of a sandbox one request; give status and body."""
    connection = HTTPConnection("sandbox")
    connection.sock = box.runtime.connect(box.handle, EXECD_PORT, timeout_seconds=20)
    headers = {**dict(box.client._headers), "content-type": content_type}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(method, target, body=data, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def multipart(*files):
    """Give the body of an upload of (path, content, metadata) each."""
    body = b""
    for path, content, metadata in files:
        for name, (filename, data, kind) in file_parts(path, content, **metadata):
            body += (
                f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
                f"Content-Type: {kind}\r\n\r\n"
            ).encode()
            body += data + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def upload(box, *files):
    """Upload (path, content, metadata) each; give the status."""
    return ask(box, "POST", "/files/upload", multipart(*files), MULTIPART)[0]


def quoted(path):
    return quote_from_bytes(os.fsencode(path), safe="")


def download(box, path):
    return ask(box, "GET", f"/files/download?path={quoted(path)}")


@pytest.fixture(scope="module")
def box(real_kind):
    """One sandbox for these tests."""
    with real_kind.box() as made:
        yield made


@pytest.fixture
def folder(box):
    """A new folder in it."""
    path = f"/tmp/{uuid.uuid4().hex}"
    assert box.sh(f"mkdir {path}").code == 0
    return path


def test_no_form_of_a_path_leaves_the_sandbox(box, folder):
    """T25, T26: a file of the host is not found, whatever leads to it; one of the sandbox is, by dots, too."""
    canary = Path("/var/tmp") / f"canary-{uuid.uuid4().hex}"
    canary.write_text("of the host")
    try:
        name = str(canary)
        forms = [
            name, f"/..{name}", f"{folder}/../../..{name}", f"/proc/1/root{name}", f"/proc/self/root/..{name}",
            f"/proc/1/cwd{name}", f"{folder}/..\\..\\..{name}", name.upper(), f"{name}/", f"//{name}", f"{name}/.",
            "/proc/self/fd/../root/.." + name, name.replace("/", "\u2215"), name.replace(".", "\uff0e"),
        ]  # fmt: skip
        for form in (*forms, *map(quoted, forms)):
            status, body = download(box, form)
            assert status in (400, 403, 404), (form, status)
            assert b"of the host" not in body
        for form in forms:
            upload(box, (form, b"overwritten", {}))
            assert canary.read_text() == "of the host"
    finally:
        canary.unlink()
    assert upload(box, (f"{folder}/f", b"inside", {})) == 200
    status, body = download(box, f"{folder}/../../../../..{folder}/f")
    assert (status, body) == (200, b"inside")


@pytest.mark.parametrize("path", ["", "%00", "a%00b", "n" * 256, "d/" * 2500, "%zz"])
def test_a_path_that_is_none_is_refused_by_every_route(box, path):
    """T25: empty, NUL, too long, not decodable."""
    for method, route in [
        ("GET", "/files/download"), ("GET", "/files/info"), ("GET", "/files/search"), ("DELETE", "/files"),
        ("GET", "/directories/list"), ("DELETE", "/directories"),
    ]:  # fmt: skip
        status, _ = ask(box, method, f"{route}?path={path}")
        assert status == 400, route


def test_links_give_no_rights(box, folder):
    """T27: through a link to what the user may not touch, nothing is touched; deleting removes the link."""
    before = box.sh("stat -c '%a %u %s %Y' /.sbx/app/execd.pyc; sha256sum /.sbx/app/execd.pyc").out
    assert (
        box.sh(
            f"cd {folder}; ln -s /.sbx/app/execd.pyc file; ln -s /.sbx/app dir; mkdir d; ln -s /.sbx/app d/inner"
        ).code
        == 0
    )
    refused = [
        ("POST", "/files/permissions", {f"{folder}/file": {"mode": 777}}),
        ("POST", "/files/replace", {f"{folder}/file": {"old": "execd", "new": "other"}}),
        ("POST", "/files/mv", [{"src": f"{folder}/dir/execd.pyc", "dest": f"{folder}/stolen"}]),
        ("POST", "/directories", {f"{folder}/dir/new": {"mode": 777}}),
        ("DELETE", f"/files?path={folder}/dir/execd.pyc", b""),
        ("DELETE", f"/directories?path={folder}/dir/execd.pyc", b""),
    ]
    for method, target, body in refused:
        status, _ = ask(box, method, target, body)
        assert status in (403, 500), target
    assert upload(box, (f"{folder}/dir/new", b"x", {})) == 403
    assert upload(box, (f"{folder}/file", b"replaced the link", {})) == 200
    assert ask(box, "DELETE", f"/directories?path={folder}/d&path={folder}/dir")[0] == 200
    assert box.sh("stat -c '%a %u %s %Y' /.sbx/app/execd.pyc; sha256sum /.sbx/app/execd.pyc").out == before
    assert box.sh(f"ls {folder}").out == "file\n"


SWAP = """
import os, sys
os.chdir(sys.argv[1])
print(flush=True)
while True:
    os.rename("d", "aside")
    os.symlink(sys.argv[2], "d")
    os.unlink("d")
    os.rename("aside", "d")
"""


def test_a_directory_swapped_with_a_link_during_writes_lets_nothing_out(box, folder):
    """T28: ten thousand writes below a directory that is now one of the user's, now a link to another's."""
    # An image that an ordinary user runs is all that user's own, but for what is mounted there.
    outside = "/etc" if box.sh("test -w /etc").code else "/.sbx"
    before = box.sh(f"ls -a {outside}").out
    assert box.sh(f"mkdir {folder}/d").code == 0
    answers = set()
    swap = Command(argv=[*box.python_argv, "-c", SWAP, folder, outside])
    with background(box, swap, until=b"\n"):
        began = time.monotonic()
        for number in range(100):
            files = [(f"{folder}/d/f{number}-{index}", b"x", {}) for index in range(100)]
            answers.add(upload(box, *files))
            if time.monotonic() - began > 10:
                break
    assert answers & {200, 403, 404}
    assert box.sh(f"ls -a {outside}").out == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_swap_lets_nothing_out_that_is_done_for_another_user_by_root(bundle, open_folder):
    """T28 where it matters most: execd is root and acts for a user who swaps, and root itself deletes his tree."""
    outside = open_folder / "outside"
    outside.mkdir()
    (outside / "kept").mkdir()
    (outside / "kept" / "file").write_text("kept")
    work = open_folder / "work"
    (work / "d").mkdir(parents=True)
    for path in (work, work / "d"):
        os.chown(path, 1234, 1234)
    shutil.copytree(bundle, open_folder / "bundle")
    python = bundle_command(str(open_folder / "bundle"))[:-1]
    argv = ["setpriv", "--reuid=1234", "--regid=1234", "--clear-groups", *python, "-c", SWAP]
    with running_execd(bundle, open_folder) as execd:
        swapper = subprocess.Popen([*argv, work, outside], stdout=subprocess.PIPE)
        try:
            assert swapper.stdout.read(1) == b"\n"
            answers = set()
            began = time.monotonic()
            for number in range(200):
                files = [file_parts(work / "d" / f"f{number}-{index}", b"x") for index in range(50)]
                answers.add(execd.upload(*files, prefix="/v1/filesystem/1234/1234").status_code)
                for route, body in [("permissions", {f"{work}/d/kept": {"mode": 777}}),
                                    ("mv", [{"src": f"{work}/d/kept", "dest": f"{work}/stolen{number}"}])]:  # fmt: skip
                    execd.client.post(f"/v1/filesystem/1234/1234/files/{route}", json=body)
                if time.monotonic() - began > 5:
                    break
            assert 200 in answers
            for _ in range(200):
                execd.client.delete("/directories", params={"path": f"{work}"})
                if not work.exists():
                    break
        finally:
            swapper.kill()
            swapper.wait()
            swapper.stdout.close()
    assert sorted(path.name for path in outside.iterdir()) == ["kept"]
    assert (outside / "kept").stat().st_mode & 0o7777 == 0o755
    assert (outside / "kept" / "file").read_text() == "kept"


def test_what_is_no_regular_file_is_refused_at_once(box, folder):
    """T29."""
    assert box.sh(f"cd {folder}; mkfifo fifo; ln -s fifo link; mkdir dir").code == 0
    for path in (
        f"{folder}/fifo",
        f"{folder}/link",
        f"{folder}/dir",
        "/dev/zero",
        "/dev/urandom",
        "/dev/full",
    ):
        for act in (
            lambda path=path: download(box, path)[0],
            lambda path=path: upload(box, (path, b"x", {})),
            lambda path=path: ask(box, "POST", "/files/replace", {path: {"old": "a", "new": "b"}})[0],
            lambda path=path: ask(box, "GET", f"/files/download?path={quoted(path)}&limit=1")[0],
        ):
            began = time.monotonic()
            assert act() == 400, path
            assert time.monotonic() - began < 1, path


@pytest.mark.parametrize(
    "name", ["new\nline", "cr\rlf", "quo\"te'", "-rf", "--", "\u202eltr", "a" * 255, "%41", "\x1b[31m", " "]
)
def test_odd_names_make_the_round_trip(box, folder, name):
    """T30."""
    assert upload(box, (f"{folder}/{name}", b"data", {})) == 200
    assert download(box, f"{folder}/{name}") == (200, b"data")
    _, listed = ask(box, "GET", f"/directories/list?path={folder}")
    assert [item["path"] for item in json.loads(listed)] == [f"{folder}/{name}"]
    moves = [{"src": f"{folder}/{name}", "dest": f"{folder}/moved"}]
    assert ask(box, "POST", "/files/mv", moves)[0] == 200
    assert download(box, f"{folder}/moved") == (200, b"data")


def test_special_bits_are_dropped_and_the_owner_stays(box, folder):
    """T31."""
    assert upload(box, (f"{folder}/a", b"", {"mode": 6755}), (f"{folder}/b", b"", {"mode": 644})) == 200
    assert ask(box, "POST", "/files/permissions", {f"{folder}/b": {"mode": 7755}})[0] == 200
    assert ask(box, "POST", "/directories", {f"{folder}/d": {"mode": 6777}})[0] == 200
    assert upload(box, (f"{folder}/c", b"", {"owner": "0"})) == 403
    assert ask(box, "POST", "/files/permissions", {f"{folder}/a": {"owner": "0", "group": "0"}})[0] == 403
    user = box.sh("id -u").out.strip()
    assert box.sh(f"cd {folder}; stat -c '%n %a %u' *").out.splitlines() == [
        f"a 755 {user}", f"b 1755 {user}", f"d 777 {user}",
    ]  # fmt: skip


def test_an_upload_that_comes_to_no_end_is_never_seen(box, folder):
    """T32: broken off in the middle, and of a wrong length; the old content stays, and nothing lies about."""
    assert upload(box, (f"{folder}/f", b"old", {})) == 200
    body = multipart((f"{folder}/f", b"x" * 300_000, {}))
    fields = {**dict(box.client._headers), "content-type": MULTIPART}
    for length, sent, answer in (
        (len(body), body[:200_000], b""),
        (len(body) + 1000, body, b""),
        (len(body) - 1000, body, b"HTTP/1.1 400"),
        (1 << 62, body[:200_000], b"HTTP/1.1 413"),
    ):
        with box.runtime.connect(box.handle, EXECD_PORT, timeout_seconds=20) as connection:
            head = "".join(
                f"{name}: {value}\r\n" for name, value in {**fields, "content-length": length}.items()
            )
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(f"POST /files/upload HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode() + sent)
                connection.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert connection.recv(1 << 16).startswith(answer), length
        assert download(box, f"{folder}/f") == (200, b"old")
        assert box.sh(f"ls -A {folder}").out == "f\n"


def test_a_full_disk_leaves_the_old_content(real_kind):
    """T33."""
    with real_kind.box(limits={"disk_bytes": 8 << 20}) as box:
        where = box.sh("pwd").out.strip()
        assert upload(box, (f"{where}/f", b"old", {})) == 200
        status = upload(box, (f"{where}/f", bytes(10 << 20), {}))
        if status == 200:
            pytest.skip("this runtime cannot limit its disk here")
        assert status == 507
        replaced = {f"{where}/f": {"old": "old", "new": "x" * (15 << 20)}}
        assert ask(box, "POST", "/files/replace", replaced)[0] == 507
        assert download(box, f"{where}/f") == (200, b"old")
        assert upload(box, (f"{where}/f", b"new", {})) == 200
