"""The endpoint that a client asks for after its create: told without the database, and to nobody else."""

from collections.abc import Iterator
from uuid import UUID

import pytest

from runtimes.fake import FakeRuntime
from tests.support.live_sandboxes import LiveNode, create_body, live_node
from tests.support.statements import noting_statements

READS_ENDPOINT = "n.ingress_url, n.ingress_address"


@pytest.fixture
def node(own_api) -> Iterator[LiveNode]:
    runtime = FakeRuntime()
    runtime.outlives = True
    with live_node(own_api.settings, own_api.world, {"fake": runtime}) as made:
        own_api.rows(
            "UPDATE nodes SET ingress_url = 'http://127.0.0.1:1', ingress_address = 'node.example:28888' RETURNING 1"
        )
        yield made


def create(api) -> str:
    response = api.client.post("/v1/sandboxes", json=create_body())
    assert response.json()["status"]["state"] == "Running"
    return response.json()["id"]


def ask(client, sandbox: str, port: int = 44772):
    return client.get(f"/v1/sandboxes/{sandbox}/endpoints/{port}")


def test_it_is_the_one_that_the_database_tells(own_api, node):
    sandbox = create(own_api)
    with noting_statements() as statements:
        fresh = ask(own_api.client, sandbox)
        assert ask(own_api.client, sandbox, 18080).json() == {
            "endpoint": f"node.example:28888/{sandbox}/18080"
        }
        assert not [sql for sql in statements if READS_ENDPOINT in sql]
        own_api.app.state.services.endpoints.forget(own_api.tenant_id, UUID(sandbox))
        assert ask(own_api.client, sandbox).json() == fresh.json()
        assert [sql for sql in statements if READS_ENDPOINT in sql]
    assert fresh.json()["endpoint"] == f"node.example:28888/{sandbox}/44772"


def test_another_tenant_is_told_that_there_is_none(own_api, node):
    sandbox = create(own_api)
    with own_api.new_client("another") as other:
        assert ask(other, sandbox).status_code == 404
    assert ask(own_api.client, sandbox).status_code == 200


def test_after_a_delete_there_is_none(own_api, node):
    sandbox = create(own_api)
    assert own_api.client.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    assert ask(own_api.client, sandbox).status_code in (404, 409)
