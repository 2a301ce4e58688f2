"""Finds output tables whose rows a changed pipeline would lose: renamed, removed, or written by another vertex.

An upsert or overwrite table consists of the files that its vertex holds, and the vertex finds them by the table's name.
Under another name, or at another vertex, the table would begin empty and show only rows that come from then on. An
append table under another name would leave its rows behind. So such a change is refused like missing state (G2), unless
the user accepts that the old rows stay behind.
"""

from collections.abc import Iterator

from checkpointing.graph import JobGraph, Table, TableMode, Vertex
from checkpointing.identifiers import TableName, VertexId
from checkpointing.metadata.paths import is_state_table
from checkpointing.metadata.record import CheckpointRecord, VertexRecord

_ACCEPT = "accept that with --allow-non-restored-state"


def tables_left(graph: JobGraph, record: CheckpointRecord) -> tuple[TableName, ...]:
    """Return the output tables of the cut that the graph no longer has."""
    now = {table.name for table in graph.tables()}
    return tuple(name for name in tables_of(record) if name not in now)


def unfit_tables(graph: JobGraph, record: CheckpointRecord) -> Iterator[str]:
    """Yield what happens to each table that cannot keep its rows under this graph, and the ways out.

    An entry from before format 4 lists only upsert tables.
    """
    known = tables_of(record)
    new = [table.name for vertex in graph.operators() for table in vertex.tables if table.name not in known]
    new = [name for name in new if not is_state_table(name)]
    for name in tables_left(graph, record):
        there = f", and {', '.join(new)} {'is' if len(new) == 1 else 'are'} new in it" if new and record.columns else ""
        yield (
            f"has table {name}, which the pipeline no longer has{there}: under another name a table begins without "
            f"the rows that it had. Name it {name} again, say renamed_from={name!r} where it has its new name, or "
            "leave it behind with --allow-non-restored-state"
        )
    before = {was.vertex: was for was in record.vertices}
    for vertex in graph.operators():
        yield from _unfit_sets(vertex, before, known if record.columns else None)


def _unfit_sets(
    vertex: Vertex, before: dict[VertexId, VertexRecord], known: tuple[TableName, ...] | None
) -> Iterator[str]:
    was = before.get(vertex.id)
    for table in vertex.tables:
        if table.mode not in (TableMode.UPSERT, TableMode.OVERWRITE):
            continue
        upserts = table.mode is TableMode.UPSERT
        writer = next((name for name, each in before.items() if table.name in _ranges(each)), vertex.id)
        if writer != vertex.id:
            left = "the keys that are touched" if upserts else "rows that come"
            yield (
                f"has table {table.name} as written by {writer!r}, and now {vertex.id!r} writes it: it would show only "
                f"{left} from now on. Let {writer!r} write it again, or {_ACCEPT}"
            )
        elif upserts and known is not None and table.name not in known and was is not None and _holds_state(was):
            yield (
                f"holds state of {vertex.id!r}, and table {table.name} is new beside it: it would show only the keys "
                f"that are touched from now on. Begin without state under another id, or {_ACCEPT}"
            )


def written_otherwise(table: Table, record: CheckpointRecord) -> tuple[str, str] | None:
    """Return how a table was declared at the cut and how it is declared now, if its mode or version column has changed.

    Return None if neither has changed, or if the table is new. The key columns of an upsert table are not compared
    here. They are the key columns of its state, and the restore compares them when it compares the state's columns.
    """
    if table.mode is TableMode.STATE or table.name not in tables_of(record):
        return None
    then, now = _written_as(table.name, record), (table.mode, table.keys)
    if then[0] is now[0] and (then == now or now[0] is not TableMode.OVERWRITE):
        return None
    return _declared_as(*then), _declared_as(*now)


def _written_as(name: TableName, record: CheckpointRecord) -> tuple[TableMode, tuple[str, ...]]:
    """Return the table's mode at the cut, and its key columns or its version column.

    An entry from before format 4 names only upsert tables, and no key columns.
    """
    keys = {each.table: (each.mode, each.columns) for was in record.vertices for each in was.table_keys}
    return keys.get(name, (TableMode.APPEND if record.columns else TableMode.UPSERT, ()))


def _declared_as(mode: TableMode, keys: tuple[str, ...]) -> str:
    by = {TableMode.UPSERT: " by key ", TableMode.OVERWRITE: " by version "}.get(mode, "") if keys else ""
    return f"an {mode.value} table{by}{', '.join(keys) if by else ''}"


def tables_of(record: CheckpointRecord) -> tuple[TableName, ...]:
    """Return the output tables of the cut. An entry from before format 4 lists only upsert tables."""
    if record.columns:
        return tuple(each.table for each in record.columns if not is_state_table(each.table))
    return tuple(dict.fromkeys(name for was in record.vertices for name in _ranges(was)))


def _ranges(was: VertexRecord) -> Iterator[TableName]:
    return (entry.table for snapshot in was.subtasks for entry in snapshot.ranges if entry.files)


def _holds_state(was: VertexRecord) -> bool:
    return any(snapshot.state for snapshot in was.subtasks)
