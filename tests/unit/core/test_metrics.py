import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.errors import UnavailableError
from core.metrics import REGISTRY, serve_metrics


def test_metrics_are_served_where_asked_for_and_nowhere_else():
    assert serve_metrics("127.0.0.1", None) is None
    server = serve_metrics("127.0.0.1", 0)
    assert server is not None
    try:
        address = f"http://127.0.0.1:{server.server_port}/metrics"
        with urllib.request.urlopen(address, timeout=5) as answer:
            names = {family.name for family in text_string_to_metric_families(answer.read().decode())}
        assert names >= {family.name for family in REGISTRY.collect()}
        with pytest.raises(UnavailableError, match=rf"127.0.0.1:{server.server_port}.*another metrics port"):
            serve_metrics("127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        server.server_close()
