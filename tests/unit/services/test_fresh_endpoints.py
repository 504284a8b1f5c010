from uuid import uuid4

from services.fresh_endpoints import FreshEndpoints
from services.live_sandboxes import Endpoint

ENDPOINT = Endpoint("http://127.0.0.1:1", "node.example:28888", "token", is_secure=False)


def test_it_is_remembered_for_a_second_for_its_tenant():
    now = [100.0]
    endpoints = FreshEndpoints(monotonic=lambda: now[0])
    sandbox = uuid4()
    endpoints.note(1, sandbox, ENDPOINT)
    assert endpoints.find(1, sandbox) == ENDPOINT
    assert endpoints.find(2, sandbox) is None
    assert endpoints.find(1, uuid4()) is None
    now[0] = 100.99
    assert endpoints.find(1, sandbox) == ENDPOINT
    now[0] = 101.0
    assert endpoints.find(1, sandbox) is None


def test_what_is_forgotten_is_asked_for():
    endpoints = FreshEndpoints()
    sandbox = uuid4()
    endpoints.note(1, sandbox, ENDPOINT)
    endpoints.forget(2, sandbox)
    assert endpoints.find(1, sandbox) == ENDPOINT
    endpoints.forget(1, sandbox)
    assert endpoints.find(1, sandbox) is None


def test_a_crowd_does_not_fill_the_memory():
    endpoints = FreshEndpoints()
    sandboxes = [uuid4() for _ in range(1025)]
    for sandbox in sandboxes:
        endpoints.note(1, sandbox, ENDPOINT)
    assert [endpoints.find(1, sandbox) is None for sandbox in sandboxes] == [True] + [False] * 1024
