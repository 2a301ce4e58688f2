"""Changes that empty a table: each of them deletes every key that has an older change.

Such a change belongs to no key, so every subtask gets it. A key may come late, with changes from before a truncate. So
the places of truncates are kept as broadcast state, unless changes come in order.
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
    """Return the changes, and a deletion of each of their keys and of the other keys at each of these places."""
    if places.is_empty():
        return changes
    touched = pl.concat([frame.select(KEY_GROUP, *keys) for frame in (changes, others)]).unique(subset=keys)
    deletions = touched.join(places, how="cross").with_columns(pl.lit(value=True).alias(deletes))
    return pl.concat([changes, deletions], how="diagonal")


def uncovered(
    ordered: pl.DataFrame, places: pl.DataFrame, keys: list[str], sequence: str, deletes: str
) -> pl.DataFrame:
    """Return the changes of keys, in order, without deletions by a truncate that no older change of the key precedes.

    The truncate itself says that they are deleted.
    """
    if places.is_empty():
        return ordered
    by_truncate = pl.col(deletes) & pl.col(sequence).is_in(places[sequence].implode())
    return ordered.filter((~by_truncate).cast(pl.Int8).cum_max().over(keys) == 1)
