"""A program that runs one tick in a mount namespace of its own. During the tick, a table's disk fills up.

`python full_table.py FOLDER HOW [--spark]` puts the staged files of bronze/numbers on a small file system. After the
first checkpoint the file system is full (HOW `full`) or read-only (`read-only`), until a second checkpoint has failed.
The program prints as JSON how the tick ended, which checkpoints failed and why, the errors of micro-batches that were
held back, the rows of the tables, the staged files that no table shows, and the trace.
"""

import json
import subprocess
import sys
from pathlib import Path

from deltalake import DeltaTable

from jobs.spark.session import SparkConfig
from jobs.tick.listener import MicroBatchHeldBack, TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, LocalEngine, build, read_cut

SIZE_KIB = 2_048


class Disk:
    """The small disk of bronze's staged files. It refuses writes from the first cut on, until two checkpoints fail."""

    def __init__(self, folder: Path, how: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_KIB}k", "tmpfs", str(folder)], check=True)
        self._folder, self._how = folder, how
        self._ballast = folder / "ballast"
        self._refused = False

    def refuse(self, name: str) -> None:
        if name != "after:RecordCut" or self._refused:
            return
        self._refused = True
        if self._how == "read-only":
            self._remount("ro")
            return
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1024))
            except OSError:
                return

    def accept(self) -> None:
        if self._how == "read-only":
            self._remount("rw")
        else:
            self._ballast.unlink()

    def _remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self._folder)], check=True)


class Repairs(TickListener):
    """Records failures, and repairs the disk when a second checkpoint has failed."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.failures: list[tuple[int, str, str]] = []
        self.held_back: list[str] = []

    def failed(self, checkpoint, reason, message, *, ends_tick):
        self.failures.append((checkpoint, reason.name, message))
        if len(self.failures) == 2:
            self._disk.accept()

    def progress(self, progress):
        if isinstance(progress, MicroBatchHeldBack):
            self.held_back.append(progress.error)


def unreferenced(root: Path) -> list[str]:
    """Return bronze's staged files that its table does not show."""
    shown = {Path(uri).name for uri in DeltaTable(str(root / BRONZE)).file_uris()}
    there = {path.name for path in (root / BRONZE / "_data").rglob("*") if path.is_file()}
    return sorted(there - shown)


def main() -> None:
    root, how = Path(sys.argv[1]), sys.argv[2]
    staged = root / BRONZE / "_data"
    staged.mkdir(parents=True)
    disk = Disk(staged, how)
    repairs = Repairs(disk)
    settings = RuntimeSettings(warehouse=root, spark=SparkConfig(cores=1, memory="512m"))
    engine = None if "--spark" in sys.argv else LocalEngine()
    planned = build(config=CONFIG.model_copy(update={"tolerable_failures": 9}))
    report = run_tick(planned, settings, repairs, engine=engine, boundary=disk.refuse)
    told = {
        "outcome": report.outcome.value,
        "message": report.message,
        "failures": repairs.failures,
        "held_back": repairs.held_back,
        "rows": read_cut(root),
        "unreferenced": unreferenced(root),
        "trace": report.trace.read_text(),
    }
    sys.stdout.write("\n" + json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
