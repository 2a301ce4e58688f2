"""Reads the table of keyed sums with one row per key, from our program or a peer's, and computes its totals."""

from pathlib import Path

import polars as pl

from bench.workload import Totals, WrongTotalsError


def sums_shown(table: Path, appended: int) -> Totals:
    """Return the totals of a table of (key, n, total).

    Raises WrongTotalsError unless the counts add up to `appended`, the number of rows in the table of all rows.
    """
    rows = pl.read_delta(str(table))
    counted = int(rows["n"].sum())
    if counted != appended:
        raise WrongTotalsError(f"{table} counts {counted} rows, and the other table has {appended}")
    return Totals(counted, rows["key"].n_unique(), int(rows["total"].sum()))
