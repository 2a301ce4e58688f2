"""Gives every subtask of a vertex all of the vertex's broadcast state (D1).

Every subtask sees all broadcast rows, so all of them have the same state. One task writes it, and all subtasks hold
that file. After a change of parallelism, each new subtask gets the copy of an old one, as Flink's
`RoundRobinOperatorStateRepartitioner` hands out broadcast state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from checkpointing.graph import JobGraph, Table
from checkpointing.identifiers import TableName, VertexId
from checkpointing.messages import SubtaskOutput
from checkpointing.metadata.paths import is_state_table
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.rescale.operator_state import DistributionMode, OperatorStatePart, redistribute_operator_state
from checkpointing.snapshots import RangeFiles, SubtaskSnapshot


def handed_to_all(tables: Sequence[Table], outputs: Sequence[SubtaskOutput]) -> tuple[SubtaskOutput, ...]:
    """Return the outputs of a micro-batch, with the broadcast state that one subtask wrote in the output of each."""
    names = {table.name for table in tables if table.broadcast}
    written = {entry.table: entry for output in outputs for entry in output.ranges if entry.table in names}
    if not written:
        return tuple(outputs)
    return tuple(replace(output, ranges=_with_all(output.ranges, written)) for output in outputs)


def _with_all(ranges: Sequence[RangeFiles], written: dict[TableName, RangeFiles]) -> tuple[RangeFiles, ...]:
    return (*(entry for entry in ranges if entry.table not in written), *written.values())


def restored_broadcasts(
    tables: Sequence[Table], was: VertexRecord, parallelism: int
) -> tuple[tuple[RangeFiles, ...], ...]:
    """Return the broadcast state of each of so many new subtasks. The cut may have had another parallelism."""
    names = [table.name for table in tables if table.broadcast]
    parts = [
        OperatorStatePart(entry.table, DistributionMode.BROADCAST, index, tuple(range(len(entry.files))))
        for index, snapshot in enumerate(was.subtasks)
        for entry in snapshot.ranges
        if entry.table in names
    ]
    if not parts:
        return ((),) * parallelism
    new = redistribute_operator_state(parts, len(was.subtasks), parallelism)
    return tuple(tuple(_files(was.subtasks[part.old_subtask], part.name) for part in got) for got in new)


def _files(snapshot: SubtaskSnapshot, name: str) -> RangeFiles:
    return next(entry for entry in snapshot.ranges if entry.table == name)


def broadcasts_left(graph: JobGraph, record: CheckpointRecord) -> Iterator[VertexId]:
    """Yield each vertex that has broadcast state in the cut and none in the graph: a restore would lose it (G2)."""
    known = {vertex.id for vertex in graph.vertices}
    tables = {table.name for table in graph.tables()}
    for was in record.vertices:
        held = {entry.table for snapshot in was.subtasks for entry in snapshot.ranges if entry.files}
        if was.vertex in known and any(is_state_table(table) and table not in tables for table in held):
            yield was.vertex
