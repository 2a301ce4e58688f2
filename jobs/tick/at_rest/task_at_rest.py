"""Carries out a task on a job while no tick runs. The tick door claims, recovers and releases the job as for a tick."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from checkpointing.commit.fencing import Refused
from checkpointing.commit.lost_publications import Doubt
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.messages import AppendRow, EndTick, TickOutcome
from checkpointing.metadata.record import CheckpointRecord, Row
from checkpointing.tick.attempts import Errand, Terms
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import (
    LookAtTables,
    Observe,
    Question,
    Recovered,
    RestartDue,
    RolledForward,
    TablesSeen,
    TakeHold,
    TickFact,
    Unsettled,
    Work,
)
from jobs.tick.carrier import LEASE_MS, Carrier, refusal
from jobs.tick.rollback_plan import must_be_sound
from jobs.tick.start_checks import must_be_repairable, must_have_logs
from jobs.warehouse.boundaries import Boundary, cross_freely
from jobs.warehouse.cleanup import own_folders
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import this_process
from jobs.warehouse.refusals import CutAwaitsApprovalError, RollForwardError, TablesBehindError

DoWork = Callable[[Work], TickFact]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task on a job at rest, and what distinguishes it from other tasks.

    `possible` raises an error if the task cannot be done. It is called before the claim if the errand asks for it.
    `ensure` creates missing tables, for a task that knows a pipeline. `entry_boundary` is the boundary's name for the
    append of the task's entry.
    """

    errand: Errand
    do_work: DoWork
    possible: Callable[[Observed, RecoveryPlan], None] | None = None
    ensure: Callable[[RecoveryPlan], None] | None = None
    observe: Callable[[JobStores], Observed] = JobStores.observe
    goes_back_to: CheckpointId | None = None
    """A rollback's target.

    Tables that cannot be repaired are then no obstacle, because the rollback sets their content.
    """
    above: tuple[Generation, CheckpointId] = (Generation(0), CheckpointId(0))
    keeps_lease: bool = True
    """Whether the work may take longer than a moment."""
    entry_boundary: str = AppendRow.__name__


@dataclass(frozen=True, slots=True)
class DoneAtRest:
    """The outcome of a task: the appended entry, if any, and the last publication."""

    row: CheckpointRecord | None
    last: RolledForward | None

    @property
    def entry(self) -> CheckpointRecord:
        """The appended entry. Raises TypeError for a task that appends no entry."""
        if self.row is None:
            raise TypeError("the task has appended nothing")
        return self.row

    @property
    def published(self) -> RolledForward:
        """The publication. Raises TypeError for a task that publishes nothing."""
        if self.last is None:
            raise TypeError("the task has published nothing")
        return self.last


def done_at_rest(stores: JobStores, task: Task, boundary: Boundary = cross_freely) -> DoneAtRest:
    """Hold the job, do the task, and release the job.

    Raises JobHeldError, TablesBehindError and CutAwaitsApprovalError before the claim, ClaimUnsettledError, and the
    errors of the task's functions. Raises RollForwardError if a committed entry cannot be published, and
    CutsNotRecordedError if its cut cannot be recorded. The next tick or command then publishes it.
    """
    carrier = _AtRest(stores, task, boundary)
    terms = Terms(holder=this_process(), leaves_behind=task.goes_back_to, above=task.above)
    outcome = carrier.drive(TickDoor(task.errand, terms)).outcome
    match outcome:
        case CheckpointRecord() | None:
            return DoneAtRest(outcome, carrier.published)
        case EndTick(TickOutcome.HELD):
            raise CutAwaitsApprovalError(f"{outcome.message}; nothing was changed")
        case EndTick():
            raise RollForwardError(outcome.message)
        case Refused() | Unsettled():
            raise refusal(stores.warehouse, outcome)
        case _:
            raise outcome


class _AtRest(Carrier):
    """Carries out the effects of a task's tick door."""

    def __init__(self, stores: JobStores, task: Task, boundary: Boundary) -> None:
        """Nothing has begun."""
        super().__init__(stores.warehouse, boundary, lease_ms=LEASE_MS if task.keeps_lease else None)
        self.stores = stores
        self.entry_boundary = task.entry_boundary
        self.published: RolledForward | None = None
        self._task = task

    def look(self, effect: Observe | LookAtTables) -> Observed | TablesSeen:
        """Return the observed facts that a start needs, or the tables in doubt. Raises TablesBehindError."""
        if isinstance(effect, LookAtTables):
            return TablesSeen(self._in_doubt(effect.rows))
        return replace(self._task.observe(self.stores), damaged=bool(self.stores.entries.damaged))

    def examine(self, question: Question, seen: Observed, plan: RecoveryPlan) -> None:
        """Raise an error unless the answer to the question is yes."""
        match question:
            case Question.SOUND:
                must_be_sound(self.warehouse, plan)
            case Question.REPAIRABLE:
                self._in_doubt(seen.rows)
            case Question.POSSIBLE if self._task.possible is not None:
                self._task.possible(seen, plan)
            case Question.POSSIBLE | Question.FITS | Question.NOT_AHEAD | Question.WHOLE:
                raise TypeError("nobody asks this without a pipeline")

    def _in_doubt(self, rows: tuple[Row, ...]) -> Doubt | None:
        """Return the tables in doubt; None if a rollback ignores them. Raises TablesBehindError."""
        try:
            return must_have_logs(self.stores, must_be_repairable(self.stores, rows))
        except TablesBehindError:
            if self._task.goes_back_to is None:
                raise
            return None

    def ensure(self, plan: RecoveryPlan, unsettled: frozenset[TableName]) -> None:
        """Create the output tables that are missing."""
        del unsettled
        if self._task.ensure is not None:
            self._task.ensure(plan)

    def folders(self) -> Iterable[TableName]:
        """Return the folders of state and channels, and of all tables that a cut or an entry names."""
        rows = (row for row in self.stores.entries.rows() if isinstance(row, CheckpointRecord))
        named = (table.table for row in rows for table in row.tables)
        cut = (table for each in self.stores.cuts.all().values() for table in each)
        return dict.fromkeys([*own_folders(self.warehouse), *cut, *named])

    def work(self, work: Work) -> TickFact:
        """Do the task."""
        return self._task.do_work(work)

    def told(self, effect: TakeHold | RolledForward | RestartDue | Recovered) -> None:
        """Record the last publication."""
        if isinstance(effect, RolledForward):
            self.published = effect
