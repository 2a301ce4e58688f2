"""What a checkpoint of a tiny job costs after so many others: time, and disk.

`python -m bench.ours.tiny_commits` prints the ms of each checkpoint of one long tick (the job door with real Delta
commits, no Spark), and the bytes and files of the job's own tables on the way.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.measures import Laps, caught_up, print_result
from bench.tick_trace import commits
from bench.tiny_job import TinyEngine, pipeline
from checkpointing.identifiers import TableName
from checkpointing.metadata.record import CheckpointRecord
from jobs.planner import plan
from jobs.runtime.tick import RuntimeSettings, run_tick

_MEASURED: Final = ("checkpoints", "cuts", "state")
_LOOKS: Final = 8


class DiskLaps(Laps):
    """Notes too what lies in the folders of the job's own tables, now and then."""

    def __init__(self, folder: Path, every: int) -> None:
        """Look below the job's folder after every so many checkpoints."""
        super().__init__()
        self._folder = folder
        self._every = every
        self.disk: list[dict[str, int]] = []

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Note time, and disk if it is its turn."""
        super().completed(record, notes, versions)
        if record.checkpoint % self._every == 0:
            looked = {"checkpoint": int(record.checkpoint)}
            for name in _MEASURED:
                sizes = [_size(path) for path in (self._folder / name).rglob("*") if path.is_file()]
                looked |= {f"{name}_bytes": sum(sizes), f"{name}_files": len(sizes)}
            self.disk.append(looked)


def main() -> None:
    """Measure one tick of many checkpoints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoints", type=int, default=2_000)
    parser.add_argument("--scratch", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.scratch) as scratch:
        planned = plan(pipeline(asked.checkpoints))
        laps = DiskLaps(Path(scratch, "_tidemark", planned.job), max(1, asked.checkpoints // _LOOKS))
        report = caught_up(run_tick(planned, RuntimeSettings(warehouse=Path(scratch)), laps, engine=TinyEngine()))
        measured = commits(report.trace)
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
                "trace_bytes": os.stat(report.trace).st_size,  # noqa: PTH116 - one number
            }
        )


def _size(path: Path) -> int:
    """Return a file's bytes; 0 if it is gone since it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    main()
