"""What the tests of going back share: a job that retains all its checkpoints, and a program that is killed at it.

`python rollback_job.py WAREHOUSE N BOUNDARY OCCURRENCE` goes back to N and dies at that boundary.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
from deltalake import write_deltalake

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import CheckpointId
from checkpointing.job.setup import TickLimits
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline.job_plan import JobPlan
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.boundaries import KillAt
from jobs.warehouse.cuts_table import CutStore
from tests.scenarios.runtime.prepared import copied
from tests.scenarios.runtime.savepoint_job import at, records
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, LocalEngine, build

KEEPS_ALL = build(config=CheckpointConfig(every_rows=100, slice_rows_max=50, micro_batch_rows_max=100, retained=9))
STATE = f"_tidemark/{JOB}/state/by_key"


def tick(root: Path, checkpoints: int | None = None, *, plan: JobPlan = KEEPS_ALL) -> TickReport:
    """Run a tick without Spark; end it after so many checkpoints."""
    settings = RuntimeSettings(warehouse=root, limits=TickLimits(checkpoints=checkpoints))
    return run_tick(plan, settings, engine=LocalEngine())


def ticks(root: Path, times: int, *, plan: JobPlan = KEEPS_ALL) -> list[int]:
    """Run so many ticks of one checkpoint each; return the ids that are there then, in order."""
    for _ in range(times):
        tick(root, 1, plan=plan)
    return sorted(records(root))


def laid_out(root: Path, checkpoints: int) -> list[int]:
    """Lay a warehouse of so many ticks of one checkpoint each out there; return their ids."""
    copied(root, (JOB, checkpoints), lambda made: ticks(made, checkpoints))
    return sorted(records(root))


def newest(root: Path) -> CheckpointRecord:
    """Return the row that the next tick begins from."""
    found = newest_checkpoint(tuple(records(root).values()))
    assert found is not None
    return found


def at_cut(root: Path, checkpoint: int) -> dict[str, list[tuple[object, ...]]]:
    """Return the tables' rows as any reader finds them by that checkpoint's cut."""
    versions = CutStore(at(root)).read(CheckpointId(checkpoint)) or {}
    tables = (BRONZE, GOLD)
    return {str(each): sorted(pl.read_delta(str(root / each), version=versions[each]).rows()) for each in tables}


def append_foreign(root: Path, n: int) -> None:
    """Append a row of another writer to bronze."""
    row = {"split": ["x"], "n": [n], "key": [1], "value": [1], "_split": ["x"], "_position": [n]}
    write_deltalake(str(root / BRONZE), pl.DataFrame(row).to_arrow(), mode="append")


def killed(root: Path, checkpoint: int, boundary: str, occurrence: int = 1) -> bool:
    """Run this file as a program; return whether it died there, rather than not having come that way."""
    words = [sys.executable, __file__, str(root), str(checkpoint), boundary, str(occurrence)]
    top = Path(__file__).resolve().parents[3]
    env = os.environ | {"PYTHONPATH": str(top)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def main(root: str, checkpoint: str, boundary: str, occurrence: str) -> None:
    """Go back, and die on the way."""
    roll_back(at(Path(root)), int(checkpoint), boundary=KillAt(boundary, int(occurrence)))


if __name__ == "__main__":
    main(*sys.argv[1:])
