"""What the local runtime says about itself is what the host does."""

import json

import pytest

from runtimes.base import ResourceLimits
from runtimes.cgroups import CgroupTree
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.sandboxes import is_root

LIMITS = ResourceLimits(cpu_millicores=1000, memory_bytes=64 << 20, disk_bytes=1 << 20, pids=64)

ASK = """
import json, sys
from pathlib import Path
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
config = LocalConfig(state_dir=Path(sys.argv[1]), bundle_dir=Path(sys.argv[1]))
print(json.dumps(LocalRuntime(config).limitations()))
"""


def test_only_limits_that_control_groups_do_not_hold_are_told(tmp_path):
    runtime = LocalRuntime(LocalConfig(state_dir=tmp_path, bundle_dir=tmp_path))
    group = CgroupTree("sandmill").create("sm-check-limitations", LIMITS)
    group.remove(timeout_seconds=1)
    assert len(runtime.limitations()) == 3 - len(group.enforced)
    assert CgroupTree("sandmill").find("sm-check-limitations").process_ids() == set()


@pytest.mark.skipif(not is_root(), reason="needs root, to become another user")
def test_an_ordinary_user_is_told_each_limit_and_the_way_out(tmp_path):
    done = run_as_ordinary_user(
        ["-c", ASK, str(tmp_path / "home")], tmp_path / "home", timeout_seconds=60, PYTHONPATH="."
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [line.split(" ")[0] for line in found] == ["memory", "CPU", "processes"]
    assert all("run as root, or delegate the" in line for line in found)
