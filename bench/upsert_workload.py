"""Writes the input of the upserts: files with every key once, then files of rows that change some keys.

The keys that change are random, or they are always from the same fiftieth of the keys, which then changed last.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.upserted_sums import sums_shown
from bench.workload import SPLIT, Totals, Workload, WrongTotalsError, lay_out, totals_of

RANDOM: Final = "random"
RECENT: Final = "recent"
EPOCHS: Final = 12
SEED_ROWS: Final = 1_000_000
_OF_A_HUNDRED: Final = 2


def epoch_rows(keys: int) -> int:
    """Return the rows of an epoch: one row for every hundred keys."""
    return keys // 100


def lay_out_upserts(keys: int, which: str, data: Path) -> tuple[Path, Path]:
    """Return the folder with every key, and the folder with the changes."""
    every = Workload(rows=min(keys, SEED_ROWS), files=-(-keys // SEED_ROWS), keys=keys, in_order=True)
    touched = keys * _OF_A_HUNDRED // 100 if which == RECENT else None
    some = Workload(rows=epoch_rows(keys), files=EPOCHS, keys=keys, touched=touched)
    return lay_out(every, data), lay_out(some, data)


def files_of(folder: Path) -> Sequence[Path]:
    """Return the files of a workload, in the order of their names."""
    return sorted((folder / SPLIT).iterdir())


def require_sums(table: Path, every: Path, some: Path) -> None:
    """Raise WrongTotalsError unless a table has every key once, with its changes."""
    first, then = totals_of(every), totals_of(some)
    expected = Totals(first.rows + then.rows, first.keys, then.total)
    found = sums_shown(table, expected.rows)
    if found != expected:
        raise WrongTotalsError(f"laid out {expected}, found {found}")


def arguments(about: str | None) -> argparse.Namespace:
    """Return the arguments of both programs: number of keys, which of them change, folders, cores and memory."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--which", choices=[RANDOM, RECENT], required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", default="2g")
    parser.add_argument("--scratch", type=Path)
    return parser.parse_args()
