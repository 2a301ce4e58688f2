"""What a checkpoint of a tiny job costs after so many others: time, and disk.

`python -m bench.ours.tiny_commits` prints the ms of each checkpoint of many ticks (the job door with real Delta
commits, no Spark), and on the way the bytes and files of the job's own tables and the entries of its tables' logs.
Nobody reads meanwhile, so no grace is given: what no retained checkpoint needs goes with the end of each tick.
"""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.measures import FailedTickError, Laps, print_result
from bench.tick_trace import commits
from bench.tiny_job import TinyEngine, pipeline
from checkpointing.identifiers import TableName
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointRecord
from jobs.planner import JobPlan, plan
from jobs.runtime.tick import RuntimeSettings, run_tick

_OWN: Final = ("checkpoints", "cuts", "state")
_LOOKS: Final = 8
_PER_TICK: Final = 100


class DiskLaps(Laps):
    """Notes too, now and then, what lies in the folders of the job's own tables and in the logs of the others."""

    def __init__(self, folder: Path, logs: Mapping[str, Path], every: int) -> None:
        """Look below the job's folder, and into these logs, after every so many checkpoints."""
        super().__init__()
        self._folder = folder
        self._logs = logs
        self._every = every
        self.disk: list[dict[str, int]] = []

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Note time, and disk if it is its turn."""
        super().completed(record, notes, versions)
        if record.checkpoint % self._every == 0:
            looked = {"checkpoint": int(record.checkpoint)}
            for name, folder in ({own: self._folder / own for own in _OWN} | dict(self._logs)).items():
                sizes = [_size(path) for path in folder.rglob("*") if path.is_file()]
                looked |= {f"{name}_bytes": sum(sizes), f"{name}_files": len(sizes)}
            self.disk.append(looked)


def main() -> None:
    """Measure ticks of a hundred checkpoints each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=2_000)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        planned = plan(pipeline(asked.checkpoints))
        root = Path(scratch)
        logs = {f"{table.name}_log": root / table.name / "_delta_log" for table in planned.graph.tables()}
        laps = DiskLaps(root / "_tidemark" / planned.job, logs, max(1, asked.checkpoints // _LOOKS))
        traces = [_tick(planned, root, laps) for _ in range(0, asked.checkpoints, _PER_TICK)]
        measured = [one for trace in traces for one in commits(trace)]
        print_result(
            {
                "program": "tidemark-tiny-commits",
                "seconds": laps.seconds,
                "cpu_seconds": laps.cpu_seconds,
                "commits_ms": [one.whole_ms for one in measured],
                "append_ms": [one.appended_ms - one.sent_ms for one in measured],
                "publish_ms": [one.published_ms - one.appended_ms for one in measured],
                "cut_ms": [one.recorded_ms - one.published_ms for one in measured],
                "disk": laps.disk,
                "trace_bytes": traces[-1].stat().st_size,
            }
        )


def _tick(planned: JobPlan, root: Path, laps: DiskLaps) -> Path:
    """Run one tick; return its trace."""
    limits = TickLimits(checkpoints=_PER_TICK)
    settings = RuntimeSettings(warehouse=root, limits=limits, reader_grace_ms=0, table_log_keep_ms=0)
    report = run_tick(planned, settings, laps, engine=TinyEngine())
    if report.outcome is TickOutcome.FAILED:
        raise FailedTickError(report.message)
    return report.trace


def _size(path: Path) -> int:
    """Return a file's bytes; 0 if it is gone since it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    main()
