"""Runs one `RunMicroBatch` effect as one Spark job, and returns its result.

Nothing is decided here. A job that fails leaves at most orphaned files. A subtask without rows returns an empty output.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row

from checkpointing.identifiers import Generation, JobName
from checkpointing.messages import InputSegments, MicroBatchFinished, RunMicroBatch, SubtaskOutput
from checkpointing.snapshots import NO_WORK
from jobs.operators.failures import MicroBatchError
from jobs.operators.inputs import read_input, scanned_input, stepped_input
from jobs.operators.keyed_job import is_in_one_task, is_small, keyed_job, misfits, must_wake
from jobs.operators.planned_jobs import PlannedJobs
from jobs.operators.reports import TaskReport, report_from
from jobs.operators.scanned import Scanned, may_scan
from jobs.operators.spec import KeyedSpec, Spec, StatelessSpec, VertexPlan
from jobs.operators.stateless_job import stateless_job
from jobs.operators.stepped import Part, Stepped
from jobs.sinks.staged_files import StagedFiles
from jobs.sources.slice_reading import LeftToSparkError, MayLeaveToSpark
from jobs.state.worker_copy import NO_USES, CopyUses
from jobs.storage.address import Root, absolute
from jobs.user_code import kind_of

_LEFT_TO_SPARK: Final = f"{LeftToSparkError.__module__}.{LeftToSparkError.__qualname__}"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A finished micro-batch: its result, and how often its tasks found their state in memory (D5).

    `workers` are the hosts and versions of the workers that ran its tasks, as they reported them.
    """

    finished: MicroBatchFinished
    copies: CopyUses
    workers: frozenset[str]


def run_micro_batch(
    jobs: PlannedJobs, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName
) -> MicroBatch:
    """Run the micro-batch as one Spark job, and return what each subtask wrote.

    `warehouse` must be the same folder for the driver and every task. May be called from several
    threads at once. Raise MicroBatchError, naming the vertex and the cause, if the job fails.
    """
    started = time.monotonic()
    try:
        rows = _reports(jobs, plan, effect, absolute(warehouse), job)
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


def _reports(jobs: PlannedJobs, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName) -> list[Row]:
    writer = StagedFiles(str(warehouse), job, Generation(effect.generation), effect.vertex, effect.micro_batch)
    parts = _parts(jobs, plan, effect, warehouse, writer)
    try:
        return jobs.collect(parts) if parts else []
    except PySparkException as error:
        if kind_of(error) != _LEFT_TO_SPARK:
            raise
    for reads in plan.inputs:
        if isinstance(reads.reader, MayLeaveToSpark):
            reads.reader.leave_to_spark()
    return jobs.collect(_parts(jobs, plan, effect, warehouse, writer))


def _parts(
    jobs: PlannedJobs, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, writer: StagedFiles
) -> tuple[Part, ...]:
    """Return the lazy parts of the job. There are none if there is nothing to read and no state to rewrite."""
    rows = {
        entry.input: arriving
        for entry in effect.inputs
        if (arriving := _arriving(jobs, plan, effect, entry, warehouse)) is not None
    }
    match plan.spec:
        case StatelessSpec() as spec:
            return stateless_job(jobs.session, spec, rows, writer)
        case KeyedSpec() as spec:
            needed = rows or misfits(spec, effect) or must_wake(spec, effect)
            return (keyed_job(jobs.session, spec, effect, rows, writer),) if needed else ()
        case _ as unreachable:
            assert_never(unreachable)


def _arriving(
    jobs: PlannedJobs, plan: VertexPlan, effect: RunMicroBatch, entry: InputSegments, warehouse: Root
) -> DataFrame | Scanned | Stepped | None:
    """Return the rows of one input: parts of files if tasks can read them themselves, otherwise a DataFrame."""
    reads = plan.inputs[entry.input]
    is_kept = isinstance(plan.spec, StatelessSpec) and reads.takes_changes
    if may_scan(plan.spec, entry.input) and not is_kept:
        scanned = scanned_input(reads, entry.segments, warehouse)
        if scanned is not None:
            return scanned
    if _may_step(plan.spec, effect, entry.input, warehouse) and jobs.lasts(effect.vertex, entry.input, reads):
        stepped = stepped_input(reads, entry.segments, warehouse)
        if stepped is not None:
            return stepped
    return read_input(jobs.session, reads, entry.segments, warehouse)


def _may_step(spec: Spec, effect: RunMicroBatch, number: int, warehouse: Root) -> bool:
    """Return whether one task before the steps of Spark's and one after them carry out the micro-batch."""
    if isinstance(spec, KeyedSpec):
        return not spec.inputs[number].is_broadcast and is_in_one_task(spec, effect, warehouse)
    return is_small(spec, effect) and may_scan(spec, 0)


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
