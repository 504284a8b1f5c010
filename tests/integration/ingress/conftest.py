import pytest

from tests.support.ingress import running_ingress


@pytest.fixture
def ingress():
    with running_ingress() as made:
        yield made
