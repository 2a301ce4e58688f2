"""Plants bugs in tables of changes."""

from typing import Any

import polars as pl

from jobs.operators import applied_changes
from jobs.operators.applied_changes import DELETES, HISTORY, SEQUENCE, VALID_TO, AppliedChanges
from jobs.state.merge import KEY_GROUP
from spec.applying import APPLIED, FORGOTTEN, broken_by_applied_changes
from spec.mutants.judges import Judge
from spec.mutants.planting import Patch, mutant

_APPLIED = Judge("model of tables of changes", broken_by_applied_changes, 20)


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
