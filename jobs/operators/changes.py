"""Changes of rows: the kind of each change, and the changes that turn one table into another.

A stream is append-only, or it is a changelog. A row of a changelog has a kind in the column `_change_kind` (Flink:
`RowKind`). Inserts and updates-after add a row. Updates-before and deletes take back a row that an earlier row of the
changelog has added. So the rows added up to a cut, without the rows taken back up to it, are the table at that cut.
"""

from collections.abc import Sequence
from typing import Final

import polars as pl
import pyarrow as pa

from jobs.state.key_joins import join_by_key

KIND: Final = "_change_kind"
"""The column of a changelog that holds the kind of a row."""

INSERT: Final = "+I"
UPDATE_BEFORE: Final = "-U"
UPDATE_AFTER: Final = "+U"
DELETE: Final = "-D"

ADDING: Final = (INSERT, UPDATE_AFTER)
"""The kinds that add their row. The other two take it back."""

_BEFORE: Final = "\0"
"""Prefix of the old columns beside the new ones. No column of a user begins with this character."""


def with_kind(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a changelog whose rows have this schema."""
    return schema.append(pa.field(KIND, pa.string()))


def changes_of(before: pl.DataFrame, after: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the changes that turn the rows `before` into the rows `after`.

    Both have at most one row for each key. A row that stays as it is makes no change. Rows taken back come before rows
    added.
    """
    on, names = list(keys), before.columns
    others = [name for name in names if name not in keys]
    old = before.select(*on, *(pl.col(name).alias(_BEFORE + name) for name in others))
    both = join_by_key(after, old, on, "inner")
    differs = [pl.col(name).ne_missing(pl.col(_BEFORE + name)) for name in others]
    changed = both.filter(pl.any_horizontal(differs)) if others else both.clear()
    was = changed.select(*on, *(pl.col(_BEFORE + name).alias(name) for name in others)).select(names)
    parts = (
        (before.join(after, on=on, how="anti", nulls_equal=True), DELETE),
        (was, UPDATE_BEFORE),
        (after.join(before, on=on, how="anti", nulls_equal=True), INSERT),
        (changed, UPDATE_AFTER),
    )
    return pl.concat([rows.select(*names, pl.lit(kind).alias(KIND)) for rows, kind in parts])


def added(changes: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that the changes add. If all changes add rows, no row is copied."""
    are_added = changes[KIND].is_in(ADDING)
    return (changes if are_added.all() else changes.filter(are_added)).drop(KIND)


def deleted_keys(changes: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the keys of the rows that are deleted. An upsert table drops these keys, and then takes the added rows."""
    return changes.filter(pl.col(KIND) == DELETE).select(keys)


# ------------------------------------------------------------------
# Counts equal rows: a changelog's rows are added and taken back, and state keeps each different row once.
#
# The state of joins and of top rows has this form. A column beside the rows says how many times each row is there.


TIMES: Final = "_times"
"""The column of a kept row with its count: the number of equal rows that it stands for."""


def weighed(rows: pl.DataFrame, keys: Sequence[str], called: Sequence[str], others: Sequence[str]) -> pl.DataFrame:
    """Return the rows with the number of times that each is added, -1 if it is taken back.

    In the result, the columns `keys` have the names `called`.
    """
    weight = pl.when(pl.col(KIND).is_in(ADDING)).then(1).otherwise(-1) if KIND in rows.columns else pl.lit(1)
    named = [pl.col(key).alias(name) for key, name in zip(keys, called, strict=True)]
    return rows.select(*named, *others, weight.cast(pl.Int64).alias(TIMES))


def kept(state: pl.DataFrame, name: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return the counted rows that the state column `name` keeps, with their keys."""
    keys = [key for key in columns if key in state.columns]
    held = state.filter(pl.col(name).list.len() > 0).select(*keys, name).explode(name).unnest(name)
    return held.select(*columns, TIMES)


def as_lists(rows: pl.DataFrame, keys: Sequence[str], name: str, kind: pl.DataType) -> pl.DataFrame:
    """Return the counted rows as state keeps them: for each key, their list in the column `name`."""
    held = pl.struct(pl.exclude(*keys)).alias(name)
    return rows.group_by(list(keys)).agg(held).with_columns(pl.col(name).cast(kind))


def counted(parts: Sequence[pl.DataFrame], columns: Sequence[str]) -> pl.DataFrame:
    """Return each different row of the parts once, with its count."""
    return pl.concat(parts).group_by(list(columns)).agg(pl.col(TIMES).sum())


def as_changes(found: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return the changes that the counted rows stand for. Rows taken back come before rows added."""
    net = counted([found], columns).filter(pl.col(TIMES) != 0).sort(TIMES)
    kind = pl.when(pl.col(TIMES) > 0).then(pl.lit(INSERT)).otherwise(pl.lit(DELETE)).alias(KIND)
    times = pl.int_ranges(0, pl.col(TIMES).abs()).alias(TIMES)
    return net.select(*columns, kind, times).explode(TIMES).drop(TIMES)


def as_inserts(found: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return the changes that counted rows stand for, if none of them is taken back."""
    if (found[TIMES] > 1).any():
        found = found.with_columns(pl.int_ranges(0, pl.col(TIMES)).alias(TIMES)).explode(TIMES)
    return found.select(*columns, pl.lit(INSERT).alias(KIND))
