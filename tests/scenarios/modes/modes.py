"""Lists the modes of checkpointing, each with the moment at which its job dies, and runs the ticks of such a job."""

import multiprocessing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from pyspark.sql import SparkSession

from checkpointing.config import CheckpointConfig, CheckpointingMode
from checkpointing.job.door import JobDoor
from checkpointing.messages import Fact, NotifyAborted
from checkpointing.trace import TickStarted, TraceEntry, read
from jobs.spark.session import SparkConfig
from jobs.tick.engine import SparkEngine
from jobs.tick.listener import TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from tests.scenarios.modes.cuts import ahead, newest, records, rows_in_flight
from tests.scenarios.modes.first_days import CONFIG, planned
from tests.scenarios.modes.slow_weather import Due, Fate, SlowWeather
from tests.scenarios.processes import Dead

ANY_PUBLICATION = "before:PublishTable:"
HALF_PUBLISHED = "before:PublishTable:silver/flights"
COMPLETE = "before:NotifyComplete"
COMMITTED_BEFORE = 2
WAIT_S = 280


def changed(**changes: object) -> CheckpointConfig:
    return CheckpointConfig(**(CONFIG.model_dump() | changes))


def half_published(name: str, fate: Fate) -> bool:
    """Return True while a checkpoint, the second or a later one, is committed and only some tables show it."""
    return name == HALF_PUBLISHED and len(records(fate.root)) >= COMMITTED_BEFORE


def half_published_in_flight(name: str, fate: Fate) -> bool:
    """Return True in the same situation if the checkpoint also holds rows in flight.

    Silver may then publish nothing.
    """
    if not name.startswith(ANY_PUBLICATION):
        return False
    committed = records(fate.root)
    return len(committed) >= COMMITTED_BEFORE and rows_in_flight(committed[-1]) > 0


def half_published_after_a_decline(name: str, fate: Fate) -> bool:
    return half_published(name, fate) and fate.declined > 0


def ahead_of_its_barrier(name: str, fate: Fate) -> bool:
    """Return True when a checkpoint is complete and its silver holds flights that the job will read once more."""
    return (
        name == COMPLETE and len(records(fate.root)) >= COMMITTED_BEFORE and bool(ahead(fate.root, newest(fate.root)))
    )


@dataclass(frozen=True)
class Mode:
    """The configuration of a mode, and the moment at which its job dies."""

    config: CheckpointConfig
    due: Due


MODES: Mapping[str, Mode] = {
    "aligned": Mode(CONFIG, half_published),
    "at_least_once": Mode(changed(mode=CheckpointingMode.AT_LEAST_ONCE), ahead_of_its_barrier),
    "unaligned": Mode(changed(unaligned=True), half_published_in_flight),
    "alternating": Mode(changed(unaligned=True, alignment_timeout_ms=500), half_published_in_flight),
    "concurrent": Mode(changed(max_concurrent=2), half_published),
    "buffering": Mode(changed(max_alignment_bytes=4_000, every_rows=200), half_published_after_a_decline),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job in a mode: its input, its warehouse, and its Spark."""

    data: Path
    root: Path
    config: CheckpointConfig
    parallelism: int = 2
    spark: SparkSession | None = None
    connect_url: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def tick(self, fate: Fate | None = None) -> TickReport:
        """Run a tick to any end. It takes the job over, because its last holder may have only pretended to die."""
        fate = fate or Fate(self.root)
        engine = SparkEngine(SparkConfig(cores=2, connect_url=self.connect_url), TickListener(), self.spark)
        plan = planned(self.data, self.config, parallelism=self.parallelism)
        settings = RuntimeSettings(warehouse=self.root, take_over=True, **self.settings)
        return run_tick(plan, settings, engine=SlowWeather(engine, fate), boundary=fate)

    def die(self, due: Due) -> bool:
        fate = Fate(self.root, due)
        with suppress(Dead):
            self.tick(fate)
        return fate.dead

    def be_killed(self, due: Due) -> int | None:
        server = multiprocessing.get_context("forkserver")
        alone = server.Process(target=_tick, args=(replace(self, spark=None), due))
        alone.start()
        alone.join(WAIT_S)
        alone.kill()
        return alone.exitcode

    def traces(self) -> list[list[TraceEntry]]:
        """Return the facts and effects of all ticks' doors, oldest tick first."""
        files = sorted(self.root.glob("_tidemark/*/traces/*.ndjson"), key=lambda file: int(file.stem))
        return [list(read(file.read_bytes().splitlines(keepends=True))) for file in files]

    def aborted(self) -> list[NotifyAborted]:
        return [entry.body for trace in self.traces() for entry in trace if isinstance(entry.body, NotifyAborted)]

    def pending_at_a_time(self) -> int:
        """Return the largest number of checkpoints that were pending at once. It replays the traces on the door."""
        return max(_pending_at_a_time(trace) for trace in self.traces())


def _tick(job: Job, due: Due) -> None:
    job.tick(Fate(job.root, due, for_good=True))


def _pending_at_a_time(trace: list[TraceEntry]) -> int:
    door: JobDoor | None = None
    most = 0
    for entry in trace:
        match entry.body:
            case TickStarted(setup, now_ms):
                door = JobDoor(setup)
                door.start(now_ms)
            case fact if isinstance(fact, get_args(Fact)):
                door.step(fact)
        most = max(most, len(door._job.coordinator.pending))
    return most
