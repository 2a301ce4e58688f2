"""Writes rows with times for the measurements in event time (P25 to P28), and computes the answer of each.

Times are spread evenly over `HOURS` hours, and rows come up to `DISORDER_S` seconds out of order. Keys are uniform. One
row in twenty has the id of a row up to 100,000 rows before. The same numbers always give the same rows.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from deltalake import DeltaTable

from bench.workload import SPLIT, WrongTotalsError

HOURS: Final = 24
DISORDER_S: Final = 5
DELAY: Final = "10 seconds"
GAP: Final = "10 minutes"
WITHIN: Final = "1 hour"
"""Doubles of a row come within this time, which is also the delay of the work that drops doubles."""
REACH: Final = "5 minutes"
"""The greatest difference in time between two rows that are joined."""
KEYS: Final = 100_000
_WARM_UP_FILES: Final = 2
_ROWS: Final = 500_000
_DOUBLES: Final = 0.05
_BEFORE: Final = 100_000
_SEED: Final = 1
_BEGIN_MS: Final = 1_767_225_600_000


class _Side(NamedTuple):
    """One stream: its folder, and the seed of its rows."""

    name: str
    seed: int


def lay_out_times(files: int, root: Path, *, csv: bool = False) -> Path:
    """Return the folder with this many files of 500,000 rows (key, value, at, id).

    Write the files if they are missing.
    """
    return _laid_out(root / f"timed-{files}{'-csv' if csv else ''}", [_Side("", _SEED)], files, csv=csv)


def lay_out_sides(files: int, root: Path, *, csv: bool = False) -> Path:
    """Return the folder with two streams, `left` and `right`, of this many files each. Write files that are missing."""
    sides = [_Side("left", _SEED), _Side("right", _SEED + 1)]
    return _laid_out(root / f"sides-{files}{'-csv' if csv else ''}", sides, files, csv=csv)


def first_files(folder: Path) -> Path:
    """Return a folder beside this one, with links to the first files of each stream. Make it if it is missing.

    Programs run over these files first, so that their start is not measured.
    """
    to = folder.with_name(f"{folder.name}-first")
    for split in sorted(each for each in folder.rglob(SPLIT) if each.is_dir()):
        (linked := to / split.relative_to(folder)).mkdir(parents=True, exist_ok=True)
        for file in sorted(split.iterdir())[:_WARM_UP_FILES]:
            if not (linked / file.name).exists():
                (linked / file.name).symlink_to(file.absolute())
    return to


def _laid_out(folder: Path, sides: Sequence[_Side], files: int, *, csv: bool) -> Path:
    if (folder / "complete.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for side in sides:
        split = folder / side.name / SPLIT
        split.mkdir(parents=True)
        for place in range(files):
            rows = _rows(place, files, side.seed)
            if csv:
                text = rows.with_columns(pl.col("at").dt.strftime("%Y-%m-%d %H:%M:%S%.3f"))
                text.write_csv(split / f"{place:05d}.csv", include_header=False)
            else:
                rows.write_parquet(split / f"{place:05d}.parquet")
    (folder / "complete.json").write_text(json.dumps({"files": files}))
    return folder


def _rows(place: int, files: int, seed: int = _SEED) -> pl.DataFrame:
    chance = np.random.default_rng((seed, place))
    numbers = np.arange(place * _ROWS, (place + 1) * _ROWS)
    times = _BEGIN_MS + numbers * (HOURS * 3_600_000) // (files * _ROWS)
    times -= chance.integers(0, DISORDER_S * 1_000, _ROWS)
    rows = pl.DataFrame(
        {"key": chance.integers(0, KEYS, _ROWS), "value": chance.integers(0, 1_000, _ROWS), "at": times}
    )
    before = np.maximum(numbers - chance.integers(1, _BEFORE, _ROWS), 0)
    ids = pl.Series("id", np.where(chance.random(_ROWS) < _DOUBLES, before, numbers))
    at = pl.from_epoch("at", "ms").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    return rows.with_columns(at, ids)


def _require_windows(kind: str, folder: Path, table: Path) -> None:
    """Raise WrongTotalsError unless a table (window_end, n, total) has all windows up to its last one."""
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


def _require_firsts(folder: Path, table: Path) -> None:
    """Raise WrongTotalsError unless a table (id) has every id of the rows once."""
    ids = pl.from_arrow(DeltaTable(str(table)).to_pyarrow_table(columns=["id"]))
    if not isinstance(ids, pl.DataFrame):
        raise TypeError(f"{table} has no columns")
    wanted = pl.scan_parquet(folder / SPLIT / "*.parquet").select(pl.col("id").n_unique()).collect().item()
    if (ids.height, ids["id"].n_unique()) != (wanted, wanted):
        raise WrongTotalsError(f"the rows have {wanted} ids, found {ids['id'].n_unique()} in {ids.height} rows")


def _require_pairs(folder: Path, table: Path) -> None:
    """Raise WrongTotalsError unless a table (value, r_value) has all pairs of the two streams."""
    found = pl.from_arrow(DeltaTable(str(table)).to_pyarrow_table(columns=["value", "r_value"]))
    if not isinstance(found, pl.DataFrame):
        raise TypeError(f"{table} has no columns")
    left, right = (pl.read_parquet(folder / side / SPLIT / "*.parquet") for side in ("left", "right"))
    (reach,) = pl.select(pl.duration(minutes=5).dt.total_microseconds()).row(0)
    times = right["at"].dt.epoch("us").to_numpy()
    span = int(times.max() - times.min()) + 4 * reach + 60_000_000
    ranked = right["key"].to_numpy() * span + times - times.min()
    order = np.argsort(ranked)
    ranked, totals = ranked[order], np.concatenate([[0], np.cumsum(right["value"].to_numpy()[order])])
    own = left["key"].to_numpy() * span + left["at"].dt.epoch("us").to_numpy() - times.min()
    first, end = np.searchsorted(ranked, own - reach, "left"), np.searchsorted(ranked, own + reach, "right")
    counts = end - first
    wanted = (
        int(counts.sum()),
        int((counts * left["value"].to_numpy()).sum()),
        int((totals[end] - totals[first]).sum()),
    )
    have = (found.height, int(found["value"].sum()), int(found["r_value"].sum()))
    if wanted != have:
        raise WrongTotalsError(f"the pairs are {wanted} (number, left sum, right sum), found {have}")


REQUIRED: Final[Mapping[str, Callable[[Path, Path], None]]] = {
    "hourly": partial(_require_windows, "hourly"),
    "sessions": partial(_require_windows, "sessions"),
    "doubles": _require_firsts,
    "joined": _require_pairs,
}
"""The check for each kind of work. It raises WrongTotalsError unless a table has the batch answer of a folder."""
