"""Reports to a collector of OpenTelemetry by OTLP over HTTP: numbers, and a span for each checkpoint.

The library takes the address, headers and certificates from its own variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`
and `OTEL_EXPORTER_OTLP_HEADERS`.
"""

import logging
import os
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import _Gauge
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Status, StatusCode

from jobs.tick.reporters.events import CheckpointFailed, CheckpointPublished, Event
from jobs.tick.reporters.measures import GAUGES, Measured, Measures

NAME: Final = "tidemark"
TIMEOUT_S: Final = 5
_NS: Final = 1_000_000
"""Nanoseconds in a millisecond."""


class CollectorError(RuntimeError):
    """The collector did not accept what was sent."""


class OtlpReporter:
    """Sends gauges whose names begin with `tidemark.`, and spans called `checkpoint`.

    A checkpoint's span begins at its trigger and ends at its commit. Inside it is a span for each vertex, from the
    first barrier there until all subtasks of the vertex have acknowledged.
    """

    def __init__(self) -> None:
        """Prepare without connecting."""
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)  # our caller says it once
        service = {} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: NAME}
        resource = Resource.create(service)
        self._measures = Measures()
        self._numbers = InMemoryMetricReader()
        self._meters = MeterProvider([self._numbers], resource, shutdown_on_exit=False)
        self._spans = InMemorySpanExporter()
        self._tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._tracer = self._tracers.get_tracer(NAME)
        self._gauges: dict[str, _Gauge] = {}
        self._number_exporter = OTLPMetricExporter(timeout=TIMEOUT_S)
        self._span_exporter = OTLPSpanExporter(timeout=TIMEOUT_S)

    def report(self, event: Event) -> None:
        """Keep the numbers and the span of an event."""
        for measured in self._measures.of(event):
            self._gauge(measured.gauge).set(measured.value, {"job": event.job, **_labels(measured)})
        match event:
            case CheckpointPublished():
                self._completed(event)
            case CheckpointFailed():
                span = self._tracer.start_span(
                    "checkpoint", start_time=event.at_ms * _NS, attributes=_attributes(event) | {"reason": event.reason}
                )
                span.set_status(Status(StatusCode.ERROR, event.message))
                span.end(event.at_ms * _NS)
            case _:
                pass

    def flush(self) -> None:
        """Send what is kept. Raise CollectorError if the collector does not accept it.

        Spans that it missed are lost.
        """
        spans = self._spans.get_finished_spans()
        self._spans.clear()
        numbers = self._numbers.get_metrics_data()
        sent = numbers is None or self._number_exporter.export(numbers) is MetricExportResult.SUCCESS
        if not sent or (spans and self._span_exporter.export(spans) is not SpanExportResult.SUCCESS):
            raise CollectorError(
                "the OpenTelemetry collector did not take a report: OTEL_EXPORTER_OTLP_ENDPOINT says where it is"
            )

    def close(self) -> None:
        """Close the connections."""
        self._number_exporter.shutdown()
        self._span_exporter.shutdown()  # type: ignore[no-untyped-call]  # the library leaves it out
        self._meters.shutdown()
        self._tracers.shutdown()

    def _gauge(self, name: str) -> _Gauge:
        if name not in self._gauges:
            gauge = GAUGES[name]
            meter = self._meters.get_meter(NAME)
            self._gauges[name] = meter.create_gauge(f"{NAME}.{name}", unit=gauge.unit, description=gauge.text)
        return self._gauges[name]

    def _completed(self, event: CheckpointPublished) -> None:
        attributes = _attributes(event) | {"rows": event.rows, "finished": event.finished}
        whole = self._tracer.start_span("checkpoint", start_time=event.triggered_ms * _NS, attributes=attributes)
        inside = trace.set_span_in_context(whole)
        for vertex in event.vertices:
            began = event.triggered_ms if vertex.first_barrier_ms is None else vertex.first_barrier_ms
            span = self._tracer.start_span(
                vertex.name,
                context=inside,
                start_time=began * _NS,
                attributes={
                    "vertex": vertex.name,
                    "alignment_ms": vertex.alignment_ms,
                    "busy_ms": vertex.busy_ms,
                    "rows_in": vertex.rows_in,
                    "rows_out": vertex.rows_out,
                },
            )
            span.end(max(began, vertex.acknowledged_ms) * _NS)
        whole.end(event.committed_ms * _NS)


def _labels(measured: Measured) -> dict[str, str]:
    return dict(zip(GAUGES[measured.gauge].labels, measured.of, strict=True))


def _attributes(event: CheckpointPublished | CheckpointFailed) -> dict[str, str | int]:
    return {
        "job": event.job,
        "warehouse": event.warehouse,
        "checkpoint": event.checkpoint,
        "generation": event.generation,
    }
