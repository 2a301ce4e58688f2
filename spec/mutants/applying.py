"""Plants bugs in tables of changes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from jobs.operators import applied_changes, unsent
from jobs.operators.applied_changes import DELETES, HISTORY, SEQUENCE, VALID_FROM, VALID_TO, AppliedChanges
from jobs.operators.unsent import UNSENT
from jobs.state.merge import KEY_GROUP
from spec.applying import APPLIED, FORGOTTEN, SUPERSEDED, broken_by_applied_changes
from spec.applying_a_database import broken_by_changes_of_a_database
from spec.mutants.judges import Judge
from spec.mutants.planting import Patch, mutant

_APPLIED = Judge("model of tables of changes", broken_by_applied_changes, 20)
_OF_DATABASE = Judge("model of changes of a database", broken_by_changes_of_a_database, 20)


@mutant(APPLIED, _APPLIED)
def the_change_that_comes_last_wins(patch: Patch) -> None:
    """A late change takes the place of a newer one."""

    def merged(self: AppliedChanges, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        older = before.join(partials, on=list(self.keys), how="anti")
        return pl.concat([older, partials.select(before.columns).cast(before.schema)])

    patch.put(AppliedChanges, "merged", merged)


@mutant(APPLIED, _APPLIED)
def a_deletion_is_forgotten(patch: Patch) -> None:
    """An older change brings the key back."""
    real = AppliedChanges.merged

    def merged(self: AppliedChanges, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        known = applied_changes._apart(before).filter(~pl.col(DELETES))
        change = pl.struct(SEQUENCE, DELETES, *self.columns).alias(HISTORY)
        kept = known.group_by(KEY_GROUP, *self.keys).agg(change).select(before.columns).cast(before.schema)
        return real(self, partials, kept)

    patch.put(AppliedChanges, "merged", merged)


@mutant(APPLIED, _APPLIED)
def a_version_never_ends(patch: Patch) -> None:
    real = AppliedChanges.results

    def results(self: AppliedChanges, state: pl.DataFrame) -> pl.DataFrame:
        found = real(self, state)
        return found.with_columns(pl.lit(None, found.schema[VALID_TO]).alias(VALID_TO)) if self.history else found

    patch.put(AppliedChanges, "results", results)


@mutant(APPLIED, _APPLIED)
def an_equal_change_is_forgotten(patch: Patch) -> None:
    """A late change between it and the one before it shows that it began a version."""
    real = AppliedChanges.merged

    def merged(self: AppliedChanges, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        all_of = applied_changes._apart(real(self, partials, before)).sort(*self.keys, SEQUENCE)
        alike = [pl.col(name).eq_missing(pl.col(name).shift(1).over(self.keys)) for name in (*self.columns, DELETES)]
        change = pl.struct(SEQUENCE, DELETES, *self.columns).alias(HISTORY)
        kept = all_of.filter(~pl.all_horizontal(alike)).group_by(KEY_GROUP, *self.keys, maintain_order=True)
        return kept.agg(change).select(before.columns).cast(before.schema)

    patch.put(AppliedChanges, "merged", merged)


@mutant(APPLIED, _APPLIED)
def a_version_is_told_apart_by_its_key_alone(patch: Patch) -> None:
    def keys_alone(self: Any) -> tuple[str, ...]:  # noqa: ANN401 - the function itself
        return tuple(self.keys)

    patch.put(AppliedChanges, "table_keys", property(keys_alone))


@mutant(FORGOTTEN, _APPLIED)
def no_deletion_is_forgotten(patch: Patch) -> None:
    patch.put(AppliedChanges, "remembered", lambda _, state: state)


@mutant(APPLIED, _APPLIED)
def a_key_that_was_ever_deleted_is_forgotten(patch: Patch) -> None:
    """It may have been inserted again."""

    def remembered(self: AppliedChanges, state: pl.DataFrame) -> pl.DataFrame:
        if self.forget_deletes_after is None:
            return state
        ever = pl.col(HISTORY).list.eval(pl.element().struct.field(DELETES)).list.any()
        place = pl.col(HISTORY).list.last().struct.field(SEQUENCE)
        return state.filter(~(ever & (place < place.max() - self.forget_deletes_after)))

    patch.put(AppliedChanges, "remembered", remembered)


@mutant(APPLIED, _APPLIED)
def a_deletion_is_forgotten_one_place_too_early(patch: Patch) -> None:
    """A change of the same place may still come, and a deletion wins over it."""

    def remembered(self: AppliedChanges, state: pl.DataFrame) -> pl.DataFrame:
        if self.forget_deletes_after is None:
            return state
        last = pl.col(HISTORY).list.last()
        place = last.struct.field(SEQUENCE)
        return state.filter(~(last.struct.field(DELETES) & (place <= place.max() - self.forget_deletes_after)))

    patch.put(AppliedChanges, "remembered", remembered)


@mutant(APPLIED, _APPLIED)
def a_null_that_should_keep_the_value_overwrites_it(patch: Patch) -> None:
    def as_they_came(self: AppliedChanges, changes: pl.DataFrame) -> pl.DataFrame:
        return changes.unique(subset=self._counted_once, keep="last", maintain_order=True)

    patch.put(AppliedChanges, "_with_kept_values", as_they_came)


@mutant(APPLIED, _APPLIED)
def a_null_keeps_a_value_from_before_a_deletion(patch: Patch) -> None:
    """The deletion is skipped like a null."""
    real = unsent.filled

    def filled(changes: pl.DataFrame, keys: Sequence[str], deletes: str) -> pl.DataFrame:
        apart = changes.filter(pl.col(deletes))
        full = real(changes.filter(~pl.col(deletes)), keys, deletes)
        return pl.concat([full, apart]).sort(*keys, SEQUENCE, deletes)

    patch.put(applied_changes, "filled", filled)


@mutant(APPLIED, _APPLIED)
def a_null_takes_the_value_that_was_there_when_it_came(patch: Patch) -> None:
    """A late change may bring a newer value for it."""
    real = AppliedChanges.merged

    def merged(self: AppliedChanges, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        new = real(self, partials, before)
        if not self.ignored:
            return new
        change = pl.struct(SEQUENCE, DELETES, *self.columns).alias(HISTORY)
        told = self._with_kept_values(applied_changes._apart(new))
        return told.group_by(KEY_GROUP, *self.keys, maintain_order=True).agg(change).select(new.columns)

    patch.put(AppliedChanges, "merged", merged)


@mutant(APPLIED, _APPLIED)
def only_the_newest_change_is_kept_though_its_nulls_need_an_older_one(patch: Patch) -> None:
    real = AppliedChanges._counting

    def counting(self: AppliedChanges, ordered: pl.DataFrame) -> pl.DataFrame:
        if self.history:
            return real(self, ordered)
        return ordered.unique(subset=list(self.keys), keep="last", maintain_order=True)

    patch.put(AppliedChanges, "_counting", counting)


@mutant(APPLIED, _APPLIED)
def a_deletion_is_forgotten_once_the_key_is_there_again(patch: Patch) -> None:
    """A change that comes late, from before the deletion, then gives the key its values."""
    real = AppliedChanges._counting

    def counting(self: AppliedChanges, ordered: pl.DataFrame) -> pl.DataFrame:
        found = real(self, ordered)
        if self.history or not self.ignored:
            return found
        last = pl.struct(SEQUENCE, DELETES).last().over(list(self.keys))
        return found.filter(~pl.col(DELETES) | (last.struct.field(SEQUENCE) == pl.col(SEQUENCE)))

    patch.put(AppliedChanges, "_counting", counting)


@mutant(SUPERSEDED, _APPLIED)
def a_change_is_kept_after_newer_ones_have_set_all_its_values(patch: Patch) -> None:
    """The state of a key grows with each change."""
    real = AppliedChanges._counting

    def counting(self: AppliedChanges, ordered: pl.DataFrame) -> pl.DataFrame:
        return ordered if self.ignored else real(self, ordered)

    patch.put(AppliedChanges, "_counting", counting)


@mutant(APPLIED, _APPLIED)
def a_column_without_history_begins_a_version(patch: Patch) -> None:
    real = AppliedChanges.results
    patch.put(AppliedChanges, "results", lambda self, state: real(replace(self, tracked=None), state))


@mutant(APPLIED, _APPLIED)
def a_column_without_history_stays_as_it_was_when_the_version_began(patch: Patch) -> None:
    real = AppliedChanges.results

    def results(self: AppliedChanges, state: pl.DataFrame) -> pl.DataFrame:
        if self.tracked is None or not self.history:
            return real(self, state)
        rest = [name for name in self.columns if name not in self.tracked]
        every = real(replace(self, tracked=None), state).select(*self.keys, VALID_FROM, *rest)
        found = real(self, state)
        return found.drop(rest).join(every, on=[*self.keys, VALID_FROM], how="left").select(found.columns)

    patch.put(AppliedChanges, "results", results)


@mutant(APPLIED, _OF_DATABASE)
def a_value_that_was_not_sent_is_null(patch: Patch) -> None:
    patch.put(applied_changes, "filled", lambda changes, *_: changes.with_columns(pl.lit(None).alias(UNSENT)))


@mutant(APPLIED, _OF_DATABASE)
def a_value_that_was_not_sent_is_that_of_another_key(patch: Patch) -> None:
    """The newest change before it may be one of another key."""
    real = unsent.filled
    patch.put(applied_changes, "filled", lambda changes, _, deletes: real(changes, [KEY_GROUP], deletes))


@mutant(APPLIED, _OF_DATABASE)
def a_value_of_the_same_micro_batch_is_forgotten(patch: Patch) -> None:
    """The state knows an older one."""
    real = unsent.filled

    def filled(changes: pl.DataFrame, keys: Sequence[str], deletes: str) -> pl.DataFrame:
        return changes if changes.columns[0] != KEY_GROUP else real(changes, keys, deletes)

    patch.put(applied_changes, "filled", filled)


@mutant(APPLIED, _OF_DATABASE)
def the_old_row_of_an_update_counts(patch: Patch) -> None:
    """The deletion of an update's old key comes after its new row, in order of places alone."""
    real = AppliedChanges.partials

    def partials(self: AppliedChanges, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        later = pl.when(DELETES).then(pl.col(SEQUENCE) + 1).otherwise(SEQUENCE)
        return real(self, rows.with_columns(later.alias(SEQUENCE)), types)

    patch.put(AppliedChanges, "partials", partials)


@mutant(APPLIED, _APPLIED)
def a_truncate_deletes_the_keys_of_its_micro_batch_only(patch: Patch) -> None:
    real = AppliedChanges.emptied

    def emptied(self: AppliedChanges, rows: pl.DataFrame, others: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
        return real(self, rows, others.clear(), places)

    patch.put(AppliedChanges, "emptied", emptied)


@mutant(APPLIED, _APPLIED)
def a_truncate_deletes_newer_rows_too(patch: Patch) -> None:
    """Its deletion counts as the newest change of each key."""
    real = AppliedChanges.emptied

    def emptied(self: AppliedChanges, rows: pl.DataFrame, others: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
        return real(self, rows, others, places.with_columns(pl.col(SEQUENCE) + 100))

    patch.put(AppliedChanges, "emptied", emptied)


@mutant(APPLIED, _APPLIED)
def a_deletion_is_forgotten_after_a_truncate(patch: Patch) -> None:
    """A deletion that no other change of its key precedes is taken for the truncate's."""

    def uncovered(
        ordered: pl.DataFrame, places: pl.DataFrame, keys: list[str], sequence: str, deletes: str
    ) -> pl.DataFrame:
        del sequence
        if places.is_empty():
            return ordered
        return ordered.filter((~pl.col(deletes)).cast(pl.Int8).cum_max().over(keys) == 1)

    patch.put(applied_changes, "uncovered", uncovered)


@mutant(APPLIED, _OF_DATABASE)
def a_truncate_of_a_database_is_passed_over(patch: Patch) -> None:
    def emptied(self: AppliedChanges, rows: pl.DataFrame, others: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
        del self, others, places
        return rows

    patch.put(AppliedChanges, "emptied", emptied)
