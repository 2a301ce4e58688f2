"""Runs a vertex without a coordinator, on the single Spark session of the test run."""

from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpointing.channel_items import RangeFiles, StagedSegment
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import JobName, VertexId, job_name
from checkpointing.messages import InputSegments, MicroBatchFinished, RunMicroBatch
from jobs.operators import ways_to_read
from jobs.operators.execute import run_micro_batch
from jobs.operators.scan.planned_jobs import PlannedJobs
from jobs.operators.spec import KeyedSpec, VertexPlan
from jobs.state.backend import live_files
from jobs.state.worker_copy import NO_USES, CopyUses

JOB: JobName = job_name("demo")


@dataclass
class Bench:
    """Runs micro-batches of one vertex, one after another, and keeps what a coordinator would keep."""

    jobs: PlannedJobs
    warehouse: Path
    plan: VertexPlan
    state: list[tuple[KeyedFile, ...]] = field(default_factory=list)
    ranges: list[tuple[RangeFiles, ...]] = field(default_factory=list)
    micro_batch: int = 0
    copies: CopyUses = NO_USES

    def __post_init__(self):
        self.state = self.state or [()] * self.parallelism
        self.ranges = self.ranges or [()] * self.parallelism

    @property
    def parallelism(self):
        return self.plan.spec.parallelism if isinstance(self.plan.spec, KeyedSpec) else 1

    def stage(self, rows: pa.Table) -> StagedSegment:
        path = f"upstream/_data/1/{len(list(self.warehouse.glob('upstream/_data/1/*')))}.parquet"
        (self.warehouse / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, self.warehouse / path)
        return StagedSegment((FileHandle(path, rows.num_rows, 1, 0),))

    def run(self, *inputs: pa.Table | None, end: bool = False) -> MicroBatchFinished:
        """Run one micro-batch over the rows of each input.

        None stands for an input without segments. `end` declares that no row follows.
        """
        self.micro_batch += 1
        segments = tuple(
            InputSegments(number, VertexId("upstream"), () if rows is None else (self.stage(rows),))
            for number, rows in enumerate(inputs)
        )
        held = tuple(self.state), tuple(self.ranges)
        effect = RunMicroBatch(self.plan.spec.vertex, self.micro_batch, 1, segments, *held, end_of_input=end)
        ran = run_micro_batch(self.jobs, self.plan, effect, self.warehouse, JOB)
        done, self.copies = ran.finished, self.copies + ran.copies
        for subtask, output in enumerate(done.outputs):
            still = [file for file in self.state[subtask] if file.file.path not in output.ended]
            self.state[subtask] = live_files([*still, *output.state])
            self.ranges[subtask] = output.ranges or self.ranges[subtask]
        return done

    def read(self, files) -> pl.DataFrame:
        return pl.concat([pl.read_parquet(self.warehouse / file.path, glob=False) for file in files])

    def upserted(self) -> pl.DataFrame:
        handles = [file.file for ranges in self.ranges for entry in ranges for file in entry.files]
        return self.read(dict.fromkeys(handles))


@pytest.fixture
def bench(spark, tmp_path):
    """Return a function that makes a bench.

    The name of the warehouse has characters of glob patterns.
    """
    warehouse = tmp_path / "ware[house] {1}"
    warehouse.mkdir()
    return lambda plan, **kept: Bench(PlannedJobs(spark), warehouse, plan, **kept)


@pytest.fixture(params=["one task", "own scans", "exchange"])
def each_way(request, monkeypatch):
    """Return how small micro-batches run: in one task, in a task for each subtask, or through Spark's exchange."""
    if request.param != "one task":
        monkeypatch.setattr(ways_to_read, "_FEW_ROWS", -1)
    if request.param == "exchange":
        monkeypatch.setattr(ways_to_read, "_READ_BY_ALL_ROWS", -1)
    return request.param
