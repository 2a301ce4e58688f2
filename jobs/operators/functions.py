"""The protocols of keyed functions: they get new rows and the state of their keys, and return new state and output.

A function that holds rows back also says what to emit when the input ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import polars as pl


@dataclass(frozen=True, slots=True)
class Processed:
    """What a keyed function returns.

    `state` has the new row of each touched key, key columns first. A touched key that is missing in it loses its state.
    `output` has the rows to emit. `outputs` has those of the function's named outputs, by name; one that is missing has
    no rows.
    """

    state: pl.DataFrame
    output: pl.DataFrame
    outputs: Mapping[str, pl.DataFrame] = field(default_factory=dict)


class KeyedFunction(Protocol):
    """A keyed process function on Polars frames. It must be deterministic and keep nothing between calls.

    It is sent to the tasks once for each micro-batch, so it should be small, and its module cheap to import.

    It may have an attribute `state_version`, a whole number from 1. Each checkpoint records it. Raise it when the
    function gives its state columns another meaning: a tick then refuses to begin from state of the version before,
    instead of mixing both. Without the attribute, only the columns are compared.
    """

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the new state and the output.

        `inputs` holds a frame per input, in no order of rows; a frame is empty if the micro-batch has no rows for
        that input. If the vertex sees a broadcast, that is the last input. Its frame has all kept rows of the
        broadcast, those of this micro-batch included. `state` holds one row for each touched key that has state.

        If the output goes to an upsert table, its rows must have keys of the given rows. Another key may belong to
        another subtask. With a parallelism of 2 or more the micro-batch then fails, and the message names the key.
        """
        ...


@runtime_checkable
class MergesPartials(Protocol):
    """Optional for a keyed function of one input whose output is the new state row of each touched key.

    It is faster, since a task need not check which keys were touched, lost or returned twice (Flink:
    `AggregateFunction`, whose accumulators are merged). Frames begin with `_key_group`; `types` are the types of the
    state's columns.
    """

    def partials(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return one row for each key of these rows: the aggregate of these rows alone."""
        ...

    def merged(self, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the new state row of each key of the partials; `before` has the old rows of keys that had one."""
        ...


@runtime_checkable
class EndsInput(Protocol):
    """Required of a keyed function that holds rows back (Flink: `BoundedMultiInput.endInput`, F4)."""

    def end_of_input(self, state: pl.DataFrame) -> Processed:
        """Return the new state and the output now that no row will follow on any input.

        `state` holds one row for each key of the subtask's range that has state, after the last rows were processed. A
        key that is missing in the new state loses its state. A key without state may not get one. Called once for each
        drain. A later tick may read new rows; they meet the state that this returns.
        """
        ...


@runtime_checkable
class ReactsToBroadcast(Protocol):
    """Optional. A function with this method can look at its keys again when the rows of its broadcast change.

    It is for functions that hold rows back until a broadcast row comes (Flink: `Context.applyToKeyedState`).
    """

    def broadcast_changed(self, state: pl.DataFrame, broadcast: pl.DataFrame) -> Processed:
        """Return the new state and the output, now that broadcast rows have come or changed.

        `state` holds one row for each key of the subtask's range that has state. A key that is missing in the new
        state loses its state. A key without state may not get one. Tidemark calls this method before it calls
        `process` with the rows of the same micro-batch.
        """
        ...
