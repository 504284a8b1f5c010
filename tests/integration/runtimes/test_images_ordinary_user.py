"""The image store without root: the same suites, as a user who has no privilege and no account."""

import pytest

from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.sandboxes import is_root

TIMEOUT_SECONDS = 240

SUITES = (
    "tests/integration/runtimes/test_image_store.py",
    "tests/integration/runtimes/test_image_lookup.py",
    "tests/integration/runtimes/test_local_files.py",
    "tests/security/test_image_unpacking.py",
)


@pytest.mark.timeout(TIMEOUT_SECONDS + 20)
@pytest.mark.skipif(not is_root(), reason="without root the suites run as an ordinary user anyway")
def test_image_store_works_for_an_ordinary_user(tmp_path):
    done = run_as_ordinary_user(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not memory", *SUITES],
        tmp_path / "home",
        timeout_seconds=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
