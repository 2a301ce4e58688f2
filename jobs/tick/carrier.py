"""Drives the tick door, and carries out its effects on a job's real stores. The door decides the order.

A tick and each task on a job at rest drive the door through this module. Wherever a process dies, the next process
takes the same steps and recovers.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Final
from uuid import uuid4

import structlog

from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.fencing import Refused
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.identifiers import TableName
from checkpointing.messages import AppendRow, CutRecorded, LookForRival, PublishTable, RecordCut, RivalSeen
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import (
    AppendClaim,
    AppendEntry,
    AppendRelease,
    Broke,
    CorrectCuts,
    CutRead,
    DiscardLeftovers,
    Done,
    EnsureTables,
    Examine,
    Finish,
    GiveLease,
    LeftoversDiscarded,
    LetGo,
    LogsSeen,
    LookAtLogs,
    LookAtTables,
    Objected,
    Observe,
    PublishAgain,
    Question,
    ReadCut,
    Recovered,
    RestartDue,
    RollBackPreCommitted,
    RolledForward,
    TablesSeen,
    TakeHold,
    TickEffect,
    TickFact,
    Unsettled,
    Work,
)
from jobs.tick.start_checks import published_since, repair_lines
from jobs.warehouse.boundaries import (
    CLAIM,
    CORRECT_CUTS,
    DISCARD_LEFTOVERS,
    ENSURE_TABLES,
    LEASE,
    PUBLISH_AGAIN,
    RELEASE,
    ROLL_FORWARD,
    ROLL_FORWARD_CUT,
    ROLL_FORWARD_OUTSIDE,
    Boundary,
    around,
)
from jobs.warehouse.cleanup import delete_leftovers
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.lease import LeaseStore
from jobs.warehouse.refusals import ClaimUnsettledError, JobHeldError
from jobs.warehouse.warehouse import Warehouse

LEASE_MS: Final = 30_000

_log = structlog.get_logger(__name__)


class Carrier(ABC):
    """One process that works on one job. `stores` belong to the present attempt."""

    stores: JobStores
    entry_boundary = AppendRow.__name__

    def __init__(self, warehouse: Warehouse, boundary: Boundary, *, lease_ms: int | None = LEASE_MS) -> None:
        """Prepare without opening anything.

        If `lease_ms` is None no lease is kept, for work that takes only a moment.
        """
        self.warehouse = warehouse
        self.boundary = boundary
        self._lease_ms = lease_ms
        self._held = ExitStack()
        """Contexts that stay open until the attempt is over."""
        self.repaired: tuple[str, ...] = ()
        """A message for each table that this recovery has repaired."""

    # -------------------------------------------------------------- what each kind of work does in its own way

    @abstractmethod
    def look(self, effect: Observe | LookAtTables) -> Observed | TablesSeen:
        """Return the observed facts that a start needs, or the tables in doubt.

        Raise an error that refuses the start.
        """

    @abstractmethod
    def examine(self, question: Question, seen: Observed, plan: RecoveryPlan) -> None:
        """Raise an error unless the answer to the question is yes."""

    @abstractmethod
    def told(self, effect: TakeHold | RolledForward | RestartDue | Recovered) -> None:
        """React to progress: job held, checkpoint rolled forward, recovery done, or restart due."""

    @abstractmethod
    def ensure(self, plan: RecoveryPlan, unsettled: frozenset[TableName]) -> None:
        """Create the missing output tables, and compare the others with the newest entry."""

    @abstractmethod
    def folders(self) -> Iterable[TableName]:
        """Return all folders in which staged files may lie."""

    @abstractmethod
    def work(self, work: Work) -> TickFact:
        """Do the work for which the job was claimed."""

    # -------------------------------------------------------------- driving

    def moment(self) -> Stamp:
        """Return the time and a new nonce."""
        return Stamp(self.warehouse.now_ms(), uuid4().hex)

    def drive(self, door: TickDoor) -> Finish:
        """Drive the door to its end."""
        waiting = deque(door.start(self.moment()))
        try:
            while True:
                match waiting.popleft():
                    case Finish() as finish:
                        return finish
                    case effect:
                        fact = self._answered(effect)
                if fact is not None:
                    waiting.clear()  # an effect without an answer failed, so the effects behind it are not carried out
                    waiting.extend(door.step(fact, self.moment()))
        finally:
            self._held.close()

    def _answered(self, effect: TickEffect) -> TickFact | None:
        try:
            return self.carry_out(effect)
        except Exception as error:  # noqa: BLE001 - the door decides what follows, whatever the error is
            if isinstance(effect, AppendRelease | LookForRival):
                _log.warning("job not released", job=self.warehouse.paths.job, error=f"{error}")
                return Broke(error) if isinstance(effect, AppendRelease) else RivalSeen(None)
            return Broke(error) if isinstance(effect, AppendClaim) else self.failure(effect, error)
        except (KeyboardInterrupt, SystemExit) as error:
            return Broke(error)

    def failure(self, effect: TickEffect, error: Exception) -> TickFact:
        """Return the fact for an error: before the claim a refusal, and after the claim the end of the attempt."""
        return Objected(error) if isinstance(effect, Observe | Examine) else Broke(error)

    def carry_out(self, effect: TickEffect) -> TickFact | None:
        """Carry out one effect. Return its answer, or None if the effect has no answer."""
        match effect:
            case Observe() | LookAtTables():
                return self.look(effect)
            case Examine():
                self.examine(effect.question, effect.seen, effect.plan)
                return Done()
            case Work():
                return self.work(effect)
            case RollBackPreCommitted():
                try:
                    self.stores.outside.roll_back(effect.before)
                except Exception as error:  # noqa: BLE001 - a sink is a user's code; the next tick rolls back
                    _log.warning("sinks not settled", job=self.warehouse.paths.job, error=f"{error}")
                return Done()
            case AppendClaim() | AppendEntry() | AppendRelease():
                return self._append(effect)
            case EnsureTables() | PublishAgain() | LookAtLogs() | CorrectCuts():
                return self._repair(effect)
            case ReadCut() | PublishTable() | RecordCut() | DiscardLeftovers() | LookForRival():
                return self._recover(effect)
            case _:
                self._take_note(effect)
                return None

    # -------------------------------------------------------------- entries

    def _append(self, effect: AppendClaim | AppendEntry | AppendRelease) -> TickFact:
        match effect:
            case AppendClaim():
                with around(self.boundary, CLAIM):
                    return self.stores.entries.append(effect.row, effect.at_version)
            case AppendEntry():
                with around(self.boundary, self.entry_boundary):
                    turn = effect.turn
                    return self.stores.entries.append(
                        effect.row, effect.at_version, disposed=turn.dropped, marks=turn.marks
                    )
            case AppendRelease():
                with around(self.boundary, RELEASE):
                    return self.stores.entries.append(effect.row, effect.at_version, disposed=effect.dropped)

    # -------------------------------------------------------------- recovery

    def _repair(self, effect: EnsureTables | PublishAgain | LookAtLogs | CorrectCuts) -> TickFact:
        match effect:
            case EnsureTables():
                with around(self.boundary, ENSURE_TABLES):
                    self.ensure(effect.plan, effect.unsettled)
                return Done()
            case PublishAgain():
                publication = effect.again.publication
                with around(self.boundary, f"{PUBLISH_AGAIN}:{publication.table}"):
                    return self.stores.publish(publication, effect.again.checkpoint, again=True)
            case LookAtLogs():
                return LogsSeen(published_since(self.stores, effect.doubt))
            case CorrectCuts():
                with around(self.boundary, CORRECT_CUTS):
                    self.stores.cuts.correct(effect.correction)
                self.repaired = repair_lines(effect.doubt, effect.correction)
                return Done()

    def _recover(self, effect: ReadCut | PublishTable | RecordCut | DiscardLeftovers | LookForRival) -> TickFact:
        match effect:
            case ReadCut():
                return CutRead(self.stores.cuts.read(effect.checkpoint) or {})
            case PublishTable():
                step = ROLL_FORWARD_OUTSIDE if effect.publication.outside else ROLL_FORWARD
                with around(self.boundary, f"{step}:{effect.publication.table}"):
                    return self.stores.publish(effect.publication, effect.checkpoint)
            case RecordCut():
                with around(self.boundary, ROLL_FORWARD_CUT):
                    self.stores.cuts.record(effect.checkpoint, effect.versions)
                return CutRecorded(effect.checkpoint)
            case DiscardLeftovers():
                with around(self.boundary, DISCARD_LEFTOVERS):
                    self.stores.outside.roll_back(effect.first_id)
                    gone = delete_leftovers(self.warehouse, self.folders(), current=effect.current, by=effect.by)
                return LeftoversDiscarded(len(gone))
            case LookForRival():
                return RivalSeen(self.stores.entries.rival(effect.generation))

    # -------------------------------------------------------------- effects without an answer

    def _take_note(self, effect: TickEffect) -> None:
        match effect:
            case GiveLease():
                with suppress(OSError):  # then the next tick is refused in the same words, and needs --take-over
                    LeaseStore(self.warehouse).renew(effect.to.generation, effect.to.holder, effect.lease_ms)
            case TakeHold():
                self._hold(effect)
            case LetGo():
                self._held.close()
            case Recovered() | RolledForward() | RestartDue():
                self.told(effect)
            case _:
                raise TypeError(f"{effect} is not to be carried out")

    def _hold(self, effect: TakeHold) -> None:
        """Keep the lease alive until the attempt is over."""
        self.repaired = ()
        self.told(effect)
        if self._lease_ms is not None:
            with around(self.boundary, LEASE):
                self._held.enter_context(LeaseStore(self.warehouse).kept(effect.claim, self._lease_ms))


def refusal(warehouse: Warehouse, outcome: Refused | Unsettled) -> JobHeldError | ClaimUnsettledError:
    """Return the error for the user: who holds the job, or that it is unknown which entries the job has."""
    job = warehouse.paths.job
    if isinstance(outcome, Unsettled):
        return ClaimUnsettledError(job, outcome.error)
    return JobHeldError(job, outcome.holder, outcome.generation, outcome.why)
