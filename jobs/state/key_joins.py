"""Joins frames by key, with the equality that Spark SQL has for keys: NaN equals NaN, and 0.0 equals -0.0.

Polars groups by this equality, and joins by it too, with one exception: it joins two columns of floats that are in
order by merging them, and there NaN equals nothing.
"""

from collections.abc import Sequence
from typing import Literal

import polars as pl

_BESIDE = "\0beside"
"""A second key, so that Polars does not merge. No column of a user begins so."""


def join_by_key(
    left: pl.DataFrame,
    right: pl.DataFrame,
    keys: Sequence[str],
    how: Literal["inner", "left", "semi", "anti"],
    *,
    nulls_equal: bool = True,
) -> pl.DataFrame:
    """Return the join of two frames by columns that both have. A left join keeps the order of the left rows."""
    on = list(keys)
    order: Literal["left"] | None = "left" if how == "left" else None
    if len(on) > 1 or not left.schema[on[0]].is_float():
        return left.join(right, on=on, how=how, nulls_equal=nulls_equal, maintain_order=order)
    one, other = (frame.with_columns(pl.lit(0, pl.Int8).alias(_BESIDE)) for frame in (left, right))
    return one.join(other, on=[*on, _BESIDE], how=how, nulls_equal=nulls_equal, maintain_order=order).drop(_BESIDE)


def one_form(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows with one form of zero and of NaN in their keys, as Spark SQL groups them.

    So the form of a key does not depend on which of its rows comes first.
    """
    floats = [name for name in keys if rows.schema[name].is_float()]
    if not floats:
        return rows
    return rows.with_columns(
        pl.when(pl.col(name).is_nan())
        .then(float("nan"))
        .otherwise(pl.col(name) + 0.0)
        .cast(rows.schema[name])
        .alias(name)
        for name in floats
    )
