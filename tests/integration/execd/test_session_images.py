"""Bash sessions in images with bash, with busybox only, with no shell; in containers and under gVisor."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.support.bundled import Bundled, in_docker, in_gvisor, needs_gvisor
from tests.support.images import (
    BUSYBOX_IMAGE,
    DEBIAN_IMAGE,
    EMPTY_IMAGE,
    ensure_debian_image,
    ensure_images,
    require_docker,
)

pytestmark = pytest.mark.docker

IMAGES: dict[str, tuple[str, Callable[[], None]]] = {
    "scratch": (EMPTY_IMAGE, ensure_images),
    "busybox": (BUSYBOX_IMAGE, ensure_images),
    "debian": (DEBIAN_IMAGE, ensure_debian_image),
}


@pytest.fixture(params=[f"{kind} {image}" for kind in ("runc", "gvisor") for image in IMAGES])
def placed(request: pytest.FixtureRequest, bundle: Path, tmp_path: Path) -> Iterator[tuple[str, Bundled]]:
    """(name of the image, execd)."""
    require_docker()
    kind, name = request.param.split()
    image, ensure = IMAGES[name]
    if kind == "gvisor":
        needs_gvisor()
    ensure()
    started: AbstractContextManager[Bundled] = (
        in_docker(image, str(bundle)) if kind == "runc" else in_gvisor(image, bundle, tmp_path)
    )
    with started as execd:
        yield name, execd


def test_a_session_carries_its_state_in_any_image(placed: tuple[str, Bundled]) -> None:
    name, execd = placed
    session_id = json.loads(execd.ask("POST", "/session", {"cwd": "/"}).body)["session_id"]
    path = f"/session/{session_id}/run"
    first = execd.ask("POST", path, {"command": "export A='1 2'; B=3; umask 027; cd /proc; exit 3"})
    if name == "scratch":
        assert first.events[-1]["start_failure"] == "not_found"
        return
    assert (first.events[-1]["exit_code"], first.events[-1]["state_saved"]) == (3, True)
    execd.ask("POST", path, {"command": "exec true"})
    second = execd.ask("POST", path, {"command": 'echo "$A $B"; umask; pwd'})
    carried = "3" if name == "debian" else ""
    assert second.output() == f"1 2 {carried}\n0027\n/proc\n"
    background = execd.ask("POST", "/command", {"command": "echo kept", "background": True})
    execution_id = background.events[0]["text"]
    status = json.loads(execd.ask("GET", f"/command/{execution_id}/wait?timeout_ms=20000").body)
    assert (status["exit_code"], status["remaining_processes"]) == (0, 0)
    assert execd.ask("GET", f"/command/{execution_id}/logs").body == "kept\n"
