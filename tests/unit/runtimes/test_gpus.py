import pytest

from core.errors import SpecInvalidError
from runtimes.base import ResourceLimits, SandboxSpec
from runtimes.local.runtime import LocalRuntime


@pytest.mark.parametrize("runtime", [LocalRuntime])
def test_a_runtime_that_hands_out_no_gpus_says_so_before_it_does_anything(runtime):
    limits = ResourceLimits(cpu_millicores=1000, memory_bytes=64 << 20, disk_bytes=1 << 20, pids=64, gpu=1)
    spec = SandboxSpec(name="sm-gpu", image="host", limits=limits)
    # Without any set-up: it must not come so far as to need any.
    with pytest.raises(SpecInvalidError) as caught:
        runtime.create(runtime.__new__(runtime), spec, timeout_seconds=1.0)
    assert caught.value.field == "resources.gpu"
