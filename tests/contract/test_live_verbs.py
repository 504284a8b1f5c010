"""What every runtime promises about sandboxes that live on: entrypoint, pause, resume, snapshots, how they are."""

import uuid
from contextlib import suppress

import pytest

from core.errors import (
    ExecdUnreachableError,
    ImageNotFoundError,
    NotFoundError,
    NotSupportedError,
    SpecInvalidError,
)
from runtimes.base import ENTRYPOINT_KEY, Command, FileUpload, SandboxState
from tests.support.execd import wait_for
from tests.support.sandboxes import START_SECONDS, is_root


@pytest.fixture
def snapshot(kind):
    """A name for a snapshot, which is removed afterwards."""
    if kind.runtime.name == "local" and not is_root():
        pytest.skip("snapshots of local sandboxes need root")
    name = f"test-{uuid.uuid4().hex[:12]}"
    yield name
    kind.runtime.remove_snapshot(name)


def live_box(kind, **changes):
    """A sandbox as live ones are made."""
    return kind.box(is_sealed=False, is_writable=True, **changes)


def test_whether_snapshots_can_be_made_here_is_told(kind):
    can = kind.runtime.capabilities().makes_snapshots
    with live_box(kind) as box:
        name = f"test-{uuid.uuid4().hex[:12]}"
        if not can:
            with pytest.raises(NotSupportedError):
                kind.runtime.snapshot(box.handle, name)
            return
        kind.runtime.snapshot(box.handle, name)
        kind.runtime.remove_snapshot(name)


def test_entrypoint_runs_beside_execd_and_its_output_is_kept(kind):
    if kind.runtime.name == "fake":
        pytest.skip("nothing runs in it")
    argv = ("sh", "-c", "echo begun; echo $WHO >&2; exec sleep 60")
    with live_box(kind, entrypoint=argv, env={"WHO": "me"}) as box:
        command = Command(argv=argv)
        wait_for(
            lambda: box.client.background_output(command, key=ENTRYPOINT_KEY) == b"begun\nme\n", seconds=10
        )
        # As a worker does that goes on with what another one has begun.
        again = kind.runtime.create(
            kind.spec(name=box.handle.name, entrypoint=argv, env={"WHO": "me"}), timeout_seconds=START_SECONDS
        )
        assert again == box.handle
        assert box.client.background_output(command, key=ENTRYPOINT_KEY) == b"begun\nme\n"


def test_output_of_what_was_never_started_is_not_found(kind):
    with live_box(kind) as box, pytest.raises(NotFoundError):
        box.client.background_output(Command(argv=("true",)), key=ENTRYPOINT_KEY)


def test_entrypoint_that_cannot_be_started_leaves_no_sandbox(kind):
    if kind.runtime.name == "fake":
        pytest.skip("nothing runs in it")
    spec = kind.spec(entrypoint=("/no/such/program",), is_sealed=False, is_writable=True)
    with pytest.raises(SpecInvalidError, match="/no/such/program") as caught:
        kind.runtime.create(spec, timeout_seconds=START_SECONDS)
    assert caught.value.field == "entrypoint"
    assert spec.name not in {handle.name for handle in kind.runtime.list()}


def test_paused_sandbox_is_listed_and_goes_on_where_it_stood(kind):
    with live_box(kind) as box:
        box.client.upload([FileUpload("/tmp/file", b"kept")])
        for _ in range(2):
            kind.runtime.pause(box.handle)
            assert kind.runtime.state(box.handle) == SandboxState("paused")
        assert box.handle in kind.runtime.list()
        for _ in range(2):
            kind.runtime.resume(box.handle)
            assert kind.runtime.state(box.handle) == SandboxState("running")
        assert box.client.download("/tmp/file", max_bytes=10) == b"kept"


def test_paused_sandbox_can_be_removed(kind):
    with live_box(kind) as box:
        kind.runtime.pause(box.handle)
        kind.runtime.remove(box.handle)
        assert kind.runtime.state(box.handle) == SandboxState("gone")
        assert box.handle not in kind.runtime.list()


def test_sandbox_that_is_gone_can_be_neither_paused_nor_resumed(kind):
    with live_box(kind) as box:
        kind.runtime.remove(box.handle)
        for change in (kind.runtime.pause, kind.runtime.resume):
            with pytest.raises(ExecdUnreachableError):
                change(box.handle)


def test_snapshot_starts_others_with_the_files_of_that_moment(kind, snapshot):
    with live_box(kind) as box:
        box.client.upload([FileUpload("/tmp/file", b"first", 0o640)])
        kind.runtime.snapshot(box.handle, snapshot)
        assert kind.runtime.state(box.handle) == SandboxState("running")
        box.client.upload([FileUpload("/tmp/file", b"later")])
        with live_box(kind, image=f"snapshot:{snapshot}") as other:
            assert other.client.download("/tmp/file", max_bytes=10) == b"first"
            assert other.client.file_info("/tmp/file").mode & 0o777 == 0o640
            other.client.upload([FileUpload("/tmp/file", b"other")])
        assert box.client.download("/tmp/file", max_bytes=10) == b"later"
    assert snapshot in kind.runtime.snapshots()
    with live_box(kind, image=f"snapshot:{snapshot}") as third:
        assert third.client.download("/tmp/file", max_bytes=10) == b"first"


def test_snapshot_of_a_paused_sandbox_leaves_it_paused(kind, snapshot):
    with live_box(kind) as box:
        box.client.upload([FileUpload("/tmp/file", b"x")])
        kind.runtime.pause(box.handle)
        kind.runtime.snapshot(box.handle, snapshot)
        assert kind.runtime.state(box.handle) == SandboxState("paused")
        kind.runtime.resume(box.handle)
        box.client.ping()


def test_name_of_a_snapshot_is_taken_once(kind, snapshot):
    with live_box(kind) as box:
        kind.runtime.snapshot(box.handle, snapshot)
        with pytest.raises(SpecInvalidError, match=snapshot):
            kind.runtime.snapshot(box.handle, snapshot)


def test_removed_snapshot_starts_nothing_and_what_runs_from_it_goes_on(kind, snapshot):
    with live_box(kind) as box:
        box.client.upload([FileUpload("/tmp/file", b"x")])
        kind.runtime.snapshot(box.handle, snapshot)
    with live_box(kind, image=f"snapshot:{snapshot}") as other:
        for _ in range(2):
            kind.runtime.remove_snapshot(snapshot)
        assert snapshot not in kind.runtime.snapshots()
        assert other.client.download("/tmp/file", max_bytes=10) == b"x"
        with pytest.raises(ImageNotFoundError, match=snapshot):
            kind.runtime.create(kind.spec(image=f"snapshot:{snapshot}"), timeout_seconds=START_SECONDS)
        again = f"{snapshot}-again"
        kind.runtime.snapshot(other.handle, again)
    try:
        with live_box(kind, image=f"snapshot:{again}") as third:
            assert third.client.download("/tmp/file", max_bytes=10) == b"x"
    finally:
        kind.runtime.remove_snapshot(again)


def test_snapshot_of_what_is_gone_is_refused(kind, snapshot):
    with live_box(kind) as box:
        kind.runtime.remove(box.handle)
        with pytest.raises(ExecdUnreachableError):
            kind.runtime.snapshot(box.handle, snapshot)
    assert snapshot not in kind.runtime.snapshots()


def test_sandbox_whose_execd_ended_says_so(kind):
    if kind.runtime.name == "fake":
        pytest.skip("nothing runs in it")
    with live_box(kind) as box:
        with suppress(ExecdUnreachableError):
            box.sh("kill -TERM 1; sleep 5")
        wait_for(lambda: kind.runtime.state(box.handle).phase == "ended", seconds=10)
        assert box.handle in kind.runtime.list()
