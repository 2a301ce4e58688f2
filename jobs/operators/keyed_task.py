"""Runs one subtask's share of a keyed micro-batch, from received rows to staged files.

Each Spark partition of the exchange is one subtask. Its task loads the state of the touched keys, calls the function,
writes the change of the state and the output, and reports the file handles.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl
import pyarrow as pa
from pyspark import TaskContext

from checkpointing.channel_items import RangeFiles
from checkpointing.handles import FileHandle, KeyedFile, Version
from checkpointing.identifiers import TableName
from checkpointing.key_groups import KeyGroupRange, range_of
from jobs.operators.aggregate import KeyedAggregates
from jobs.operators.applied_changes import SEQUENCE, AppliedChanges, told_apart
from jobs.operators.broadcast import BroadcastRows, BroadcastState
from jobs.operators.changelog_aggregates import ChangingAggregates
from jobs.operators.changes import added, changes_of, deleted_keys, with_kind
from jobs.operators.exchange import Arrived, take_apart
from jobs.operators.join import JoinFunction
from jobs.operators.key_hash import saying_groups
from jobs.operators.process import (
    AnyFunction,
    Called,
    EndsInput,
    FiresInTime,
    HoldsRows,
    MergesPartials,
    NamedOutputs,
    ProcessCalls,
    joined,
    require_own_keys,
    takes_rows_back,
)
from jobs.operators.python_workers import freeze_imports
from jobs.operators.reports import TaskReport, report_batch, times_read
from jobs.operators.top_rows import TopRows
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import NOTHING_WRITTEN, Expires, RangeState, StateBackend, StateWritten
from jobs.state.files import KeyGroupError, arrow_of, conform, empty_frame, parts_of
from jobs.state.key_joins import one_form
from jobs.state.keyed_rows import FoundKeys, KeyedRows
from jobs.state.mapped_files import MAPPED
from jobs.state.merge import (
    DELETED,
    KEY_GROUP,
    change_of,
    without_unchanged,
)
from jobs.state.upsert_range import UpsertRange
from jobs.state.worker_copy import COPIES, Aged


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """The rows of one input as they arrive: their schema and key columns."""

    schema: pa.Schema
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendTarget:
    """An append table that takes the output, laid out by these columns."""

    table: TableName
    partitioned_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertTarget:
    """An upsert table that takes the output.

    `files[i]` are the files of subtask i, or None if they don't fit its range.

    If they don't fit, the range's rows arrive through the exchange, under the tag after the last input's.
    """

    table: TableName
    keys: tuple[str, ...]
    files: tuple[tuple[KeyedFile, ...] | None, ...]
    partitioned_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The results of a function in a micro-batch: output, state files, changes of the output, deleted keys.

    `named` has the rows of the named outputs.
    """

    output: pl.DataFrame
    state: StateWritten = NOTHING_WRITTEN
    changes: pl.DataFrame | None = None
    gone: pl.DataFrame | None = None
    named: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    due_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTask:
    """All that the tasks of one micro-batch need. `state[i]` are subtask i's live state files, oldest first.

    `outputs` are the function's named outputs. `channel` takes output for downstream vertices if no append table takes
    that output. It is None if there is no such output. With `emits_changes` the channel takes the changes of the output
    instead, whatever the table is. With `end_of_input` the task calls the function's `end_of_input`, if it has one,
    after the rows. Subtasks that are `outdated` rewrite their range of the state with the declared columns, even
    without rows. Subtasks in `outdated_ranges` rewrite their range of the upsert table. `columns_renamed_from` maps new
    column names to old ones, in the files of state and of the upsert table. The vertex's `broadcast` state has the rows
    of the last input, or the truncates among changes. State `expires` by the time `now_ms`. State files have the
    columns `stored`, or those of `state_schema` if `stored` is None. `lapsed` is as in `KeyedSpec`.
    """

    operator: str
    writer: StagedFiles
    version: Version
    parallelism: int
    max_parallelism: int
    keys: tuple[str, ...]
    state_keys: tuple[str, ...]
    inputs: tuple[InputLayout, ...]
    function: AnyFunction
    state_table: TableName
    state_schema: pa.Schema
    output_schema: pa.Schema
    outputs: NamedOutputs
    state: tuple[tuple[KeyedFile, ...], ...]
    backend: StateBackend
    target: AppendTarget | UpsertTarget | None
    channel: TableName | None
    emits: bool
    emits_changes: bool = False
    end_of_input: bool = False
    fires_ms: int | None = None
    outdated: frozenset[int] = frozenset()
    outdated_ranges: frozenset[int] = frozenset()
    columns_renamed_from: Mapping[str, str] = field(default_factory=dict)
    broadcast: BroadcastState | None = None
    stored: pa.Schema | None = None
    expires: Expires | None = None
    now_ms: int | None = None
    lapsed: Aged | None = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one subtask's share and yield its report. A subtask without work yields nothing.

        Raise StateFileError for a file that is missing or damaged, StagedFileError for a file that can't be written,
        KeyGroupError for rows of another subtask's key groups, FrameSchemaError if the function's result does not have
        the declared schema, ForeignKeyError if the output has a key of an upsert table that another subtask may hold.
        """
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("a keyed task runs inside a Spark task only")
        timed = replace(self, writer=self.writer.timed())
        yield from timed.carry_out(context.partitionId(), batches)
        freeze_imports()

    def carry_out(self, subtask: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the blocks apart, and run this subtask's share. Raises as `run` does."""
        found = take_apart(batches, self.schemas)
        yield from times_read(subtask, self.writer)
        yield from self.take(subtask, found)

    @property
    def schemas(self) -> list[pa.Schema]:
        """Return the schemas of all rows that can arrive, by tag."""
        return [layout.schema for layout in self.inputs] + self._range_schemas()

    def take(self, subtask: int, arrived: Arrived) -> Iterator[pa.RecordBatch]:
        """Run this subtask's share over its rows, and yield the report. Raises as `run` does."""
        if arrived.rows == 0 and not self._must_run(subtask):
            return
        own = range_of(subtask=subtask, parallelism=self.parallelism, max_parallelism=self.max_parallelism)
        _require_own(self.operator, subtask, own, arrived)
        yield from report_batch(self._report(subtask, own, arrived))
        MAPPED.let_go()

    def _report(self, subtask: int, own: KeyGroupRange, arrived: Arrived) -> TaskReport:
        given = zip(arrived.frames, self.inputs, strict=False)
        rows, seen = self._seen(subtask, [one_form(frame, layout.keys) for frame, layout in given])
        range_state = self._range_state(subtask, own)
        if isinstance(self.function, MergesPartials):
            made = self._aggregate(self.function, range_state, rows[0], seen)
        elif isinstance(self.function, JoinFunction | TopRows):
            made = self._changed(self.function, range_state, rows, self._touched(rows))
        else:
            made = self._process(range_state, rows, seen)
        written = self._write_output(made.output)
        emitted = self._write_changes(made.changes) if self.emits_changes else written
        return TaskReport(
            subtask=subtask,
            emitted=(*(emitted if self.emits else ()), *self.outputs.write(self.writer, made.named)),
            staged=self._staged(written),
            state=made.state.files,
            ended=made.state.ended,
            ranges=(*self._ranges(subtask, own, arrived, made), *(seen.written if seen is not None else ())),
            due_ms=made.due_ms,
            copies=COPIES.take_uses(),
            work=self.writer.watch.work(sum(frame.height for frame in rows)),
        )

    def _seen(self, subtask: int, rows: Sequence[pl.DataFrame]) -> tuple[Sequence[pl.DataFrame], BroadcastRows | None]:
        """Return the keyed rows, and the broadcast rows that the subtask sees."""
        if isinstance(self.function, AppliedChanges) and self.function.truncates:
            changes, places = told_apart(rows[0], SEQUENCE)
            kept = None if self.broadcast is None else self.broadcast.taken(self.writer, subtask, places)
            return (changes,), kept or BroadcastRows(places, not places.is_empty())
        if self.broadcast is None:
            return rows, None
        return rows[:-1], self.broadcast.taken(self.writer, subtask, rows[-1].drop(KEY_GROUP))

    def _aggregate(
        self, function: MergesPartials, state: RangeState, rows: pl.DataFrame, seen: BroadcastRows | None
    ) -> Computed:
        """Return the new rows of the touched keys, which are output and state.

        Scan the whole state only if a truncate empties the table.
        """
        empties = seen is not None and seen.has_changed
        if rows.is_empty() and not empties and not state.outdated:
            return Computed(output=empty_frame(self.output_schema))
        loaded = state.load()
        if seen is not None and isinstance(function, AppliedChanges):
            rows = function.emptied(rows, loaded.frame() if empties else loaded.nothing, seen.rows)
            if rows.is_empty() and not state.outdated:
                return Computed(output=empty_frame(self.output_schema))
        partials = function.partials(rows, loaded.schema)
        found = loaded.find(partials, self.keys)
        before = found.rows
        new = function.merged(partials, before)
        if isinstance(function, AppliedChanges):
            left = new if seen is None else function.beyond_truncates(new, seen.rows)
            delta = left.select(before.columns).with_columns(pl.lit(value=False).alias(DELETED))
            if left.height < new.height:
                touched = partials.select(KEY_GROUP, *self.keys)
                delta = change_of(before, left.select(before.columns).drop(KEY_GROUP), touched, self.keys)
            return self._applied(function, state, found, left, delta)
        output = self._shown(function, new)
        if not isinstance(function, KeyedAggregates | ChangingAggregates):  # which emit the keys of the rows
            self._require_own(output, rows)
        changes = None
        if self.emits_changes:
            changes = changes_of(self._shown(function, before), output, self.keys)
        if not isinstance(function, ChangingAggregates):
            delta = new.select(before.columns).with_columns(pl.lit(value=False).alias(DELETED))
            return Computed(output=output, state=state.write(found, delta), changes=changes)
        held = new.select(before.columns).cast(before.schema)
        delta = change_of(before, held.drop(KEY_GROUP), partials.select(KEY_GROUP, *self.keys), self.keys)
        gone = delta.filter(DELETED).select(self.keys)
        written = state.write(found, delta) if state.outdated or not delta.is_empty() else NOTHING_WRITTEN
        return Computed(output=output, state=written, changes=changes, gone=gone)

    def _changed(
        self, function: JoinFunction | TopRows, state: RangeState, rows: Sequence[pl.DataFrame], touched: pl.DataFrame
    ) -> Computed:
        """Return the changes that the function emits. The output is the rows that these changes add."""
        if touched.is_empty() and not state.outdated:
            return Computed(output=empty_frame(self.output_schema))
        found = state.load().find(touched, self.keys)
        before = found.rows
        done = function.process([frame.drop(KEY_GROUP) for frame in rows], before.drop(KEY_GROUP))
        changes = conform(done.output, with_kind(self.output_schema), self.operator, "output")
        held = conform(done.state, self.state_schema, self.operator, "state")
        delta = change_of(before, held, touched, self.keys)
        gone = None
        if isinstance(function, TopRows):  # most rows come after the first ones, and change nothing
            gone = deleted_keys(changes, function.table_keys)
        on_read = self.expires is not None and self.expires.on_read
        if not on_read and (self.expires is not None or isinstance(function, TopRows)):
            delta = without_unchanged(delta, before, self.keys)
        written = state.write(found, delta) if state.outdated or not delta.is_empty() else NOTHING_WRITTEN
        return Computed(output=added(changes), state=written, changes=changes, gone=gone)

    def _applied(
        self, function: AppliedChanges, state: RangeState, found: FoundKeys, new: pl.DataFrame, delta: pl.DataFrame
    ) -> Computed:
        """Return the table's new and deleted rows."""
        changes = changes_of(self._shown(function, found.rows), self._shown(function, new), function.table_keys)
        return Computed(
            output=added(changes),
            state=state.write(found, delta),
            changes=changes,
            gone=deleted_keys(changes, function.table_keys),
        )

    def _shown(self, function: MergesPartials, state: pl.DataFrame) -> pl.DataFrame:
        """Return the output rows of these state rows."""
        shown = state
        if isinstance(function, KeyedAggregates | ChangingAggregates | AppliedChanges):
            shown = function.results(state)
        return conform(shown, self.output_schema, self.operator, "output")

    def _process(self, state: RangeState, rows: Sequence[pl.DataFrame], seen: BroadcastRows | None) -> Computed:
        calls = self._calls()
        if not calls.are_due(rows, seen) and not state.outdated:
            return Computed(output=empty_frame(self.output_schema))
        touched = rows[0].clear() if isinstance(self.function, HoldsRows) else self._touched(rows)
        called = calls.run(state.load(), rows, touched, seen)
        due_ms = self._next_due(self.function, called) if isinstance(self.function, FiresInTime) else None
        changed = state.outdated or not called.delta.is_empty()
        written = state.write(called.found, called.delta) if changed else NOTHING_WRITTEN
        output = pl.concat([each.output for each in called.results])
        named = joined([each.outputs for each in called.results])
        made = Computed(output=output, state=written, named=named, due_ms=due_ms)
        if not takes_rows_back(self.function):
            return made
        gone = deleted_keys(output, self.function.table_keys)
        return replace(made, output=added(output), changes=output, gone=gone)

    def _next_due(self, fires: FiresInTime, called: Called) -> int | None:
        """Return the earliest time at which a key is due: a written key, or after a firing any key."""
        if self.fires_ms is not None:
            return called.state().least(fires.due)
        earliest: int | None = called.delta.filter(~pl.col(DELETED)).select(pl.col(fires.due).min()).item()
        return earliest

    def _calls(self) -> ProcessCalls:
        return ProcessCalls(
            operator=self.operator,
            function=self.function,
            keys=self.keys,
            state_keys=self.state_keys,
            state_schema=self.state_schema,
            output_schema=with_kind(self.output_schema) if takes_rows_back(self.function) else self.output_schema,
            outputs=self.outputs,
            checked=self.target.table if isinstance(self.target, UpsertTarget) and self.parallelism > 1 else None,
            ends=self.end_of_input,
            fires_ms=self.fires_ms,
            expires=self.expires,
        )

    def _require_own(self, output: pl.DataFrame, own: pl.DataFrame) -> None:
        """Raise ForeignKeyError for an upsert row under another subtask's key. With one subtask it never raises."""
        if isinstance(self.target, UpsertTarget) and self.parallelism > 1:
            require_own_keys(self.operator, self.target.table, self.keys, output, own)

    def _touched(self, rows: Sequence[pl.DataFrame]) -> pl.DataFrame:
        keyed = [layout for layout in self.inputs if layout.keys]
        named = (
            frame.select(KEY_GROUP, *layout.keys).rename(dict(zip(layout.keys, self.keys, strict=True)))
            for frame, layout in zip(rows, keyed, strict=True)
        )
        return pl.concat(named).unique(subset=list(self.keys))

    def _write_output(self, output: pl.DataFrame) -> tuple[FileHandle, ...]:
        elsewhere = None if self.emits_changes else self.channel
        place = self.target.table if isinstance(self.target, AppendTarget) else elsewhere
        if place is None or output.is_empty():
            return ()
        if isinstance(self.target, AppendTarget):
            return self.writer.write_partitions(place, arrow_of(output, self.output_schema), self.target.partitioned_by)
        return (self._write_channel(place, output, self.output_schema),)

    def _write_changes(self, changes: pl.DataFrame | None) -> tuple[FileHandle, ...]:
        if self.channel is None or changes is None or changes.is_empty():
            return ()
        return (self._write_channel(self.channel, changes, with_kind(self.output_schema)),)

    def _write_channel(self, channel: TableName, rows: pl.DataFrame, schema: pa.Schema) -> FileHandle:
        """Write rows for the vertices behind this one.

        If those have the same keys, each subtask reads its own files.
        """
        said: dict[bytes, bytes] = {}
        if self.parallelism > 1:
            of_keys = pa.schema([field for field in schema if field.name in self.keys])
            said = saying_groups(arrow_of(rows.select(of_keys.names), of_keys), self.keys, self.max_parallelism)
        return self.writer.write_channel(channel, parts_of(rows, schema), schema.with_metadata(said))

    def _staged(self, written: tuple[FileHandle, ...]) -> tuple[tuple[TableName, FileHandle], ...]:
        if not isinstance(self.target, AppendTarget):
            return ()
        return tuple((self.target.table, file) for file in written)

    def _ranges(self, subtask: int, own: KeyGroupRange, arrived: Arrived, made: Computed) -> tuple[RangeFiles, ...]:
        if not isinstance(self.target, UpsertTarget):
            return ()
        gone = made.output.clear() if made.gone is None else made.gone
        if made.output.is_empty() and gone.is_empty() and not self._is_replaced(subtask):
            return ()
        files = self.target.files[subtask]
        upsert = self._upsert_range(self.target, own, files or (), all_files=self._is_replaced(subtask))
        current = KeyedRows.of(arrived.frames[-1].drop(KEY_GROUP)) if files is None else upsert.load()
        return (RangeFiles(self.target.table, upsert.write(current, made.output, gone)),)

    def _must_run(self, subtask: int) -> bool:
        """Return whether a subtask without rows has work."""
        ends = self.end_of_input and isinstance(self.function, EndsInput) and bool(self.state[subtask])
        ends = ends or (self.fires_ms is not None and bool(self.state[subtask]))
        writes = self.broadcast is not None and self.broadcast.must_write(subtask)
        return ends or writes or subtask in self.outdated or self._is_replaced(subtask)

    def _is_replaced(self, subtask: int) -> bool:
        """Return whether a subtask rewrites its range of the upsert table even without rows."""
        if not isinstance(self.target, UpsertTarget):
            return False
        return self.target.files[subtask] is None or subtask in self.outdated_ranges

    def _range_schemas(self) -> list[pa.Schema]:
        return [self.output_schema] if isinstance(self.target, UpsertTarget) else []

    def _range_state(self, subtask: int, own: KeyGroupRange) -> RangeState:
        return RangeState(
            operator=self.operator,
            table=self.state_table,
            keys=self.state_keys,
            schema=self.state_schema if self.stored is None else self.stored,
            range=own,
            files=self.state[subtask],
            writer=self.writer,
            version=self.version,
            backend=self.backend,
            outdated=subtask in self.outdated,
            renamed=self.columns_renamed_from,
            remembered=self.function.remembered if isinstance(self.function, AppliedChanges) else None,
            aged=None if self.expires is None else Aged(self.expires.expiry, self.now_ms),
            lapsed=self.lapsed,
            due=self.function.due if isinstance(self.function, FiresInTime) else None,
            fired_ms=self.fires_ms if isinstance(self.function, FiresInTime) else None,
        )

    def _upsert_range(
        self, target: UpsertTarget, own: KeyGroupRange, files: tuple[KeyedFile, ...], *, all_files: bool
    ) -> UpsertRange:
        return UpsertRange(
            operator=self.operator,
            table=target.table,
            keys=target.keys,
            schema=self.output_schema,
            range=own,
            files=files,
            writer=self.writer,
            version=self.version,
            renamed=self.columns_renamed_from,
            partitioned_by=target.partitioned_by,
            all_files=all_files,
        )


def _require_own(operator: str, subtask: int, own: KeyGroupRange, arrived: Arrived) -> None:
    for frame in arrived.frames:
        if frame.is_empty():
            continue
        lowest, highest = frame.select(pl.min(KEY_GROUP).alias("lowest"), pl.max(KEY_GROUP).alias("highest")).row(0)
        if lowest < own.first or highest > own.last:
            alien = lowest if lowest < own.first else highest
            raise KeyGroupError(
                f"operator {operator}: subtask {subtask} owns key groups {own} but received rows of key group "
                f"{alien}; the exchange must not be merged (switch adaptive execution off)"
            )
