"""The simulated micro-batches: they compute each vertex of the small pipeline, on rows in memory.

They keep the promises of the real micro-batches. They write new, immutable files only, and a base after a few deltas.
An upsert range that was written for other key groups is written again as soon as the vertex runs. At the end of the
input, the join ends every key: it emits the orders without payments, and drops them from its state.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from checkpointing.channel_items import RangeFiles, Segment, SourceSlice, TaskWork
from checkpointing.columns import columns_then
from checkpointing.commit.compaction import ActiveFile, groups_to_compact
from checkpointing.graph import JobGraph, Vertex
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation, SplitId, TableName
from checkpointing.key_groups import KeyGroupRange, key_group_ranges
from checkpointing.messages import (
    Compacted,
    CompactFiles,
    FilesCompacted,
    GreatestTime,
    MicroBatchFinished,
    RunMicroBatch,
    SubtaskOutput,
)
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import FileCompaction
from checkpointing.partitions import TableVersion, VersionKind, folder_of
from spec.history import ColumnMissed, DoorStarted, OrderBroken, Rows
from spec.reference.contents import line_of, read_on
from spec.reference.pipeline import (
    AUDIT,
    AUDIT_TABLE,
    BRONZE_ORDERS,
    BRONZE_PAYMENTS,
    JOB,
    JOINED,
    JOINED_STATE,
    JOINED_TABLE,
    LATE_TABLE,
    MAX_PARALLELISM,
    NEWEST,
    NEWEST_TABLE,
    NO_PAYMENT,
    ORDERS_TABLE,
    PAYMENTS_TABLE,
    RENAMED_VALUE,
    ROW_BYTES,
    TOTALS,
    TOTALS_STATE,
    TOTALS_TABLE,
    VALUE,
    WINDOWS,
    WINDOWS_TABLE,
    delivery_of,
    first_id,
    key_group,
    key_of,
    rows_of,
    site_of,
    source_rows,
    split_of,
    table_now,
)
from spec.reference.times import last_ms, time_of, window_of
from spec.world.stores import StateRows, World, Written

DELTAS_MAX = 3
_TABLES = {
    BRONZE_ORDERS: ORDERS_TABLE,
    BRONZE_PAYMENTS: PAYMENTS_TABLE,
    JOINED: JOINED_TABLE,
    AUDIT: AUDIT_TABLE,
}


class MicroBatches:
    """Runs micro-batches in a world. With `in_order` (exactly once), it checks the order of channels."""

    def __init__(self, world: World, *, in_order: bool) -> None:
        self._world = world
        self._in_order = in_order
        self._graphs: dict[int, JobGraph | None] = {}

    def run(self, effect: RunMicroBatch) -> MicroBatchFinished:
        """Run one micro-batch. Raise FileGoneError if its generation was fenced and a file is gone."""
        inputs = {each.input: self._rows(each.segments, effect) for each in effect.inputs}
        vertex = first_id(effect.vertex)
        if vertex in (BRONZE_ORDERS, BRONZE_PAYMENTS, AUDIT):
            outputs: tuple[SubtaskOutput, ...] = (self._appended(effect, inputs.get(0, ())),)
        elif vertex == NEWEST:
            outputs = (self._overwritten(effect, inputs.get(0, ())),)
        elif vertex == WINDOWS:
            outputs = self._windowed(effect, [row for rows in inputs.values() for (row,) in rows])
        elif vertex == JOINED:
            outputs = self._keyed_join(effect, inputs.get(0, ()), inputs.get(1, ()))
        else:
            outputs = self._keyed_sum(effect, inputs.get(0, ()))
        took_ms = 2 + 5 * effect.micro_batch % 7
        work, times = _work(effect, len(outputs)), tuple(self._times(effect))
        return MicroBatchFinished(effect.vertex, effect.micro_batch, outputs, took_ms, work, times)

    def _times(self, effect: RunMicroBatch) -> Iterator[GreatestTime]:
        """Yield the greatest time of each split, if the vertex reads sources whose rows have times."""
        vertex = self._vertex(effect)
        if vertex is None or not vertex.event_times:
            return
        for each in effect.inputs:
            greatest: dict[SplitId, int] = {}
            for slice_ in (segment for segment in each.segments if isinstance(segment, SourceSlice) and segment.rows):
                ms = max(map(time_of, rows_of(slice_)))
                greatest[slice_.split] = max(ms, greatest.get(slice_.split, ms))
            yield from (GreatestTime(each.input, split, ms) for split, ms in greatest.items())

    def _rows(self, segments: Iterable[Segment], effect: RunMicroBatch) -> Rows:
        found: list[tuple[int, ...]] = []
        for segment in segments:
            if isinstance(segment, SourceSlice):
                found += [(row,) for row in rows_of(segment)]
            else:
                for file in segment.files:
                    found += self._read(file.path, effect).rows
        return tuple(found)

    def _read(self, path: str, effect: RunMicroBatch) -> Written:
        reader = f"micro-batch {effect.micro_batch} of {effect.vertex}"
        return self._world.read(path, reader, Generation(effect.generation))

    # -------------------------------------------------------------- the vertices

    def _keyed_join(self, effect: RunMicroBatch, orders: Rows, payments: Rows) -> tuple[SubtaskOutput, ...]:
        outputs = []
        for index, own in enumerate(_ranges(effect)):
            left = [row for (row,) in orders if own.first <= key_group(key_of(row)) <= own.last]
            right = [row for (row,) in payments if own.first <= key_group(key_of(row)) <= own.last]
            if not left and not right and not effect.end_of_input:
                outputs.append(SubtaskOutput())
                continue
            before = self._state(effect, index, own)
            after, pairs = _join(before, left, right)
            self._see_order(effect, after)
            if effect.end_of_input:
                after, unmet = _end_keys(before | after)
                pairs += unmet
            staged = self._appended(effect, pairs)
            written = self._state_file(effect, index, own, before, after, JOINED_STATE) if after else SubtaskOutput()
            outputs.append(replace(written, emitted=staged.emitted, staged=staged.staged))
        return tuple(outputs)

    def _windowed(self, effect: RunMicroBatch, rows: list[int]) -> tuple[SubtaskOutput, ...]:
        """Add rows to their windows. Append the late rows and the windows that are due."""
        outputs = []
        for index, own in enumerate(_ranges(effect)):
            mine = [row for row in rows if own.first <= key_group(key_of(row)) <= own.last]
            if not mine and effect.due_ms is None:
                outputs.append(SubtaskOutput())
                continue
            before = self._state(effect, index, own)
            late = [row for row in mine if time_of(row) <= effect.late_ms]
            changed: StateRows = {}
            for row in (each for each in mine if time_of(each) > effect.late_ms):
                kept = changed.get(key_of(row)) or before.get(key_of(row)) or ()
                changed[key_of(row)] = (*kept, row)
            over: list[tuple[int, ...]] = []
            if effect.due_ms is not None:
                over = list(_over(before | changed, effect.due_ms))
                changed |= {key: _left(value, effect.due_ms) for key, value in (before | changed).items()}
            outputs.append(self._windows_output(effect, index, own, before, changed, late, over))
        return tuple(outputs)

    def _windows_output(  # noqa: PLR0917 - the parts of one output
        self,
        effect: RunMicroBatch,
        index: int,
        own: KeyGroupRange,
        before: StateRows,
        changed: StateRows,
        late: list[int],
        over: list[tuple[int, ...]],
    ) -> SubtaskOutput:
        staged = [(LATE_TABLE, tuple((row,) for row in late)), (WINDOWS_TABLE, tuple(over))]
        table = table_of_state(JOB, effect.vertex)
        written = self._state_file(effect, index, own, before, changed, table) if changed else SubtaskOutput()
        held = (before | changed) if effect.due_ms is not None else changed
        due = [last_ms(window_of(row)) for value in held.values() for row in _ints(value or ())]
        return replace(
            written,
            staged=tuple((name, self._write(effect, name, rows=rows)) for name, rows in staged if rows),
            due_ms=min(due, default=None),
        )

    def _keyed_sum(self, effect: RunMicroBatch, pairs: Rows) -> tuple[SubtaskOutput, ...]:
        outputs = []
        for index, own in enumerate(_ranges(effect)):
            mine = [pair for pair in pairs if own.first <= key_group(pair[0]) <= own.last]
            table, state_table = (table_now(each, effect.vertex) for each in (TOTALS_TABLE, TOTALS_STATE))
            current = next((each.files for each in effect.ranges[index] if each.table == table), ())
            fits = all(file.key_groups == own for file in current)
            files = (*effect.state[index], *current)
            outdated = any(self._read(keyed.file.path, effect).columns != self._columns(effect) for keyed in files)
            if not mine and fits and not outdated:
                outputs.append(SubtaskOutput())
                continue
            before = self._state(effect, index, own)
            after = self._summed(effect, before, mine)
            written = SubtaskOutput()
            if mine or outdated:
                written = self._state_file(effect, index, own, before, after, state_table, whole=outdated)
            whole = outdated or not fits
            outputs.append(replace(written, ranges=(self._range(effect, own, current, after, whole=whole),)))
        first, *others = outputs
        return (replace(first, ranges=(*first.ranges, *self._all_counted(effect, pairs))), *others)

    def _all_counted(self, effect: RunMicroBatch, pairs: Rows) -> tuple[RangeFiles, ...]:
        """Return the broadcast state, if the vertex has any: how many pairs of each key have come at all subtasks."""
        vertex = self._vertex(effect)
        table = next((each for each in vertex.tables if each.broadcast), None) if vertex is not None else None
        if table is None:
            return ()
        before = next((each.files for each in effect.ranges[0] if each.table == table.name), ())
        read = [(keyed, self._read(keyed.file.path, effect)) for keyed in before]
        counts = {key: _ints(value or ())[0] for _, file in read for key, value in file.state.items()}
        for key, *_ in pairs:
            counts[key] = counts.get(key, 0) + 1
        if not pairs and all(file.columns == self._columns(effect) for _, file in read):
            return ()
        file = self._write(effect, table.name, state={key: (count,) for key, count in counts.items()})
        return (
            RangeFiles(table.name, (KeyedFile(file, KeyedFileKind.BASE, 0, MAX_PARALLELISM - 1, _version(effect)),)),
        )

    def _summed(self, effect: RunMicroBatch, before: StateRows, pairs: list[tuple[int, ...]]) -> StateRows:
        after: StateRows = {}
        for key, order, payment, number in pairs:
            count, total, last = _ints(after.get(key) or before.get(key) or (0, 0, 0))
            if self._in_order and number != last + 1:
                self._broken(effect, f"pair {number} of key {key} came after pair {last}")
            after[key] = (count + 1, total + order + payment, number)
        return after

    # -------------------------------------------------------------- order

    def _see_order(self, effect: RunMicroBatch, after: StateRows) -> None:
        """Report rows of one split that came out of the split's order, unless a reset sent them again."""
        if not self._in_order:
            return
        for key, value in after.items():
            orders, payments, _ = value or ((), (), 0)
            rows = (*_tuple(orders), *_tuple(payments))
            newest: dict[SplitId, int] = {}
            for row in rows:
                split = split_of(row)
                if newest.get(split, -1) >= row and not self._given_so(effect, rows, split):
                    self._broken(effect, f"row {row} of key {key} came after row {newest[split]}")
                newest[split] = row

    def _given_so(self, effect: RunMicroBatch, rows: tuple[int, ...], split: SplitId) -> bool:
        """Return whether a split's rows are in the order in which the source sent them, resets included."""
        mine = [row for row in rows if split_of(row) == split]
        history = self._world.history
        doors = (event for event in reversed(history.events) if isinstance(event, DoorStarted))
        restored = next(door.restored for door in doors if door.generation == effect.generation)
        read = read_on(line_of(history, restored)) if restored is not None else {}
        *before, (begun, _) = read.get(split, [(0, 0)])
        beyond = max(mine) + 1
        given = (row for begin, end in (*before, (begun, beyond)) for row in source_rows(split, begin, end))
        return all(row in given for row in mine)  # each `in` continues after the row that the `in` before has found

    def _broken(self, effect: RunMicroBatch, what: str) -> None:
        self._world.history.add(OrderBroken(str(effect.vertex), what))

    # -------------------------------------------------------------- columns

    def _finds_values(self, keyed: KeyedFile, file: Written, effect: RunMicroBatch) -> bool:
        """Return whether a micro-batch finds a file's values. If not, it ignored a rename, which is reported."""
        vertex = self._vertex(effect)
        if vertex is None or first_id(vertex.id) != TOTALS:
            return True
        now = self._columns(effect)
        wanted = RENAMED_VALUE if RENAMED_VALUE in now else VALUE
        found = columns_then(now, file.columns, vertex.columns_renamed_from).get(wanted, wanted) in file.columns
        if not found:
            self._world.history.add(ColumnMissed(keyed.file.path, wanted))
        return found

    def _columns(self, effect: RunMicroBatch) -> frozenset[str]:
        vertex = self._vertex(effect)
        tables = vertex.tables if vertex is not None else ()
        return frozenset(column.name for table in tables[:1] for column in table.columns)

    def _vertex(self, effect: RunMicroBatch) -> Vertex | None:
        """Return the vertex as this generation's pipeline declares it, or None if no door was started."""
        if effect.generation not in self._graphs:
            doors = (event for event in reversed(self._world.history.events) if isinstance(event, DoorStarted))
            graph = next((door.graph for door in doors if door.generation == effect.generation), None)
            self._graphs[effect.generation] = graph
        graph = self._graphs[effect.generation]
        return graph.vertex(effect.vertex) if graph is not None else None

    # -------------------------------------------------------------- files

    def _appended(self, effect: RunMicroBatch, rows: Rows) -> SubtaskOutput:
        if not rows:
            return SubtaskOutput()
        table = table_now(_TABLES[first_id(effect.vertex)], effect.vertex)
        file = self._write(effect, table, rows=rows)
        return SubtaskOutput(emitted=(file,), staged=((table, file),))

    def _overwritten(self, effect: RunMicroBatch, rows: Rows) -> SubtaskOutput:
        """Write a file for each version of each partition. Two tasks share the rows."""
        table = table_now(NEWEST_TABLE, effect.vertex)
        files = []
        for own in (rows[::2], rows[1::2]):
            for site, delivery in sorted({(site_of(row), delivery_of(row)) for (row,) in own}):
                version = TableVersion(VersionKind.NUMBER, str(delivery))
                inside = f"{folder_of([('site', str(site))])}/{version.folder}/"
                mine = tuple(row for row in own if (site_of(row[0]), delivery_of(row[0])) == (site, delivery))
                files.append(self._write(effect, table, rows=mine, inside=inside))
        return SubtaskOutput(staged=tuple((table, file) for file in files))

    def _state(self, effect: RunMicroBatch, index: int, own: KeyGroupRange) -> StateRows:
        found: StateRows = {}
        for keyed in effect.state[index]:
            file = self._read(keyed.file.path, effect)
            rows = file.state if self._finds_values(keyed, file, effect) else dict.fromkeys(file.state, (0, 0, 0))
            if keyed.kind is KeyedFileKind.BASE:
                found = {
                    key: value
                    for key, value in found.items()
                    if not keyed.first_key_group <= key_group(key) <= keyed.last_key_group
                }
            found |= {key: value for key, value in rows.items() if own.first <= key_group(key) <= own.last}
        return found

    def _state_file(
        self,
        effect: RunMicroBatch,
        index: int,
        own: KeyGroupRange,
        before: StateRows,
        after: StateRows,
        table: TableName,
        *,
        whole: bool = False,
    ) -> SubtaskOutput:
        """Write a base or a delta. Every second delta replaces the one before it."""
        files = effect.state[index]
        ended: tuple[str, ...] = ()
        is_base = whole or len(files) >= DELTAS_MAX
        last = files[-1] if files and not is_base and effect.micro_batch % 2 else None
        if last is not None and last.kind is KeyedFileKind.DELTA and last.key_groups == own:
            after, ended = self._read(last.file.path, effect).state | after, (last.file.path,)
        file = self._write(effect, table, state=before | after if is_base else after)
        kind = KeyedFileKind.BASE if is_base else KeyedFileKind.DELTA
        return SubtaskOutput(state=(KeyedFile(file, kind, own.first, own.last, _version(effect)),), ended=ended)

    def _range(
        self,
        effect: RunMicroBatch,
        own: KeyGroupRange,
        current: tuple[KeyedFile, ...],
        changed: StateRows,
        *,
        whole: bool,
    ) -> RangeFiles:
        """Write the changed files of a range.

        Files without a changed row stay, unless the range is written as a whole.
        """
        rows: dict[int, tuple[int, ...]] = {}
        stay: list[KeyedFile] = []
        for keyed in current:
            before = self._read(keyed.file.path, effect)
            if not whole and changed.keys().isdisjoint(row[0] for row in before.rows):
                stay.append(keyed)
                continue
            found = self._finds_values(keyed, before, effect)
            rows |= {row[0]: row if found else (row[0], 0, 0) for row in before.rows}
        mine = {key: row for key, row in rows.items() if own.first <= key_group(key) <= own.last}
        mine |= {key: (key, *_ints(value or ())[:2]) for key, value in changed.items()}
        table = table_now(TOTALS_TABLE, effect.vertex)
        if not mine:
            return RangeFiles(table, tuple(stay))
        file = self._write(effect, table, rows=tuple(mine.values()))
        keyed = KeyedFile(file, KeyedFileKind.BASE, own.first, own.last, _version(effect))
        return RangeFiles(table, (*stay, keyed))

    def _write(
        self,
        effect: RunMicroBatch,
        table: TableName,
        *,
        rows: Rows = (),
        state: StateRows | None = None,
        inside: str = "",
    ) -> FileHandle:
        columns = self._columns(effect) if first_id(effect.vertex) == TOTALS else frozenset[str]()
        written = Written(Generation(effect.generation), effect.vertex, effect.micro_batch, rows, state or {}, columns)
        return self._world.write(table, written, len(rows) or len(written.state), inside)


def _work(effect: RunMicroBatch, subtasks: int) -> tuple[TaskWork, ...]:
    """Return measurements that differ for every subtask and micro-batch."""
    return tuple(
        TaskWork(task_ms=effect.micro_batch * (index + 1), sync_ms=index + 1, rows=effect.micro_batch + index)
        for index in range(subtasks)
    )


def _ranges(effect: RunMicroBatch) -> tuple[KeyGroupRange, ...]:
    return key_group_ranges(parallelism=len(effect.state), max_parallelism=MAX_PARALLELISM)


def _version(effect: RunMicroBatch) -> Version:
    return Version(Generation(effect.generation), effect.micro_batch)


def _join(before: StateRows, left: list[int], right: list[int]) -> tuple[StateRows, Rows]:
    """Pair every new order with all payments of its key, and every new payment with the older orders of its key."""
    after: StateRows = {}
    pairs: list[tuple[int, ...]] = []
    for side, row in [*((0, row) for row in left), *((1, row) for row in right)]:
        key = key_of(row)
        orders, payments, number = after.get(key) or before.get(key) or ((), (), 0)
        others = _tuple(payments) if side == 0 else _tuple(orders)
        for other in others:
            number = _int(number) + 1
            pairs.append((key, row, other, number) if side == 0 else (key, other, row, number))
        mine = (*_tuple(orders), row) if side == 0 else _tuple(orders)
        after[key] = (mine, _tuple(payments) if side == 0 else (*_tuple(payments), row), number)
    return after, tuple(pairs)


def _over(state: StateRows, due_ms: int) -> Iterator[tuple[int, ...]]:
    """Yield each window of a key that is over by this time: key, window, and the count and sum of its rows."""
    for key, value in state.items():
        rows: dict[int, list[int]] = {}
        for row in _ints(value or ()):
            rows.setdefault(window_of(row), []).append(row)
        yield from ((key, window, len(each), sum(each)) for window, each in rows.items() if last_ms(window) <= due_ms)


def _left(value: tuple[object, ...] | None, due_ms: int) -> tuple[object, ...] | None:
    """Return the rows of a key whose windows are not over by this time, or None if there are none."""
    return tuple(row for row in _ints(value or ()) if last_ms(window_of(row)) > due_ms) or None


def _end_keys(state: StateRows) -> tuple[StateRows, Rows]:
    """Emit every order whose key has no payments. Of every key, the state keeps only the number of pairs."""
    after: StateRows = {}
    unmet: list[tuple[int, ...]] = []
    for key, value in state.items():
        orders, payments, number = value or ((), (), 0)
        if not orders and not payments:
            continue
        for order in _tuple(orders) if not payments else ():
            number = _int(number) + 1
            unmet.append((key, order, NO_PAYMENT, number))
        after[key] = ((), (), number)
    return after, tuple(unmet)


def _tuple(value: object) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else ()


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _ints(value: tuple[object, ...]) -> tuple[int, ...]:
    return tuple(_int(each) for each in value)


# ------------------------------------------------------------------
# Compacts small files of simulated tables, as a tick does beside its other work.


def compacted(world: World, effect: CompactFiles, generation: Generation) -> FilesCompacted:
    """Write the small files that the core chooses into larger ones. Only files with the same columns are put together.

    If a table has several groups of small files, only the first group is written now. The answer names the table in
    `more`, as if the other groups were too much for one request.
    """
    found: list[Compacted] = []
    more: list[TableName] = []
    for table in effect.tables:
        groups = list(_groups(world, table, effect))
        found += [Compacted(table, (_compaction(world, table, alike, generation),)) for alike in groups[:1]]
        more += [table] if len(groups) > 1 else []
    return FilesCompacted(tuple(found), tuple(more))


def _groups(world: World, table: TableName, effect: CompactFiles) -> Iterator[tuple[str, ...]]:
    ours = [path for path in sorted(world.table(table).active) if world.files[path].generation]
    files = [ActiveFile(path, len(world.files[path].rows) * ROW_BYTES) for path in ours]
    for group in groups_to_compact(files, effect.files_min, effect.bytes_max):
        columns = world.files[group[0]].columns
        alike = tuple(path for path in group if world.files[path].columns == columns)
        if len(alike) > 1:
            yield alike


def _compaction(world: World, table: TableName, paths: tuple[str, ...], generation: Generation) -> FileCompaction:
    read = [world.read(path, f"compaction of {table}", generation) for path in paths]
    rows = tuple(row for each in read for row in each.rows)
    written = Written(generation, read[0].vertex, 0, rows, columns=read[0].columns)
    return FileCompaction(into=world.write(str(table), written, len(rows)), of=paths)
