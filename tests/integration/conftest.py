from collections.abc import Iterator

import pytest

from core.database import create_database_engine
from tests.support.engine_fixtures import healthy, proxy  # noqa: F401 -- fixtures are found by name
from tests.support.invariants import watched
from tests.support.queue import QueueWorld


@pytest.fixture
def world(database_url):
    engine = create_database_engine(database_url, actor="test", pool_size=8)
    yield QueueWorld(engine)
    engine.dispose()


@pytest.fixture(autouse=True)
def invariants(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let every test that has a migrated database fail that breaks an invariant on the way.

    One that breaks some on purpose says which and why: `@pytest.mark.breaks_invariants("name", reason="...")`.
    """
    allowed = [name for mark in request.node.iter_markers("breaks_invariants") for name in mark.args]
    is_shared = "shared_api" in request.fixturenames
    if "database_url" in request.fixturenames:
        url = request.getfixturevalue("database_url")
    elif is_shared:
        url = request.getfixturevalue("shared_api").settings.database_url.get_secret_value()
    else:
        yield
        return
    with watched(url, allowed=allowed, is_shared=is_shared):
        yield
