"""Runs one `RunMicroBatch` effect as one Spark job, and returns its result.

Nothing is decided here. A job that fails leaves at most orphaned files. A subtask without rows returns an empty output.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from pyspark.sql import DataFrame, SparkSession

from checkpointing.identifiers import Generation, JobName
from checkpointing.messages import InputSegments, MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.snapshots import NO_WORK
from jobs.operators.failures import MicroBatchError
from jobs.operators.inputs import read_input, scanned_input
from jobs.operators.keyed_job import keyed_job, misfits, must_wake
from jobs.operators.reports import TaskReport, report_from
from jobs.operators.scanned import Scanned, may_scan
from jobs.operators.spec import KeyedSpec, StatelessSpec, VertexPlan
from jobs.operators.stateless_job import stateless_job
from jobs.sinks.staged_files import StagedFiles
from jobs.state.worker_copy import NO_USES, CopyUses
from jobs.storage.address import Root, absolute


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A finished micro-batch: its result, and how often its tasks found their state in memory (D5).

    `workers` are the hosts and versions of the workers that ran its tasks, as they reported them.
    """

    finished: MicroBatchFinished
    copies: CopyUses
    workers: frozenset[str]


def run_micro_batch(
    spark: SparkSession, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName
) -> MicroBatch:
    """Run the micro-batch as one Spark job and return what each subtask wrote.

    `warehouse` must be the same folder for the driver and every task. May be called from several
    threads at once. Raise MicroBatchError, naming the vertex and the cause, if the job fails.
    """
    started = time.monotonic()
    try:
        made = _job(spark, plan, effect, absolute(warehouse), job)
        rows = [] if made is None else made.collect()
        tasks = [report_from(row["report"]) for row in rows]
    except Exception as error:
        raise MicroBatchError.of(effect.vertex, effect.micro_batch, error) from error
    finished = result_of(plan, effect, tasks, round((time.monotonic() - started) * 1000))
    copies = sum((task.copies for task in tasks), NO_USES)
    return MicroBatch(finished, copies, frozenset(row["worker"] for row in rows))


def result_of(
    plan: VertexPlan, effect: RunMicroBatch, tasks: Iterable[TaskReport], duration_ms: int
) -> MicroBatchFinished:
    """Return the result of a micro-batch, made of its tasks' reports."""
    by_subtask = _by_subtask(plan, tasks)
    return MicroBatchFinished(
        vertex=effect.vertex,
        micro_batch=effect.micro_batch,
        outputs=tuple(_output(own) for own in by_subtask),
        duration_ms=duration_ms,
        work=tuple(sum((task.work for task in own), NO_WORK) for own in by_subtask),
    )


def _job(
    spark: SparkSession, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName
) -> DataFrame | None:
    """Return the lazy job, or None if there is nothing to read and no state to rewrite."""
    writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
    rows = {
        entry.input: arriving
        for entry in effect.inputs
        if (arriving := _arriving(spark, plan, entry, warehouse)) is not None
    }
    match plan.spec:
        case StatelessSpec() as spec:
            return stateless_job(spark, spec, list(rows.values()), writer) if rows else None
        case KeyedSpec() as spec:
            needed = rows or misfits(spec, effect) or must_wake(spec, effect)
            return keyed_job(spark, spec, effect, rows, writer) if needed else None
        case _ as unreachable:
            assert_never(unreachable)


def _arriving(
    spark: SparkSession, plan: VertexPlan, entry: InputSegments, warehouse: Root
) -> DataFrame | Scanned | None:
    """Return the rows of one input: parts of files if tasks can read them themselves, otherwise a DataFrame."""
    reads = plan.inputs[entry.input]
    scanned = scanned_input(reads, entry.segments, warehouse) if may_scan(plan.spec, entry.input) else None
    return scanned or read_input(spark, reads, entry.segments, warehouse)


def _by_subtask(plan: VertexPlan, reports: Iterable[TaskReport]) -> list[list[TaskReport]]:
    parallelism = plan.spec.parallelism if isinstance(plan.spec, KeyedSpec) else 1
    by_subtask: list[list[TaskReport]] = [[] for _ in range(parallelism)]
    for report in reports:
        by_subtask[report.subtask].append(report)
    return by_subtask


def _output(reports: Iterable[TaskReport]) -> SubtaskOutput:
    own = sorted(reports, key=lambda report: [file.path for file in report.emitted])
    return SubtaskOutput(
        emitted=tuple(file for report in own for file in report.emitted),
        staged=tuple(entry for report in own for entry in report.staged),
        state=tuple(file for report in own for file in report.state),
        ranges=tuple(entry for report in own for entry in report.ranges),
    )
