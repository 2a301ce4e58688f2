"""What may happen to a tick at a boundary, short of dying; sent to the tick's process, where it counts crossings."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable

from checkpointing.identifiers import TableName
from tests.scenarios.faults.orders_job import GOLD

HELD_S = 120

Strike = Callable[[str, Path], None]
"""Called with each boundary's name and the warehouse."""


@dataclass
class At:
    """Counts the crossings of one boundary, and says which are meant."""

    name: str
    occurrences: tuple[int, ...]
    _crossed: int = field(default=0)

    def __call__(self, name: str) -> bool:
        """Return whether this crossing is one of those."""
        if name != self.name:
            return False
        self._crossed += 1
        return self._crossed in self.occurrences


@dataclass
class LoseReply:
    """The commit is in, and its caller gets an error."""

    at: At

    def __call__(self, name: str, root: Path) -> None:
        """Lose the reply."""
        if self.at(name):
            raise OSError("the reply is lost")


@dataclass
class Hold:
    """The process stands still there, and says so by `<label>.here`; it goes on when `<label>.go` is there."""

    at: At
    label: str

    def __call__(self, name: str, root: Path) -> None:
        """Stand still."""
        if self.at(name):
            (root / f"{self.label}.here").touch()
            wait_for(root / f"{self.label}.go")
            (root / f"{self.label}.go").unlink()
            (root / f"{self.label}.here").unlink()


@dataclass
class ForbidUpserts:
    """A neighbour makes gold append-only: what is checked next is declined, by name."""

    at: At

    def __call__(self, name: str, root: Path) -> None:
        """Forbid them."""
        if self.at(name):
            append_only(root, value=True)


@dataclass
class HalfWritten:
    """Half an entry is at the end of a table's log while the tables are checked, so many times from the second on."""

    table: TableName
    times: int
    checks: int = field(default=0)

    def __call__(self, name: str, root: Path) -> None:
        """Put it there before such a check, and take it away after it."""
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
    """Make gold append-only, or free it again."""
    DeltaTable(str(root / GOLD)).alter.set_table_properties({"delta.appendOnly": str(value).lower()})


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    limit = time.monotonic() + HELD_S
    while not path.exists():
        if time.monotonic() > limit:
            raise TimeoutError(f"{path} never came")
        time.sleep(0.02)
