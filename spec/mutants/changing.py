"""Plants bugs in changes: how an aggregate puts them out and takes them back, and which cuts are restored."""

from typing import Any

import polars as pl

from checkpointing.graph import Vertex
from checkpointing.job import restoring
from checkpointing.metadata.record import CheckpointRecord
from jobs.operators import changes, changing
from jobs.operators.aggregate_functions import Count
from jobs.operators.changes import DELETE, INSERT, KIND, UPDATE_BEFORE
from jobs.operators.changing import ChangingAggregates
from jobs.operators.changing_functions import TIMES, ChangingTotal
from spec.changing import ADD_UP, TOGETHER, changes_add_up, cuts_hold_all_changes
from spec.mutants.judges import Judge, directed
from spec.mutants.planting import Patch, mutant

_SUMS = Judge("model of changes", lambda seed: frozenset() if changes_add_up(seed) else frozenset({ADD_UP}), 20)
_CUTS = directed(cuts_hold_all_changes, TOGETHER)


def _putting_out(patch: Patch, kept: pl.Expr) -> None:
    """Let an aggregate put out these changes only."""
    real = changes.changes_of

    def changes_of(*tables: Any) -> pl.DataFrame:  # noqa: ANN401 - passed on
        return real(*tables).filter(kept)

    patch.function(changes, "changes_of", changes_of)


@mutant(ADD_UP, _SUMS)
def an_update_does_not_say_what_it_replaces(patch: Patch) -> None:
    _putting_out(patch, pl.col(KIND) != UPDATE_BEFORE)


@mutant(ADD_UP, _SUMS)
def a_key_without_rows_is_not_deleted_downstream(patch: Patch) -> None:
    _putting_out(patch, pl.col(KIND) != DELETE)


@mutant(ADD_UP, _SUMS)
def a_new_key_is_not_put_out(patch: Patch) -> None:
    _putting_out(patch, pl.col(KIND) != INSERT)


@mutant(ADD_UP, _SUMS)
def a_delete_is_taken_for_an_insert(patch: Patch) -> None:
    patch.put(changing, "ADDING", (*changes.ADDING, DELETE))


@mutant(ADD_UP, _SUMS)
def an_update_before_is_taken_for_an_update_after(patch: Patch) -> None:
    patch.put(changing, "ADDING", (*changes.ADDING, UPDATE_BEFORE))


@mutant(ADD_UP, _SUMS)
def a_count_takes_nothing_back(patch: Patch) -> None:
    def retract(_self: Count, one: pl.Expr, _other: pl.Expr) -> pl.Expr:
        return one

    patch.put(Count, "retract", retract)


@mutant(ADD_UP, _SUMS)
def a_sum_adds_what_is_taken_back(patch: Patch) -> None:
    patch.put(ChangingTotal, "retract", ChangingTotal.merge)


@mutant(ADD_UP, _SUMS)
def an_equal_row_is_kept_once(patch: Patch) -> None:
    """The first of two equal rows that goes takes both along."""
    real = changing._counted_together

    def counted_together(state: pl.DataFrame, name: str) -> pl.DataFrame:
        once = pl.element().struct.with_fields(pl.lit(1, dtype=pl.Int64).alias(TIMES))
        return real(state, name).with_columns(pl.col(name).list.eval(once))

    patch.put(changing, "_counted_together", counted_together)


@mutant(ADD_UP, _SUMS)
def the_state_forgets_the_rows_of_earlier_changes(patch: Patch) -> None:
    real = ChangingAggregates.merged

    def merged(self: ChangingAggregates, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        return real(self, partials, before.clear())

    patch.put(ChangingAggregates, "merged", merged)


def _checking(patch: Patch, known: Any) -> None:  # noqa: ANN401 - a condition of vertex and entry
    """Compare a vertex that takes changes with a cut under a condition only."""
    real = restoring._check_changes

    def check_changes(vertex: Vertex, record: CheckpointRecord) -> None:
        if known(vertex, {was.vertex for was in record.vertices}):
            real(vertex, record)

    patch.put(restoring, "_check_changes", check_changes)


@mutant(TOGETHER, _CUTS)
def a_vertex_may_begin_after_the_one_whose_changes_it_takes(patch: Patch) -> None:
    _checking(patch, lambda vertex, known: vertex.id in known)


@mutant(TOGETHER, _CUTS)
def a_vertex_may_outlive_the_one_whose_changes_it_takes(patch: Patch) -> None:
    _checking(patch, lambda vertex, known: set(vertex.changes_of) <= known)


@mutant(TOGETHER, _CUTS)
def a_column_of_a_vertex_that_takes_changes_may_begin_later(patch: Patch) -> None:
    _checking(patch, lambda vertex, known: not {vertex.id, *vertex.changes_of} <= known)
