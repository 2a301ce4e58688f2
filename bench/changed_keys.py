"""Reads the table to which our program or a peer appends the keyed sums, and computes the totals of its rows."""

from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from bench.workload import Totals
from jobs.storage.address import StoreUrl


def totals_shown(table: Path | StoreUrl) -> Totals:
    """Return the totals of a table of changed keys (key, n, total).

    The newest row of a key has the key's largest count. It has the largest sum too, because no value is negative.
    """
    rows = pl.from_arrow(DeltaTable(str(table)).to_pyarrow_table(columns=["key", "n", "total"]))
    if not isinstance(rows, pl.DataFrame):
        raise TypeError(f"{table} has no columns")
    newest = rows.group_by("key").agg(pl.col("n").max(), pl.col("total").max())
    return Totals(int(newest["n"].sum()), newest.height, int(newest["total"].sum()))
