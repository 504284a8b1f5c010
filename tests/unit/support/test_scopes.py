"""Which tests of a parallel run follow each other in one process."""

import pytest

from tests.conftest import scope_of
from tests.support.launching import REPOSITORY

LIVE = "tests/clients/live/test_sandboxes.py"
GUARDS = "tests/security/test_guards.py"
WITHOUT = "tests/unit/support/test_scopes.py"


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        (f"{LIVE}::test_diagnostics[docker-sync]", "engine"),
        (f"{GUARDS}::test_network_of_the_engine_would_be_found", "engine"),
        (f"{GUARDS}::test_it[local-sync]", GUARDS),
        (f"{GUARDS}::test_it[localhost]", "engine"),
        (f"{LIVE}::test_diagnostics[local-sync]", "live"),
        (f"{LIVE.replace('sandboxes', 'harbor')}::test_a_job[local]", "live"),
        (f"{WITHOUT}::test_it[docker]", WITHOUT),
    ],
)
def test_what_shares_the_engine_or_an_installation_goes_together(test, expected):
    assert scope_of(REPOSITORY, test) == expected
