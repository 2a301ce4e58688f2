"""Reports to Prometheus: a file for the node exporter's textfile collector, a push gateway, or both.

A tick ends, so Prometheus cannot scrape it. So each report is written out, and replaces the numbers of the one before.
"""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, push_to_gateway, pushadd_to_gateway, write_to_textfile
from prometheus_client import Gauge as PrometheusGauge
from prometheus_client.parser import text_string_to_metric_families

from jobs.tick.reporters.events import CheckpointPublished, Event
from jobs.tick.reporters.measures import BYTES, GAUGES, SECONDS, Gauge, Measures
from jobs.tick.reporters.port import UnusableReporterError

PUSH_TIMEOUT_S: Final = 5
_SUFFIXES: Final = {SECONDS: "_seconds", BYTES: "_bytes"}


def name_of(gauge: Gauge) -> str:
    """Return the name of a gauge in Prometheus. A collector of OpenTelemetry would make the same name."""
    return f"tidemark_{gauge.name.replace('.', '_')}{_SUFFIXES.get(gauge.unit, '')}"


class PrometheusReporter:
    """Keeps the newest numbers of one job. The job's label is `job_name`, because a push gateway reserves `job`."""

    def __init__(self, job: str, folder: Path | None, push_url: str | None) -> None:
        """Prepare to write `tidemark_JOB.prom` in the folder, and to push to the URL, if these are set.

        Raises UnusableReporterError if neither is set, if the folder is missing, or if the URL has a password.
        """
        if folder is None and push_url is None:
            raise UnusableReporterError(
                "the reporter prometheus does not know where to report to: set prometheus_folder, which the node "
                "exporter's textfile collector reads, or prometheus_push_url"
            )
        if folder is not None and not folder.is_dir():
            raise UnusableReporterError(f"prometheus_folder: there is no folder {folder}: make it, or name another one")
        if push_url is not None:
            _must_be_a_url(push_url)
        self._job, self._push_url = job, push_url
        self._file = None if folder is None else folder / f"tidemark_{job}.prom"
        self._measures = Measures()
        self._registry = CollectorRegistry()
        self._gauges: dict[str, PrometheusGauge] = {}
        self._of_earlier = True
        """Whether the newest numbers are of an earlier tick's checkpoint: this tick has completed none yet."""
        self._remember()

    def report(self, event: Event) -> None:
        """Keep the numbers of an event."""
        if isinstance(event, CheckpointPublished) and self._of_earlier:
            self._of_earlier = False
            for gauge in self._gauges.values():
                gauge.clear()
        for measured in self._measures.of(event):
            self._gauge(measured.gauge).labels(self._job, *measured.of).set(measured.value)

    def flush(self) -> None:
        """Write and push all numbers. The file is replaced as a whole."""
        if self._file is not None:
            write_to_textfile(str(self._file), self._registry)
        if self._push_url is not None:
            push = pushadd_to_gateway if self._of_earlier else push_to_gateway  # the latter forgets what is not sent
            push(
                self._push_url,
                job="tidemark",
                registry=self._registry,
                grouping_key={"job_name": self._job},
                timeout=PUSH_TIMEOUT_S,
            )

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def _remember(self) -> None:
        """Take over the numbers in the file. So they stay if this tick finds no rows and completes no checkpoint."""
        if self._file is None or not self._file.is_file():
            return
        names = {name_of(gauge): name for name, gauge in GAUGES.items() if not name.startswith("tick.")}
        try:
            families = list(text_string_to_metric_families(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return  # the first report writes it anew
        for sample in (sample for family in families for sample in family.samples):
            name = names.get(sample.name)
            if name is not None:
                of = [sample.labels.get(label, "") for label in GAUGES[name].labels]
                self._gauge(name).labels(self._job, *of).set(sample.value)

    def _gauge(self, name: str) -> PrometheusGauge:
        if name not in self._gauges:
            gauge = GAUGES[name]
            labels = ("job_name", *gauge.labels)
            self._gauges[name] = PrometheusGauge(name_of(gauge), gauge.text, labels, registry=self._registry)
        return self._gauges[name]


def _must_be_a_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UnusableReporterError("prometheus_push_url: write it as http://host:9091")
    if parts.password is not None or parts.username is not None:
        raise UnusableReporterError(
            "prometheus_push_url: a password in it would be seen in settings and logs; push to a gateway without one, "
            "or report by otlp, whose headers come from OTEL_EXPORTER_OTLP_HEADERS"
        )
