"""One trace leads from the client's request to the attempt on the worker; metrics are where they were asked for."""

import gzip
import http.server
import threading
import time
import urllib.request
from collections.abc import Iterator

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from launcher.ports import find_free_port
from tests.support.running_stack import running_stack

pytestmark = pytest.mark.slow

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CLIENT_SPAN = "00f067aa0ba902b7"
SECRET = "word-of-the-client-5b1f"


class Collector:
    """An OTLP endpoint that keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    names = {a.key: a.value.string_value for a in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        collector.spans += [(names["service.name"], span) for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def wait_for(self, service: str, name: str) -> Span:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for found, span in list(self.spans):
                if (found, span.name) == (service, name):
                    return span
            time.sleep(0.1)
        raise AssertionError((service, name, [(s, span.name) for s, span in self.spans]))


@pytest.fixture
def collector() -> Iterator[Collector]:
    opened = Collector()
    yield opened
    opened.server.shutdown()
    opened.server.server_close()


def test_trace_joins_request_dispatch_and_attempt(tmp_path, collector):
    ports = {"SCHEDULER": find_free_port(), "WORKER": find_free_port()}
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "SANDMILL_RUNTIMES": '["fake"]',
        "SANDMILL_RUNTIME": "fake",
        **{f"SANDMILL_{name}_METRICS_PORT": str(port) for name, port in ports.items()},
    }
    with running_stack(tmp_path / "home", environment) as stack:
        job = {"image": "fake", "env": {"WORD": SECRET}, "steps": [{"name": "a", "run": f"echo {SECRET}"}]}
        response = httpx.post(
            f"{stack.api_url}/v1/jobs",
            json=job,
            headers={
                "Authorization": f"Bearer {stack.api_key}",
                "traceparent": f"00-{TRACE}-{CLIENT_SPAN}-01",
            },
        )
        assert response.status_code == 202, response.text
        with stack.client() as client:
            client.wait(response.json()["batch_id"], timeout_seconds=30)
        attempt = collector.wait_for("sandmill-worker", "attempt")
        request = collector.wait_for("sandmill-api", "POST /v1/jobs")
        dispatch = collector.wait_for("sandmill-scheduler", "dispatch")
        step = collector.wait_for("sandmill-worker", "step")
        told = {name: read_metrics(port) for name, port in ports.items()}

    assert request.trace_id.hex() == attempt.trace_id.hex() == step.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == CLIENT_SPAN
    assert attempt.parent_span_id == request.span_id
    assert step.parent_span_id == attempt.span_id
    assert [link.span_id for link in attempt.links] == [dispatch.span_id]
    assert SECRET not in str(collector.spans)
    assert "sandmill_trials_dispatched_total 1.0" in told["SCHEDULER"]
    assert "sandmill_scheduler_leader 1.0" in told["SCHEDULER"]
    assert 'sandmill_attempts_finished_total{failure_class="none",outcome="passed"} 1.0' in told["WORKER"]
    assert 'sandmill_bells_answered_total{result="claimed"} 1.0' in told["WORKER"]


def read_metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()
