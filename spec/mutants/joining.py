"""Plants bugs in joins over changes."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from jobs.operators import counted_rows, join
from jobs.operators.changes import ADDING, DELETE
from jobs.operators.functions import Processed
from spec.joining import JOINS, joins_add_up
from spec.mutants.judges import Judge
from spec.mutants.planting import Patch, mutant

_JOINS = Judge("model of joins", lambda seed: frozenset() if joins_add_up(seed) else frozenset({JOINS}), 20)


@mutant(JOINS, _JOINS)
def a_deleted_row_is_joined_as_a_new_one(patch: Patch) -> None:
    patch.put(counted_rows, "ADDING", (*ADDING, DELETE))


@mutant(JOINS, _JOINS)
def two_rows_that_come_together_miss_each_other(patch: Patch) -> None:
    """New right rows meet the left rows from before the micro-batch."""
    real = join.JoinFunction.process

    def process(self: join.JoinFunction, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Any:  # noqa: ANN401
        both = real(self, inputs, state)
        alone = real(self, [inputs[0].clear(), inputs[1]], state)
        other = real(self, [inputs[0], inputs[1].clear()], state)
        return Processed(state=both.state, output=pl.concat([alone.output, other.output]))

    patch.put(join.JoinFunction, "process", process)


@mutant(JOINS, _JOINS)
def the_first_match_leaves_the_row_without_one(patch: Patch) -> None:
    real = join._unmatched

    def unmatched(*args: Any) -> pl.DataFrame:  # noqa: ANN401 - passed on
        return real(*args).filter(pl.col("_times") > 0)

    patch.put(join, "_unmatched", unmatched)


@mutant(JOINS, _JOINS)
def the_last_match_to_go_brings_nothing_back(patch: Patch) -> None:
    real = join._unmatched

    def unmatched(side: Any, other: Any, on: Sequence[str]) -> pl.DataFrame:  # noqa: ANN401 - passed on
        return real(side, other, on).join(other.before.select(on).unique(), on=list(on), how="anti", nulls_equal=True)

    patch.put(join, "_unmatched", unmatched)


@mutant(JOINS, _JOINS)
def a_left_row_outlives_its_match(patch: Patch) -> None:
    """A semi join keeps a row whose last match has gone."""
    real = join.JoinFunction._changes

    def changes(self: join.JoinFunction, *sides: Any) -> list[pl.DataFrame]:  # noqa: ANN401 - passed on
        found = real(self, *sides)
        lasting = self.how is join.JoinType.SEMI
        return [part.filter(pl.col("_times") > 0) for part in found] if lasting else found

    patch.put(join.JoinFunction, "_changes", changes)


@mutant(JOINS, _JOINS)
def an_equal_row_is_joined_once(patch: Patch) -> None:
    real = counted_rows.counted

    def counted(parts: Sequence[pl.DataFrame], columns: Sequence[str]) -> pl.DataFrame:
        return real(parts, columns).with_columns(pl.col("_times").sign())

    patch.put(join, "counted", counted)
