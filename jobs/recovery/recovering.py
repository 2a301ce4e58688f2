"""What a tick does between its claim and its first epoch: publish what was committed, delete what nobody references.

Recovery is the normal path: every tick comes through here, and a crash in here is met by the next one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from checkpointing.commit.leftovers import referenced
from checkpointing.commit.recovery import publications
from checkpointing.graph import JobGraph, VertexKind
from checkpointing.identifiers import Generation, TableName
from checkpointing.messages import PublishFailed
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Row
from jobs.holding.boundaries import DISCARD_LEFTOVERS, ROLL_FORWARD, ROLL_FORWARD_CUT, Boundary, around
from jobs.holding.failures import RollForwardError
from jobs.holding.job_stores import JobStores
from jobs.stores.leftovers import delete_leftovers


@dataclass(frozen=True, slots=True)
class RolledForward:
    """A committed checkpoint that was not published, and now is."""

    record: CheckpointRecord
    versions: dict[TableName, int]
    notes: tuple[str, ...]


def roll_forward(
    stores: JobStores, tables: Iterable[TableName], record: CheckpointRecord, boundary: Boundary
) -> RolledForward:
    """Publish every table of a committed row and record its cut, in which all these tables are.

    Raises RollForwardError naming the table that forbids it, and CutsNotRecordedError.
    """
    versions = _parent_versions(stores, tables, record)
    notes: list[str] = []
    for publication in publications(record):
        with around(boundary, f"{ROLL_FORWARD}:{publication.table}"):
            answer = stores.publish(publication, record.checkpoint)
        if isinstance(answer, PublishFailed):
            raise RollForwardError(f"checkpoint {record.checkpoint} is committed, but not published: {answer.error}")
        versions[publication.table] = answer.version
        if answer.note:
            notes.append(f"{publication.table}: {answer.note}")
    with around(boundary, ROLL_FORWARD_CUT):
        stores.record_cut(record.checkpoint, tuple(versions.items()))
    return RolledForward(record, versions, tuple(notes))


def discard_leftovers(
    stores: JobStores, graph: JobGraph, generation: Generation, rows: tuple[Row, ...], boundary: Boundary
) -> int:
    """Delete what older generations staged and none of the rows references; return how many files that were."""
    with around(boundary, DISCARD_LEFTOVERS):
        folders = staging_folders(graph, stores.warehouse.paths)
        return len(delete_leftovers(stores.warehouse, folders, current=generation, by=referenced(rows)))


def staging_folders(graph: JobGraph, paths: ProtocolPaths) -> tuple[TableName, ...]:
    """Return every folder into which a vertex of the job stages files: its tables', its state's, its channel's."""
    tables = [table.name for table in graph.tables()]
    states = [paths.state_table(vertex.id) for vertex in graph.operators() if vertex.kind is VertexKind.KEYED]
    channels = [paths.channel(vertex.id) for vertex in graph.operators()]
    return tuple(dict.fromkeys([*tables, *states, *channels]))


def _parent_versions(stores: JobStores, tables: Iterable[TableName], record: CheckpointRecord) -> dict[TableName, int]:
    """Every table's version at the parent cut: what the cut of this row says of tables that it does not touch."""
    parent = stores.read_cut(record.parent) or {}
    touched = {table.table: table.parent_version for table in record.tables}
    return {table: parent.get(table, touched.get(table, 0)) for table in tables}
