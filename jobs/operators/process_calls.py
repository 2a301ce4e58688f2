"""Calls a process function for one subtask, and joins what the calls return.

It is called when broadcast rows have changed, then for the rows of the micro-batch, then at the end of the input.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import polars as pl
import pyarrow as pa

from checkpointing.identifiers import TableName
from jobs.operators.broadcast import BroadcastRows
from jobs.operators.functions import EndsInput, KeyedFunction, Processed, ReactsToBroadcast
from jobs.operators.named_outputs import NamedOutputs
from jobs.operators.own_keys import require_own_keys
from jobs.state.frames import conform, empty_frame
from jobs.state.keyed_rows import FoundKeys, KeyedRows
from jobs.state.merge import DELETED, KEY_GROUP, apply_delta, change_of, superseded


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

    @staticmethod
    def nothing(keys: tuple[str, ...], loaded: KeyedRows) -> "Called":
        """Return the beginning: no results, and the state as it was loaded."""
        unchanged = loaded.nothing.with_columns(pl.lit(value=False).alias(DELETED))
        return Called(keys, loaded, FoundKeys(loaded, loaded.nothing, ()), unchanged)

    def state(self) -> KeyedRows:
        """Return the state after these calls."""
        return self.loaded if self.delta.is_empty() else apply_delta(self.found, self.delta, self.keys)

    def add(self, result: Processed, delta: pl.DataFrame, found: FoundKeys) -> None:
        """Add the result of a call, and its change of the state. `found` has the changed keys as they were before."""
        self.results.append(result)
        if self.delta.is_empty():
            self.delta, self.found = delta, found
        elif not delta.is_empty():
            self.delta = superseded(self.delta, delta, self.keys)
            self.found = self.loaded.find(self.delta, self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCalls:
    """A process function, and what it must return. With `ends` the input ends after the rows.

    The rows that go to the upsert table `checked` must have keys of the subtask.
    """

    operator: str
    function: KeyedFunction
    keys: tuple[str, ...]
    state_schema: pa.Schema
    output_schema: pa.Schema
    outputs: NamedOutputs
    checked: TableName | None
    ends: bool

    def are_due(self, touched: pl.DataFrame, seen: BroadcastRows | None) -> bool:
        """Return whether there is anything to call the function for."""
        return not touched.is_empty() or self._ends() is not None or self._reacts(seen) is not None

    def run(
        self, loaded: KeyedRows, rows: Sequence[pl.DataFrame], touched: pl.DataFrame, seen: BroadcastRows | None
    ) -> Called:
        """Make the calls. `rows` are those of the keyed inputs, and `touched` has their keys.

        Raises FrameSchemaError and ForeignKeyError.
        """
        called = Called.nothing(self.keys, loaded)
        reacts, ends = self._reacts(seen), self._ends()
        if reacts is not None and seen is not None:
            self._of_range(partial(reacts.broadcast_changed, broadcast=seen.rows), called)
        self._of_rows(rows if seen is None else (*rows, seen.rows), touched, called)
        if ends is not None:
            self._of_range(ends.end_of_input, called)
        return called

    def _reacts(self, seen: BroadcastRows | None) -> ReactsToBroadcast | None:
        changed = seen is not None and seen.has_changed
        return self.function if changed and isinstance(self.function, ReactsToBroadcast) else None

    def _ends(self) -> EndsInput | None:
        return self.function if self.ends and isinstance(self.function, EndsInput) else None

    def _of_rows(self, inputs: Sequence[pl.DataFrame], touched: pl.DataFrame, called: Called) -> None:
        """Call the function for the rows, if there are any."""
        found = called.state().find(touched, self.keys)
        state = found.rows.drop(KEY_GROUP)
        result = Processed(state, empty_frame(self.output_schema))
        if not touched.is_empty():
            result = self.function.process([frame.drop(KEY_GROUP, strict=False) for frame in inputs], state)
        result = self._conformed(result)
        self._require_own(result.output, touched)
        called.add(result, change_of(found.rows, result.state, touched, self.keys), found)

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
        delta = change_of(state.clear() if touched.is_empty() else state, after, touched, self.keys)
        called.add(result, delta, among.find(delta, self.keys))

    def _require_own(self, output: pl.DataFrame, own: pl.DataFrame) -> None:
        if self.checked is not None:
            require_own_keys(self.operator, self.checked, self.keys, output, own)

    def _conformed(self, result: Processed) -> Processed:
        return Processed(
            state=conform(result.state, self.state_schema, self.operator, "state"),
            output=conform(result.output, self.output_schema, self.operator, "output"),
            outputs=self.outputs.conformed(self.operator, result.outputs),
        )
