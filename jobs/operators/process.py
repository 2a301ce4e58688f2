"""The protocols of keyed functions, which get new rows and the state of their keys, and return new state and output.

A function that holds rows back also says what to emit when the input ends.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeGuard, runtime_checkable

import polars as pl
import pyarrow as pa

from checkpointing.channel_items import Segment, StagedSegment
from checkpointing.handles import FileHandle
from checkpointing.identifiers import TableName
from checkpointing.partitions import folder_of
from jobs.operators.broadcast import BroadcastRows
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import Expires
from jobs.state.files import conform, empty_frame, parts_of
from jobs.state.keyed_rows import FoundKeys, KeyedRows
from jobs.state.merge import DELETED, KEY_GROUP, apply_delta, change_of, superseded, without_unchanged


@dataclass(frozen=True, slots=True)
class Processed:
    """What a keyed function returns.

    `state` has the new row of each touched key, key columns first. A touched key that is missing in `state` loses its
    state. `output` has the rows to emit. `outputs` is a dict from names of the function's further outputs to their
    rows. An output that is missing there has no rows. A function that has `on_time` sets `timers` (see `HasTimers`). A
    function that holds several rows of a key may return only the rows that are new or changed, if it sets
    `others_stay`.
    """

    state: pl.DataFrame
    output: pl.DataFrame
    outputs: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    timers: pl.DataFrame | None = None
    others_stay: bool = False


class KeyedFunction(Protocol):
    """A keyed process function on Polars frames. It must be deterministic and keep nothing between calls.

    The function is sent to the tasks once for each micro-batch. So it should be small, and its module cheap to import.

    It may have an attribute `state_version`, a whole number from 1. Each checkpoint records it. Increase this number
    when the function gives its state columns another meaning. A tick then refuses to begin from state of the earlier
    version, instead of mixing both. Without the attribute, only the columns are compared.
    """

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the new state and the output.

        `inputs` holds a frame per input. The rows of a frame have no order. A frame is empty if the micro-batch has no
        rows for that input. If the vertex sees a broadcast, the broadcast is the last input. Its frame has all kept
        rows of the broadcast, those of this micro-batch included. `state` holds one row for each touched key that has
        state.

        If the output goes to an upsert table, its rows must have keys of the given rows. Another key can belong to
        another subtask. With a parallelism of 2 or more the micro-batch then fails, and the message names the key.
        """
        ...


@runtime_checkable
class MergesPartials(Protocol):
    """Optional for a keyed function of one input whose output is the new state row of each touched key.

    Such a function is faster, because a task need not check which keys were touched, lost or returned twice (Flink:
    `AggregateFunction`, whose accumulators are merged). Frames begin with `_key_group`; `types` are the types of the
    state's columns.
    """

    def partials(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return one row for each key of these rows: the aggregate of these rows alone."""
        ...

    def merged(self, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the new state row of each key of the partials.

        `before` has the old rows of the keys that had a row.
        """
        ...


@runtime_checkable
class EndsInput(Protocol):
    """Required of a keyed function that holds rows back (Flink: `BoundedMultiInput.endInput`, F4)."""

    def end_of_input(self, state: pl.DataFrame) -> Processed:
        """Return the new state and the output now that no row will follow on any input.

        `state` holds one row for each key of the subtask's range that has state, after the last rows were processed. A
        key that is missing in the new state loses its state. A key without state may not get one. Tidemark calls this
        method once for each drain. A later tick may read new rows. These find the state that the method has returned.
        """
        ...


@runtime_checkable
class FiresInTime(Protocol):
    """Required of a keyed function whose state is due at event times (Flink: `onEventTime`, N4)."""

    @property
    def due(self) -> str:
        """The column of the state with the event time, in ms, at which a key is due. Null: never."""
        ...

    def at(self, watermark_ms: int, fires_ms: int) -> "AnyFunction":
        """Return the function for the rows after a barrier with this watermark.

        Rows with times up to the watermark are late.

        Tidemark calls `on_time` for the keys that are due by `fires_ms`.
        """
        ...

    def on_time(self, state: pl.DataFrame) -> Processed:
        """Return the new state and the output of the keys that are due. `state` has one row for each of them.

        A key that is missing in the new state loses its state. A key of the new state may be due later, but not again
        by the same time.
        """
        ...


Find = Callable[[pl.DataFrame, Sequence[str]], pl.DataFrame]
"""Returns the rows of the state that have these values in these columns, with their key groups."""


@runtime_checkable
class HoldsRows(Protocol):
    """A keyed function whose state may have several rows of one key. The columns `rows_by` distinguish these rows.

    The function itself looks up the rows that it needs. Its `on_time` gets rows of the state with their key groups, and
    returns rows with key groups.
    """

    @property
    def rows_by(self) -> tuple[str, ...]:
        """The columns of the state that distinguish the rows of one key."""
        ...

    def process_rows(self, inputs: Sequence[pl.DataFrame], types: pl.Schema, find: Find) -> Processed:
        """Return the output, and the rows that replace all rows of the state that `find` has returned.

        If the result sets `others_stay`, the new rows replace only the rows of the state with the same keys.

        Rows of `inputs` and of the new state have key groups. `types` are the types of the state. The method calls
        `find` once.
        """
        ...


AnyFunction = KeyedFunction | HoldsRows
"""A keyed function of a user, or a built-in one that looks up its state itself."""


@runtime_checkable
class TakesRowsBack(Protocol):
    """A keyed function whose output may be a changelog."""

    @property
    def takes_back(self) -> bool:
        """Whether the output is a changelog. Then each row of the output has a kind."""
        ...

    @property
    def table_keys(self) -> tuple[str, ...]:
        """The key columns of the output's rows. There may be none, and then no table can show the rows."""
        ...


def takes_rows_back(function: object) -> TypeGuard[TakesRowsBack]:
    """Return whether the output of a function is a changelog."""
    return isinstance(function, TakesRowsBack) and function.takes_back


@runtime_checkable
class ReactsToBroadcast(Protocol):
    """Optional. With this method, a function can process its keys again when the rows of its broadcast change.

    It is for functions that hold rows back until a broadcast row comes (Flink: `Context.applyToKeyedState`).
    """

    def broadcast_changed(self, state: pl.DataFrame, broadcast: pl.DataFrame) -> Processed:
        """Return the new state and the output, now that broadcast rows have come or changed.

        `state` holds one row for each key of the subtask's range that has state. A key that is missing in the new
        state loses its state. A key without state may not get one. Tidemark calls this method before it calls
        `process` with the rows of the same micro-batch.
        """
        ...


# ------------------------------------------------------------------
# Checks that only one subtask writes each key of an upsert table. With two, the table would show the key twice.


class ForeignKeyError(Exception):
    """A keyed function emitted a row with a key that no given row has.

    The message names vertex, table, key and a way out.
    """

    def __init__(self, operator: str, table: str, key: dict[str, object]) -> None:
        named = ", ".join(f"{name}={value}" for name, value in key.items())
        super().__init__(
            f"vertex {operator}: its function emitted a row with the key {named}, and no row with that key reached "
            f"this subtask; upsert table {table} could then show the key once for each subtask. Emit rows only under "
            "the keys of the rows and the state that the function was given, or key the stream by the table's keys"
        )


def require_own_keys(operator: str, table: str, keys: Sequence[str], output: pl.DataFrame, own: pl.DataFrame) -> None:
    """Raise ForeignKeyError unless the key of every output row is among the `own` keys.

    This takes one join and no loop.
    """
    foreign = output.select(keys).join(own.select(keys), on=list(keys), how="anti", nulls_equal=True)
    if not foreign.is_empty():
        raise ForeignKeyError(operator, table, foreign.row(0, named=True))


# ------------------------------------------------------------------
# The named outputs of a process function: each has rows of its own schema, beside the function's own output (M2).
#
# The files of a named output lie in the channel of the vertex, in a folder that has the output's name. A vertex that
# reads one output takes the files of this output, and skips the files of the others. So the protocol needs to know
# nothing about outputs: the files of all outputs lie between the same barriers. (Flink: `OutputTag`,
# `SideOutputDataStream`.)


OUTPUT: Final = "_output"
"""The name in the folder of a named output. No table is laid out by a column of this name."""

_IN_PATH: Final = re.compile(rf"/{OUTPUT}=([^/]+)/")


class UnknownOutputError(ValueError):
    """Rows belong to an output that the vertex does not have. The message names ways out."""


@dataclass(frozen=True, slots=True)
class NamedOutputs:
    """The named outputs of one vertex, and the channel in which their files lie."""

    channel: TableName
    schemas: Mapping[str, pa.Schema]

    def conformed(self, operator: str, given: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Return the rows of each output, in its schema. An output that the function left out has no rows.

        Raises FrameSchemaError, and UnknownOutputError for rows of another output.
        """
        unknown = [name for name in given if name not in self.schemas]
        if unknown:
            raise UnknownOutputError(
                f"operator {operator}: the function put out rows as {unknown[0]!r}, and its outputs are "
                f"{', '.join(self.schemas) or 'none'}: declare it, as in process(..., outputs={{{unknown[0]!r}: ...}})"
            )
        return {
            name: conform(given[name], schema, operator, f"output {name}") if name in given else empty_frame(schema)
            for name, schema in self.schemas.items()
        }

    def write(self, writer: StagedFiles, rows: Mapping[str, pl.DataFrame]) -> tuple[FileHandle, ...]:
        """Write one file for each output that has rows. Raises StagedFileError."""
        return tuple(
            writer.write_channel(
                self.channel,
                parts_of(frame, self.schemas[name]),
                self.schemas[name],
                folder=folder_of([(OUTPUT, name)]),
            )
            for name, frame in rows.items()
            if not frame.is_empty()
        )


def joined(parts: Sequence[Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """Return the rows of each output, from all parts in their order. All parts have the same outputs."""
    return {name: pl.concat([part[name] for part in parts]) for name in parts[0]}


def of_output(segments: Iterable[Segment], output: str | None, known: Iterable[str]) -> Iterator[Segment]:
    """Yield the segments with the files of one output only. None is the function's own output.

    `known` are the names of all outputs that the vertex has. Raises UnknownOutputError for rows of another output. Only
    a cut with rows in flight can hold such rows.
    """
    names = frozenset(known)
    for segment in segments:
        if not isinstance(segment, StagedSegment):
            yield segment
            continue
        files = tuple(file for file in segment.files if _output_of(file, names) == output)
        if files:
            yield segment if len(files) == len(segment.files) else replace(segment, files=files)


def _output_of(file: FileHandle, known: frozenset[str]) -> str | None:
    found = _IN_PATH.search(file.path)
    if found is None:
        return None
    if found[1] not in known:
        raise UnknownOutputError(
            f"{file.rows} rows in flight are of the output {found[1]!r}, which the vertex that put them out no longer "
            "has: put the output back, let the pipeline run until a checkpoint holds no rows in flight (a drain does "
            "that), and take it away then"
        )
    return found[1]


# ------------------------------------------------------------------
# Calls a process function for one subtask, and joins what the calls return.
#
# The function is called when broadcast rows have changed, then for the rows of the micro-batch, then at the end of the
# input, then for the keys that are due.


@dataclass(slots=True)
class Called:
    """Collects what the calls of a micro-batch return, in `results`.

    `delta` is the combined change of the state, and `found` has the keys of `delta` as they were before the first call.
    """

    keys: tuple[str, ...]
    loaded: KeyedRows
    found: FoundKeys
    delta: pl.DataFrame
    results: list[Processed] = field(default_factory=list)
    _after: KeyedRows | None = None

    @staticmethod
    def nothing(keys: tuple[str, ...], loaded: KeyedRows) -> "Called":
        """Return the collection before the first call: no results, and the state as it was loaded."""
        unchanged = loaded.nothing.with_columns(pl.lit(value=False).alias(DELETED))
        return Called(keys, loaded, FoundKeys(loaded, loaded.nothing, ()), unchanged)

    def state(self) -> KeyedRows:
        """Return the state after these calls."""
        if self._after is None:
            self._after = self.loaded if self.delta.is_empty() else apply_delta(self.found, self.delta, self.keys)
        return self._after

    def add(self, result: Processed, delta: pl.DataFrame, found: FoundKeys) -> None:
        """Add the result of a call, and its change of the state. `found` has the changed keys as before the call."""
        self.results.append(result)
        self._after = self._after if delta.is_empty() else None
        if self.delta.is_empty():
            self.delta, self.found = delta, found
        elif not delta.is_empty():
            self.delta = superseded(self.delta, delta, self.keys)
            self.found = self.found.with_later(found, self.delta, self.keys)


@dataclass(slots=True)
class _Finder:
    """Looks up rows of the state, and keeps what it has found."""

    among: KeyedRows
    found: FoundKeys

    def find(self, touched: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
        """Return the rows with these values in the columns `by`."""
        self.found = self.among.find(touched, by)
        return self.found.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCalls:
    """A process function, and the schemas of its results. With `ends` the input ends after the rows.

    With `fires_ms` the function is called, after the rows, for the keys that are due by this event time. If state
    `expires`, an unchanged row of the state is not written, unless new rows of its key extend its life.

    The rows that go to the upsert table `checked` must have keys of the subtask.
    """

    operator: str
    function: AnyFunction
    keys: tuple[str, ...]
    state_keys: tuple[str, ...]
    state_schema: pa.Schema
    output_schema: pa.Schema
    outputs: NamedOutputs
    checked: TableName | None
    ends: bool
    fires_ms: int | None = None
    expires: Expires | None = None

    def are_due(self, rows: Sequence[pl.DataFrame], seen: BroadcastRows | None) -> bool:
        """Return whether there is a reason to call the function."""
        ends, fires, reacts = self._ends(), self._fires(), self._reacts(seen)
        some = any(not frame.is_empty() for frame in rows)
        return some or any(each is not None for each in (ends, fires, reacts))

    def run(
        self, loaded: KeyedRows, rows: Sequence[pl.DataFrame], touched: pl.DataFrame, seen: BroadcastRows | None
    ) -> Called:
        """Make the calls. `rows` are the rows of the keyed inputs, and `touched` has their keys.

        Raises FrameSchemaError and ForeignKeyError.
        """
        called = Called.nothing(self.state_keys, loaded)
        reacts, ends, fires = self._reacts(seen), self._ends(), self._fires()
        if reacts is not None and seen is not None:
            self._of_range(partial(reacts.broadcast_changed, broadcast=seen.rows), called)
        if isinstance(self.function, HoldsRows):
            self._of_held(self.function, rows, called)
        else:
            self._of_rows(self.function, rows if seen is None else (*rows, seen.rows), touched, called)
        if ends is not None:
            self._of_range(ends.end_of_input, called)
        if fires is not None and self.fires_ms is not None:
            self._of_due(fires, self.fires_ms, called)
        return called

    def _fires(self) -> FiresInTime | None:
        return self.function if self.fires_ms is not None and isinstance(self.function, FiresInTime) else None

    def _of_due(self, fires: FiresInTime, by_ms: int, called: Called) -> None:
        """Call the function with the state of the keys that are due by this time."""
        found = called.state().up_to(fires.due, by_ms)
        due = found.rows
        if due.is_empty():
            return
        if isinstance(fires, HoldsRows):
            self._add_held(fires.on_time(due), found, called)
            return
        result = self._conformed(fires.on_time(due.drop(KEY_GROUP)))
        touched = due.select(KEY_GROUP, *self.keys)
        self._require_own(result.output, touched)
        called.add(result, self._change(due, result.state, touched, on_read=False), found)

    def _of_held(self, function: HoldsRows, inputs: Sequence[pl.DataFrame], called: Called) -> None:
        """Call a function that looks up its state itself, if there are rows."""
        among = called.state()
        finder = _Finder(among, among.at(tuple(layer.none for layer in among.layers)))
        result = Processed(among.nothing, empty_frame(self.output_schema))
        if any(not frame.is_empty() for frame in inputs):
            result = function.process_rows(inputs, among.schema, finder.find)
        self._add_held(result, finder.found, called)

    def _add_held(self, result: Processed, found: FoundKeys, called: Called) -> None:
        after, own = result.state.select(found.rows.columns), list(self.state_keys)
        if result.others_stay:
            found = found.only(found.rows.with_row_index().join(after, on=own, how="semi", nulls_equal=True)["index"])
        before, lost = found.rows, found.rows
        if not (before.is_empty() or after.is_empty()):
            lost = before.join(after, on=own, how="anti", nulls_equal=True)
        due = [self.function.due] if isinstance(self.function, FiresInTime) else []  # bounds of files say it
        kept = (KEY_GROUP, *own, *due)
        nulls = [pl.lit(None, kind).alias(name) for name, kind in before.schema.items() if name not in kept]
        delta = pl.concat(
            [
                after.cast(before.schema).with_columns(pl.lit(value=False).alias(DELETED)),
                lost.with_columns(*nulls, pl.lit(value=True).alias(DELETED)),
            ]
        )
        conformed = self._conformed(replace(result, state=after.drop(KEY_GROUP)))
        called.add(conformed, delta, replace(found, all_change=True))

    def _reacts(self, seen: BroadcastRows | None) -> ReactsToBroadcast | None:
        changed = seen is not None and seen.has_changed
        return self.function if changed and isinstance(self.function, ReactsToBroadcast) else None

    def _ends(self) -> EndsInput | None:
        return self.function if self.ends and isinstance(self.function, EndsInput) else None

    def _of_rows(
        self, function: KeyedFunction, inputs: Sequence[pl.DataFrame], touched: pl.DataFrame, called: Called
    ) -> None:
        """Call the function for the rows, if there are any."""
        found = called.state().find(touched, self.keys)
        state = found.rows.drop(KEY_GROUP)
        result = Processed(state, empty_frame(self.output_schema))
        if not touched.is_empty():
            result = function.process([frame.drop(KEY_GROUP, strict=False) for frame in inputs], state)
        result = self._conformed(result)
        self._require_own(result.output, touched)
        called.add(result, self._change(found.rows, result.state, touched, on_read=True), found)

    def _of_range(self, call: Callable[[pl.DataFrame], Processed], called: Called) -> None:
        """Call the function with the state of all keys of the range."""
        among = called.state()
        state = among.frame()
        before = state.drop(KEY_GROUP)
        result = self._conformed(call(before))
        every = state.select(KEY_GROUP, *self.keys)
        self._require_own(result.output, every)
        touched = every.clear() if result.state.equals(before) else every
        after = before.clear() if touched.is_empty() else result.state
        delta = self._change(state.clear() if touched.is_empty() else state, after, touched, on_read=False)
        called.add(result, delta, among.find(delta, self.keys))

    def _change(
        self, before: pl.DataFrame, after: pl.DataFrame, touched: pl.DataFrame, *, on_read: bool
    ) -> pl.DataFrame:
        """Return the change of the state to write. `on_read`: new rows of these keys have arrived."""
        delta = change_of(before, after, touched, self.keys)
        if self.expires is None or (self.expires.on_read and on_read):
            return delta
        return without_unchanged(delta, before, self.keys)

    def _require_own(self, output: pl.DataFrame, own: pl.DataFrame) -> None:
        if self.checked is not None:
            require_own_keys(self.operator, self.checked, self.keys, output, own)

    def _conformed(self, result: Processed) -> Processed:
        return Processed(
            state=conform(result.state, self.state_schema, self.operator, "state"),
            output=conform(result.output, self.output_schema, self.operator, "output"),
            outputs=self.outputs.conformed(self.operator, result.outputs),
        )
