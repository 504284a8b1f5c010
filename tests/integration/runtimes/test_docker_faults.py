"""An engine that stops in the middle: what was begun ends, is told truly, and leaves nothing."""

import subprocess
import threading
import time
from contextlib import closing

import pytest
from docker.errors import NotFound
from requests.exceptions import RequestException

from core.errors import CreateTimeoutError, DaemonError, RunFailure
from runtimes.base import SandboxState
from tests.support.execd import names_in, wait_for
from tests.support.sandboxes import START_SECONDS, docker_kind

pytestmark = pytest.mark.docker

LIVE = {"is_sealed": False, "is_writable": True}


@pytest.fixture
def shaky(runtime_folder, proxy, healthy):
    """A runtime whose engine can be made to fail."""
    del healthy
    with docker_kind(runtime_folder, base_url=proxy.url) as made:
        made.runtime.check()
        yield made


def names(healthy):
    return {handle.name for handle in healthy.runtime.list()}


@pytest.mark.parametrize("fault", ["cut", "lose_answer"])
@pytest.mark.parametrize("step", ["/containers/create", "/start", "/images/"])
def test_create_that_the_engine_breaks_off_leaves_nothing(healthy, shaky, proxy, step, fault):
    spec = shaky.spec(**LIVE)
    proxy.fail(step, fault)
    with pytest.raises(DaemonError, match="does not answer"):
        shaky.runtime.create(spec, timeout_seconds=START_SECONDS)
    assert proxy.hit.is_set()
    proxy.heal()
    wait_for(lambda: spec.name not in names(healthy), seconds=10)
    with shaky.box(name=spec.name, **LIVE) as box:
        box.client.ping()


@pytest.mark.parametrize("step", ["/containers/create", "/start"])
def test_create_in_an_engine_that_hangs_ends_with_its_time_and_leaves_nothing(healthy, shaky, proxy, step):
    spec = shaky.spec(**LIVE)
    proxy.fail(step, "hang")
    with pytest.raises(CreateTimeoutError):
        shaky.runtime.create(spec, timeout_seconds=2.0)
    proxy.heal()
    wait_for(lambda: spec.name not in names(healthy), seconds=10)


def test_what_an_engine_left_in_a_create_is_found_by_its_label(healthy, shaky, proxy):
    with shaky.box(**LIVE):  # by now its image is known
        pass
    spec = shaky.spec(labels={"sandmill.node": "n"}, **LIVE)
    proxy.fail("/start|DELETE", "cut")
    with pytest.raises(DaemonError):
        shaky.runtime.create(spec, timeout_seconds=START_SECONDS)
    found = next(handle for handle in healthy.runtime.list() if handle.name == spec.name)
    assert found.labels == {"sandmill.node": "n"}
    assert healthy.runtime.state(found) == SandboxState("starting")
    healthy.runtime.remove(found)


@pytest.mark.parametrize("fault", ["cut", "lose_answer"])
def test_remove_that_the_engine_breaks_off_can_be_repeated(healthy, shaky, proxy, fault):
    with shaky.box(**LIVE) as box:
        proxy.fail("DELETE", fault)
        with pytest.raises(DaemonError):
            shaky.runtime.remove(box.handle)
        proxy.heal()
        shaky.runtime.remove(box.handle)
        assert box.handle.name not in names(healthy)
        assert shaky.runtime.state(box.handle) == SandboxState("gone")


@pytest.mark.parametrize("fault", ["cut", "lose_answer"])
def test_pause_that_the_engine_breaks_off_is_told_as_it_is(shaky, proxy, fault):
    with shaky.box(**LIVE) as box:
        proxy.fail("/pause", fault)
        with pytest.raises(DaemonError):
            shaky.runtime.pause(box.handle)
        proxy.heal()
        is_paused = fault == "lose_answer"
        assert shaky.runtime.state(box.handle) == SandboxState("paused" if is_paused else "running")
        shaky.runtime.pause(box.handle)
        assert shaky.runtime.state(box.handle) == SandboxState("paused")
        shaky.runtime.resume(box.handle)
        box.client.ping()


def test_running_sandboxes_are_reached_while_the_engine_is_away(shaky, proxy):
    with shaky.box(**LIVE) as box:
        box.client.ping()
        proxy.fail(".", "cut")
        assert box.sh("echo still here").out == "still here\n"
        assert shaky.runtime.state(box.handle) == SandboxState("running")
        with pytest.raises(RunFailure):
            shaky.runtime.list()
        proxy.heal()
        assert box.handle in shaky.runtime.list()


def test_container_killed_while_it_starts_is_told_and_leaves_nothing(healthy):
    spec = healthy.spec(**LIVE)
    over = threading.Event()

    def kill():
        while not over.wait(0.005):
            done = subprocess.run(["docker", "kill", spec.name], check=False, capture_output=True, timeout=60)
            if done.returncode == 0:
                return

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        # It may have got through before the first kill did.
        handle = healthy.runtime.create(spec, timeout_seconds=START_SECONDS)
        wait_for(lambda: healthy.runtime.state(handle).phase == "ended", seconds=20)
        healthy.runtime.remove(handle)
    except DaemonError as error:
        told = error.message
    else:
        told = "gone"
    finally:
        over.set()
        killer.join()
    assert "ended at once" in told or "gone" in told
    assert spec.name not in names(healthy)


def test_container_of_a_look_into_an_image_is_collected_when_it_is_old(healthy, shaky, proxy):
    with shaky.runtime._link.call() as engine:
        image = engine.image_facts(healthy.image)["Id"]
        proxy.fail("DELETE", "cut")
        with pytest.raises(RequestException), engine.unstarted(image) as container:
            pass
        proxy.heal()
        engine.collect_unstarted(before=0)
        assert engine.inspect_container(container)["Config"]["Labels"]
        assert engine.collect_unstarted(before=time.time() + 1) == 0
        with pytest.raises(NotFound):
            engine.inspect_container(container)


def test_other_processes_of_the_node_reach_what_runs_while_the_engine_is_away(healthy, shaky, proxy):
    """The ingress is one: it shares the folder with the worker that has made the sandbox."""
    with healthy.box(**LIVE) as box:
        proxy.fail(".", "cut")
        found = shaky.runtime.find(box.handle.name)
        assert found == box.handle
        with closing(shaky.runtime.executions(found)) as client:
            client.ping()
        proxy.heal()
    assert shaky.runtime.find(box.handle.name) is None
    assert shaky.runtime.look_at(box.handle) is None


def test_containers_that_are_gone_leave_no_record(healthy, runtime_folder):
    folder = runtime_folder / "docker" / "running"
    with healthy.box(**LIVE) as box:
        subprocess.run(["docker", "rm", "-f", box.handle.ref], check=True, capture_output=True, timeout=60)
        assert box.handle.name in names_in(folder)
        healthy.runtime.collect("n", [])
        assert box.handle.name not in names_in(folder)
    with healthy.box(**LIVE) as box:
        assert box.handle.name in names_in(folder)
    assert box.handle.name not in names_in(folder)
