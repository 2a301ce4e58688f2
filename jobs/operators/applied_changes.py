"""Applies the changes of a source by key, in the order of a sequence column (SCD types 1 and 2).

The state of a key holds its changes in that order. With history it holds all changes, and without history only the
newest one. So a change that comes late finds its place. A deleted key keeps the change that deleted it, so that an
older change does not bring the key back.

In a column that is `ignored`, a null leaves the value of the change before. The state holds such a null as it came,
because a late change can bring another value. Without history the state also holds, for each such column, the newest
change that has a value for it.
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
# Fills in values that a database's server did not send. They come from the change before of the same key.
#
# PostgreSQL does not send a large value that an update did not change. A row names the columns of such values in
# UNSENT, which is null if the server sent all values.


UNSENT: Final = "_applied_unsent"
"""The column with the names of a change's columns that were not sent."""

_PLACE: Final = "\0"
"""The column with the places of the changes. No column of a user begins with this character."""


def filled(changes: pl.DataFrame, keys: Sequence[str], deletes: str) -> pl.DataFrame:
    """Return the changes, with unsent values filled in from the newest earlier change of the same key that has them.

    The changes of each key are in order.

    A change after a deletion begins a new row, so it takes no value from before the deletion. UNSENT still names the
    columns whose values stay unknown. `deletes` is the column that says whether a change deletes its key.
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
    """Return the rows that change a key, and apart from them the place of each truncate, each place once."""
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
    """Return the changes without the deletions of truncates that found no row to delete.

    A deletion finds no row if it is the first change of its key, or follows another deletion. The operator keeps the
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
"""The column with a change's place in the order."""
DELETES: Final = "_applied_delete"
"""The column that says whether a change deletes its key."""
VALID_FROM: Final = "valid_from"
VALID_TO: Final = "valid_to"
CURRENT: Final = "current"


Distance = int | timedelta
"""How far apart two places in the order are: a number, or a time between two dates or moments."""


class NoSequenceError(Exception):
    """A change has no place in the order. The message names the change's key and a way out."""


class RefusedChangeError(Exception):
    """A change of a database's table cannot be applied by key. The message says why, and names a way out."""


@dataclass(frozen=True, slots=True)
class AppliedChanges:
    """The keyed function. `columns` are the table's columns besides the keys. Rows also have SEQUENCE and DELETES.

    Changes of a database's table (`of_database`) have UNSENT too. An update of a database has two rows, the old and the
    new one, with the same place in the order. The old row is a deletion only if the new row has another key. Changes of
    a database come in order. So the state forgets a deleted key at once, and a value that was not sent is taken from
    the key's change before. With other changes, the state may forget a deleted key once a change comes that is newer by
    more than `forget_deletes_after`. If that is None, it never does.

    A null in one of the columns `ignored` keeps the value that the row had before. With history, a version begins where
    one of the columns `tracked` changes. If `tracked` is None, a version begins where any column changes. A version
    shows the newest values of the columns that are not tracked.
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
        """Return the key columns of the table."""
        return (*self.keys, VALID_FROM) if self.history else self.keys

    def emptied(self, rows: pl.DataFrame, others: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
        """Return the changes, with a deletion for each truncate and each key in `rows` or in `others`."""
        return with_deletions(rows, others, places, list(self.keys), DELETES)

    def beyond_truncates(self, state: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
        """Return the state without the deletions that follow from the truncates at these places."""
        if places.is_empty() or state.is_empty():
            return state
        left = uncovered(_apart(state), places, list(self.keys), SEQUENCE, DELETES)
        return self._by_key(left).select(state.columns).cast(state.schema)

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the changes of the touched keys as state, and the table's rows of these keys as output."""
        group = pl.lit(0, dtype=pl.Int32).alias(KEY_GROUP)
        partials = self.partials(inputs[0].with_columns(group), state.schema)
        new = self.merged(partials, state.with_columns(group))
        return Processed(state=new.drop(KEY_GROUP), output=self.results(new).drop(KEY_GROUP))

    def partials(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
        """Return the changes of each key among these rows. If values are still unknown, UNSENT names their columns.

        Raises NoSequenceError for a change with a null in the sequence column.
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
        """Return the changes of each key of the partials, together with its changes in `before`.

        Raises RefusedChangeError if a value was not sent and no earlier change of its key has it.
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
        """Return a range's state without the deleted keys that it may forget.

        The place of the range's newest change serves as the present time. So the same state always forgets the same
        keys. A task calls this method when it writes the whole range anyway (Flink: the compaction filter of
        `StateTtlConfig`).
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
        """Return a change for each place (without history: each key), with the values that it leaves in the table."""
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
        """Return in order the changes that may still affect the table after later changes.

        Without history and with nulls that are ignored, these are the key's newest change, its newest deletion, and for
        each ignored column the newest change after that deletion that has a value.
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
        """Return the changes in the order in which they apply. The last one of a key and place wins.

        If two changes of one key have the same place, a deletion wins. If neither is a deletion, the change with the
        greater values wins. So the order in which they arrive does not matter. In a database's table, two such changes
        are the two rows of one update, and the new row wins.
        """
        order = [SEQUENCE, DELETES, *self.columns]
        last = [self.of_database and name == DELETES for name in order]
        return rows.sort(order, descending=last, nulls_last=False)

    def _by_key(self, ordered: pl.DataFrame) -> pl.DataFrame:
        """Return a row for each key, with the list of its changes that apply, in order.

        The rows have the column UNSENT if values are unknown.
        """
        counting = self._counting(ordered)
        change = pl.struct(SEQUENCE, DELETES, *self.columns).alias(HISTORY)
        unsent = [name for name in _told(counting) if counting[name].null_count() < counting.height]
        return counting.group_by(self.keys, maintain_order=True).agg(pl.col(KEY_GROUP).first(), change, *unsent)


def applied_state(rows: StructType, keys: Sequence[str], columns: Sequence[str]) -> StructType:
    """Return the state columns of `AppliedChanges` for rows with this schema."""
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
    """Return the name of the column UNSENT in a list, or an empty list if the changes lack it."""
    return [name for name in changes.columns if name == UNSENT]


def _alike(names: Sequence[str], rows: int) -> pl.Expr:
    """Return whether a row has the same values as the row that lies `rows` rows before it.

    The changes of a key lie together, in order. So a comparison with the neighbouring row is enough. A window by key
    would take most of a large epoch's time.
    """
    return pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(rows)) for name in names)
