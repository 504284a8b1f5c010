"""What every runtime promises: one suite for the fake and all real ones. See `runtimes/base.py`."""

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from core.errors import (
    ExecdUnreachableError,
    ImageNotFoundError,
    NotFoundError,
    PayloadTooLargeError,
    SpecInvalidError,
)
from runtimes.base import FileUpload, SandboxSpec, SandboxState, SandboxStats
from tests.support.sandboxes import START_SECONDS, make_limits


def names_of(runtime):
    return {handle.name for handle in runtime.list()}


def test_check_passes_where_sandboxes_start(kind):
    kind.runtime.check()


def test_created_sandbox_is_listed_with_its_labels(kind):
    with kind.box(labels={"trial": "7"}) as box:
        listed = next(handle for handle in kind.runtime.list() if handle.name == box.handle.name)
        assert listed == box.handle
        assert listed.labels == {"trial": "7"}
        assert listed.runtime == kind.runtime.name
        assert listed.ref


def test_second_create_of_a_name_gives_the_same_sandbox(kind):
    spec = kind.spec()
    with kind.box(name=spec.name) as box:
        assert kind.runtime.create(spec, timeout_seconds=START_SECONDS) == box.handle


def test_parallel_creates_of_a_name_give_one_sandbox(kind):
    spec = kind.spec()
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(kind.runtime.create, spec, timeout_seconds=START_SECONDS) for _ in range(3)]
        handles = [future.result() for future in futures]
    try:
        assert handles[0] == handles[1] == handles[2]
        assert [handle.name for handle in kind.runtime.list()].count(spec.name) == 1
    finally:
        kind.runtime.remove(handles[0])


def test_missing_image_is_named_and_leaves_nothing(kind):
    spec = kind.spec(image="missing")
    with pytest.raises(ImageNotFoundError, match="missing"):
        kind.runtime.create(spec, timeout_seconds=START_SECONDS)
    assert spec.name not in names_of(kind.runtime)


def test_removed_sandbox_is_gone_for_every_call(kind):
    with kind.box() as box:
        kind.runtime.remove(box.handle)
        assert box.handle.name not in names_of(kind.runtime)
        assert kind.runtime.stats(box.handle) == SandboxStats()
        with pytest.raises(ExecdUnreachableError):
            box.client.ping()
        with pytest.raises(ExecdUnreachableError):
            box.sh("true")


def test_state_tells_what_became_of_a_sandbox(kind):
    with kind.box() as box:
        assert kind.runtime.state(box.handle) == SandboxState("running")
        kind.runtime.remove(box.handle)
        assert kind.runtime.state(box.handle) == SandboxState("gone")


def test_progress_is_told_of(kind):
    told = []
    handle = kind.runtime.create(kind.spec(), timeout_seconds=START_SECONDS, on_progress=told.append)
    kind.runtime.remove(handle)
    assert told
    assert all(isinstance(text, str) for text in told)


def test_foreign_platform_is_refused_by_name(kind):
    if kind.runtime.name == "fake":
        pytest.skip("it has no platform")
    with pytest.raises(SpecInvalidError, match="linux/s390x") as caught:
        kind.runtime.create(kind.spec(platform="linux/s390x"), timeout_seconds=START_SECONDS)
    assert caught.value.field == "platform"


def test_remove_twice_is_no_error(kind):
    with kind.box() as box:
        kind.runtime.remove(box.handle)
        kind.runtime.remove(box.handle)


def test_old_handle_does_not_reach_a_new_sandbox_of_its_name(kind):
    with kind.box() as old:
        kind.runtime.remove(old.handle)
        with kind.box(name=old.handle.name) as new:
            kind.runtime.remove(old.handle)
            with pytest.raises(ExecdUnreachableError):
                old.client.ping()
            new.client.ping()


def test_new_sandbox_has_nothing_of_the_one_before(kind):
    with kind.box() as old:
        old.client.upload([FileUpload("/tmp/trace", b"x")])
        kind.runtime.remove(old.handle)
        with kind.box(name=old.handle.name) as new, pytest.raises(NotFoundError):
            new.client.download("/tmp/trace", max_bytes=10)


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1), ("exit 3", 3), ("exit 255", 255)])
def test_exit_code_is_the_commands_own(box, command, code):
    result = box.sh(command).result
    assert (result.exit_code, result.signal, result.timed_out, result.interrupted) == (
        code,
        None,
        False,
        False,
    )


def test_output_arrives_before_the_result(box):
    said = box.sh("echo hello there")
    assert said.out == "hello there\n"
    assert said.code == 0


def test_own_timeout_ends_the_command(box):
    began = time.monotonic()
    result = box.sh("sleep 60", timeout_seconds=0.3).result
    assert result.timed_out
    assert result.exit_code is None
    assert not result.interrupted
    assert time.monotonic() - began < 10


def test_stop_ends_the_command_and_says_so(box):
    stop = threading.Event()
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    began = time.monotonic()
    result = box.sh("sleep 60", stop=stop).result
    timer.join()
    assert result.interrupted
    assert not result.timed_out
    assert result.exit_code != 0
    assert time.monotonic() - began < 10


def test_stop_set_beforehand_ends_the_command_too(box):
    stop = threading.Event()
    stop.set()
    assert box.sh("sleep 60", stop=stop).result.interrupted


def test_remove_breaks_off_a_running_command(kind):
    with kind.box() as box, ThreadPoolExecutor(1) as pool:
        running = pool.submit(box.sh, "sleep 60")
        assert box.sh("true").code == 0
        kind.runtime.remove(box.handle)
        with pytest.raises(ExecdUnreachableError):
            running.result(timeout=10)


@pytest.mark.parametrize(
    "content", [b"", b"text\n", bytes(range(256)) * 1000], ids=["empty", "text", "binary"]
)
def test_uploaded_file_comes_back_as_it_was(box, content):
    box.client.upload([FileUpload("/tmp/deep/er/file", content, 0o600)])
    assert box.client.download("/tmp/deep/er/file", max_bytes=len(content)) == content
    info = box.client.file_info("/tmp/deep/er/file")
    assert (info.path, info.type, info.size, info.mode & 0o777) == (
        "/tmp/deep/er/file",
        "file",
        len(content),
        0o600,
    )


def test_stream_is_uploaded_beside_bytes_and_replaces(box):
    box.client.upload([FileUpload("/tmp/a", b"old"), FileUpload("/tmp/b", b"b")])
    box.client.upload([FileUpload("/tmp/a", io.BytesIO(b"new" * 100_000))])
    assert box.client.download("/tmp/a", max_bytes=300_000) == b"new" * 100_000
    assert box.client.download("/tmp/b", max_bytes=1) == b"b"


def test_download_is_refused_beyond_the_limit(box):
    box.client.upload([FileUpload("/tmp/big", b"x" * 1001)])
    with pytest.raises(PayloadTooLargeError, match="1000"):
        box.client.download("/tmp/big", max_bytes=1000)


def test_missing_file_is_not_found(box):
    with pytest.raises(NotFoundError):
        box.client.download("/tmp/none", max_bytes=10)
    with pytest.raises(NotFoundError):
        box.client.file_info("/tmp/none")


def test_search_matches_names_below_a_folder(box):
    paths = ["/tmp/out/a.xml", "/tmp/out/sub/b.xml", "/tmp/out/c.txt", "/tmp/outside.xml"]
    box.client.upload([FileUpload(path, b"1") for path in paths])
    found = box.client.search("/tmp/out", "*.xml")
    assert sorted(info.path for info in found) == ["/tmp/out/a.xml", "/tmp/out/sub/b.xml"]
    assert box.client.search("/tmp/none", "*") == []


def test_deleted_files_are_gone_and_missing_ones_no_error(box):
    box.client.upload([FileUpload("/tmp/a", b"1"), FileUpload("/tmp/b", b"2")])
    box.client.delete(["/tmp/a", "/tmp/never"])
    with pytest.raises(NotFoundError):
        box.client.download("/tmp/a", max_bytes=10)
    assert box.client.download("/tmp/b", max_bytes=10) == b"2"


def test_sandboxes_started_together_do_not_mix(kind):
    def start_and_ask(number):
        with kind.box() as box:
            box.client.upload([FileUpload("/tmp/number", str(number).encode())])
            return box.client.download("/tmp/number", max_bytes=10)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(start_and_ask, range(3))) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("name", ["", "sm-", "x", "sm-A", "sm-a/../b", "sm--\n", "-sm-a", "sm-" + "a" * 81])
def test_name_that_could_be_a_path_or_an_option_is_refused(name):
    with pytest.raises(ValueError, match="does not match"):
        SandboxSpec(name=name, image="fake", limits=make_limits())


def test_close_leaves_sandboxes_running(kind):
    with kind.box() as box:
        kind.runtime.close()
        box.client.ping()
        assert replace(box.handle) in kind.runtime.list()
