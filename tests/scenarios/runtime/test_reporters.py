"""Reporters are notified of each checkpoint, and never fail or delay a tick."""

import gzip
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from checkpointing.messages import TickOutcome
from jobs.pipeline.planning import plan
from jobs.tick.reporters.events import CheckpointPublished, TickEnded
from jobs.tick.reporters.measures import GAUGES
from jobs.tick.reporters.port import UnusableReporterError
from jobs.tick.reporters.prometheus import name_of
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import ReporterSettings, RuntimeSettings
from tests.scenarios.runtime.sequence_job import GOLD, JOB, KEYS, ONE, ROWS, LocalEngine, build
from tidemark import Expectation, Pipeline, SequenceSource


def tick(root, engine=None, plan=None, **reporters):
    settings = RuntimeSettings(warehouse=root / "warehouse", reporters=ReporterSettings(**reporters))
    return run_tick(plan or build(), settings, engine=engine or LocalEngine())


class Broken(LocalEngine):
    def run(self, *_):
        raise RuntimeError("no micro-batch runs here")


class Heard:
    """A user's own reporter that records its events."""

    events: ClassVar = []

    def report(self, event):
        self.events.append(event)

    def flush(self):
        pass

    def close(self):
        pass


class Raises(Heard):
    def report(self, event):
        raise RuntimeError("the server at http://me:secret@there is gone")


class Hangs(Heard):
    released = threading.Event()
    reached = threading.Event()

    def report(self, event):
        self.reached.set()
        self.released.wait()


@contextmanager
def server():
    """Yield the address of a web server, and a list of the requests that it has received."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            got.append((self.command, self.path, gzip.decompress(body) if packed else body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_PUT = do_POST  # noqa: N815 - http.server calls it so

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}", got
    finally:
        listening.shutdown()
        listening.server_close()


def samples(text):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name, **labels):
    return (name, *sorted({"job_name": JOB, **labels}.items()))


def test_prometheus_has_the_numbers_of_the_newest_checkpoint(tmp_path):
    """A tick without rows completes no checkpoint. The last checkpoint's numbers stay beside the new tick's numbers."""
    first = tick(tmp_path, names=("prometheus",), prometheus_folder=tmp_path)
    file = tmp_path / f"tidemark_{JOB}.prom"
    found, newest = samples(file.read_text()), first.completed[-1]
    assert found[of("tidemark_checkpoint_id")] == newest.checkpoint
    committed_ms = newest.statistics.committed_ms
    assert found[of("tidemark_checkpoint_completed_timestamp_seconds")] == committed_ms / 1000
    assert found[of("tidemark_table_rows", table=GOLD)] == 7
    assert found[of("tidemark_tick_completed_checkpoints")] == len(first.completed)
    assert found[of("tidemark_tick_outcome", outcome=TickOutcome.CAUGHT_UP.value)] == 1
    assert tick(tmp_path, names=("prometheus",), prometheus_folder=tmp_path).completed == ()
    found = samples(file.read_text())
    assert found[of("tidemark_checkpoint_id")] == newest.checkpoint
    assert found[of("tidemark_tick_completed_checkpoints")] == 0


def test_a_push_gateway_gets_all_numbers_of_the_job(tmp_path):
    with server() as (address, got):
        tick(tmp_path, names=("prometheus",), prometheus_push_url=address)
    command, path, body = got[-1]
    assert (command, path) == ("PUT", f"/metrics/job/tidemark/job_name/{JOB}")
    assert samples(body.decode())[of("tidemark_checkpoint_rows")] > 0


def test_a_collector_gets_numbers_and_a_span_for_each_checkpoint(tmp_path, monkeypatch):
    with server() as (address, got):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        report = tick(tmp_path, names=("otlp",))
    spans = [
        span
        for _, path, body in got
        if path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    whole = [span for span in spans if span.name == "checkpoint"]
    life = [(each.statistics.triggered_ms, each.statistics.committed_ms) for each in report.completed]
    assert [(s.start_time_unix_nano // 10**6, s.end_time_unix_nano // 10**6) for s in whole] == life
    assert {span.name for span in spans if span.parent_span_id == whole[0].span_id} == {"numbers", "bronze", "by_key"}
    newest = ExportMetricsServiceRequest.FromString([body for _, path, body in got if path == "/v1/metrics"][-1])
    values = {
        metric.name: metric.gauge.data_points[-1]
        for scope in newest.resource_metrics[0].scope_metrics
        for metric in scope.metrics
    }
    assert values["tidemark.checkpoint.id"].as_int == report.completed[-1].checkpoint
    assert {name.removeprefix("tidemark.") for name in values} <= GAUGES.keys()


def test_open_lineage_gets_a_run_with_versions_columns_and_rows(tmp_path, monkeypatch):
    with server() as (address, got):
        monkeypatch.setenv("OPENLINEAGE_URL", address)
        report = tick(tmp_path, names=("openlineage",))
    events = [json.loads(body) for _, _, body in got]
    assert [each["eventType"] for each in events] == ["START", "COMPLETE"] * len(report.completed)
    assert len({each["run"]["runId"] for each in events}) == len(report.completed)
    gold = next(each for each in events[-1]["outputs"] if each["name"].endswith(GOLD))
    assert (gold["namespace"], gold["name"]) == ("file", f"{tmp_path}/warehouse/{GOLD}")
    assert gold["facets"]["version"]["datasetVersion"].isdigit()
    assert [field["name"] for field in gold["facets"]["schema"]["fields"]] == ["key", "rows", "total"]
    assert gold["outputFacets"]["outputStatistics"]["rowCount"] == 7
    assert [len(each["facets"]["schema"]["fields"]) > 0 for each in events[-1]["inputs"]] == [True]
    lineage = gold["facets"]["columnLineage"]
    (read,) = lineage["fields"]["total"]["inputFields"]
    source = events[-1]["inputs"][0]
    assert (read["namespace"], read["name"], read["field"]) == (source["namespace"], source["name"], "value")
    assert [(each["type"], each["subtype"]) for each in read["transformations"]] == [("DIRECT", "AGGREGATION")]
    assert [each["transformations"][0]["subtype"] for each in lineage["dataset"]] == ["GROUP_BY"]


@pytest.mark.parametrize("least", [0, 5], ids=["met", "rejected"])
def test_open_lineage_gets_the_verdict_of_a_suite_on_the_table_that_it_judges(tmp_path, monkeypatch, least):
    """A rejecting verdict is reported too, although the checkpoint fails. No report has a value of a row."""
    pipeline = Pipeline(JOB, config=ONE)
    rows = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table("bronze/numbers", id="bronze")
    rows.expect(Expectation("expect_column_values_to_be_between", {"column": "value", "min_value": least}))
    with server() as (address, got):
        monkeypatch.setenv("OPENLINEAGE_URL", address)
        tick(tmp_path, plan=plan(pipeline), names=("openlineage",))
    events = [json.loads(body) for _, _, body in got]
    told = next(each for each in events if each["job"]["name"] == f"{JOB}.bronze_numbers")
    assert told["eventType"] == ("FAIL" if least else "COMPLETE")
    assert told["run"]["facets"]["parent"]["run"]["runId"] == events[0]["run"]["runId"]
    (table,) = told["inputs"]
    assert table["name"] == f"{tmp_path}/warehouse/bronze/numbers"
    (verdict,) = table["inputFacets"]["dataQualityAssertions"]["assertions"]
    named = "expect_column_values_to_be_between", "value", not least
    assert (verdict["assertion"], verdict["column"], verdict["success"]) == named
    assert "actual" not in verdict


def test_a_reporter_that_fails_or_hangs_neither_fails_nor_holds_up_a_tick(tmp_path, caplog):
    """The tick ends while one reporter still hangs. The third reporter gets all events. The log has no password."""
    Heard.events.clear()
    names = tuple(f"{__name__}:{each.__name__}" for each in (Raises, Hangs, Heard))
    try:
        report = tick(tmp_path, names=names)
        assert Hangs.reached.is_set()
        assert not Hangs.released.is_set()
    finally:
        Hangs.released.set()
    assert report.outcome is TickOutcome.CAUGHT_UP
    completed = [event for event in Heard.events if isinstance(event, CheckpointPublished)]
    assert [event.checkpoint for event in completed] == [each.checkpoint for each in report.completed]
    assert sum(event.rows for event in completed) == 300
    assert isinstance(Heard.events[-1], TickEnded)


def test_a_tick_that_fails_says_so(tmp_path):
    Heard.events.clear()
    report = tick(tmp_path, Broken(), names=(f"{__name__}:Heard",))
    ended = Heard.events[-1]
    assert (ended.outcome, ended.reason, ended.completed) == ("failed", report.reason.name, 0)
    assert "no micro-batch runs here" in ended.message


@pytest.mark.parametrize(
    ("reporters", "says"),
    [
        ({"names": ("promtheus",)}, "did you mean"),
        ({"names": ("prometheus",)}, "set prometheus_folder"),
        ({"names": ("prometheus",), "prometheus_push_url": "http://me:secret@here:1"}, "OTEL_EXPORTER_OTLP_HEADERS"),
        ({"names": ("openlineage",)}, "OPENLINEAGE_URL"),
        ({"names": ("builtins:object",)}, "no methods report, flush and close"),
        ({"names": ("nowhere:Nothing",)}, "nowhere"),
    ],
)
def test_a_reporter_that_cannot_be_used_is_refused_before_the_claim(tmp_path, reporters, says):
    with pytest.raises(UnusableReporterError, match=says) as refused:
        tick(tmp_path, **reporters)
    assert "secret" not in str(refused.value)
    assert not (tmp_path / "warehouse").exists()


def test_the_guide_names_every_number(request):
    guide = (request.config.rootpath / "docs" / "guides" / "observe.md").read_text(encoding="utf-8")
    assert [gauge for gauge in GAUGES.values() if f"`{name_of(gauge)}`" not in guide] == []
