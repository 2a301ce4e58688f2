"""The table of keyed sums with one row a key, ours or a peer's: what it says the rows were."""

from pathlib import Path

import polars as pl

from bench.workload import Totals, WrongTotalsError


def sums_shown(table: Path, appended: int) -> Totals:
    """Return what a table of (key, n, total) adds up to.

    Raises WrongTotalsError unless it counts as many rows as the table of all rows has, which are `appended`.
    """
    rows = pl.read_delta(str(table))
    counted = int(rows["n"].sum())
    if counted != appended:
        raise WrongTotalsError(f"{table} counts {counted} rows, and the other table has {appended}")
    return Totals(counted, rows["key"].n_unique(), int(rows["total"].sum()))
