"""A real warehouse: its folder, its clock, the readable rows of its sources, and its witness."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from deltalake import DeltaTable

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.config import CheckpointingMode
from checkpointing.identifiers import CheckpointId, SplitId, TableName
from checkpointing.metadata.record import Row
from checkpointing.tick.attempts import CLEANUP, Terms
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import Done
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import this_process
from jobs.warehouse.warehouse import Warehouse
from spec.history import CutWritten, FileMissed
from spec.reference import pipeline
from spec.reference.contents import expected, shown
from spec.rules.invariants import Violation
from spec.rules.savepoints import drained_rows
from spec.world.whole_job import SmallJob
from tests.conformance.pipeline import PATHS, TABLES
from tests.conformance.witness import Witness

_SCANNED = ("DiscardFiles", "DiscardLeftovers")


class RealWorld:
    """One job's warehouse in a real folder."""

    def __init__(self, root: Path, job: SmallJob) -> None:
        self.root = root
        self.now_ms = 1_000
        self.warehouse = Warehouse(root, PATHS, now_ms=lambda: self.now_ms)
        self.witness = Witness(root, job.config)
        self.history = self.witness.history
        self._read: object = None
        self.readable: dict[SplitId, int] = dict(job.rows)

    def rows(self) -> tuple[Row, ...]:
        return self.witness.rows

    def watch(self, boundary: str) -> None:
        """Let the witness see what a step changed. Files are listed before and after steps that delete."""
        side, _, step = boundary.partition(":")
        if step.startswith(_SCANNED):
            self.witness.look_at_files()
        elif side == "after":
            self.witness.look()

    def foreign(self, table: TableName) -> DeltaTable | None:
        """Return a table as another writer opens it, or None if it does not exist yet."""
        folder = self.root / PATHS.table(table)
        return DeltaTable(str(folder)) if (folder / "_delta_log").is_dir() else None

    def claim_as_rival(self) -> None:
        stores = JobStores(self.warehouse, self.watch)
        door, at = TickDoor(CLEANUP, Terms(holder=this_process(), take_over=True)), Stamp(self.now_ms, uuid4().hex)
        door.start(at)
        door.step(stores.observe(), at)
        (claim,) = door.step(Done(), at)
        stores.entries.append(claim.row, claim.at_version)
        self.watch("after:Claim")

    def others(self) -> tuple[CheckpointId, ...]:
        """Return the entries to which the job may be rolled back: all but the newest one."""
        newest = newest_checkpoint(self.rows())
        records = self.witness.checkpoints()
        return tuple(row.checkpoint for row in records if newest is not None and row.checkpoint != newest.checkpoint)

    # -------------------------------------------------------------- as readers read it

    def misread(self, *, all_cuts: bool) -> Iterator[Violation]:
        """Yield what readers find wrong: the newest tables, and the newest recorded cut or all of them, by delta-rs.

        If nothing has changed since the last call, nothing is read, except with `all_cuts`.
        """
        there = (tuple(self.witness.newest().items()), tuple(self.witness.cuts))
        if there == self._read and not all_cuts:
            return
        self._read = there
        yield from self._newest()
        recorded = sorted(self.witness.cuts)
        for checkpoint in recorded if all_cuts else recorded[-1:]:
            for table, version in sorted(self.witness.cuts[checkpoint].items()):
                yield from self._unreadable(table, version, f"the cut of {checkpoint}")
        for table, version in self.witness.newest().items():
            if all_cuts:
                yield from self._unreadable(table, version, "the newest version")

    def _newest(self) -> Iterator[Violation]:
        record = newest_checkpoint(self.rows())
        if record is None or record.checkpoint not in self.witness.cuts:
            return
        newest = self.witness.newest()
        cut = CutWritten(record.checkpoint, tuple(newest.items()), self.witness.active_at(newest))
        exact = self.history.mode is CheckpointingMode.EXACTLY_ONCE
        compare = pipeline.differences if exact else pipeline.shortfalls
        due = expected(self.history, record, drained_rows(self.history))
        for what in compare(due, shown(self.history, record, cut, due)):
            yield Violation("cut-is-exact", f"the newest tables after checkpoint {record.checkpoint}: {what}")

    def _unreadable(self, table: TableName, version: int, what: str) -> Iterator[Violation]:
        if table not in TABLES or version < 0:
            return
        active = self.witness.active(table, version)
        try:
            read = DeltaTable(str(self.root / PATHS.table(table)), version=version).to_pyarrow_table().to_pylist()
        except Exception as error:  # noqa: BLE001 - whatever a reader meets is a finding
            yield Violation("no-file-is-missed", f"{table} cannot be read at {what}: {type(error).__name__}: {error}")
            return
        rows = Counter(self.witness.as_row(table, row) for row in read)
        if rows != self.history.multiset(active):
            yield Violation("cut-is-exact", f"{table} at {what} reads as other rows than its files hold")

    def missed(self, what: str, reader: str) -> None:
        """Record that the holder of the job needed a file that was deleted."""
        self.history.add(FileMissed(what, reader))


# ------------------------------------------------------------------
# Where faults strike a real tick: at the boundaries that it crosses.


ROWS_COMMIT = "LogCommit:checkpoints"
TABLE_COMMIT = "LogCommit:tables"


class DiedError(BaseException):
    """The tick dies here, as if its process were killed: no code in it may catch this."""


@dataclass(slots=True)
class Strike:
    """A fault at a boundary that was crossed `skip` times before.

    With `stays`, the fault also occurs at all later crossings.
    """

    at: str
    act: Callable[[], None]
    skip: int = 0
    stays: bool = False

    def cross(self, name: str) -> bool:
        if not name.startswith(self.at):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.act()
        return not self.stays


@dataclass(slots=True, eq=False)
class Boundaries:
    """The boundaries of a tick. `watch` sees the warehouse after every step. Then the armed faults strike."""

    watch: Callable[[str], None]
    armed: list[Strike] = field(default_factory=list)

    def __call__(self, name: str) -> None:
        if name.startswith("after:"):
            self.watch(name)
        for strike in tuple(self.armed):
            if strike in self.armed and strike.cross(name):
                self.armed.remove(strike)

    @contextmanager
    def struck(self, *strikes: Strike) -> Iterator[None]:
        self.armed += strikes
        try:
            yield
        finally:
            self.armed = [strike for strike in self.armed if strike not in strikes]


def death(at: str, skip: int = 0, *, stays: bool = False) -> Strike:
    """Return the death of the tick at a boundary. With `stays`, the tick dies at each later crossing too."""

    def die() -> None:
        raise DiedError(at)

    return Strike(at, die, skip, stays)


def silence(at: str, *, stays: bool = False) -> Strike:
    def fall_silent() -> None:
        raise ConnectionError("the store does not answer")

    return Strike(at, fall_silent, stays=stays)


@contextmanager
def lost_reply(boundaries: Boundaries, log: Path) -> Iterator[None]:
    """Within the block, lose the reply to the next commit to `checkpoints`, and make the log unreadable."""
    aside = log.with_name("_unreachable")

    def go_away() -> None:
        log.rename(aside)
        raise ConnectionError("the connection broke")

    with boundaries.struck(Strike(f"after:{ROWS_COMMIT}", go_away)):
        try:
            yield
        finally:
            if aside.exists():
                aside.rename(log)
