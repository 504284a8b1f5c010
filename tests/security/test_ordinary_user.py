"""The same attacks on the sandboxes of a user without any privilege, who has no control groups either."""

import pytest

from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.sandboxes import is_root

TIMEOUT_SECONDS = 300


@pytest.mark.timeout(TIMEOUT_SECONDS + 20)
@pytest.mark.skipif(not is_root(), reason="without root the suites run as an ordinary user anyway")
def test_sandboxes_of_an_ordinary_user_hold_too(tmp_path):
    suites = [
        f"tests/security/test_{name}.py"
        for name in ("escape", "exhaustion", "guards", "hostile_stored_images", "stored_images")
    ]
    done = run_as_ordinary_user(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not docker", *suites],
        tmp_path / "home",
        timeout_seconds=TIMEOUT_SECONDS,
        SANDMILL_TEST_RUNTIMES="local",
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
