"""Reports lineage by OpenLineage: a run for each checkpoint, with the versions of the tables that it shows.

The library takes the address and the key from its own settings: `OPENLINEAGE_URL`, `OPENLINEAGE_API_KEY`, or the file
`openlineage.yml`. `OPENLINEAGE_NAMESPACE` names the namespace of the jobs, by default `tidemark`.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
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
    column_lineage_dataset,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    schema_dataset,
)
from openlineage.client.transport.console import ConsoleTransport
from openlineage.client.uuid import generate_static_uuid

from checkpointing.graph import TableMode
from checkpointing.identifiers import TableName, VertexId
from jobs.operators.spec import arrow_schema
from jobs.pipeline.column_lineage import ColumnLineage, How, ReadColumn, column_lineage
from jobs.pipeline.job_plan import JobPlan
from jobs.quality.verdict import Verdict
from jobs.sources.port import DescribesItself, LiesInFolder, Source, layers
from jobs.tick.reporters.events import CheckpointFailed, CheckpointPublished, Event, ReportedTable
from jobs.tick.reporters.port import UnusableReporterError

NAMESPACE: Final = "tidemark"
PRODUCER: Final = "https://pypi.org/project/tidemark-spark"
_CONFIGURED: Final = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE")
"""The environment variables that can say where to report to. They can also name the console."""


class OpenLineageReporter:
    """Sends a run when a checkpoint completes or fails, and one for each suite that judged it.

    The inputs of a checkpoint's run are what the pipeline's sources read. The outputs of the run are the tables that
    the checkpoint changes, each with its Delta version, its columns, where these come from, and its rows. The run of a
    suite is a child of the checkpoint's run, and belongs to the job `JOB.SUITE`. Its input is the table, with a verdict
    for each expectation that was judged.
    """

    def __init__(self, plan: JobPlan) -> None:
        """Prepare without connecting. Raises UnusableReporterError if no setting says where to report to."""
        self._plan = plan
        self._client = OpenLineageClient()
        silent = isinstance(self._client.transport, ConsoleTransport)
        if silent and not any(name in os.environ for name in _CONFIGURED) and not Path("openlineage.yml").exists():
            raise UnusableReporterError(
                "the reporter openlineage does not know where to report to: set OPENLINEAGE_URL, or write "
                "openlineage.yml"
            )
        self._namespace = os.environ.get("OPENLINEAGE_NAMESPACE", NAMESPACE)
        read = {name: _read(str(name), source) for name, source in plan.sources.items()}
        self._inputs = [
            InputDataset(each.namespace, each.name, facets=each.facets) for many in read.values() for each in many
        ]
        lineage = column_lineage(plan.declared, to_sources=True)
        self._lineage = {str(table): _lineage(each, read) for table, each in lineage.items()}

    def report(self, event: Event) -> None:
        """Send the run of a checkpoint: that it started, and that it completed or failed."""
        facets: dict[str, RunFacet] = {}
        match event:
            case CheckpointPublished():
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
        run = _run_id(event, began)
        self._send(event.job, "JOB", (RunState.START, began), Run(run), [])
        self._send(event.job, "JOB", (state, ended), Run(run, facets), self._inputs, outputs)
        for suite in event.suites:
            self._send_suite(event, suite, run, ended)

    def flush(self) -> None:
        """Send nothing: each report was sent at once."""

    def close(self) -> None:
        """Close the connection."""
        self._client.close(timeout=0)

    def _send_suite(self, event: CheckpointPublished | CheckpointFailed, suite: Verdict, run: str, at_ms: int) -> None:
        of = parent_run.ParentRunFacet(
            parent_run.Run(run), parent_run.Job(self._namespace, event.job), producer=PRODUCER
        )
        table = InputDataset(
            *_place(f"{event.warehouse.rstrip('/')}/{suite.table}"),
            facets={"schema": _schema(self._plan.table_schemas[TableName(suite.table)])},
            inputFacets={"dataQualityAssertions": _assertions(suite)},
        )
        state = RunState.COMPLETE if suite.passed else RunState.FAIL
        own = Run(_run_id(event, at_ms, suite.suite), {"parent": of})
        self._send(f"{event.job}.{suite.suite}", "TEST", (state, at_ms), own, [table])

    def _send(
        self,
        job: str,
        kind: str,
        reached: tuple[RunState, int],
        run: Run,
        inputs: list[InputDataset],
        outputs: Sequence[OutputDataset] = (),
    ) -> None:
        state, at_ms = reached
        of_kind = job_type_job.JobTypeJobFacet("STREAMING", "TIDEMARK", kind, producer=PRODUCER)
        self._client.emit(
            RunEvent(
                eventTime=_moment(at_ms).isoformat(),
                eventType=state,
                run=run,
                job=Job(self._namespace, job, {"jobType": of_kind}),
                producer=PRODUCER,
                inputs=inputs,
                outputs=list(outputs),
            )
        )

    def _output(self, event: CheckpointPublished, table: ReportedTable) -> OutputDataset:
        facets: dict[str, DatasetFacet] = {
            "schema": _schema(self._plan.table_schemas[TableName(table.name)]),
            "version": dataset_version_dataset.DatasetVersionDatasetFacet(str(table.version), producer=PRODUCER),
            "columnLineage": self._lineage[table.name],
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


def _run_id(event: CheckpointPublished | CheckpointFailed, at_ms: int, suite: str = "") -> str:
    """Return the id of a run. It is the same each time that the run is reported."""
    named = "/".join(filter(None, [event.warehouse, event.job, str(event.generation), str(event.checkpoint), suite]))
    return str(generate_static_uuid(_moment(at_ms), named.encode()))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _schema(schema: pa.Schema) -> schema_dataset.SchemaDatasetFacet:
    fields = [schema_dataset.SchemaDatasetFacetFields(field.name, str(field.type)) for field in schema]
    return schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)


def _lineage(
    lineage: ColumnLineage, read: Mapping[VertexId, Sequence[Dataset]]
) -> column_lineage_dataset.ColumnLineageDatasetFacet:
    """Return where a table's columns come from. A column that comes from no other, such as a count, is left out."""
    fields = {
        name: column_lineage_dataset.Fields(_fields(reads, read)) for name, reads in lineage.columns.items() if reads
    }
    return column_lineage_dataset.ColumnLineageDatasetFacet(fields, _fields(lineage.rows, read), producer=PRODUCER)


def _fields(
    reads: Iterable[ReadColumn], read: Mapping[VertexId, Sequence[Dataset]]
) -> list[column_lineage_dataset.InputField]:
    """Return the columns that are read. Each appears once, with all its uses."""
    ways: dict[tuple[VertexId, str], list[How]] = {}
    for each in sorted(reads, key=lambda each: (each.vertex, each.column, each.how.value)):
        ways.setdefault((each.vertex, each.column), []).append(each.how)
    return [
        column_lineage_dataset.InputField(of.namespace, of.name, column, [_way(how) for how in hows])
        for (source, column), hows in ways.items()
        for of in read[source]
    ]


def _way(how: How) -> column_lineage_dataset.Transformation:
    return column_lineage_dataset.Transformation("DIRECT" if how.is_direct else "INDIRECT", how.name)


def _assertions(suite: Verdict) -> data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet:
    """Return what a suite found. The values that failed are left out, because they are data."""
    found = [
        data_quality_assertions_dataset.Assertion(
            each.type,
            each.success,
            column=str(each.kwargs["column"]) if "column" in each.kwargs else None,
            severity="error",
            params=dict(each.kwargs),
        )
        for each in suite.expectations
        if each.unjudged is None and each.error is None
    ]
    return data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet(found, producer=PRODUCER)


def _read(name: str, source: Source) -> Sequence[Dataset]:
    """Return what a source reads, under OpenLineage's names: a topic, a folder, or the source's own description."""
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
