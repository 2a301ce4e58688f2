"""Counts equal rows: a changelog's rows are added and taken back, and state keeps each different row once.

Joins and top rows keep their rows so. A column beside the rows says how many times each one is there.
"""

from collections.abc import Sequence
from typing import Final

import polars as pl

from jobs.operators.changes import ADDING, DELETE, INSERT, KIND

TIMES: Final = "_times"
"""The column of kept rows with the number of equal ones."""


def weighed(rows: pl.DataFrame, keys: Sequence[str], called: Sequence[str], others: Sequence[str]) -> pl.DataFrame:
    """Return the rows with the number of times that each is added, -1 if it is taken back.

    The columns `keys` are `called` so in the result.
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
    """Return the changes of the counted rows. What is taken back comes before what is added."""
    net = counted([found], columns).filter(pl.col(TIMES) != 0).sort(TIMES)
    kind = pl.when(pl.col(TIMES) > 0).then(pl.lit(INSERT)).otherwise(pl.lit(DELETE)).alias(KIND)
    times = pl.int_ranges(0, pl.col(TIMES).abs()).alias(TIMES)
    return net.select(*columns, kind, times).explode(TIMES).drop(TIMES)
