"""Reads the tables while ticks run and die. Further functions read the newest cut, and single tables.

The reader reads by cut, as the documents tell users to do. It reads again whenever a log has a new version, and keeps
each problem that it finds.
"""

import json
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import polars as pl

from checkpointing.identifiers import TableName
from jobs.warehouse.boundaries import boundary_names
from tests.scenarios.faults.orders_job import (
    GOLD,
    JOB,
    ORDERS,
    QUARANTINE,
    RATES,
    SILVER,
    TABLES,
    Rows,
    build,
    expected_cut,
)

LOOK_EVERY_S = 0.1
CUTS = f"_tidemark/{JOB}/cuts"
STAGED = tuple(str(table.name) for table in build().graph.tables())
NAMES = boundary_names(build().graph)

_COLUMNS = {
    ORDERS: ("split", "n", "key", "value"),
    RATES: ("split", "n", "key", "value"),
    QUARANTINE: ("split", "n"),
    SILVER: ("split", "n", "key", "value", "rate"),
    GOLD: ("key", "rows", "total"),
}


class Reader:
    """Reads one warehouse in a thread of its own. `problems` has everything found that a reader must never see."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._lock = threading.Lock()
        self._looked_at: tuple[int, ...] = ()
        self.seen: list[int] = []
        self.problems: list[str] = []

    def look(self) -> None:
        """Read the newest cut, if a log has a new version since the last look."""
        with self._lock:
            heads = tuple(_head(self._root / folder) for folder in (CUTS, *TABLES))
            if heads != self._looked_at:
                self._looked_at = heads
                self._read()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self.look()

    def _read(self) -> None:
        try:
            checkpoint, versions = newest_cut(self._root)
            if not checkpoint:
                return
            if self.seen and checkpoint < self.seen[-1]:
                self.problems.append(f"cut {checkpoint} after cut {self.seen[-1]}")
            self.seen.append(checkpoint)
            tables = {table: read(self._root, table, versions[table]) for table in TABLES}
        except Exception as error:  # noqa: BLE001 - only a cut that was replaced meanwhile may be unreadable
            if newest_cut(self._root)[0] == checkpoint:
                self.problems.append(f"cut {checkpoint} cannot be read: {error}")
            self._looked_at = ()
            return
        self.problems += [f"cut {checkpoint}: {problem}" for problem in wrong_with(tables)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()


def wrong_with(tables: dict[TableName, pl.DataFrame]) -> list[str]:
    wrong = []
    for table in (ORDERS, RATES, QUARANTINE, SILVER):
        twice = [row for row, count in Counter(tables[table].select("split", "n").rows()).items() if count > 1]
        wrong += [f"{table} holds {twice[:3]} more than once"] if twice else []
    expected = expected_cut(tables[ORDERS], tables[RATES])
    for table, rows in expected.items():
        if rows != sorted(tables[table].rows()):
            wrong.append(
                f"{table} is of another cut than bronze: {len(rows)} rows expected, {tables[table].height} there"
            )
    return wrong


def newest_cut(root: Path) -> tuple[int, dict[TableName, int]]:
    if _head(root / CUTS) < 1:
        return 0, {}
    rows = pl.read_delta(str(root / CUTS)).select("checkpoint", "table", "version").rows()
    newest = max((checkpoint for checkpoint, _, _ in rows), default=0)
    return newest, {TableName(table): version for checkpoint, table, version in rows if checkpoint == newest}


def read(root: Path, table: TableName, version: int | None = None) -> pl.DataFrame:
    return pl.read_delta(str(root / table), version=version).select(_COLUMNS[table])


def final_tables(root: Path) -> dict[str, Rows]:
    _, versions = newest_cut(root)
    newest = {str(table): sorted(read(root, table).rows()) for table in TABLES}
    assert newest == {str(table): sorted(read(root, table, versions[table]).rows()) for table in TABLES}
    return newest


def leftovers(root: Path) -> list[str]:
    """Return the staged files that no entry of their table's log adds. Nobody will ever read or delete these files."""
    return sorted(name for table in STAGED for name in _staged(root, table) - _named(root, table))


def _staged(root: Path, table: str) -> set[str]:
    return {str(file.relative_to(root)) for file in (root / table / "_data").rglob("*.parquet")}


def _named(root: Path, table: str) -> set[str]:
    lines = [line for entry in (root / table / "_delta_log").glob("*[0-9].json") for line in entry.open()]
    added = [action["add"]["path"] for action in map(json.loads, lines) if "add" in action]
    return {f"{table}/{unquote(path)}" for path in added}


def ids_used_twice(root: Path) -> list[int]:
    files = list((root / f"_tidemark/{JOB}/checkpoints/_rows").glob("*.parquet"))
    rows = pl.concat([pl.read_parquet(file) for file in files]).filter(pl.col("kind") == "checkpoint")
    used = Counter(checkpoint for checkpoint, _ in rows.select("checkpoint", "version").unique().rows())
    return sorted(checkpoint for checkpoint, count in used.items() if count > 1)


def _head(folder: Path) -> int:
    log = folder / "_delta_log"
    return max((int(path.stem) for path in log.glob("*[0-9].json")), default=-1) if log.is_dir() else -1
