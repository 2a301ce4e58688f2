"""An archive of Spark's classes: a JVM maps it, instead of loading and verifying its classes one by one.

Made once for an environment (`python -m jobs.runtime.class_archive`), by running what a tick and its neighbours run
(JEP 350: dynamic class-data sharing). A JVM of another make or with another class path just starts without it.
Measured on two cores: a session starts in 3.4 instead of 8.5 s, and a first write and DELETE by Delta take 10
instead of 18 s.
"""

import logging
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from pyspark import SparkContext
from pyspark.sql import SparkSession
from rich.console import Console

from checkpointing.config import CheckpointConfig
from jobs.pipeline import Pipeline, count
from jobs.planner import plan
from jobs.runtime.tick import RuntimeSettings, run_tick
from jobs.sources.sequence import SequenceSource
from jobs.spark.jars import JarsError, delta_jars
from jobs.spark.session import CLASS_ARCHIVE, JVM_OPTIONS, SILENT, SparkConfig, open_session

_EXIT_S: Final = 300
_ROOM_BYTES: Final = 1 << 30
"""An archive has about 200 MB; half of one on a full disk would break the JVM that maps it."""
_ROWS: Final = 40


class ArchiveNotMadeError(Exception):
    """Why there is no archive; nothing needs one."""


def make_archive(archive: Path) -> None:
    """Run a small tick, and keep the classes that it loaded; replaces an older archive.

    Where the Delta jars are, a few statements of Delta are run too. Raises ArchiveNotMadeError.
    """
    free = shutil.disk_usage(archive.parent).free
    if free < _ROOM_BYTES:
        raise ArchiveNotMadeError(f"{archive.parent} has {free >> 20} MB left, and a gigabyte is wanted")
    unfinished = archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    jars = _jars()
    session = open_session(SparkConfig(jars=jars, settings=_recording(unfinished)))
    with tempfile.TemporaryDirectory(prefix="tidemark-classes-") as scratch:
        run_tick(plan(_pipeline()), RuntimeSettings(warehouse=Path(scratch, "warehouse")), spark=session)
        if jars:
            _neighbours(session, Path(scratch, "table"))
        _end(session)
    if not unfinished.exists():
        raise ArchiveNotMadeError("the JVM left none, as one that is no HotSpot of JDK 17 or newer does")
    unfinished.replace(archive)


def _jars() -> tuple[Path, ...]:
    """Return the Delta jars, none where they were never fetched: no tick needs them."""
    try:
        return delta_jars()
    except JarsError:
        return ()


def _recording(unfinished: Path) -> Mapping[str, str]:
    return {JVM_OPTIONS: f'"-XX:ArchiveClassesAtExit={unfinished}" {SILENT} -XX:TieredStopAtLevel=1'}


def _pipeline() -> Pipeline:
    config = CheckpointConfig(every_rows=_ROWS // 2, slice_rows_max=_ROWS // 2)
    warm = Pipeline("classes", config=config, parallelism=2)
    numbers = warm.source("numbers", SequenceSource({"all": _ROWS}, keys=4)).table("bronze/numbers", id="bronze")
    numbers.key_by("key").aggregate("counts", rows=count()).upsert("gold/counts")
    return warm


def _neighbours(session: SparkSession, folder: Path) -> None:
    """Do what readers and neighbours of a table do."""
    session.range(10).write.format("delta").save(str(folder))
    session.sql(f"DELETE FROM delta.`{folder}` WHERE id = 3")  # noqa: S608 - a folder of our own
    session.read.format("delta").option("versionAsOf", 0).load(str(folder)).count()


def _end(session: SparkSession) -> None:
    """Stop the session and wait until its JVM, which ends when nobody talks to it any more, has written the archive."""
    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark offers no other way to its JVM's process
    session.stop()
    if gateway is None:
        raise ArchiveNotMadeError("Spark runs in another process")
    gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_EXIT_S)
    except subprocess.TimeoutExpired as error:
        gateway.proc.kill()
        raise ArchiveNotMadeError(f"the JVM did not end within {_EXIT_S} s") from error
    if gateway.proc.returncode:
        raise ArchiveNotMadeError(f"the JVM ended with {gateway.proc.returncode}")


def main() -> None:
    """Make the archive and say how long it took; without one all works, slower, so a failure is told and is none."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    console = Console(stderr=True)
    started = time.monotonic()
    try:
        with console.status("archiving Spark's classes, once, so that it starts in a fraction of the time"):
            make_archive(CLASS_ARCHIVE)
    except (ArchiveNotMadeError, OSError) as error:
        console.print(f"no archive of Spark's classes: {error}", highlight=False, soft_wrap=True)
        return
    took = time.monotonic() - started
    console.print(f"Spark's classes in {CLASS_ARCHIVE}: {took:.0f} s", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
