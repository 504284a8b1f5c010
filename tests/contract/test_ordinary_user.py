"""The local runtime without root: the same suites, as a user who has no privilege and no account."""

import pytest

from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.sandboxes import is_root

TIMEOUT_SECONDS = 300


@pytest.mark.timeout(TIMEOUT_SECONDS + 20)
@pytest.mark.skipif(not is_root(), reason="without root the suites run as an ordinary user anyway")
def test_contract_holds_for_local_sandboxes_of_an_ordinary_user(tmp_path):
    suites = [f"tests/contract/test_{name}.py" for name in ("runtime", "real_runtime", "leftovers")]
    done = run_as_ordinary_user(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", *suites],
        tmp_path / "home",
        timeout_seconds=TIMEOUT_SECONDS,
        SANDMILL_TEST_RUNTIMES="local",
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
