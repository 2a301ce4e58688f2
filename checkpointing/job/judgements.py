"""The asynchronous part of a snapshot: judgements of suites in progress, and the snapshots that wait for them (J3, B2).

Invariant: a judgement is awaited only while its checkpoint is pending. When the checkpoint ends, its judgements are
cancelled, and a verdict that still comes changes nothing. It may end by a timeout, a failure, a newer checkpoint or the
end of the tick.
"""

from collections.abc import Mapping
from typing import assert_never

from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph
from checkpointing.handles import FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName, VertexId
from checkpointing.job.operator_run import OperatorRun
from checkpointing.messages import CancelJudgement, JudgementFailed, JudgeSuites, SuitesJudged
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.snapshots import SubtaskSnapshot
from checkpointing.task.subtasks import Subtasks

Snapshots = tuple[SubtaskSnapshot, ...]
Judged = SuitesJudged | JudgementFailed
Files = tuple[tuple[TableName, tuple[FileHandle, ...]], ...]
"""What is judged: the files of each table."""


def to_judge(
    vertex: VertexId,
    runs: Mapping[VertexId, OperatorRun],
    graph: JobGraph,
    subtasks: Subtasks,
    checkpoint: CheckpointId,
    parent: CheckpointRecord | None,
) -> Files:
    """Return the files of a vertex's judged tables that the checkpoint would bring. None if it has ended already.

    A table without files is judged too if its suite says something of no rows, and if rows came and none of them went
    into it. `parent` is the last completed checkpoint.
    """
    run = runs[vertex]
    files = run.to_judge(subtasks.staged_for(checkpoint, run.vertex), parent)
    since = parent.checkpoint if parent else NO_CHECKPOINT
    run.worked = {after: went for after, went in run.worked.items() if after >= since}
    if not subtasks.takes(checkpoint, run.vertex):
        return files
    files = (*files, *run.overwritten_to_judge(parent))
    filled = {table for table, _ in files} | (run.went(since, checkpoint) or set())
    empty = [table.name for table in run.vertex.tables if table.judged_empty and table.name not in filled]
    if not empty or not _rows_came(vertex, runs, graph, since, checkpoint):
        return files
    return (*files, *((name, ()) for name in empty))


def _rows_came(
    vertex: VertexId,
    runs: Mapping[VertexId, OperatorRun],
    graph: JobGraph,
    since: CheckpointId,
    until: CheckpointId,
) -> bool:
    """Return whether the vertex worked on rows between two barriers, or if all that came was dropped before it.

    Rows that a barrier overtook have not come yet. A vertex that sent them does not count as one that dropped all.
    """
    if vertex not in runs:
        return False
    went = runs[vertex].went(since, until)
    if went is not None:
        return True
    before = (edge.upstream for edge in graph.upstream(vertex))
    return any(
        None not in (runs[each].went(since, until) or set()) and _rows_came(each, runs, graph, since, until)
        for each in before
        if each in runs
    )


class Judgements:
    """Keeps the snapshots of each vertex that waits for a verdict."""

    def __init__(self) -> None:
        """Begin without a judgement."""
        self._waiting: dict[tuple[VertexId, CheckpointId], Snapshots] = {}

    def begin(
        self,
        vertex: VertexId,
        checkpoint: CheckpointId,
        files: Files,
        snapshots: Snapshots,
    ) -> tuple[JudgeSuites, ...]:
        """Return what to judge. The snapshots wait for the verdict. Without files there is nothing to judge."""
        if not files:
            return ()
        self._waiting[vertex, checkpoint] = snapshots
        return (JudgeSuites(vertex, checkpoint, files),)

    def cancel(self, vertex: VertexId, checkpoint: CheckpointId) -> tuple[CancelJudgement, ...]:
        """Return the cancellation of the vertex's judgement, or nothing if none is in progress."""
        known = self._waiting.pop((vertex, checkpoint), None)
        return () if known is None else (CancelJudgement(vertex, checkpoint),)

    def told(self, fact: Judged) -> Snapshots | None:
        """Return the snapshots that waited for this verdict, or None if it comes too late."""
        return self._waiting.pop((fact.vertex, fact.checkpoint), None)


def objection(fact: Judged) -> tuple[CheckpointFailureReason, str] | None:
    """Return the reason and message with which the vertex declines its checkpoint; None if the suites accept the rows.

    Rejected rows would be rejected again at each checkpoint, so the job fails. A judgement that failed may succeed next
    time. Its failure is counted, as Flink counts an asynchronous part that raised.
    """
    match fact:
        case JudgementFailed():
            return CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION, fact.error
        case SuitesJudged(passed=False):
            return CheckpointFailureReason.QUALITY, fact.message or fact.report
        case SuitesJudged():
            return None
        case _:
            assert_never(fact)
