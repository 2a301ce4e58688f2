"""Measures what a checkpoint of a tiny job costs after many others: time and disk.

`python -m bench.ours.tiny_commits` runs many ticks with the job door and real Delta commits, without Spark. It prints
the ms of each checkpoint. From time to time it also prints the bytes and files of the job's own tables, and the entries
in its tables' logs. There are no readers, and so no grace period: at its end, each tick deletes the files that no
retained checkpoint needs.

The speed of a machine changes by tens of per cent within minutes. So the last checkpoints are compared with the first
checkpoints of another job, and the ticks of the two jobs alternate.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.measures import FailedTickError, Laps, print_result
from bench.tick_trace import CommitTimes, commits
from bench.tiny_job import TinyEngine, pipeline
from checkpointing.identifiers import TableName
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointRecord
from jobs.pipeline.job_plan import JobPlan
from jobs.pipeline.planning import plan
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

_OWN: Final = ("checkpoints", "cuts", "state")
_LOOKS: Final = 8
_PER_TICK: Final = 100
_COMPARED: Final = 2
"""The number of ticks."""


class DiskLaps(Laps):
    """Also records, from time to time, the size of the job's own tables and of the other tables' logs."""

    def __init__(self, folder: Path, logs: Mapping[str, Path], every: int) -> None:
        """Look at the job's folder and these logs after every `every` checkpoints."""
        super().__init__()
        self._folder = folder
        self._logs = logs
        self._every = every
        self.disk: list[dict[str, int]] = []

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Record the time, and the disk space if a look is due."""
        super().completed(record, notes, versions)
        if record.checkpoint % self._every == 0:
            looked = {"checkpoint": int(record.checkpoint)}
            for name, folder in ({own: self._folder / own for own in _OWN} | dict(self._logs)).items():
                sizes = [_size(path) for path in folder.rglob("*") if path.is_file()]
                looked |= {f"{name}_bytes": sum(sizes), f"{name}_files": len(sizes)}
            self.disk.append(looked)


def main() -> None:
    """Measure ticks of a hundred checkpoints each. Late ticks of an old job alternate with first ticks of a new job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=2_000)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    planned = plan(pipeline(asked.checkpoints))
    compared = min(_COMPARED, asked.checkpoints // 4 // _PER_TICK)
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        old, new = (Job(planned, Path(scratch, name), asked.checkpoints // _LOOKS) for name in ("old", "new"))
        for _ in range(asked.checkpoints // _PER_TICK - compared):
            old.tick()
        before = len(old.commits)
        for _ in range(compared):
            old.tick()
            new.tick()
        print_result(
            {
                "program": "tidemark-tiny-commits",
                "last_s": [one.whole_ms / 1000 for one in old.commits[before:]],
                "first_s": [one.whole_ms / 1000 for one in new.commits[1:]],
                **{name: [of(one) for one in old.commits] for name, of in _PHASES.items()},
                "disk": old.laps.disk,
                "trace_bytes": old.trace_bytes,
            }
        )


@dataclass(slots=True)
class Job:
    """A tiny job in a warehouse of its own, and the times of its checkpoints so far."""

    planned: JobPlan
    root: Path
    look_every: int
    commits: list[CommitTimes] = field(default_factory=list)
    trace_bytes: int = 0
    laps: DiskLaps = field(init=False)

    def __post_init__(self) -> None:
        """Find the logs of the job's tables."""
        logs = {f"{table.name}_log": self.root / table.name / "_delta_log" for table in self.planned.graph.tables()}
        self.laps = DiskLaps(self.root / "_tidemark" / self.planned.job, logs, max(1, self.look_every))

    def tick(self) -> None:
        """Run one tick."""
        trace = _tick(self.planned, self.root, self.laps)
        self.commits += commits(trace)
        self.trace_bytes = trace.stat().st_size


_PHASES: Final[Mapping[str, Callable[[CommitTimes], int]]] = {
    "commits_ms": lambda one: one.whole_ms,
    "append_ms": lambda one: one.appended_ms - one.sent_ms,
    "publish_ms": lambda one: one.published_ms - one.appended_ms,
    "cut_ms": lambda one: one.recorded_ms - one.published_ms,
}


def _tick(planned: JobPlan, root: Path, laps: DiskLaps) -> Path:
    """Run one tick. Return its trace."""
    limits = TickLimits(checkpoints=_PER_TICK)
    settings = RuntimeSettings(warehouse=root, limits=limits, reader_grace_ms=0, table_log_keep_ms=0)
    report = run_tick(planned, settings, laps, engine=TinyEngine())
    if report.outcome is TickOutcome.FAILED:
        raise FailedTickError(report.message)
    return report.trace


def _size(path: Path) -> int:
    """Return a file's bytes, or 0 if it was deleted after it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    main()
