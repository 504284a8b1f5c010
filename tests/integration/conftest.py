import pytest

from core.database import create_database_engine
from tests.support.queue import QueueWorld


@pytest.fixture
def world(database_url):
    engine = create_database_engine(database_url, actor="test", pool_size=8)
    yield QueueWorld(engine)
    engine.dispose()
