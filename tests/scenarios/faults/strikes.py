"""What may happen to a tick at a boundary, apart from its death.

A strike is sent to the tick's process, and counts the crossings of its boundary there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import TableName
from checkpointing.job.setup import TickLimits
from jobs.spark.session import SparkConfig
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.boundaries import boundary_from_environment
from tests.scenarios.faults.orders_job import CONFIG, GOLD, LocalEngine, build
from tests.scenarios.processes import Ended, Running, wait_for

Strike = Callable[[str, Path], None]
"""Called with each boundary's name and the warehouse."""


@dataclass
class At:
    """Counts the crossings of one boundary. A call returns whether this crossing is among `occurrences`."""

    name: str
    occurrences: tuple[int, ...]
    _crossed: int = field(default=0)

    def __call__(self, name: str) -> bool:
        if name != self.name:
            return False
        self._crossed += 1
        return self._crossed in self.occurrences


@dataclass
class LoseReply:
    """Raises an error after a commit is in the log, as if the reply to the commit were lost."""

    at: At

    def __call__(self, name: str, root: Path) -> None:
        if self.at(name):
            raise OSError("the reply is lost")


@dataclass
class Hold:
    """Makes the process create `<label>.here` at a boundary, and wait there until `<label>.go` exists."""

    at: At
    label: str

    def __call__(self, name: str, root: Path) -> None:
        if self.at(name):
            (root / f"{self.label}.here").touch()
            wait_for(root / f"{self.label}.go")
            (root / f"{self.label}.go").unlink()
            (root / f"{self.label}.here").unlink()


@dataclass
class ForbidUpserts:
    """Makes gold append-only, as a neighbour may. The next check declines the checkpoint and names the table."""

    at: At

    def __call__(self, name: str, root: Path) -> None:
        if self.at(name):
            append_only(root, value=True)


@dataclass
class HalfWritten:
    """Leaves half an entry at the end of a table's log while tables are checked.

    It does so `times` times, beginning with the second check.
    """

    table: TableName
    times: int
    checks: int = field(default=0)

    def __call__(self, name: str, root: Path) -> None:
        log = root / self.table / "_delta_log"
        if name == "before:CheckTables":
            self.checks += 1
            if self._struck():
                newest = int(max(log.glob("*.json")).stem)
                (log / f"{newest + 1:020}.json").write_bytes(b'{"commitInfo":{"oper')
        elif name == "after:CheckTables" and self._struck():
            max(log.glob("*.json")).unlink()

    def _struck(self) -> bool:
        return 2 <= self.checks < 2 + self.times


def append_only(root: Path, *, value: bool) -> None:
    DeltaTable(str(root / GOLD)).alter.set_table_properties({"delta.appendOnly": str(value).lower()})


@dataclass(frozen=True, kw_only=True)
class Order:
    """How to run a tick of the orders. At each boundary, `strike` is called before the tick may die there.

    `notes` is a file that gets a line for each boundary crossed.
    """

    root: Path
    kill_at: str = ""
    connect_url: str | None = None
    take_over: bool = False
    limits: TickLimits = field(default_factory=TickLimits)
    config: CheckpointConfig = CONFIG
    notes: Path | None = None
    strike: Strike | None = None

    def start(self) -> Running:
        return Running(self.tick, kill_at=self.kill_at)

    def run(self) -> Ended:
        return self.start().wait()

    def tick(self) -> TickReport:
        spark = SparkConfig(cores=2, connect_url=self.connect_url)
        settings = RuntimeSettings(warehouse=self.root, take_over=self.take_over, limits=self.limits, spark=spark)
        engine = LocalEngine() if self.connect_url is None else None
        return run_tick(build(self.config), settings, engine=engine, boundary=self._boundary())

    def _boundary(self) -> Callable[[str], None]:
        kill = boundary_from_environment()

        def cross(name: str) -> None:
            if self.strike is not None:
                self.strike(name, self.root)
            if self.notes is not None:
                with self.notes.open("a") as file:
                    file.write(f"{name}\n")
            kill(name)

        return cross
