"""Applies truncates, which are changes that empty a table. A truncate deletes every key that has an older change.

The first change of a key may arrive after a truncate although it is older. That change must be deleted too. So the
operator keeps the place of each truncate in the order of changes as broadcast state. Changes of a database arrive in
order, so their truncates are not kept.
"""

from typing import Final

import polars as pl

from jobs.state.merge import KEY_GROUP

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
