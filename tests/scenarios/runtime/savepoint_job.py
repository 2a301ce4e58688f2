"""What the tests of savepoints share: warehouses of the sequence pipeline, and programs that are killed at their work.

`python savepoint_job.py copy WAREHOUSE ID DIR AFTER` copies a savepoint and dies after so many files;
`python savepoint_job.py import FROM WAREHOUSE BOUNDARY [--claim]` restores one and dies at that boundary.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from checkpointing.identifiers import CheckpointId
from checkpointing.job.setup import TickLimits
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.storage.address import parsed
from jobs.tick.at_rest.import_entry import ForeignRow, Import, find_origin, import_row
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.boundaries import KillAt
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.savepoint_copy import Copied, copy_savepoint
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime.sequence_job import JOB, LocalEngine, build


def run(root: Path, checkpoints: int | None = None, **how: object) -> TickReport:
    """Run a tick without Spark; end it after so many checkpoints."""
    limits = TickLimits(checkpoints=checkpoints)
    planned = how.pop("plan", None) or build()
    return run_tick(planned, RuntimeSettings(warehouse=root, limits=limits, **how), engine=LocalEngine())


def at(root: Path) -> Warehouse:
    """Return the job's warehouse in that folder."""
    return Warehouse(root, ProtocolPaths(JOB))


def records(root: Path) -> dict[int, CheckpointRecord]:
    """Return the job's checkpoints and savepoints by id."""
    _, rows = CheckpointStore(at(root)).observe()
    return {row.checkpoint: row for row in rows if isinstance(row, CheckpointRecord)}


def wanted(text: str, root: Path, **how: object) -> Import:
    """Return the import that `--from TEXT` means, into that warehouse."""
    origin = find_origin(text, root, JOB)
    assert isinstance(origin, ForeignRow)
    return Import(origin=origin, root=root, plan=how.pop("plan", None) or build(), **how)


def killed(*arguments: object) -> None:
    """Run this file as a program, and see it die."""
    words = [sys.executable, __file__, *map(str, arguments)]
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert -signal.SIGKILL == done.returncode, done.stderr


def main(verb: str, *rest: str) -> None:
    """Do what the tests' programs do."""
    if verb == "copy":
        root, checkpoint, to, after = rest

        def die(copied: Copied) -> None:
            if copied.files == int(after):
                os.kill(os.getpid(), signal.SIGKILL)

        copy_savepoint(at(parsed(root)), CheckpointId(int(checkpoint)), parsed(to), die)
    else:
        text, into, boundary, *flags = rest
        import_row(wanted(text, Path(into), claim="--claim" in flags), boundary=KillAt(boundary))


if __name__ == "__main__":
    main(*sys.argv[1:])
