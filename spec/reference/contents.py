"""Computes in the simplest way what an entry means for tables, ranges and names, without the product's functions.

Judges use this, so that they do not share an error with the product.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import Any

from checkpointing.channel_items import ChannelState, SourceSlice, StagedSegment
from checkpointing.graph import JobGraph, Table, TableMode, Vertex
from checkpointing.handles import KeyedFile, KeyedFileKind
from checkpointing.identifiers import CheckpointId, JobName, SplitId, TableName, VertexId
from checkpointing.messages import Publication
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import CheckpointRecord, Rename, RenameKind, RowKind, VertexRecord
from spec.history import CutWritten, ErasureAsked, History, ImportBegun, RowCommitted, RowsErased
from spec.reference.pipeline import (
    AUDIT,
    JOINED,
    JOINED_TABLE,
    NEWEST,
    ORDERS_TABLE,
    PAYMENTS_TABLE,
    TOTALS,
    TOTALS_TABLE,
    WINDOWS,
    Contents,
    Pair,
    first_id,
    first_table,
    graph_of,
    key_group,
    key_of,
    replay,
    rows_before,
    rows_of,
    source_rows,
)


def files_of_table(table: Table, vertex: VertexRecord) -> frozenset[str]:
    """Return the files of an upsert or state table at the cut. For an append table there are none.

    Broadcast state lies in the ranges, under a name of its own.
    """
    if table.mode is TableMode.STATE and table.name.endswith(f"/state/{vertex.vertex}"):
        return frozenset(keyed.file.path for subtask in vertex.subtasks for keyed in subtask.state)
    ranges = [each for subtask in vertex.subtasks for each in subtask.ranges if each.table == table.name]
    return frozenset(keyed.file.path for each in ranges for keyed in each.files)


def publishes(record: CheckpointRecord, publication: Publication) -> bool:
    """Return whether the publication matches what its entry lists for the table."""
    columns = next((each.columns for each in record.columns if each.table == publication.table), ())
    names = {(one.now, one.was) for one in record.renames if one.kind is RenameKind.COLUMN}
    renamed = all(now == was or (now, was) in names for now, was in publication.renamed)
    return renamed and publication.columns == columns and _files(publication) in map(_files, record.tables)


def _files(told: Any) -> tuple[object, ...]:  # noqa: ANN401 - a table's record or its publication
    return told.table, told.mode, told.adds, told.files, told.removes, told.leaving, told.compactions


def publishes_whole(record: CheckpointRecord, publication: Publication) -> bool:
    """Return whether a table that the entry does not change consists of exactly these files, of one vertex."""
    files = frozenset(file.path for file in publication.files)
    for vertex in record.vertices:
        state = Table(table_of_state(JobName(record.job), vertex.vertex), TableMode.STATE)
        upsert = Table(publication.table, TableMode.UPSERT)
        table = state if state.name == publication.table else upsert
        if files and files == files_of_table(table, vertex):
            return True
    return False


def key_groups_of(subtask: int, parallelism: int, max_parallelism: int) -> frozenset[int]:
    """Return the key groups of a subtask. Key group g belongs to subtask g * parallelism // max_parallelism."""
    return frozenset(group for group in range(max_parallelism) if group * parallelism // max_parallelism == subtask)


def says_finished(record: CheckpointRecord) -> bool:
    """Return whether an entry marks every subtask as finished and holds no rows in flight."""
    subtasks = [subtask for vertex in record.vertices for subtask in vertex.subtasks]
    return bool(subtasks) and all(each.finished and not each.in_flight for each in subtasks)


def ended_at(record: CheckpointRecord) -> frozenset[tuple[VertexId, SplitId]]:
    """Return the splits that an entry marks as ended."""
    return frozenset(
        (vertex.vertex, SplitId(split))
        for vertex in record.vertices
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
        if subtask.finished
    )


def ended_before(graph: JobGraph, record: CheckpointRecord | None) -> frozenset[tuple[VertexId, SplitId]]:
    """Return the splits of a pipeline that had ended at an entry.

    A part of a source has ended if all its splits have ended. Then it finds no new splits. A source without parts is
    one part.
    """
    found: set[tuple[VertexId, SplitId]] = set()
    for vertex in record.vertices if record is not None else ():
        for source in (each for each in graph.sources() if each.id == vertex.vertex):
            for begin in source.parts or ("",):
                if source.bounded or begin != (source.parts or ("",))[-1]:
                    found |= {(source.id, split) for split in ended_of(source, begin, vertex)}
    return frozenset(found)


def ended_of(source: Vertex, begin: str, vertex: VertexRecord) -> frozenset[SplitId]:
    """Return the splits of a part that have ended at an entry.

    The names of the part's splits begin with `begin`. If the entry marks all of them as ended, the part's splits that
    the entry does not list have ended too.
    """
    over = {
        split: subtask.finished
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=False)
        if split.startswith(begin)
    }
    whole = bool(over) and all(over.values())
    return frozenset(split for split in source.splits if split.startswith(begin) and (whole or over.get(split, False)))


def splits_before(graph: JobGraph) -> dict[tuple[VertexId, SplitId], tuple[tuple[VertexId, SplitId], ...]]:
    """Return, for each split of a source that is read in parts, the splits of the parts before its own."""
    found: dict[tuple[VertexId, SplitId], tuple[tuple[VertexId, SplitId], ...]] = {}
    for source in graph.sources():
        earlier: tuple[tuple[VertexId, SplitId], ...] = ()
        for begin in source.parts:
            own = tuple((source.id, split) for split in source.splits if split.startswith(begin))
            found |= dict.fromkeys(own, earlier)
            earlier += own
    return found


def renames_of(graph: JobGraph) -> frozenset[Rename]:
    """Return the renames that a pipeline declares."""
    vertex, table, column = RenameKind.VERTEX, RenameKind.TABLE, RenameKind.COLUMN
    found: set[Rename] = set()
    for each in graph.vertices:
        found |= {Rename(kind=vertex, was=each.renamed_from, now=each.id)} if each.renamed_from else set()
        found |= {
            Rename(kind=table, was=one.renamed_from, now=one.name)
            for one in each.tables
            if one.renamed_from and one.mode is not TableMode.STATE
        }
        found |= {
            Rename(kind=column, was=was, now=now, vertex=each.id) for now, was in each.columns_renamed_from.items()
        }
    return frozenset(found)


# ------------------------------------------------------------------
# Computes what an entry and its cut hold in the small pipeline: rows that were read, in flight, in tables, in state.


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
    """Return the contents that the reference computes for this cut.

    `drains` are the entries of all drains in the history.

    A committed entry never changes, nor do the drains before it. So the contents of each entry are computed once.
    """
    known = history.due.get(id(record))
    if known is None:
        known = history.due[id(record)] = (record, _replayed(history, record, drains))
    return known[1]


def _replayed(history: History, record: CheckpointRecord, drains: Sequence[CheckpointRecord]) -> Contents:
    rows: dict[VertexId, Counter[int]] = {}
    pairs: Counter[Pair] = Counter()
    for held in in_flight(record):
        if first_id(held.channel.edge.downstream) in (AUDIT, NEWEST, WINDOWS):
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
    erased = _erasures(history, line)
    drained_before = (each for one in history.of(ImportBegun) for each in one.drained)
    drained = {each.checkpoint for each in (*drains, *drained_before)}
    before = [_kept(line[: place + 1], erased) for place, each in enumerate(line) if each.checkpoint in drained]
    return replay(_kept(line, erased), rows, pairs, before)


def _erasures(history: History, line: Sequence[CheckpointRecord]) -> list[tuple[int, int]]:
    """Return the erasures before the last entry of a line, each as the last place that lost rows, and the erased key.

    An erasure removes rows that earlier entries have read, also from a line to which it does not belong.
    """
    keys = {event.generation: event.key for event in history.of(ErasureAsked)}
    if not keys:
        return []
    order = {event.record.checkpoint: number for number, event in enumerate(history.of(RowCommitted))}
    committed = [order.get(each.checkpoint, -1) for each in line]
    found = []
    for event in history.of(RowsErased):
        at = order[event.record.checkpoint]
        if at <= committed[-1]:
            place = max((place for place, number in enumerate(committed) if number <= at), default=-1)
            found.append((place, keys[event.record.generation]))
    return found


def _kept(line: Sequence[CheckpointRecord], erased: Sequence[tuple[int, int]]) -> dict[SplitId, list[tuple[int, int]]]:
    """Return the stretches of each split that were read, without rows that were erased since then."""
    if not erased:
        return read_on(line)
    at: dict[SplitId, int] = {}
    found: dict[SplitId, list[tuple[int, int]]] = {}
    for place, row in enumerate(line):
        gone = {key for until, key in erased if place <= until}
        for split, reaches in positions(row).items():
            if row.kind is not RowKind.RESET or not place:
                read = zip(count(at.get(split, 0)), source_rows(split, at.get(split, 0), reaches), strict=False)
                found.setdefault(split, []).extend((each, each + 1) for each, row in read if key_of(row) not in gone)
            at[split] = reaches
    return found


def line_of(history: History, record: CheckpointRecord) -> tuple[CheckpointRecord, ...]:
    """Return the entry and its ancestors, including those in the warehouse from which the first one was imported.

    Entries that a rollback abandoned are not among them.
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

    A reset ends a stretch at its parent's position, and begins the next stretch at its own.
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
    """Return what the entry's tables show at this cut. No table shows the join's state, so it comes from `state`."""
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
    """Return the files of the entry's tables at this cut. The keys are the tables' names in the first release."""
    active = dict(cut.active)
    return {first_table(table.name): active.get(table.name, frozenset()) for table in graph_of(record).tables()}


def repeated_keys(history: History, record: CheckpointRecord, cut: CutWritten) -> list[int]:
    """Return the keys that the upsert table shows more than once at this cut."""
    keys = Counter(row[0] for row in history.multiset(_active(record, cut)[TOTALS_TABLE]).elements())
    return [key for key, times in keys.items() if times > 1]


def held(history: History, record: CheckpointRecord, tables: Contents) -> Contents:
    """Return what the entry's state files hold. Contents of tables that are no state come from `tables`."""
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
    """Yield the keys of a vertex, with their state.

    Each subtask's files are merged, oldest first, in its key groups.
    """
    was = next(each for each in record.vertices if first_id(each.vertex) == vertex)
    for index, snapshot in enumerate(was.subtasks):
        own = key_groups_of(index, len(was.subtasks), record.max_parallelism)
        yield from merged_state(history, snapshot.state, own).items()


def merged_state(history: History, files: tuple[KeyedFile, ...], own: frozenset[int]) -> dict[int, StateRow]:
    found: dict[int, StateRow] = {}
    for file in files:
        if file.kind is KeyedFileKind.BASE:
            kept = file.key_groups
            found = {key: value for key, value in found.items() if not kept.first <= key_group(key) <= kept.last}
        mine = history.state(file).items()
        found |= {key: value for key, value in mine if key_group(key) in own}
    return found


def other_files(record: CheckpointRecord, cut: CutWritten) -> Iterator[str]:
    """Yield every upsert and state table that has other files at the cut than the entry lists."""
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


# ------------------------------------------------------------------
# Lists the files that an entry needs, without the core's own list of them, which a judge of deletions must not share.


def named_files(record: CheckpointRecord) -> frozenset[str]:
    """Return the paths of its state, ranges, staged files, files in flight, new files of tables, and manifests."""
    found = {file.path for table in record.tables for file in table.adds + table.files}
    found |= {each.into.path for table in record.tables for each in table.compactions}
    for subtask in (subtask for vertex in record.vertices for subtask in vertex.subtasks):
        found |= {keyed.file.path for keyed in subtask.state}
        found |= {keyed.file.path for own in subtask.ranges for keyed in own.files}
        found |= {staged.file.path for staged in subtask.staged}
        segments = (segment for held in subtask.in_flight for segment in held.segments)
        found |= {file.path for each in segments if isinstance(each, StagedSegment) for file in each.files}
    return frozenset(found).union(record.held_in)
