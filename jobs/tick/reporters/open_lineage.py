"""Reports lineage by OpenLineage: a run for each checkpoint, with the versions of the tables that it shows.

The library takes the address and the key from its own places: `OPENLINEAGE_URL`, `OPENLINEAGE_API_KEY`, or the file
`openlineage.yml`. `OPENLINEAGE_NAMESPACE` names the namespace of the jobs, by default `tidemark`.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pyarrow as pa
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import Dataset, InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    RunFacet,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    schema_dataset,
    test_run,
)
from openlineage.client.transport.console import ConsoleTransport
from openlineage.client.uuid import generate_static_uuid

from checkpointing.graph import TableMode
from checkpointing.identifiers import TableName
from jobs.operators.spec import arrow_schema
from jobs.pipeline.job_plan import JobPlan
from jobs.quality.verdict import Verdict
from jobs.sources.port import DescribesItself, LiesInFolder, Source, layers
from jobs.tick.reporters.events import CheckpointFailed, CheckpointPublished, Event, ReportedTable
from jobs.tick.reporters.port import UnusableReporterError

NAMESPACE: Final = "tidemark"
PRODUCER: Final = "https://pypi.org/project/tidemark-spark"
_CONFIGURED: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE")
"""Each of these variables says where to report to; the console too, if somebody asks for it."""


class OpenLineageReporter:
    """Sends an event when a checkpoint completes, and one when it fails.

    The inputs of a run are what the pipeline's sources read. Its outputs are the tables that the checkpoint changes,
    each with its Delta version, its columns, its rows, and the verdicts of its suite.
    """

    def __init__(self, plan: JobPlan) -> None:
        """Connect to nothing yet. Raises UnusableReporterError if nobody says where to report to."""
        self._plan = plan
        self._client = OpenLineageClient()
        silent = isinstance(self._client.transport, ConsoleTransport)
        if silent and not any(name in os.environ for name in _CONFIGURED) and not Path("openlineage.yml").exists():
            raise UnusableReporterError(
                "the reporter openlineage does not know where to report to: set OPENLINEAGE_URL, or write "
                "openlineage.yml"
            )
        self._namespace = os.environ.get("OPENLINEAGE_NAMESPACE", NAMESPACE)
        self._inputs = [each for name, source in plan.sources.items() for each in _read(str(name), source)]

    def report(self, event: Event) -> None:
        """Send the run of a checkpoint: that it started, and that it completed or failed."""
        facets: dict[str, RunFacet] = {}
        match event:
            case CheckpointPublished():
                if event.suites:
                    facets["test"] = _tests(event.suites)
                outputs = [
                    self._output(event, table)
                    for table in event.tables
                    if table.mode is not TableMode.STATE and table.version is not None
                ]
                began, ended, state = event.triggered_ms, event.committed_ms, RunState.COMPLETE
            case CheckpointFailed():
                message = f"{event.reason}: {event.message}"
                failed = error_message_run.ErrorMessageRunFacet(message, "python", producer=PRODUCER)
                outputs, began, ended, state = [], event.at_ms, event.at_ms, RunState.FAIL
                facets["errorMessage"] = failed
            case _:
                return
        self._send(event, RunState.START, began, [], {})
        self._send(event, state, ended, outputs, facets)

    def flush(self) -> None:
        """Send nothing: each report was sent at once."""

    def close(self) -> None:
        """Close the connection."""
        self._client.close(timeout=0)

    def _send(
        self,
        event: CheckpointPublished | CheckpointFailed,
        state: RunState,
        at_ms: int,
        outputs: list[OutputDataset],
        facets: dict[str, RunFacet],
    ) -> None:
        began = event.triggered_ms if isinstance(event, CheckpointPublished) else event.at_ms
        named = f"{event.warehouse}/{event.job}/{event.generation}/{event.checkpoint}"
        kind = job_type_job.JobTypeJobFacet("STREAMING", "TIDEMARK", "JOB", producer=PRODUCER)
        self._client.emit(
            RunEvent(
                eventTime=_moment(at_ms).isoformat(),
                eventType=state,
                run=Run(str(generate_static_uuid(_moment(began), named.encode())), facets),
                job=Job(self._namespace, event.job, {"jobType": kind}),
                producer=PRODUCER,
                inputs=[InputDataset(each.namespace, each.name, facets=each.facets) for each in self._inputs],
                outputs=outputs,
            )
        )

    def _output(self, event: CheckpointPublished, table: ReportedTable) -> OutputDataset:
        facets: dict[str, DatasetFacet] = {
            "schema": _schema(self._plan.table_schemas[TableName(table.name)]),
            "version": dataset_version_dataset.DatasetVersionDatasetFacet(str(table.version), producer=PRODUCER),
        }
        place = _place(f"{event.warehouse.rstrip('/')}/{table.name}")
        return OutputDataset(
            *place,
            facets=facets,
            outputFacets={
                "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
                    table.rows, table.bytes, producer=PRODUCER
                )
            },
        )


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _schema(schema: pa.Schema) -> schema_dataset.SchemaDatasetFacet:
    fields = [schema_dataset.SchemaDatasetFacetFields(field.name, str(field.type)) for field in schema]
    return schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)


def _tests(suites: Sequence[Verdict]) -> test_run.TestRunFacet:
    """Return what the suites found. The values that failed are left out: they belong to the data."""
    tests = [
        test_run.TestExecution(
            f"{suite.table}: {each.type}",
            "skip" if each.unjudged is not None else "pass" if each.success else "fail",
            type=each.type,
            params={"table": suite.table, "suite": suite.suite, **each.kwargs},
        )
        for suite in suites
        for each in suite.expectations
    ]
    return test_run.TestRunFacet(tests, producer=PRODUCER)


def _read(name: str, source: Source) -> Sequence[Dataset]:
    """Return what a source reads, under OpenLineage's names: a topic, a folder, or what the source says of itself."""
    facets: dict[str, DatasetFacet] = {"schema": _schema(arrow_schema(source.schema()))}
    folder = next((each.root for each in layers(source) if isinstance(each, LiesInFolder)), None)
    if folder is not None:
        return [Dataset(*_place(str(folder)), facets=facets)]
    about = next((each.described() for each in layers(source) if isinstance(each, DescribesItself)), None)
    if about is None:
        return [Dataset(NAMESPACE, name, facets=facets)]
    if about.kind == "kafka":
        servers, _, topics = about.place.partition(", ")
        return [Dataset(f"kafka://{servers.split(',')[0]}", topic, facets=facets) for topic in topics.split(", ")]
    if about.kind == "delta":
        return [Dataset(*_place(about.place), facets=facets)]
    return [Dataset(about.kind, about.place, facets=facets)]


def _place(address: str) -> tuple[str, str]:
    """Return the namespace and the name of a folder or of a place in an object store."""
    parts = urlsplit(address)
    return (f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")) if parts.netloc else ("file", address)
