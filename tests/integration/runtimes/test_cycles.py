"""Sandboxes that come and go leave the host as it was."""

import os

import pytest

from benchmarks.cycles import config_in, remove_parents, run_cycles
from benchmarks.leftovers import count
from runtimes.local.runtime import LocalRuntime
from tests.support.sandboxes import START_SECONDS, is_root, make_spec

needs_root = pytest.mark.skipif(not is_root(), reason="the zygote is root's way")


@pytest.fixture
def config(tmp_path, runtime_folder, request):
    config = config_in(tmp_path, request.param).model_copy(update={"bundle_dir": runtime_folder / "bundles"})
    yield config
    remove_parents(config)


@pytest.fixture
def runtime(config):
    runtime = LocalRuntime(config)
    yield runtime
    runtime.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("config", "cycles"),
    [pytest.param("zygote", 60, marks=needs_root, id="zygote"), pytest.param("bwrap", 20, id="bwrap")],
    indirect=["config"],
)
def test_sandboxes_that_come_and_go_leave_nothing(runtime, config, cycles):
    report = run_cycles(runtime, config, cycles)
    assert report.leaks == {}
    assert len(report.lives) == cycles


@needs_root
@pytest.mark.parametrize("config", ["zygote"], indirect=True)
def test_what_a_sandbox_holds_is_counted(runtime, config):
    """So that the counts of the cycles can be trusted: one that is still there is seen by each kind that it is of."""
    runtime.check()
    before = count(config.state_dir, config.cgroup_parent)
    descriptor = os.open("/dev/null", os.O_RDONLY)
    handle = runtime.create(make_spec(image="host"), timeout_seconds=START_SECONDS)
    try:
        now = count(config.state_dir, config.cgroup_parent)
    finally:
        runtime.remove(handle)
        os.close(descriptor)
    kinds = ("processes", "namespaces", "cgroups", "worker_descriptors", "files", "zygote_mounts")
    assert {kind for kind in kinds if now[kind] <= before[kind]} == set()
    after = count(config.state_dir, config.cgroup_parent, at_most=before)
    assert after == before
