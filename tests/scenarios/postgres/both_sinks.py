"""The pipeline of numbers with PostgreSQL sinks for both its tables, run without Spark; also a program that is killed.

`python both_sinks.py WAREHOUSE BOUNDARY OCCURRENCE [--two-phase] [--upserts]` runs a tick that dies at that boundary by
SIGKILL. An environment variable has the database's URL.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from checkpointing.job.setup import TickLimits
from jobs.pipeline import Pipeline, count, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import KillAt, cross_freely
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, GOLD, JOB, KEYS, ROWS, LocalEngine, read_cut
from tidemark import PostgresSink

URL = "TARGET_URL"
TARGETS = {BRONZE: "numbers", GOLD: "sums"}


def two_phases(_data):
    return pipeline_of(two_phase=True)


def both(**how):
    return plan(pipeline_of(**how))


def chosen(words):
    """Return the planned pipeline of a command line. It keeps all checkpoints if only the upsert table has a sink."""
    appends = "--upserts" not in words
    return both(retained=2 if appends else 9, appends=appends, two_phase="--two-phase" in words)


def pipeline_of(*, retained=2, appends=True, upserts=True, two_phase=False, tolerates=0):
    config = CONFIG.model_copy(update={"retained": retained, "tolerable_failures": tolerates})
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS))
    sink = PostgresSink(f"env:{URL}", TARGETS[BRONZE], two_phase=two_phase) if appends else None
    numbers = numbers.table(BRONZE, id="bronze", sink=sink)
    sums = numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value"))
    sums.upsert(GOLD, sink=PostgresSink(f"env:{URL}", TARGETS[GOLD], two_phase=two_phase) if upserts else None)
    return pipeline


def tick(root, boundary=cross_freely, *, planned=None, **limits):
    settings = RuntimeSettings(warehouse=root, take_over=True, limits=TickLimits(**limits))
    return run_tick(planned or both(), settings, engine=LocalEngine(), boundary=boundary)


def killed(root, boundary, occurrence=1, *options):
    words = [sys.executable, __file__, str(root), boundary, str(occurrence), *options]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def shown(root, bank, *tables):
    named = {str(table): TARGETS[table] for table in tables or TARGETS}
    cut = {table: rows for table, rows in read_cut(root).items() if table in named}
    columns = {BRONZE: "split, n, key, value, _split, _position", GOLD: "key, rows, total"}
    there = {table: sorted(bank.sql(f"SELECT {columns[table]} FROM {target}")) for table, target in named.items()}
    return cut, there


if __name__ == "__main__":
    tick(Path(sys.argv[1]), KillAt(sys.argv[2], int(sys.argv[3])), planned=chosen(sys.argv))
