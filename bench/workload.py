"""Writes the keyed workload: files of rows (key, value, payload). The same numbers always give the same rows.

Keys are uniform in [0, keys), and values in [0, 1000). The payload is a short text that no aggregate reads. A folder of
the workload has a folder `all`, which is the only split of our source. A peer reads the same folder.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from pyarrow import compute

SPLIT: Final = "all"
_SEED: Final = 1
_VALUES: Final = 1_000
_PAYLOADS: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Describes the files: how many, with how many rows, over how many keys.

    With `in_order`, the files have every key once, with value 0, instead of random rows. Otherwise only the first
    `touched` keys occur, or all keys if `touched` is None.
    """

    rows: int
    files: int
    keys: int
    in_order: bool = False
    touched: int | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        how = "-in-order" if self.in_order else f"-{self.touched}-touched" if self.touched is not None else ""
        return f"{self.rows}x{self.files}-{self.keys}-keys{how}"


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a program that has read every row once."""

    rows: int
    keys: int
    total: int


class WrongTotalsError(RuntimeError):
    """The totals of a program's tables differ from its input, so none of its figures counts."""


def lay_out(workload: Workload, root: Path, *, csv: bool = False) -> Path:
    """Return the folder of the workload. Write its files if they are missing."""
    folder = root / f"{workload.name}{'-csv' if csv else ''}"
    if not (folder / "totals.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / SPLIT).mkdir(parents=True)
        totals = _write(workload, folder / SPLIT, csv=csv)
        (folder / "totals.json").write_text(json.dumps(asdict(totals)))
    return folder


def totals_of(folder: Path) -> Totals:
    """Return the totals of the rows in a workload's folder."""
    return Totals(**json.loads((folder / "totals.json").read_text()))


def require_totals(folder: Path, found: Totals) -> None:
    """Raise WrongTotalsError unless a program found exactly the totals of its input."""
    expected = totals_of(folder)
    if found != expected:
        raise WrongTotalsError(f"laid out {expected}, found {found}")


def _write(workload: Workload, folder: Path, *, csv: bool) -> Totals:
    seen = np.zeros(workload.keys, dtype=bool)
    rows = total = 0
    for place, table in enumerate(_tables(workload)):
        seen[table["key"].to_numpy()] = True
        rows += table.num_rows
        total += int(table["value"].to_numpy().sum())
        if csv:
            plain = table.select(["key", "value"])
            pc.write_csv(plain, folder / f"{place:05d}.csv", pc.WriteOptions(include_header=False))
        else:
            pq.write_table(table, folder / f"{place:05d}.parquet")
    return Totals(rows, int(seen.sum()), total)


def _tables(workload: Workload) -> Iterator[pa.Table]:
    chance = np.random.default_rng(_SEED)
    for place in range(workload.files):
        numbers = chance.integers(0, _PAYLOADS, workload.rows)
        if workload.in_order:
            keys = np.arange(place * workload.rows, (place + 1) * workload.rows)
            values = np.zeros_like(keys)
        else:
            keys = chance.integers(0, workload.touched or workload.keys, workload.rows)
            values = chance.integers(0, _VALUES, workload.rows)
        texts = compute.binary_join_element_wise("u", pa.array(numbers).cast(pa.string()), "")
        yield pa.table({"key": keys, "value": values, "payload": texts})
