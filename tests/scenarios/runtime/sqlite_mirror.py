"""A user's sink that shows an upsert table in a SQLite file, and the pipeline of numbers with this sink."""

import sqlite3
from contextlib import closing
from pathlib import Path

from jobs.pipeline import Pipeline, count, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, GOLD, JOB, KEYS, ROWS
from tidemark import UpsertSink

COLUMNS = "key, rows, total"


class SqliteMirror(UpsertSink):
    """Shows an upsert table in a SQLite file. `how` has, for each checkpoint, whether only changes were written."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.how: list[tuple[int, bool]] = []

    def prepare_upsert(self, job, table, schema, keys):
        del table, schema, keys
        with closing(sqlite3.connect(self.file)) as database, database:
            database.execute(f"CREATE TABLE IF NOT EXISTS mirror ({COLUMNS}, PRIMARY KEY (key))")
            database.execute("CREATE TABLE IF NOT EXISTS shown (job PRIMARY KEY, checkpoint)")
            return self._newest(database, job)

    def apply(self, job, table, checkpoint, changes):
        del table
        with closing(sqlite3.connect(self.file)) as database, database:
            database.execute("BEGIN IMMEDIATE")
            newest = self._newest(database, job)
            if newest >= checkpoint:
                return
            found = changes.since(newest)
            self.how.append((checkpoint, found is not None))
            if found is None:
                database.execute("DELETE FROM mirror")
                rows = [row for batch in changes.whole() for row in batch.to_pylist()]
            else:
                database.executemany("DELETE FROM mirror WHERE key = :key", found.deleted.to_pylist())
                rows = found.rows.to_pylist()
            database.executemany("INSERT OR REPLACE INTO mirror VALUES (:key, :rows, :total)", rows)
            database.execute("INSERT OR REPLACE INTO shown VALUES (?, ?)", (job, checkpoint))

    def shown(self) -> tuple[int, list[tuple[object, ...]]]:
        with closing(sqlite3.connect(self.file)) as database:
            rows = database.execute(f"SELECT {COLUMNS} FROM mirror ORDER BY key").fetchall()
            return self._newest(database, JOB), rows

    def _newest(self, database, job):
        found = database.execute("SELECT checkpoint FROM shown WHERE job = ?", (job,)).fetchone()
        return found[0] if found else 0


def mirrored(sink, *, keys=KEYS, retained=9):
    pipeline = Pipeline(JOB, config=CONFIG.model_copy(update={"retained": retained}), parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=keys)).table(BRONZE, id="bronze")
    numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD, sink=sink)
    return plan(pipeline)
