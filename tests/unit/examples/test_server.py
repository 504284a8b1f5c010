import pytest

from examples.swe_eval.errors import ExampleError
from examples.swe_eval.server import describe_server


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("SANDMILL_API_URL", "SANDMILL_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_a_server_is_only_said_to_start_when_none_is_named(monkeypatch):
    assert describe_server() == "starting Sandmill"
    monkeypatch.setenv("SANDMILL_API_URL", "http://127.0.0.1:1")
    with pytest.raises(ExampleError, match="SANDMILL_API_URL is set alone"):
        describe_server()
    monkeypatch.setenv("SANDMILL_API_KEY", "sm_x")
    assert describe_server() == "using the server at SANDMILL_API_URL"
