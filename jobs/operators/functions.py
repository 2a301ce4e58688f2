"""What a keyed function is: rows of one micro-batch and the state of the touched keys in, both anew out.

A function that holds rows back says besides what becomes of them once nothing more will come.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import polars as pl


@dataclass(frozen=True, slots=True)
class Processed:
    """What a keyed function returns.

    `state` is the new row of each touched key, key columns first; a touched key that is absent has
    no state any more. `output` are the rows to put out.
    """

    state: pl.DataFrame
    output: pl.DataFrame


class KeyedFunction(Protocol):
    """A vectorised keyed process function: deterministic, without a memory of its own.

    It travels to the tasks once a micro-batch, so it should be small and its module cheap to import.

    It may have an attribute `state_version`, a whole number from 1. Each checkpoint records it. Raise it when the
    function gives its state columns another meaning: a tick then refuses to begin from state of the version before,
    instead of mixing both. Without it nobody can tell one meaning from another, and only columns are compared.
    """

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the new state and the output.

        `inputs` holds a frame per input, empty where the micro-batch brought nothing; the order of
        rows in it means nothing. `state` holds one row per touched key that has state.

        If the output goes to an upsert table, its rows have keys of the rows given. Another key would belong to
        another subtask: with a parallelism of 2 and more the micro-batch then fails, naming the key.
        """
        ...


@runtime_checkable
class MergesPartials(Protocol):
    """What a keyed function of one input is besides if it aggregates: each touched key's output is its new state row.

    Then a task need not find out which keys were touched, lost or given twice (Flink: `AggregateFunction`, whose
    accumulators are merged). Frames have `_key_group` in front; `types` are those of the state's columns.
    """

    def partials(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return one row for each key of these rows: what they alone come to."""
        ...

    def merged(self, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the new state row of each key of the partials; `before` has those that had one."""
        ...


@runtime_checkable
class EndsInput(Protocol):
    """What a keyed function has besides if it holds rows back (Flink: `BoundedMultiInput.endInput`, F4)."""

    def end_of_input(self, state: pl.DataFrame) -> Processed:
        """Return the new state and the output now that no row will follow on any input.

        `state` holds one row per key of the subtask's range that has state, the last rows processed. A key
        that is absent from the new state has none any more; a key that had none may not get one. Called
        once per drain: rows may follow later all the same, and then meet the state that this leaves.
        """
        ...
