"""A pipeline under test: small frames go in, ticks run in a folder of the test's own, and cuts come out."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from checkpointing.messages import TickOutcome
from jobs.launch import Launch, launch, spark_config
from jobs.pipelines.registry import PipelineReference
from jobs.reading import Cut, Cuts
from jobs.settings import Layer, TickSettings
from jobs.sources.port import Source, with_needed_jars
from jobs.spark.session import open_session
from jobs.tick.engine import fetch_missing_jars
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.warehouse.boundaries import KILL_VARIABLE, boundary_names

if TYPE_CHECKING:
    import pandas as pd

Frame: TypeAlias = "pl.DataFrame | pd.DataFrame | pa.Table"


def session_for(sources: Iterable[Source], settings: TickSettings) -> SparkSession:
    """Return this process's Spark session, with the settings of a tick over these sources. Fetch missing jars."""
    config = with_needed_jars(spark_config(settings), sources)
    fetch_missing_jars(config, TickListener())
    return open_session(config)


class TickFailedError(AssertionError):
    """A tick failed. The message gives the reason, as the command line would."""


class NotKilledError(AssertionError):
    """A tick that was to be killed ended by itself. The message has the last line of its output."""


class Trial:
    """A pipeline with an input folder and a warehouse of its own, both below one folder.

    All trials of a process share one Spark session, which the first tick starts.
    """

    def __init__(self, pipeline: PipelineReference, folder: Path) -> None:
        """Name the pipeline, as a function or as "module:attribute", and a folder, such as pytest's `tmp_path`."""
        self._pipeline = pipeline
        self.data = folder / "data"
        """The input folder, which the pipeline's function gets."""
        self.warehouse = folder / "warehouse"
        """The warehouse, in which the tables are."""

    def deliver(self, split: str, rows: Frame) -> Path:
        """Write rows as the next Parquet file of a split, and return the file.

        The split is a folder below `data`, such as "orders/berlin".
        """
        folder = self.data / split
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{len(list(folder.glob('*.parquet'))):06}.parquet"
        unfinished = file.with_name(f".{file.name}")
        pq.write_table(_table(rows), unfinished)
        return unfinished.replace(file)

    def run(self, **settings: object) -> Cut:
        """Run one tick in this process, and return the newest cut after it.

        `settings` are those of docs/SETTINGS.md, such as `every_rows=10` or `checkpoints=1`. Raises TickFailedError,
        what a refused tick raises, and NoSuchCutError if there was nothing to read.
        """
        started = self._launched(settings)
        session = session_for(started.plan.sources.values(), started.settings)
        report = run_tick(started.plan, started.runtime(), spark=session)
        if report.outcome is TickOutcome.FAILED:
            raise TickFailedError(f"{started.plan.job}: {report.why}")
        return self.cuts.latest()

    def kill(self, at: str, **settings: object) -> None:
        """Run one tick in a process of its own that is killed (SIGKILL) at a boundary, such as "after:AppendRow#2".

        `#2` means the second time that the tick reaches the boundary. Another process must be able to import the
        pipeline. Raises NotKilledError if the tick ended without reaching it.
        """
        command = [sys.executable, "-m", "tidemark", "run", self._reference(), *self._folders()]
        given = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        environment = os.environ | {KILL_VARIABLE: at, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run([*command, *given], capture_output=True, text=True, check=False, env=environment)  # noqa: S603
        if done.returncode != -SIGKILL:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise NotKilledError(f"the tick was not killed at {at}, it ended with {done.returncode}: {' '.join(said)}")

    def boundaries(self) -> tuple[str, ...]:
        """Return every boundary at which a tick of the pipeline may be killed. Few ticks reach all of them."""
        return boundary_names(self._launched({}).plan.graph)

    @property
    def cuts(self) -> Cuts:
        """The cuts of the trial's warehouse."""
        return Cuts(self.warehouse, self._launched({}).plan.job)

    def _launched(self, settings: dict[str, object]) -> Launch:
        folders = {"data": self.data, "warehouse": self.warehouse}
        return launch(self._pipeline, Layer("set by the test", folders | settings))

    def _folders(self) -> tuple[str, ...]:
        return "--data", str(self.data), "--warehouse", str(self.warehouse)

    def _reference(self) -> str:
        """Return the reference by which another process finds the pipeline. Raise ValueError if there is none."""
        if isinstance(self._pipeline, str):
            return self._pipeline
        name = getattr(self._pipeline, "__qualname__", "<a Pipeline>")
        if "<" in name:
            raise ValueError(f"{name} cannot be imported by another process: name the pipeline as 'module:attribute'")
        return f"{self._pipeline.__module__}:{name}"


def _table(rows: Frame) -> pa.Table:
    if isinstance(rows, pl.DataFrame):
        return rows.to_arrow()
    return rows if isinstance(rows, pa.Table) else pa.Table.from_pandas(rows, preserve_index=False)
