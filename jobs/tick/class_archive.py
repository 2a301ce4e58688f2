"""Makes an archive of Spark's classes. A JVM maps the archive into memory, and need not load and verify each class.

`python -m jobs.tick.class_archive` makes the archive once for an environment, by running a small tick and a few
statements of Delta (JEP 350: dynamic class-data sharing). Another version of the JVM, or a JVM with another class path,
starts without the archive. Measured on two cores: a session starts in 3.4 instead of 8.5 s, and a first write and
DELETE by Delta take 10 instead of 18 s.
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
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.spark.jars import JarsError, delta_jars
from jobs.spark.session import CLASS_ARCHIVE, JVM_OPTIONS, SILENT, SparkConfig, open_session
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings

_EXIT_S: Final = 300
_ROOM_BYTES: Final = 1 << 30
"""Free space that making an archive requires. An archive has about 200 MB, and half an archive breaks the JVM."""
_ROWS: Final = 40


class ArchiveNotMadeError(Exception):
    """No archive was made. The message says why. Tidemark works without an archive."""


def make_archive(archive: Path) -> None:
    """Run a small tick, and archive the classes that it loads. Replace an older archive.

    If the Delta jars are there, run a few statements of Delta too. Raises ArchiveNotMadeError.
    """
    free = shutil.disk_usage(archive.parent).free
    if free < _ROOM_BYTES:
        raise ArchiveNotMadeError(f"{archive.parent} has {free >> 20} MB left, and an archive needs a gigabyte")
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
        raise ArchiveNotMadeError("the JVM wrote none; only a HotSpot of JDK 17 or newer does")
    unfinished.replace(archive)


def _jars() -> tuple[Path, ...]:
    """Return the Delta jars. There are none if they were never fetched, because no tick needs them."""
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
    """Write, delete and read a table, as other writers and readers do."""
    session.range(10).write.format("delta").save(str(folder))
    session.sql(f"DELETE FROM delta.`{folder}` WHERE id = 3")  # noqa: S608 - a folder of our own
    session.read.format("delta").option("versionAsOf", 0).load(str(folder)).count()


def _end(session: SparkSession) -> None:
    """Stop the session, and wait until its JVM has written the archive and ended."""
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
    """Make the archive and print how long it took. A failure is only reported, because Spark also starts without it."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    console = Console(stderr=True, markup=False, emoji=False)
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
