"""Traces from the request to the attempt, over OpenTelemetry.

Off, and free of cost, unless OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT says where they go; the
other OTEL_* variables of the specification are obeyed by the library. A context travels as a W3C `traceparent`: in the
request's header, in the row of the batch, in the headers of the bell. Attributes hold ids, names of states and sizes,
never commands, environments or other words of clients.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from core.logging import get_logger

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

__all__ = ["configure_tracing", "current_traceparent", "shut_down_tracing", "span", "tracing_on"]

log = get_logger(__name__)

AttributeValue = str | int | float | bool

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_TRACEPARENT_MAX = 64

_provider: "TracerProvider | None" = None


def configure_tracing(service: str, *, instance: str = "") -> None:
    """Start exporting, if the environment says where to.

    service: e.g. `sandmill-api`. instance: tells workers apart, by their node id.
    """
    global _provider  # noqa: PLW0603 -- the one switch of the process
    if _provider is not None or not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    # Imported only now: who does not trace shall not wait for it at each start.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    attributes = {"service.name": service, "service.namespace": "sandmill"}
    if instance:
        attributes["service.instance.id"] = instance
    provider = TracerProvider(resource=Resource.create(attributes))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _provider = provider
    log.info("tracing_started", service=service)


def shut_down_tracing() -> None:
    """Send what is left, for at most the exporter's own timeout."""
    global _provider
    provider, _provider = _provider, None
    if provider is not None:
        provider.shutdown()


def tracing_on() -> bool:
    """Whether spans go anywhere."""
    return _provider is not None


@contextmanager
def span(
    name: str,
    *,
    parent: str | None = None,
    link: str | None = None,
    kind: str = "internal",
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Iterator["Span | None"]:
    """Run the block in a span; gives None when tracing is off.

    parent, link: traceparents of elsewhere; without a parent the span joins the one the thread is in. kind: internal,
    server, producer or consumer. An exception marks the span as failed with its type alone and goes on.
    """
    if _provider is None:
        yield None
        return
    from opentelemetry import trace  # noqa: PLC0415 -- see configure_tracing

    context = _extract(parent)
    links = [
        trace.Link(trace.get_current_span(c).get_span_context()) for c in (_extract(link),) if c is not None
    ]
    tracer = _provider.get_tracer("sandmill")
    with tracer.start_as_current_span(
        name,
        context=context,
        kind=trace.SpanKind[kind.upper()],
        links=links,
        attributes=attributes,
        # Messages and tracebacks hold words of clients.
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except Exception as error:
            current.set_attribute("error.type", type(error).__name__)
            current.set_status(trace.StatusCode.ERROR)
            raise


def current_traceparent() -> str | None:
    """Give the context of the span the thread is in; None when there is none."""
    if _provider is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent")


def _extract(traceparent: str | None) -> "Context | None":
    if not traceparent or len(traceparent) > _TRACEPARENT_MAX:
        return None
    from opentelemetry.context import Context  # noqa: PLC0415
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    found = TraceContextTextMapPropagator().extract({"traceparent": traceparent}, context=Context())
    return found or None
