"""Measures the keyed sums in Pathway: all rows from CSV as one batch, persistence on disk, one file of results.

This program runs in Pathway's own environment, which `make bench` creates. So it imports nothing of this project. It
prints the seconds from the start of the run to its end, and compares the totals with those of the input.
"""

import argparse
import csv
import json
import sys
import tempfile
import time
from pathlib import Path

import pathway as pw


class Event(pw.Schema):
    """A row of the workload. Its file has no header, so Pathway gets one."""

    k: int
    v: int


def main() -> None:
    """Measure one run over the whole workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        headed = _with_headers(asked.folder / "all", Path(scratch, "events"))
        result = Path(scratch, "sums.csv")
        events = pw.io.csv.read(str(headed), schema=Event, mode="static", name="events")
        sums = events.groupby(pw.this.k).reduce(pw.this.k, n=pw.reducers.count(), total=pw.reducers.sum(pw.this.v))
        pw.io.csv.write(sums, str(result))
        backend = pw.persistence.Backend.filesystem(str(Path(scratch, "persisted")))
        started = time.monotonic()
        pw.run(persistence_config=pw.persistence.Config(backend), monitoring_level=pw.MonitoringLevel.NONE)
        total_s = time.monotonic() - started
        found = _totals(result)
    expected = json.loads((asked.folder / "totals.json").read_text())
    if found != expected:
        sys.exit(f"laid out {expected}, found {found}")
    sys.stdout.write(json.dumps({"program": "pathway", "total_s": total_s}) + "\n")


def _with_headers(folder: Path, headed: Path) -> Path:
    """Copy the files, each with a first line that names its columns."""
    headed.mkdir()
    for path in sorted(folder.iterdir()):
        (headed / path.name).write_bytes(b"k,v\n" + path.read_bytes())
    return headed


def _totals(result: Path) -> dict[str, int]:
    """Return how many keys and rows the result has, and the sum of all values."""
    keys = rows = total = 0
    with result.open(newline="") as file:
        for line in csv.DictReader(file):
            sign = int(line["diff"])
            keys, rows, total = keys + sign, rows + sign * int(line["n"]), total + sign * int(line["total"])
    return {"keys": keys, "rows": rows, "total": total}


if __name__ == "__main__":
    main()
