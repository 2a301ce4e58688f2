"""Applies the changes of a source by key, in the order of a sequence column (SCD types 1 and 2).

The state of a key holds its changes in that order: all of them with history, the newest one without. So a change that
comes late finds its place. A deleted key keeps the change that deleted it, and an older change does not bring it back.

A null may leave the value of the change before (`ignored`). The state holds such a null as it came, because a late
change may bring another value. Without history it also holds the newest change that has a value for each such column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import polars as pl
from pyspark.sql.types import ArrayType, BooleanType, StructField, StructType

from jobs.operators.process import Processed
from jobs.sources.postgres.way_out import ANEW
from jobs.state.merge import KEY_GROUP

# ------------------------------------------------------------------
# Fills in values that a database's server did not send, from the change before of the same key.
#
# PostgreSQL does not send a large value that an update left alone. The rows name such columns in UNSENT, which is null
# if the server sent all values.


UNSENT: Final = "_applied_unsent"
"""The column with the names of a change's columns that were not sent."""

_PLACE: Final = "\0"
"""The column with the places of the changes. No column of a user begins so."""


def filled(changes: pl.DataFrame, keys: Sequence[str], deletes: str) -> pl.DataFrame:
    """Return the changes with the values that an earlier one of the same key has. The changes of each key are in order.

    A change after a deletion begins a new row, so nothing is taken from before. What stays unknown stays in UNSENT.
    `deletes` is the column that says whether a change deletes its key.
    """
    names = changes[UNSENT].explode().drop_nulls().unique().sort().to_list()
    if not names:
        return changes
    last = (pl.when(~_lacks(name)).then(_PLACE).forward_fill().over(list(keys)).alias(_place(name)) for name in names)
    known = changes.with_row_index(_PLACE).with_columns(last)
    gone = {name: pl.col(deletes).gather(pl.col(_place(name))).fill_null(value=True) for name in names}
    unknown = [pl.when(_lacks(name) & gone[name]).then(pl.lit(name)) for name in names]
    still = pl.concat_list(unknown).list.drop_nulls()
    found = {name: pl.col(name).gather(pl.col(_place(name))) for name in names}
    full = [pl.when(_lacks(name) & ~gone[name]).then(found[name]).otherwise(name).alias(name) for name in names]
    rest = pl.when(still.list.len() > 0).then(still).alias(UNSENT)
    return known.with_columns(*full, rest).drop(_PLACE, *map(_place, names))


def _lacks(name: str) -> pl.Expr:
    return pl.col(UNSENT).list.contains(name).fill_null(value=False)


def _place(name: str) -> str:
    """Return the column with the place of the newest change up to here in which this value was sent."""
    return _PLACE + name


# ------------------------------------------------------------------
# Applies truncates, which are changes that empty a table. A truncate deletes every key that has an older change.
#
# The first change of a key may arrive after a truncate although it is older. That change must be deleted too. So the
# operator keeps the place of each truncate in the order of changes as broadcast state. Changes of a database arrive in
# order, so their truncates are not kept.


TRUNCATES: Final = "_applied_truncate"
"""The column that says whether a change empties the table."""


def told_apart(rows: pl.DataFrame, sequence: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the changes of keys, and the places of the truncates among these rows, each once."""
    is_truncate = pl.col(TRUNCATES).fill_null(value=False)
    return rows.filter(~is_truncate).drop(TRUNCATES), rows.filter(is_truncate).select(sequence).unique()


def with_deletions(
    changes: pl.DataFrame, others: pl.DataFrame, places: pl.DataFrame, keys: list[str], deletes: str
) -> pl.DataFrame:
    """Return the changes with the deletions that truncates make.

    Every key in `changes` and in `others` gets one deletion for each truncate, at the truncate's place in the order.
    """
    if places.is_empty():
        return changes
    touched = pl.concat([frame.select(KEY_GROUP, *keys) for frame in (changes, others)]).unique(subset=keys)
    deletions = touched.join(places, how="cross").with_columns(pl.lit(value=True).alias(deletes))
    return pl.concat([changes, deletions], how="diagonal")


def uncovered(
    ordered: pl.DataFrame, places: pl.DataFrame, keys: list[str], sequence: str, deletes: str
) -> pl.DataFrame:
    """Return the changes, without each deletion that a truncate has added where no row is.

    No row is there if the deletion is the first change of its key, or follows another deletion. The operator keeps the
    truncate itself. If an older change of the key arrives later, that truncate deletes it.
    """
    if places.is_empty():
        return ordered
    by_truncate = pl.col(deletes) & pl.col(sequence).is_in(places[sequence].implode())
    is_there = ~pl.col(deletes).fill_null(value=False)
    follows_a_row = is_there.shift(1).over(keys).fill_null(value=False)
    return ordered.filter(~by_truncate | follows_a_row)


HISTORY: Final = "_changes_applied"
"""The state column with the changes of a key."""
SEQUENCE: Final = "_applied_sequence"
"""The column of a change's place in the order."""
DELETES: Final = "_applied_delete"
"""The column that says whether a change deletes its key."""
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
CURRENT: Final = "current"


Distance = int | timedelta
"""How far apart two places in the order are: a number, or a time between two dates or moments."""


class NoSequenceError(Exception):
    """A change has no place in the order: names the vertex's key and the way out."""


class RefusedChangeError(Exception):
    """A change of a database's table cannot be applied by key: says what happened, and the way out."""


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """The keyed function. `columns` are those of the table besides the keys; rows have SEQUENCE and DELETES too.

    Changes of a database's table (`of_database`) have UNSENT too. There the old row of an update has the
    place of the new one, and counts as a deletion only if the new row has another key. They come in order. So a deleted
    key may be forgotten at once, and a value that was not sent is that of the key's change before. Of other changes, a
    deleted key may be forgotten once one comes that is by more than `forget_deletes_after` newer, and with None never.

    A null in one of the columns `ignored` keeps the value that the row had before. With history, a version begins where
    one of the columns `tracked` changes, or with None any column. It shows the newest values of the others.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    sequence_by: str
    history: bool
    of_database: bool = False
    forget_deletes_after: Distance | None = None
    truncates: bool = False
    """Whether some rows empty the table, as their column TRUNCATES says."""
    ignored: tuple[str, ...] = ()
    tracked: tuple[str, ...] | None = None

    @property
    def table_keys(self) -> tuple[str, ...]:
        """Return the columns that tell the rows of the table apart."""
        return (*self.keys, VALID_FROM) if self.history else self.keys

    def emptied(self, rows: pl.DataFrame, others: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
        """Return the changes with the deletions that truncates at these places make, of their keys and of others."""
        return with_deletions(rows, others, places, list(self.keys), DELETES)

    def beyond_truncates(self, state: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
        """Return the changes of keys without those that truncates at these places tell anyway."""
        if places.is_empty() or state.is_empty():
            return state
        left = uncovered(_apart(state), places, list(self.keys), SEQUENCE, DELETES)
        return self._by_key(left).select(state.columns).cast(state.schema)

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the changes of the touched keys as state, and their rows of the table as output."""
        group = pl.lit(0, dtype=pl.Int32).alias(KEY_GROUP)
        partials = self.partials(inputs[0].with_columns(group), state.schema)
        new = self.merged(partials, state.with_columns(group))
        return Processed(state=new.drop(KEY_GROUP), output=self.results(new).drop(KEY_GROUP))

    def partials(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return the changes of each key among these rows. If values are still unknown, UNSENT says which.

        Raises NoSequenceError for a null in the sequence.
        """
        lacking = rows.filter(pl.col(SEQUENCE).is_null())
        if not lacking.is_empty():
            raise NoSequenceError(
                f"the change of {self._key_of(lacking)} has no value in {self.sequence_by}, so nobody knows what comes "
                "after it. Filter such rows out before apply_changes, or name a sequence that every row has"
            )
        ordered = self._ordered(rows)
        return self._by_key(filled(ordered, self.keys, DELETES) if self.of_database else ordered).cast(
            {HISTORY: types[HISTORY]}
        )

    def merged(self, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the changes of each key of the partials, `before` taken into account.

        Raises RefusedChangeError for a value that was not sent, and that no earlier change of its key has.
        """
        held = [KEY_GROUP, *self.keys, HISTORY]
        known = before.select(held)
        new = partials.cast({name: known.schema[name] for name in held}).select(*held, *_told(partials))
        both = self._ordered(pl.concat([_apart(known), _apart(new)], how="diagonal"))
        if UNSENT in new.columns:
            both = filled(both, self.keys, DELETES)
            self._require_all_known(both)
        return self._by_key(both).select(before.columns).cast(before.schema)

    def remembered(self, state: pl.DataFrame) -> pl.DataFrame:
        """Return a range's state without the keys whose deletion may be forgotten.

        The range's newest change says how late it is, so that the same state forgets the same keys. A task asks when it
        writes the whole range anyway (Flink: the compaction filter of `StateTtlConfig`).
        """
        last = pl.col(HISTORY).list.last()
        place, deletes = last.struct.field(SEQUENCE), last.struct.field(DELETES)
        if self.of_database:
            return state.filter(~deletes)
        if self.forget_deletes_after is None or state.is_empty():
            return state
        newest = state.select(place.max()).item()
        try:
            horizon = newest - self.forget_deletes_after
        except OverflowError:  # before the first date or moment that Python knows
            return state
        return state.filter(~(deletes & (place < horizon)))

    def results(self, state: pl.DataFrame) -> pl.DataFrame:
        """Return the table's rows of these keys."""
        changes = self._with_kept_values(_apart(state))
        if not self.history:
            return changes.filter(~pl.col(DELETES)).select(KEY_GROUP, *self.keys, *self.columns)
        same = [*self.keys, *(self.columns if self.tracked is None else self.tracked), DELETES]
        begins = changes.select(begins=~_alike(same, 1)).to_series()
        newest = changes.filter(begins.shift(-1, fill_value=True))  # of each version
        begun = newest.with_columns(changes.filter(begins)[SEQUENCE].alias(VALID_FROM))
        ended = begun.with_columns(pl.when(_alike(self.keys, -1)).then(pl.col(VALID_FROM).shift(-1)).alias(VALID_TO))
        shown = ended.filter(~pl.col(DELETES)).with_columns(pl.col(VALID_TO).is_null().alias(CURRENT))
        return shown.select(KEY_GROUP, *self.keys, *self.columns, VALID_FROM, VALID_TO, CURRENT)

    def _with_kept_values(self, changes: pl.DataFrame) -> pl.DataFrame:
        """Return a change for each place, or each key without history, with the values that it leaves in the table."""
        if not self.ignored:
            return changes
        nulls = [pl.when(pl.col(name).is_null() & ~pl.col(DELETES)).then(pl.lit(name)) for name in self.ignored]
        unsent = changes.with_columns(pl.concat_list(nulls).list.drop_nulls().alias(UNSENT))
        full = filled(unsent, self.keys, DELETES).drop(UNSENT)
        return full.unique(subset=self._counted_once, keep="last", maintain_order=True)

    @property
    def _counted_once(self) -> list[str]:
        return [*self.keys, SEQUENCE] if self.history else list(self.keys)

    def _counting(self, ordered: pl.DataFrame) -> pl.DataFrame:
        """Return the changes that may still count, whatever else comes. They are in order.

        Without history and with nulls that are ignored, these are the key's newest change, its newest deletion, and
        after that the newest change with a value for each such column.
        """
        if not self.ignored:
            return ordered.unique(subset=self._counted_once, keep="last", maintain_order=True)
        if self.history:
            return ordered.unique(subset=[*self.keys, SEQUENCE, DELETES, *self.columns], maintain_order=True)
        place, keys = pl.col(_PLACE), list(self.keys)
        deleted = pl.when(DELETES).then(place).max().over(keys)
        has_value = [pl.when(pl.col(name).is_not_null() & ~pl.col(DELETES)).then(place) for name in self.ignored]
        newest = [place.max().over(keys), deleted, *(each.max().over(keys) for each in has_value)]
        may_count = (place >= deleted).fill_null(value=True) & pl.any_horizontal(place == each for each in newest)
        return ordered.with_row_index(_PLACE).filter(may_count).drop(_PLACE)

    def _require_all_known(self, changes: pl.DataFrame) -> None:
        lacking = changes.filter(pl.col(UNSENT).is_not_null())
        if not lacking.is_empty():
            columns = ", ".join(lacking[UNSENT][0])
            raise RefusedChangeError(
                f"the server did not send a large value that stayed as it was, in column {columns}, and no earlier "
                f"change of {self._key_of(lacking)} has it. Set REPLICA IDENTITY FULL for the table and {ANEW}, or "
                "leave the column out with except_columns"
            )

    def _key_of(self, rows: pl.DataFrame) -> str:
        """Return the key of the first row in words."""
        return ", ".join(f"{name}={value}" for name, value in rows.select(self.keys).row(0, named=True).items())

    def _ordered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the changes in the order in which they count.

        Of two changes of one key with the same place, a deletion counts, else the one with the greater values. So the
        order in which they arrive does not matter. In a database's table, two such changes are the rows of one update,
        and the new one counts.
        """
        order = [SEQUENCE, DELETES, *self.columns]
        last = [self.of_database and name == DELETES for name in order]
        return rows.sort(order, descending=last, nulls_last=False)

    def _by_key(self, ordered: pl.DataFrame) -> pl.DataFrame:
        """Return the changes that count, a row for each key, in order. UNSENT is there if values are unknown."""
        counting = self._counting(ordered)
        change = pl.struct(SEQUENCE, DELETES, *self.columns).alias(HISTORY)
        unsent = [name for name in _told(counting) if counting[name].null_count() < counting.height]
        return counting.group_by(self.keys, maintain_order=True).agg(pl.col(KEY_GROUP).first(), change, *unsent)


def applied_state(rows: StructType, keys: Sequence[str], columns: Sequence[str]) -> StructType:
    """Return the columns of the state of `AppliedChanges` over rows of this schema."""
    change = [rows[SEQUENCE], StructField(DELETES, BooleanType()), *(rows[name] for name in columns)]
    return StructType([*(rows[key] for key in keys), StructField(HISTORY, ArrayType(StructType(change)))])


def applied_output(rows: StructType, keys: Sequence[str], columns: Sequence[str], *, history: bool) -> StructType:
    """Return the columns of the table."""
    fields = [rows[name] for name in (*keys, *columns)]
    if history:
        kind = rows[SEQUENCE].dataType
        fields += [StructField(VALID_FROM, kind), StructField(VALID_TO, kind), StructField(CURRENT, BooleanType())]
    return StructType(fields)


def _apart(state: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each change."""
    return state.explode(HISTORY, *_told(state)).unnest(HISTORY)


def _told(changes: pl.DataFrame) -> list[str]:
    """Return the column that says what was not sent, if it is there."""
    return [name for name in changes.columns if name == UNSENT]


def _alike(names: Sequence[str], rows: int) -> pl.Expr:
    """Return whether a row has the values of the row so many rows before. The changes of a key lie together, in order.

    So no window by key is needed, which would take most of a large epoch's time.
    """
    return pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(rows)) for name in names)
