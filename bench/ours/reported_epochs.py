"""Measures what reporters add to an epoch: a tick of the tiny job has none, or all, of which one hangs.

`python -m bench.ours.reported_epochs --reporters none|all` prints the seconds from one recorded cut to the next. All
reporters are Prometheus by a file and a push gateway, OpenTelemetry, OpenLineage, a catalog, and a reporter that never
returns. A server in a process of its own receives what they send. The last figure ends when the tick returns.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.measures import caught_up, differences, print_result
from bench.tick_trace import commits
from bench.tiny_job import TinyEngine, pipeline
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord
from jobs.catalogs.port import CatalogSettings
from jobs.pipeline.planning import plan
from jobs.tick.listener import TickListener
from jobs.tick.reporters.events import Event
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import ReporterSettings, RuntimeSettings

_EPOCHS: Final = 100
_SERVER: Final = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Takes(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
    do_PUT = do_GET = do_DELETE = do_POST
    def log_message(self, *said): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Takes)
print(server.server_port, flush=True)
server.serve_forever()
"""


class _Cpu(TickListener):
    """Records the CPU seconds of this process at each checkpoint."""

    def __init__(self) -> None:
        self.at_s: list[float] = []

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Record them."""
        del record, notes, versions
        self.at_s.append(time.process_time())


class Hangs:
    """A reporter that never returns."""

    def report(self, event: Event) -> None:
        """Wait for ever."""
        del event
        threading.Event().wait()

    def flush(self) -> None:
        """Do nothing, because nothing waits."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""


def main() -> None:
    """Measure one tick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reporters", choices=["none", "all"], required=True)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch, _server() as address:
        reporters = ReporterSettings() if asked.reporters == "none" else _all(Path(scratch), address)
        settings = RuntimeSettings(warehouse=Path(scratch) / "warehouse", reporters=reporters)
        cpu = _Cpu()
        report = caught_up(run_tick(plan(pipeline(_EPOCHS)), settings, cpu, engine=TinyEngine()))
        ended_s = time.time()
        cuts_s = [one.recorded_ms / 1000 for one in commits(report.trace)]
    print_result(
        {
            "program": f"tidemark-epochs-with-{asked.reporters}-reporters",
            "seconds": differences([*cuts_s, ended_s]),
            "epoch_s": (cuts_s[-1] - cuts_s[0]) / (_EPOCHS - 1),
            "cpu_s": (cpu.at_s[-1] - cpu.at_s[0]) / (_EPOCHS - 1),
            "end_s": ended_s - cuts_s[-1],
        }
    )


def _all(scratch: Path, address: str) -> ReporterSettings:
    os.environ |= {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OPENLINEAGE_URL": address}
    return ReporterSettings(
        names=("prometheus", "otlp", "openlineage", "bench.ours.reported_epochs:Hangs"),
        prometheus_folder=scratch,
        prometheus_push_url=address,
        catalog=CatalogSettings(name="unity", url=address, schema="main.tiny"),
    )


@contextmanager
def _server() -> Iterator[str]:
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 - this module's own text
        try:
            yield f"http://127.0.0.1:{'' if server.stdout is None else server.stdout.readline().strip()}"
        finally:
            server.kill()


if __name__ == "__main__":
    main()
