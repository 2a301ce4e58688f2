"""Computes what an entry and its cut in the small pipeline show: rows read, in flight, in tables, in state."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from checkpointing.channel_items import ChannelState, SourceSlice
from checkpointing.graph import Table, TableMode
from checkpointing.handles import KeyedFile, KeyedFileKind
from checkpointing.identifiers import CheckpointId, SplitId, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.entries_say import files_of_table, key_groups_of
from spec.history import CutWritten, History, RowCommitted
from spec.model import Contents, Pair, replay
from spec.pipeline import (
    AUDIT,
    JOINED,
    JOINED_TABLE,
    NEWEST,
    ORDERS_TABLE,
    PAYMENTS_TABLE,
    TOTALS,
    TOTALS_TABLE,
    first_id,
    first_table,
    graph_of,
    key_group,
    rows_before,
    rows_of,
)
from spec.rest_events import ImportBegun

StateRow = tuple[object, ...] | None


def first_cuts(history: History) -> Iterator[tuple[CheckpointRecord, CutWritten]]:
    """Yield every committed entry whose cut was recorded, with its first recording."""
    records: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        if isinstance(event, RowCommitted):
            records[event.record.checkpoint] = event.record
        elif isinstance(event, CutWritten) and event.checkpoint in records:
            yield records.pop(event.checkpoint), event


def positions(record: CheckpointRecord) -> dict[SplitId, int]:
    """Return how many rows of each split were read before the barrier."""
    return {
        SplitId(split): rows_before(snapshot.position)
        for vertex in record.vertices
        for split, snapshot in zip(vertex.splits, vertex.subtasks, strict=False)
    }


def in_flight(record: CheckpointRecord) -> Iterator[ChannelState]:
    """Yield what the entry holds in flight, channel by channel."""
    return (held for vertex in record.vertices for snapshot in vertex.subtasks for held in snapshot.in_flight)


def expected(history: History, record: CheckpointRecord, drains: Sequence[CheckpointRecord] = ()) -> Contents:
    """Return what the reference says of this cut. `drains` are the entries of all drains in the history.

    A committed entry never changes, nor do the drains before it. So this is computed once for each.
    """
    known = history.due.get(id(record))
    if known is None:
        known = history.due[id(record)] = (record, _replayed(history, record, drains))
    return known[1]


def _replayed(history: History, record: CheckpointRecord, drains: Sequence[CheckpointRecord]) -> Contents:
    rows: dict[VertexId, Counter[int]] = {}
    pairs: Counter[Pair] = Counter()
    for held in in_flight(record):
        if first_id(held.channel.edge.downstream) in (AUDIT, NEWEST):
            continue
        upstream = first_id(held.channel.edge.upstream)
        for segment in held.segments:
            if isinstance(segment, SourceSlice):
                rows.setdefault(upstream, Counter()).update(rows_of(segment))
                continue
            paths = frozenset(file.path for file in segment.files)
            if upstream == JOINED:
                pairs += _pairs(history.multiset(paths))
            else:
                rows.setdefault(upstream, Counter()).update(_numbers(history.multiset(paths)))
    line = line_of(history, record)
    drained_before = (each for one in history.of(ImportBegun) for each in one.drained)
    drained = {each.checkpoint for each in (*drains, *drained_before)}
    before = [read_on(line[: place + 1]) for place, each in enumerate(line) if each.checkpoint in drained]
    return replay(read_on(line), rows, pairs, before)


def line_of(history: History, record: CheckpointRecord) -> tuple[CheckpointRecord, ...]:
    """Return the entry and its ancestors, also those in the warehouse from which the first one was imported.

    What a rollback has left behind does not count.
    """
    rows = {event.record.checkpoint: event.record for event in history.of(RowCommitted)}
    found, at = {record.checkpoint: record}, record.parent
    while at in rows and at not in found:
        found[at] = rows[at]
        at = rows[at].parent
    line = tuple(reversed(found.values()))
    before = (one.line for one in history.of(ImportBegun) if one.generation == line[0].generation)
    return (*next(before, ()), *line)


def read_on(line: Sequence[CheckpointRecord]) -> dict[SplitId, list[tuple[int, int]]]:
    """Return the stretches of each split that were read when the last entry of a line was taken.

    A reset ends a stretch at its parent's position, and begins the next one.
    """
    begun: dict[SplitId, int] = {}
    found: dict[SplitId, list[tuple[int, int]]] = {}
    for parent, row in pairwise(line):
        if row.kind is RowKind.RESET:
            reached = positions(parent)
            for split, begins in positions(row).items():
                found.setdefault(split, []).append((begun.get(split, 0), reached.get(split, 0)))
                begun[split] = begins
    for split, reaches in positions(line[-1]).items():
        found.setdefault(split, []).append((begun.get(split, 0), reaches))
    return found


def shown(history: History, record: CheckpointRecord, cut: CutWritten, state: Contents) -> Contents:
    """Return what the entry's tables show at this cut. The join's state is no table's, and comes from `state`."""
    active = _active(record, cut)
    totals = {key: (count, total) for key, count, total in history.multiset(active[TOTALS_TABLE]).elements()}
    return Contents(
        _numbers(history.multiset(active[ORDERS_TABLE])),
        _numbers(history.multiset(active[PAYMENTS_TABLE])),
        _pairs(history.multiset(active[JOINED_TABLE])),
        totals,
        state.join_state,
    )


def _active(record: CheckpointRecord, cut: CutWritten) -> dict[TableName, frozenset[str]]:
    """Return the files of the entry's tables at this cut, by the tables' first names."""
    active = dict(cut.active)
    return {first_table(table.name): active.get(table.name, frozenset()) for table in graph_of(record).tables()}


def repeated_keys(history: History, record: CheckpointRecord, cut: CutWritten) -> list[int]:
    """Return the keys that the upsert table shows more than once at this cut."""
    keys = Counter(row[0] for row in history.multiset(_active(record, cut)[TOTALS_TABLE]).elements())
    return [key for key, times in keys.items() if times > 1]


def held(history: History, record: CheckpointRecord, tables: Contents) -> Contents:
    """Return what the entry's state files hold. What is no state comes from `tables`."""
    totals = {
        key: (_number(value[0]), _number(value[1]))
        for key, value in _state(history, record, TOTALS)
        if value is not None
    }
    joined = {
        key: (_sorted(value[0]), _sorted(value[1]))
        for key, value in _state(history, record, JOINED)
        if value is not None and (value[0] or value[1])
    }
    return Contents(tables.orders, tables.payments, tables.joined, totals, joined)


def _state(history: History, record: CheckpointRecord, vertex: VertexId) -> Iterator[tuple[int, StateRow]]:
    """Yield the keys of a vertex: each subtask's files, oldest first, in its own range of key groups."""
    was = next(each for each in record.vertices if first_id(each.vertex) == vertex)
    for index, snapshot in enumerate(was.subtasks):
        own = key_groups_of(index, len(was.subtasks), record.max_parallelism)
        yield from _merged(history, snapshot.state, own).items()


def _merged(history: History, files: tuple[KeyedFile, ...], own: frozenset[int]) -> dict[int, StateRow]:
    found: dict[int, StateRow] = {}
    for file in files:
        if file.kind is KeyedFileKind.BASE:
            kept = file.key_groups
            found = {key: value for key, value in found.items() if not kept.first <= key_group(key) <= kept.last}
        mine = history.state(file).items()
        found |= {key: value for key, value in mine if key_group(key) in own}
    return found


def other_files(record: CheckpointRecord, cut: CutWritten) -> Iterator[str]:
    """Yield every upsert and state table that consists of other files at the cut than the entry says."""
    active = dict(cut.active)
    vertices = {vertex.vertex: vertex for vertex in record.vertices}
    for vertex in graph_of(record).operators():
        for table in vertex.tables:
            if table.mode is not TableMode.APPEND:
                yield from _other_files(record, table, active, files_of_table(table, vertices[vertex.id]))
    for vertex_record in record.vertices:
        for name in {own.table for each in vertex_record.subtasks for own in each.ranges if "/state/" in own.table}:
            broadcast = Table(name, TableMode.STATE)
            yield from _other_files(record, broadcast, active, files_of_table(broadcast, vertex_record))


def _other_files(
    record: CheckpointRecord, table: Table, active: dict[TableName, frozenset[str]], wanted: frozenset[str]
) -> Iterator[str]:
    there = active.get(table.name, frozenset())
    if there != wanted:
        missing, strange = sorted(wanted - there), sorted(there - wanted)
        yield f"{table.name} at cut {record.checkpoint} lacks {missing}, has {strange} too much"


def _numbers(rows: Counter[tuple[int, ...]]) -> Counter[int]:
    return Counter({row[0]: times for row, times in rows.items()})


def _pairs(rows: Counter[tuple[int, ...]]) -> Counter[Pair]:
    found: Counter[Pair] = Counter()
    for (_, order, payment, _), times in rows.items():
        found[order, payment] += times
    return found


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _sorted(value: object) -> tuple[int, ...]:
    return tuple(sorted(value)) if isinstance(value, tuple) else ()
