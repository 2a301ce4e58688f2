"""The table that the keyed sums are appended to, ours or a peer's: what it says the rows were."""

from pathlib import Path

import polars as pl
from deltalake import DeltaTable

from bench.workload import Totals


def totals_shown(table: Path) -> Totals:
    """Return what a table of changed keys (key, n, total) adds up to.

    A key's newest row has its largest count, and its largest sum too, for no value is negative.
    """
    rows = pl.from_arrow(DeltaTable(str(table)).to_pyarrow_table(columns=["key", "n", "total"]))
    if not isinstance(rows, pl.DataFrame):
        raise TypeError(f"{table} has no columns")
    newest = rows.group_by("key").agg(pl.col("n").max(), pl.col("total").max())
    return Totals(int(newest["n"].sum()), newest.height, int(newest["total"].sum()))
