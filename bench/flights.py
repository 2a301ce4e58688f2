"""Writes the flights of New York 2013 as files of 14,000 rows, and computes the totals of their three tables."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import compute

from bench.workload import SPLIT, WrongTotalsError
from jobs.pipelines.flights_data import prepare

ROWS: Final = 14_000
"""The rows of a file, and so of a batch."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The rows of bronze (all) and of silver (flights that arrived), and gold's rows, counts and sums."""

    bronze: int
    silver: int
    gold_routes: int
    gold_flights: int
    gold_delay: int


def lay_out(root: Path) -> Path:
    """Return the folder of the files. Write the files if they are missing. Raises DataError without the flights."""
    folder = root / "flights"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / SPLIT).mkdir(parents=True)
        by_airport = prepare(folder / "by-airport").flights
        # Each airport's folder has one file for half a month. The files are in the order of the year.
        halves = sorted(by_airport.glob("*/*.parquet"), key=lambda path: (path.name, path.parent.name))
        flights = pa.concat_tables([pq.read_table(path) for path in halves]).combine_chunks()
        for place, first in enumerate(range(0, flights.num_rows, ROWS)):
            pq.write_table(flights.slice(first, ROWS), folder / SPLIT / f"{place:05d}.parquet")
        shutil.rmtree(folder / "by-airport")
        (folder / "complete").touch()
    return folder


def require_tables(folder: Path, found: Tables) -> None:
    """Raise WrongTotalsError unless the tables have the totals of the flights in that folder."""
    flights = pa.concat_tables([pq.read_table(path) for path in sorted((folder / SPLIT).iterdir())])
    arrived = flights.filter(compute.is_valid(flights["arr_delay"]))
    routes = arrived.group_by(["carrier", "dest"]).aggregate([])
    delay = int(compute.sum(arrived["arr_delay"]).as_py())
    expected = Tables(flights.num_rows, arrived.num_rows, routes.num_rows, arrived.num_rows, delay)
    if found != expected:
        raise WrongTotalsError(f"the flights are {expected}, found {found}")
