"""Writes rows with times for the measurements of windows (P25, P26), and computes the answer of each.

Times go on evenly over `HOURS` hours, and rows come up to `DISORDER_S` seconds out of order. Keys are uniform. The same
numbers always give the same rows.
"""

import json
import shutil
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from deltalake import DeltaTable

from bench.workload import SPLIT, WrongTotalsError

HOURS: Final = 24
DISORDER_S: Final = 5
DELAY: Final = "10 seconds"
GAP: Final = "10 minutes"
KEYS: Final = 100_000
_ROWS: Final = 500_000
_SEED: Final = 1
_BEGIN_MS: Final = 1_767_225_600_000


def lay_out_times(files: int, root: Path, *, csv: bool = False) -> Path:
    """Return the folder with so many files of 500,000 rows (key, value, at). Write them if they are missing."""
    folder = root / f"times-{files}{'-csv' if csv else ''}"
    if not (folder / "complete.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / SPLIT).mkdir(parents=True)
        for place in range(files):
            rows = _rows(place, files)
            if csv:
                text = rows.with_columns(pl.col("at").dt.strftime("%Y-%m-%d %H:%M:%S%.3f"))
                text.write_csv(folder / SPLIT / f"{place:05d}.csv", include_header=False)
            else:
                rows.write_parquet(folder / SPLIT / f"{place:05d}.parquet")
        (folder / "complete.json").write_text(json.dumps({"files": files}))
    return folder


def _rows(place: int, files: int) -> pl.DataFrame:
    chance = np.random.default_rng((_SEED, place))
    numbers = np.arange(place * _ROWS, (place + 1) * _ROWS)
    times = _BEGIN_MS + numbers * (HOURS * 3_600_000) // (files * _ROWS)
    times -= chance.integers(0, DISORDER_S * 1_000, _ROWS)
    rows = pl.DataFrame(
        {"key": chance.integers(0, KEYS, _ROWS), "value": chance.integers(0, 1_000, _ROWS), "at": times}
    )
    return rows.with_columns(pl.from_epoch("at", "ms").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"))


def require_windows(folder: Path, kind: str, table: Path) -> None:
    """Raise WrongTotalsError unless a table (window_end, n, total) has the windows that had closed by its last one."""
    found = pl.from_arrow(DeltaTable(str(table)).to_pyarrow_table(columns=["window_end", "n", "total"]))
    if not isinstance(found, pl.DataFrame) or found.is_empty():
        raise WrongTotalsError(f"{table} has no windows")
    rows = pl.scan_parquet(folder / SPLIT / "*.parquet")
    windows = _hourly(rows) if kind == "hourly" else _sessions(rows)
    last = found["window_end"].max()
    sums = (pl.len().alias("windows"), pl.col("n").sum(), pl.col("total").sum())
    wanted = windows.filter(pl.col("window_end") <= last).select(sums).collect().row(0)
    if wanted != found.select(sums).row(0):
        raise WrongTotalsError(f"the windows up to {last} are {wanted} (number, rows, sum), found {found.select(sums)}")


def _hourly(rows: pl.LazyFrame) -> pl.LazyFrame:
    ends = pl.col("at").dt.truncate("1h").dt.offset_by("1h").alias("window_end")
    return rows.group_by("key", ends).agg(pl.len().alias("n"), pl.col("value").sum().alias("total"))


def _sessions(rows: pl.LazyFrame) -> pl.LazyFrame:
    gap = pl.duration(minutes=10)
    begins = pl.col("at").diff().over("key").fill_null(gap * 2) > gap
    in_turn = rows.sort("key", "at").with_columns(begins.cum_sum().alias("session"))
    ends = (pl.col("at").max() + gap).alias("window_end")
    return in_turn.group_by("key", "session").agg(ends, pl.len().alias("n"), pl.col("value").sum().alias("total"))
