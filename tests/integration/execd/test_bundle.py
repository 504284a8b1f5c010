"""The bundle runs where there is nothing, obeys nothing of the image, and is the same for everyone."""

import marshal
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h11
import httpx
import pytest

from execd.bundle import BundleError, build_bundle, bundle_command, bundle_digest, shield_loader_variables
from tests.support.execd import names_in, running_execd, wait_for

NEW_ROOT = [
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]


def test_all_of_it_is_readable_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o077)
    try:
        started = time.monotonic()
        build_bundle(tmp_path / "b")
        elapsed = time.monotonic() - started
    finally:
        os.umask(previous)
    for path in [tmp_path / "b", *(tmp_path / "b").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (
            0o755 if path.is_dir() or path.name in ("ld.so", "python3") else 0o644
        )
    assert elapsed < 15  # about 1.3 s on an idle machine
    assert names_in(tmp_path) == ["b"]


def test_it_is_small_and_names_no_path_of_this_machine(bundle: Path) -> None:
    files = [path for path in bundle.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20_000_000
    assert len(files) < 250
    stdlib = sysconfig.get_path("stdlib").encode()
    here = str(Path(__file__).parents[3]).encode()
    for path in files:
        if path.suffix in (".pyc", ".bin"):
            content = path.read_bytes()
            assert stdlib not in content, path
            assert here not in content, path
    names = {path.stem for path in files}
    assert not names & {"ssl", "_ssl", "pip", "bundle", "elf", "pathlib", "argparse"}


def test_a_start_reads_one_file_of_modules_and_loads_no_more_than_it_needs(
    bundle: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "b"
    shutil.copytree(bundle, copy)
    library = next((copy / "lib").glob("python3.*"))
    for name in ("asyncio", "h11", "execd", "collections"):
        shutil.rmtree(library / name)
    with running_execd(copy, tmp_path, env={}) as execd:
        assert execd.run("echo works").output() == b"works\n"
        # Terminals are not in the archive: their modules have files of their own.
        assert execd.client.post("/pty", json={}).status_code == 500
    with (bundle / "app" / "start.bin").open("rb") as file:
        sizes = [int.from_bytes(file.read(4), "little") for _ in range(3)]
        head, first, second = (file.read(size) for size in sizes)
        assert not file.read()
    late, _ = marshal.loads(head)
    names = {name for name, _ in marshal.loads(first)[0]}
    assert not names & {"inspect", "subprocess", "typing_extensions", "execd.commands", "execd.files"}
    assert "inspect" in {name for name, _ in late}
    assert "execd.commands" in {name for name, _ in marshal.loads(second)[0]}


def everything_in(folder: Path) -> dict[str, tuple[int, float, bytes]]:
    """Mode, time and content of a folder and of all that is in it."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode,
            path.stat().st_mtime,
            b"" if path.is_dir() else path.read_bytes(),
        )
        for path in (folder, *folder.rglob("*"))
    }


def everything_below(folder: Path) -> dict[str, tuple[int, int]]:
    """Mode and inode of all paths, links not followed."""
    return {str(path): (path.lstat().st_mode, path.lstat().st_ino) for path in folder.rglob("*")}


BUILD = "import sys, pathlib, execd.bundle; execd.bundle.build_bundle(pathlib.Path(sys.argv[1]))"


@pytest.mark.parametrize(
    "preface", ["", "import sys, http.client; [sys.intern(chr(n)) for n in range(256)]"], ids=["bare", "busy"]
)
def test_every_build_is_the_same_to_the_last_byte(bundle: Path, tmp_path: Path, preface: str) -> None:
    """Built by this process, which has imported much, and by one that compiles all anew and hashes otherwise."""
    env = {**os.environ, "PYTHONHASHSEED": str(len(preface)), "PYTHONPYCACHEPREFIX": str(tmp_path / "cache")}
    argv = [sys.executable, "-c", f"{preface}\n{BUILD}", str(tmp_path / "b")]
    subprocess.run(argv, check=True, cwd=Path(__file__).parents[3], env=env)
    built, other = everything_in(bundle), everything_in(tmp_path / "b")
    assert sorted(built) == sorted(other)
    assert [name for name in built if built[name] != other[name]] == []


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "execd.bundle", str(tmp_path / "b"), "--machine", "m68k"]
    done = subprocess.run(argv, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not m68k" in done.stderr
    assert names_in(tmp_path) == []


def build_by_command(out: Path) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "execd.bundle", str(out), "--machine", platform.machine()]
    return subprocess.run(argv, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)


def test_a_new_build_replaces_an_old_one(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "b"
    shutil.copytree(bundle, out)
    (out / "app" / "stale").touch()
    assert build_by_command(out).returncode == 0
    assert not (out / "app" / "stale").exists()
    start = bundle_command(str(out), args=["--help"])
    assert subprocess.run(start, capture_output=True, check=False).returncode == 0
    assert names_in(tmp_path) == ["b"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    build_bundle(tmp_path / "b")
    assert sorted(names_in(tmp_path / "b")) == ["app", "bin", "lib"]
    assert names_in(tmp_path) == ["b"]


def somebodys_folder(place: Path, bundle: Path) -> None:
    (place / "work").mkdir(parents=True)
    (place / "work" / "precious").write_text("mine")


def bundle_with_a_file(place: Path, bundle: Path) -> None:
    shutil.copytree(bundle, place)
    (place / "precious").write_text("mine")


def folders_of_the_same_names(place: Path, bundle: Path) -> None:
    for name in ("app", "bin", "lib"):
        (place / name).mkdir(parents=True)
    (place / "bin" / "python3").write_text("mine")


def plain_file(place: Path, bundle: Path) -> None:
    place.write_text("mine")


def link_to_a_bundle(place: Path, bundle: Path) -> None:
    place.symlink_to(bundle)


def link_to_nothing(place: Path, bundle: Path) -> None:
    place.symlink_to("nowhere")


@pytest.mark.parametrize(
    "put",
    [
        somebodys_folder,
        bundle_with_a_file,
        folders_of_the_same_names,
        plain_file,
        link_to_a_bundle,
        link_to_nothing,
    ],
)
def test_what_is_no_bundle_is_left_alone(
    bundle: Path, tmp_path: Path, put: Callable[[Path, Path], None]
) -> None:
    out = tmp_path / "b"
    put(out, bundle)
    before = everything_below(tmp_path)
    done = build_by_command(out)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{out} is there already and is not an execd bundle: name a new or empty")
    assert done.stderr.count("\n") == 1
    assert everything_below(tmp_path) == before


def test_what_comes_while_it_is_built_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_something(work: Path) -> None:
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "precious").touch()

    monkeypatch.setattr("execd.bundle._check", put_something)
    with pytest.raises(BundleError, match="is there already"):
        build_bundle(tmp_path / "b")
    assert names_in(tmp_path / "b") == ["precious"]
    assert names_in(tmp_path) == ["b"]


def other_interpreters() -> list[str]:
    """Interpreters of this machine that the bundle may also be made of."""
    names = ["/usr/bin/python3", *(f"python3.{minor}" for minor in range(11, 16))]
    return sorted({found for name in names if (found := shutil.which(name))})


@pytest.mark.parametrize("interpreter", other_interpreters())
def test_any_interpreter_can_be_bundled(tmp_path: Path, interpreter: str) -> None:
    ask = [interpreter, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if subprocess.run(ask, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{interpreter} is older than 3.11 or does not start")
    repository = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": f"{repository}:{Path(h11.__file__).parents[1]}"}
    subprocess.run([interpreter, "-m", "execd.bundle", tmp_path / "b"], env=env, check=True, cwd=tmp_path)
    with running_execd(tmp_path / "b", tmp_path, env={}) as execd:
        assert execd.run("echo works").output() == b"works\n"
        assert execd.run("sleep 9", timeout=100).last["reason"] == "timeout"


def test_an_impossible_place_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="cannot build"):
        build_bundle(tmp_path / "file" / "b")


def test_the_digest_is_stable_and_follows_the_sources(tmp_path: Path) -> None:
    assert bundle_digest() == bundle_digest()
    copy = tmp_path / "execd"
    shutil.copytree(Path(__file__).parents[3] / "execd", copy, ignore=shutil.ignore_patterns("__pycache__"))
    ask = [sys.executable, "-c", "from execd.bundle import bundle_digest; print(bundle_digest())"]
    same = subprocess.run(ask, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    (copy / "events.py").write_text((copy / "events.py").read_text() + "\n")
    other = subprocess.run(ask, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    assert same == bundle_digest() != other


def test_the_digest_follows_the_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C library that an update replaced, under the same version, makes a new bundle."""
    library = tmp_path / "libc.so.6"
    library.write_bytes(b"old")
    monkeypatch.setattr("execd.bundle.needed_libraries", lambda *_: {"libc.so.6": library})
    before = bundle_digest()
    assert bundle_digest() == before
    library.write_bytes(b"newer")
    assert bundle_digest() != before


def test_it_needs_no_environment(bundle: Path, tmp_path: Path) -> None:
    with running_execd(bundle, tmp_path, env={}) as execd:
        names = {
            line.partition("=")[0]
            for line in execd.run("cat /proc/$$/environ | tr '\\0' '\\n'").output().decode().splitlines()
        }
        assert names == {"PATH", "EXECD_ENVS", "SANDMILL_EXECUTION_ID"}


def test_loader_variables_of_the_image_reach_commands_only(bundle: Path, tmp_path: Path) -> None:
    image = {
        "PATH": os.environ["PATH"],
        "LD_PRELOAD": "/no/such/lib.so",
        "LD_DEBUG": "files",
        "MALLOC_PERTURB_": "5",
    }
    shielded = shield_loader_variables(image)
    with running_execd(bundle, tmp_path, env=shielded) as execd:
        outcome = execd.run(argv=["/bin/sh", "-c", "env"], merge_stderr=True)
        assert b"cannot be preloaded" in outcome.output()
        assert b"LD_PRELOAD=/no/such/lib.so" in outcome.output()
        assert b"MALLOC_PERTURB_=5" in outcome.output()
        assert b"/no/such/lib.so" not in execd.log.read_bytes()
        maps = Path(f"/proc/{execd.pid}/maps").read_text()
        files = {line.split()[-1] for line in maps.splitlines() if "/" in line.split()[-1]}
        assert all(file.startswith((str(bundle), "/dev/zero", "/memfd")) for file in files), files


def test_another_root_without_anything_can_run_it(bundle: Path, tmp_path: Path) -> None:
    """No file of the host is visible, least of all a preload file that our loader must not obey."""
    root = tmp_path / "root"
    for name in (".sbx", "proc", "etc", "dev"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "ld.so.preload").write_text("/no/such/preload.so\n")
    (root / "dev" / "null").touch()
    setup = (
        f"mount --bind {bundle} {root}/.sbx && mount --rbind /proc {root}/proc"
        f" && mount --bind /dev/null {root}/dev/null"
        f' && exec chroot {root} "$@"'
    )
    probe = subprocess.run([*NEW_ROOT, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no user namespaces here: {probe.stderr.strip()}")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        port = listener.getsockname()[1]
        argv = [
            *NEW_ROOT,
            "sh",
            "-c",
            setup,
            "sh",
            *bundle_command(args=["--listen-fd", str(listener.fileno())]),
        ]
        process = subprocess.Popen(argv, pass_fds=[listener.fileno()], stderr=subprocess.PIPE)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            assert client.get("/ping").status_code == 200
            assert "neither bash nor sh" in client.post("/command", json={"command": "true"}).text
            info = client.get("/files/info", params={"path": "/etc/ld.so.preload"}).json()
            assert info["/etc/ld.so.preload"]["type"] == "file"
            argv = [*bundle_command()[:-1], "-c", "import os; print(os.listdir('/'))"]
            outcome = client.post("/command", json={"argv": argv}).text
            assert ".sbx" in outcome
            assert "execution_complete" in outcome
    finally:
        process.kill()
        _, complaints = process.communicate(timeout=10)
    assert b"preload" not in complaints


def _docker() -> str | None:
    if shutil.which("docker") is None:
        return "the docker command is not installed"
    probe = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"no Docker engine: {probe.stderr.strip()[-200:]}"


@pytest.fixture
def empty_image() -> Iterator[str]:
    """An image without a single file."""
    reason = _docker()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    name = f"sandmill-test-empty:{os.getpid()}"
    subprocess.run(
        "tar -cf - -T /dev/null | docker import - " + name, shell=True, check=True, capture_output=True
    )
    yield name
    subprocess.run(["docker", "image", "rm", "-f", name], check=True, capture_output=True)


@pytest.mark.docker
def test_an_empty_image_can_run_it_with_all_rights_dropped(bundle: Path, empty_image: str) -> None:
    loader, *arguments = bundle_command(args=["--rlimit", "nofile=256"])
    confined = [
        "--read-only",
        "--user",
        "1234:1234",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
    ]
    published = ["-p", "127.0.0.1::44772", "-v", f"{bundle}:/.sbx:ro", "--entrypoint", loader]
    run = ["docker", "run", "-d", *confined, *published, empty_image, *arguments]
    container = subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()
    try:
        shown = subprocess.run(
            ["docker", "port", container, "44772"], check=True, capture_output=True, text=True
        )
        url = "http://" + shown.stdout.split()[0]
        with httpx.Client(base_url=url, timeout=10) as client:
            wait_for(lambda: _answers(client), seconds=20)
            argv = [*bundle_command()[:-1], "-c", "import os; print(os.getppid(), os.getuid())"]
            assert '"1 1234\\n"' in client.post("/command", json={"argv": argv}).text
            assert client.get("/files/download", params={"path": "/proc/1/comm"}).content == b"execd\n"
        stopped = time.monotonic()
        subprocess.run(["docker", "stop", container], check=True, capture_output=True)
        assert time.monotonic() - stopped < 8  # it hears SIGTERM as pid 1
    finally:
        subprocess.run(["docker", "rm", "-f", container], check=True, capture_output=True)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/ping").status_code == 200
    except httpx.TransportError:
        return False
