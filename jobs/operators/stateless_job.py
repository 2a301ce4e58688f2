"""Builds the Spark job of a stateless micro-batch: it marks failing rows, and the tasks write all rows."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from checkpointing.metadata.paths import ProtocolPaths
from jobs.operators.changes import INSERT, KIND
from jobs.operators.expressions import Expression
from jobs.operators.inputs import in_schema
from jobs.operators.python_workers import reported
from jobs.operators.scan.divided import Divided, divided_rows
from jobs.operators.scan.scanned import Scanned, ScanTasks, StatelessScan, shares_of
from jobs.operators.scan.stepped import (
    ArrowFunction,
    Part,
    Stepped,
    SteppedWork,
    rows_of,
)
from jobs.operators.spec import FAILED, RowRule, StatelessSpec, arrow_schema, schema_with_kind
from jobs.operators.stateless_task import StatelessTask
from jobs.sinks.staged_files import StagedFiles


def stateless_job(
    spark: SparkSession, spec: StatelessSpec, inputs: Mapping[int, DataFrame | Scanned | Stepped], writer: StagedFiles
) -> tuple[Part, ...]:
    """Return the lazy parts of the job, whose rows are the tasks' reports."""
    task = _task(spec, writer)
    scans = [scan for rows in inputs.values() if isinstance(rows, Scanned) for scan in rows.scans]
    reports: list[Part] = []
    if scans:
        scan = StatelessScan(shares_of(scans), task, in_task(spec.rules))
        reports.append(ScanTasks(tuple((scan, (share,)) for share in range(len(scan.shares)))))
    stepped = {number: rows for number, rows in inputs.items() if isinstance(rows, Stepped)}
    frames = {number: rows for number, rows in inputs.items() if isinstance(rows, DataFrame)}
    if stepped and not frames:
        reports.append(SteppedWork(vertex=spec.vertex, inputs=stepped, after=task, plan=partial(_written, spec)))
    elif frames:
        frames |= {number: rows_of(spark, rows) for number, rows in stepped.items()}
        reports.append(_written(spec, frames, task.run))
    return tuple(reports)


def divided_job(spark: SparkSession, spec: StatelessSpec, rows: Divided, writer: StagedFiles) -> DataFrame:
    """Return the lazy job of a micro-batch of which Spark sees only some columns.

    The job's rows are the tasks' reports.
    """
    return divided_rows(spark, rows, _task(spec, writer))


def _written(spec: StatelessSpec, rows: Mapping[int, DataFrame], run: ArrowFunction) -> DataFrame:
    every, schema = list(rows.values()), spec.schema
    if spec.emits_changes:
        every, schema = [_as_changes(each) for each in every], schema_with_kind(schema)
    columns = in_schema(reduce(DataFrame.unionByName, every), schema)
    marked = columns if spec.quarantine is None else columns.withColumn(FAILED, failed_rules(spec.rules))
    return reported(marked, run)


def _as_changes(rows: DataFrame) -> DataFrame:
    """Return the changes: those of a changelog as they are, and rows of an append-only stream as inserts."""
    return rows if KIND in rows.columns else rows.withColumn(KIND, F.lit(INSERT))


def failed_rules(rules: Sequence[RowRule]) -> Column:
    """Return the names of the rules that a row fails, joined by ', ', or null if it fails none.

    A row passes a rule that is null for it, as in Great Expectations, which ignores nulls.
    """
    names = F.concat_ws(", ", *[F.when(~F.coalesce(_good(rule), F.expr("true")), F.lit(rule.name)) for rule in rules])
    return F.when(names != F.lit(""), names)


def in_task(rules: Sequence[RowRule]) -> tuple[tuple[str, Expression], ...]:
    """Return the rules that a task can judge, with their names."""
    return tuple((rule.name, rule.in_task) for rule in rules if rule.in_task is not None)


def _good(rule: RowRule) -> Column:
    return F.expr(rule.good) if isinstance(rule.good, str) else rule.good()


def _task(spec: StatelessSpec, writer: StagedFiles) -> StatelessTask:
    return StatelessTask(
        writer=writer,
        schema=arrow_schema(spec.schema),
        failed=None if spec.quarantine is None else FAILED,
        table=None if spec.table is None else spec.table.name,
        partitioned_by=() if spec.table is None else spec.table.partitioned_by,
        version=None if spec.table is None else spec.table.version,
        channel=ProtocolPaths(writer.job).channel(spec.vertex) if spec.emits else None,
        emits=spec.emits,
        emits_changes=spec.emits_changes,
        quarantine=None if spec.quarantine is None else spec.quarantine.name,
    )
