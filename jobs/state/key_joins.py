"""Joins frames by key, with the equality that Spark SQL has for keys: NaN equals NaN, and 0.0 equals -0.0.

Polars groups by this equality, and also joins by it, with one exception: two sorted columns of floats are joined by
merging, and in that join NaN equals nothing.
"""

from collections.abc import Sequence
from typing import Literal

import polars as pl

_BESIDE = "\0beside"
"""A second key, so that Polars does not join by merging. No column of a user begins with this character."""


def join_by_key(
    left: pl.DataFrame,
    right: pl.DataFrame,
    keys: Sequence[str],
    how: Literal["inner", "left", "semi", "anti"],
    *,
    nulls_equal: bool = True,
) -> pl.DataFrame:
    """Return the join of two frames by columns that both have. A left join keeps the order of the left rows.

    A right frame of several chunks is first made one chunk. Otherwise, for rows without a match, Polars 2.1 would
    return structs that are null, but that `coalesce` does not treat as null.
    """
    on, right = list(keys), right.rechunk()
    order: Literal["left"] | None = "left" if how == "left" else None
    if len(on) > 1 or not left.schema[on[0]].is_float():
        return left.join(right, on=on, how=how, nulls_equal=nulls_equal, maintain_order=order)
    one, other = (frame.with_columns(pl.lit(0, pl.Int8).alias(_BESIDE)) for frame in (left, right))
    return one.join(other, on=[*on, _BESIDE], how=how, nulls_equal=nulls_equal, maintain_order=order).drop(_BESIDE)


def one_form(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows with only one form of zero and of NaN in their keys, as Spark SQL groups them.

    So the form of a key does not depend on which of its rows comes first. Floats inside structs and lists are converted
    too.
    """
    shaped = [name for name in keys if _has_floats(rows.schema[name])]
    return rows.with_columns(_in_one_form(pl.col(name), rows.schema[name]).alias(name) for name in shaped)


def _has_floats(kind: pl.DataType) -> bool:
    match kind:
        case pl.Struct(fields=fields):
            return any(_has_floats(_plain(each.dtype)) for each in fields)
        case pl.List(inner=inner) | pl.Array(inner=inner):
            return _has_floats(_plain(inner))
        case _:
            return kind.is_float()


def _in_one_form(value: pl.Expr, kind: pl.DataType) -> pl.Expr:
    match kind:
        case _ if not _has_floats(kind):
            return value
        case pl.Struct(fields=fields):
            inner = [_in_one_form(value.struct.field(f.name), _plain(f.dtype)).alias(f.name) for f in fields]
            return pl.when(value.is_not_null()).then(pl.struct(inner))
        case pl.List(inner=element):
            return value.list.eval(_in_one_form(pl.element(), _plain(element)))
        case pl.Array(inner=element):
            return value.arr.eval(_in_one_form(pl.element(), _plain(element)))
        case _:
            return pl.when(value == 0).then(0.0).when(value.is_nan()).then(float("nan")).otherwise(value).cast(kind)


def _plain(kind: object) -> pl.DataType:
    """Return a type as an instance. Polars also allows the class in place of a type without parameters."""
    found = kind() if isinstance(kind, type) else kind
    return found if isinstance(found, pl.DataType) else pl.Unknown()
