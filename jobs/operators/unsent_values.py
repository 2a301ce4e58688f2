"""Fills in values that a database's server did not send, from the change before of the same key.

PostgreSQL does not send a large value that an update left alone. The rows name such columns in UNSENT, which is null if
the server sent all values.
"""

from collections.abc import Sequence
from typing import Final

import polars as pl

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
