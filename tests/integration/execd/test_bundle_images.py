"""The bundle in images with nothing, another libc or the same one: read-only, any user, no rights, no network."""

import json
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundled import USER, Bundled, in_docker, in_gvisor, needs_gvisor, volume_with
from tests.support.images import (
    BUSYBOX_IMAGE,
    DEBIAN_IMAGE,
    EMPTY_IMAGE,
    MUSL_IMAGE,
    ensure_debian_image,
    ensure_images,
    ensure_musl_image,
    require_docker,
)

pytestmark = pytest.mark.docker

IMAGES = {
    "scratch": (EMPTY_IMAGE, ensure_images),
    "busybox": (BUSYBOX_IMAGE, ensure_images),
    "musl": (MUSL_IMAGE, ensure_musl_image),
    "debian": (DEBIAN_IMAGE, ensure_debian_image),
}


@pytest.fixture(scope="module", params=["runc", "gvisor"])
def start(
    request: pytest.FixtureRequest, bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], AbstractContextManager[Bundled]]:
    """Starts execd in an image by name."""
    require_docker()
    if request.param == "gvisor":
        needs_gvisor()

    @contextmanager
    def begin(name: str) -> Iterator[Bundled]:
        image, ensure = IMAGES[name]
        ensure()
        if request.param == "runc":
            with in_docker(image, str(bundle)) as bundled:
                yield bundled
        else:
            with in_gvisor(image, bundle, tmp_path_factory.mktemp("gvisor")) as bundled:
                yield bundled

    return begin


@pytest.fixture(scope="module", params=IMAGES)
def placed(request: pytest.FixtureRequest, start: Any) -> Iterator[tuple[str, Bundled]]:
    """execd in each image, in each kind of container: (name of the image, execd)."""
    with start(request.param) as bundled:
        yield request.param, bundled


def test_it_is_process_1_without_any_right(placed: tuple[str, Bundled]) -> None:
    _, execd = placed
    status = execd.python("print(open('/proc/1/status').read())")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Name"] == "execd"  # and not that of its loader
    assert {int(fields[name], 16) for name in fields if name.startswith("Cap")} == {0}
    inside = execd.python("import os; print(os.getppid(), os.getuid(), os.getgid(), os.access('/', os.W_OK))")
    assert inside.split() == ["1", str(USER), str(USER), "False"]


def test_it_starts_without_complaint(placed: tuple[str, Bundled]) -> None:
    _, execd = placed
    log = execd.read_log()
    assert "execd_started" in log
    assert "WARNING" not in log
    assert "preload" not in log


def test_programs_of_the_image_run(placed: tuple[str, Bundled]) -> None:
    name, execd = placed
    if name == "scratch":
        assert "neither bash nor sh" in execd.ask("POST", "/command", {"command": "true"}).body
        return
    said = execd.ask("POST", "/command", {"command": "echo $((6 * 7)) | cat; exit 3"})
    assert (said.output(), said.events[-1]["exit_code"]) == ("42\n", 3)


def test_programs_of_another_libc_run(placed: tuple[str, Bundled]) -> None:
    """Nothing of the bundle's own library path is left in what they are started with."""
    name, execd = placed
    if name == "musl":
        said = execd.run(f"/lib/ld-musl-{platform.machine()}.so.1")
        assert said.output("stderr").startswith(f"musl libc ({platform.machine()})")
    elif name == "debian":
        loaded = execd.run("/bin/cat", "/proc/self/maps").output()
        assert "/bin/cat" in loaded
        assert "/.sbx" not in loaded


def test_commands_see_nothing_of_how_execd_was_started(placed: tuple[str, Bundled]) -> None:
    _, execd = placed
    variables = json.loads(execd.python("import json, os; print(json.dumps(dict(os.environ)))"))
    ours = ("LD_", "PYTHON", "GLIBC_", "SANDMILL_ORIG_")
    assert [name for name, value in variables.items() if name.startswith(ours) or "/.sbx" in value] == []


def test_missing_program_is_a_result(placed: tuple[str, Bundled]) -> None:
    """Pitfall of a daemon that starts programs: an error out of the start must not end the connection."""
    _, execd = placed
    for argv in (["/no/such/program"], ["no-such-program"], ["/proc"]):
        said = execd.run(*argv)
        assert said.events[-1]["type"] == "error"
        assert said.events[-1]["reason"] == "start_failed"
    assert execd.answers()


ORPHANS = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            os._exit(0)
        os._exit(0)
    os.wait()
"""

ZOMBIES = """
import os, time
def states():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
        except OSError:
            pass
until = time.monotonic() + 10
while "Z" in (found := list(states())) and time.monotonic() < until:
    time.sleep(0.01)
print(found.count("Z"))
"""


def test_process_1_reaps_what_others_left(placed: tuple[str, Bundled]) -> None:
    _, execd = placed
    execd.python(ORPHANS)
    assert execd.python(ZOMBIES) == "0\n"


def test_volume_filled_once_serves_any_container(bundle: Path) -> None:
    """For an engine that cannot mount our folder: it is copied into a volume, which containers see read-only."""
    require_docker()
    ensure_images()
    with volume_with(bundle) as volume:
        for image in (EMPTY_IMAGE, BUSYBOX_IMAGE):
            with in_docker(image, volume) as execd:
                assert execd.python("import os; print(os.access('/.sbx/app', os.W_OK))") == "False\n"
                mounts = execd.python("print(open('/proc/self/mounts').read())").splitlines()
                (options,) = [line.split()[3] for line in mounts if line.split()[1:2] == ["/.sbx"]]
                assert "ro" in options.split(",")
