"""Plants bugs in top rows."""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from jobs.operators import counted_rows, top_rows
from jobs.operators.changes import ADDING, DELETE
from jobs.operators.functions import Processed
from spec.mutants.judges import Judge
from spec.mutants.planting import Patch, mutant
from spec.top_rows import TOP_ROWS, top_rows_add_up

_TOP = Judge("model of top rows", lambda seed: frozenset() if top_rows_add_up(seed) else frozenset({TOP_ROWS}), 20)


@mutant(TOP_ROWS, _TOP)
def a_row_that_is_taken_back_is_added_to_the_first_rows(patch: Patch) -> None:
    patch.put(counted_rows, "ADDING", (*ADDING, DELETE))


@mutant(TOP_ROWS, _TOP)
def the_rows_behind_the_first_ones_of_a_changelog_are_forgotten(patch: Patch) -> None:
    """No row moves up when a first one goes."""
    real = top_rows.TopRows.process

    def process(self: top_rows.TopRows, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        forgetful = real(replace(self, changelog=False), inputs, state)
        return Processed(state=forgetful.state, output=real(self, inputs, state).output)

    patch.put(top_rows.TopRows, "process", process)


@mutant(TOP_ROWS, _TOP)
def rows_that_were_pushed_out_stay_in_the_output(patch: Patch) -> None:
    real = counted_rows.as_changes

    def changes(found: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
        return real(found.filter(pl.col("_times") > 0), columns)

    patch.put(top_rows, "as_changes", changes)


@mutant(TOP_ROWS, _TOP)
def equal_rows_take_one_place(patch: Patch) -> None:
    real = top_rows.TopRows._first

    def first(self: top_rows.TopRows, rows: pl.DataFrame) -> pl.DataFrame:
        return real(self, rows.with_columns(pl.lit(1, dtype=pl.Int64).alias("_times")))

    patch.put(top_rows.TopRows, "_first", first)


@mutant(TOP_ROWS, _TOP)
def the_least_row_is_always_first(patch: Patch) -> None:
    real = top_rows.TopRows._first

    def first(self: top_rows.TopRows, rows: pl.DataFrame) -> pl.DataFrame:
        return real(replace(self, order=tuple(top_rows.Order(by.column) for by in self.order)), rows)

    patch.put(top_rows.TopRows, "_first", first)


@mutant(TOP_ROWS, _TOP)
def an_equal_row_more_gets_no_place(patch: Patch) -> None:
    """Of a row that is there twice, only the first has a number."""
    real = top_rows.TopRows._shown

    def shown(self: top_rows.TopRows, first: pl.DataFrame) -> pl.DataFrame:
        return real(self, first.with_columns(pl.col("_times").clip(upper_bound=1)))

    patch.put(top_rows.TopRows, "_shown", shown)


@mutant(TOP_ROWS, _TOP)
def the_rows_of_a_key_have_one_place_in_the_table(patch: Patch) -> None:
    """The number of a row is no key of the table."""
    patch.put(top_rows.TopRows, "table_keys", property(lambda self: self.keys))
