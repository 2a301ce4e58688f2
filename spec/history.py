"""The events of a run, in order, as the stores saw them. Invariants judge these events alone.

A simulation writes the history as it goes. A history can also be built from a real run's entries, cuts and table logs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from checkpointing.channel_items import Segment, TaskWork
from checkpointing.commit.fencing import Lease
from checkpointing.config import CheckpointingMode
from checkpointing.coordinator.messages import (
    AskHook,
    AskOperatorCoordinator,
    HookAnswered,
    HookFailed,
    OperatorCoordinatorAnswered,
    OperatorCoordinatorFailed,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph
from checkpointing.handles import KeyedFile
from checkpointing.identifiers import CheckpointId, Generation, SplitId, TableName, VertexId
from checkpointing.job.setup import JobSetup, TickLimits
from checkpointing.messages import (
    CoordinatorReset,
    Effect,
    EndTick,
    Fact,
    HookRestored,
    InputSegments,
    Publication,
    SavepointKind,
    TickOutcome,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Release
from checkpointing.tick.attempts import RestartStrategy, Terms
from checkpointing.tick.messages import Finish, RestartDue, TickEffect, Work
from spec.reference.pipeline import Contents, CutReached

# ------------------------------------------------------------------
# The events of one process's attempts at the job, one after the other (G4).


@dataclass(frozen=True, slots=True)
class ProcessBegan:
    """A process began a tick, with the limits of all its attempts together. `at_ms` is a time of its own clock."""

    process: int
    limits: TickLimits
    strategy: RestartStrategy
    at_ms: int


@dataclass(frozen=True, slots=True)
class AttemptBegan:
    """An attempt began to work, with the rest of the limits."""

    process: int
    generation: Generation
    limits: TickLimits
    at_ms: int


@dataclass(frozen=True, slots=True)
class RestartTold:
    """A process announced another attempt after a failed one."""

    process: int
    restart: int
    after: EndTick
    delay_ms: int


@dataclass(frozen=True, slots=True)
class ProcessOver:
    """The process ended, and reported how often it had restarted the job."""

    process: int
    restarts: int
    is_finished: bool = False
    """True if its last attempt found that the job has finished, or that a cut waits for approval."""


AttemptEvent = ProcessBegan | AttemptBegan | RestartTold | ProcessOver


def process_began(terms: Terms, at_ms: int) -> ProcessBegan:
    """Return the event with which a process begins."""
    return ProcessBegan(terms.holder.pid, terms.limits, terms.strategy, at_ms)


def attempts_told(process: int, effect: TickEffect, at_ms: int) -> Iterator[AttemptEvent]:
    """Yield the events of attempts that an effect of the tick door stands for."""
    match effect:
        case Work():
            yield AttemptBegan(process, effect.claim.generation, effect.limits, at_ms)
        case RestartDue():
            yield RestartTold(process, effect.restart, effect.end, effect.delay_ms)
        case Finish():
            outcome = effect.outcome
            is_finished = isinstance(outcome, EndTick) and outcome.outcome in (TickOutcome.FINISHED, TickOutcome.HELD)
            yield ProcessOver(process, effect.restarts, is_finished)
        case _:
            pass


# ------------------------------------------------------------------
# The event of a compaction: a tick was notified that files are ready.


@dataclass(frozen=True, slots=True)
class CompactionTold:
    """A tick was notified of files that are ready to replace small ones."""

    generation: Generation
    into: frozenset[str]


# ------------------------------------------------------------------
# Events between a tick and its master hooks (A8) and source coordinators (A7).


CALLS: Final = (AskHook, RestoreHook, ResetHook, AskOperatorCoordinator, ResetOperatorCoordinator)
"""The effects that hooks and source coordinators answer."""


def coordinator_of(source: str) -> str:
    """Return the name of a source's coordinator in these events."""
    return f"the coordinator of {source}"


@dataclass(frozen=True, slots=True)
class HookRestoring:
    """A generation restores a hook to a checkpoint's state, or resets it.

    `state` is None if the hook has no state there.
    """

    generation: Generation
    hook: str
    checkpoint: CheckpointId | None
    state: str | None


@dataclass(frozen=True, slots=True)
class HookReady:
    """A hook answered that it is restored."""

    generation: Generation
    hook: str


@dataclass(frozen=True, slots=True)
class HookAsked:
    """A generation asked a hook for its state at a checkpoint."""

    generation: Generation
    hook: str
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class HookTold:
    """A hook answered with its state, or with None if it has no state. If not `good`, it failed."""

    generation: Generation
    hook: str
    checkpoint: CheckpointId
    state: str | None
    good: bool


def answered(generation: Generation, fact: Fact) -> Iterator[HookReady | HookTold]:
    match fact:
        case HookRestored():
            yield HookReady(generation, fact.hook)
        case HookAnswered():
            yield HookTold(generation, fact.hook, fact.checkpoint, fact.state, good=True)
        case HookFailed():
            yield HookTold(generation, fact.hook, fact.checkpoint, None, good=False)
        case CoordinatorReset():
            yield HookReady(generation, coordinator_of(fact.source))
        case OperatorCoordinatorAnswered():
            yield HookTold(generation, coordinator_of(fact.coordinator), fact.checkpoint, fact.state, good=True)
        case OperatorCoordinatorFailed():
            yield HookTold(generation, coordinator_of(fact.coordinator), fact.checkpoint, None, good=False)
        case _:
            pass


def called(generation: Generation, effect: Effect) -> Iterator[HookRestoring | HookAsked]:
    match effect:
        case RestoreHook():
            yield HookRestoring(generation, effect.hook, effect.checkpoint, effect.state)
        case ResetHook():
            yield HookRestoring(generation, effect.hook, None, None)
        case AskHook():
            yield HookAsked(generation, effect.hook, effect.checkpoint)
        case ResetOperatorCoordinator():
            yield HookRestoring(generation, coordinator_of(effect.coordinator), effect.checkpoint, effect.state)
        case AskOperatorCoordinator():
            yield HookAsked(generation, coordinator_of(effect.coordinator), effect.checkpoint)
        case _:
            pass


# ------------------------------------------------------------------
# Events of the judgement of a vertex's rows by a suite: its beginning, and its end with or without a verdict.


@dataclass(frozen=True, slots=True)
class JudgementBegun:
    """A generation asked a suite to judge the rows that a vertex has staged for a checkpoint."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JudgementCancelled:
    """A generation stopped waiting for this verdict."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class JudgementTold:
    """The suite's verdict arrived."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId
    passed: bool
    report: str


@dataclass(frozen=True, slots=True)
class JudgementBroke:
    """The suite failed, so there is no verdict."""

    generation: Generation
    vertex: VertexId
    checkpoint: CheckpointId


# ------------------------------------------------------------------
# Events of a history: what power cuts destroy, and what readers of cuts would find afterwards.


@dataclass(frozen=True, slots=True)
class CutsSeen:
    """What readers of cuts would find when a generation's door was built: for each cut, the files of each table."""

    generation: Generation
    cuts: tuple[tuple[CheckpointId, tuple[tuple[TableName, frozenset[str]], ...]], ...]


@dataclass(frozen=True, slots=True)
class TableRestored:
    """A user restored the log of a table that had lost entries, as the error of a refused start asks for."""

    table: TableName


@dataclass(frozen=True, slots=True)
class ListsWereStale:
    """A process saw stale lists of the job's entries or cuts. `lacks` are the recorded cuts that it did not see."""

    lacks: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True)
class PowerLost:
    """The power failed. This destroyed versions that recorded cuts name, and files that entries name."""

    versions: tuple[tuple[CheckpointId, TableName, int], ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamedTooEarly:
    """An entry was appended before these files that it names were durable."""

    checkpoint: CheckpointId
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntriesLost:
    """A table's log lost its newest entries."""

    table: TableName


# ------------------------------------------------------------------
# The events of outside sinks.


LEAVES_OUTSIDE_EVERY: Final = 3
"""If the target's id is divisible by this number, a rollback leaves the sinks of upsert tables as they are."""


@dataclass(frozen=True, slots=True)
class OutsidePublished:
    """A target took the rows of a checkpoint, and stored the checkpoint in the same transaction."""

    checkpoint: CheckpointId
    table: TableName
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutsidePassedOver:
    """A target took nothing, because it had this checkpoint or a newer one."""

    checkpoint: CheckpointId
    table: TableName


@dataclass(frozen=True, slots=True)
class OutsidePreCommitted:
    """A target pre-committed these rows: it can commit their transaction in any case, but nobody sees them yet."""

    generation: Generation
    checkpoint: CheckpointId
    table: TableName
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutsideRefused:
    """A target voted against a checkpoint."""

    checkpoint: CheckpointId
    table: TableName


@dataclass(frozen=True, slots=True)
class OutsideRolledBack:
    """A target dropped a transaction that it had pre-committed."""

    checkpoint: CheckpointId
    table: TableName


@dataclass(frozen=True, slots=True)
class OutsideRecovered:
    """A starting tick has ended what dead ticks left open, here the transactions of older generations."""

    generation: Generation


OutsideEvent = (
    OutsidePublished | OutsidePassedOver | OutsidePreCommitted | OutsideRefused | OutsideRolledBack | OutsideRecovered
)


# ------------------------------------------------------------------
# The events of a warehouse at rest, of a reader that loses a file, of manifests, and of entries as texts.


@dataclass(frozen=True, slots=True)
class CameToRest:
    """Nothing runs any more, and a clean-up is over.

    The event has the job's own files, and what tables and cuts show.
    """

    files: frozenset[str]
    shown: frozenset[str]
    cuts: tuple[tuple[CheckpointId, frozenset[str]], ...]


@dataclass(frozen=True, slots=True)
class ReservedGone:
    """A file was deleted although a reader's reservation covered it."""

    path: str


@dataclass(frozen=True, slots=True)
class EntryStored:
    """An entry was stored with these manifests, of which the `new` ones were written for it.

    `unfit` are manifests that lie in a wrong place, or whose content does not match their names. `changed` is false if
    an earlier entry has the same handles in manifests.
    """

    checkpoint: CheckpointId
    named: tuple[str, ...]
    new: tuple[str, ...]
    unfit: tuple[str, ...]
    changed: bool


@dataclass(frozen=True, slots=True)
class EntryRead:
    """An entry was read with its manifests. `missing` are the manifests that had been deleted.

    `differs` is true if the entry read differs from the one that was appended.
    """

    checkpoint: CheckpointId
    missing: tuple[str, ...]
    differs: bool


@dataclass(frozen=True, slots=True)
class EntryTranslated:
    """An entry was written as a version with this format wrote it, and was then read.

    `differs` is the first field that was read differently from what was meant, or the reason why nothing was read. It
    is empty if everything was read as it was meant.
    """

    kind: str
    format: int
    differs: str


@dataclass(frozen=True, slots=True)
class LieTold:
    """The codec was given an entry that Tidemark cannot have written. The only right answer is "refused"."""

    kind: str
    lie: str
    answer: str


@dataclass(frozen=True, slots=True)
class FoundFinished:
    """A tick ended before its claim, because the job has finished (B4). The fields are what the stores held then."""

    newest: CheckpointRecord | None
    recorded: frozenset[CheckpointId]
    """The checkpoints whose cuts are recorded."""
    behind: frozenset[TableName]
    """The tables that show less than a recorded cut."""


@dataclass(frozen=True, slots=True)
class EntryAtRest:
    """A process worked on a job at rest, appended this entry, and then ended without a failure."""

    record: CheckpointRecord


@dataclass(frozen=True, slots=True)
class ImportBegun:
    """A process that holds an empty warehouse with this generation copies the files of another warehouse's entry.

    `line` is that entry with its ancestors in the other warehouse, oldest first. `drained` are the entries among them
    that drains committed. The other fields are the highest generation and the highest committed id of the other
    warehouse.
    """

    generation: Generation
    line: tuple[CheckpointRecord, ...]
    drained: tuple[CheckpointRecord, ...]
    last_generation: Generation
    last_id: CheckpointId


ActiveAtCuts = tuple[tuple[CheckpointId, tuple[tuple[TableName, frozenset[str]], ...]], ...]
"""What each recorded cut shows: the files of each table."""


@dataclass(frozen=True, slots=True)
class ErasureAsked:
    """The process with this generation was asked to erase all rows of a key."""

    generation: Generation
    key: int


@dataclass(frozen=True, slots=True)
class RowsErased:
    """An entry that erases rows was appended. `into` has the new path of each erased file, or None.

    `before` are the other entries until then, and `after` are the same entries as rewritten. `cuts` is what the cuts
    show then, before the tables' logs are rewritten.
    """

    record: CheckpointRecord
    into: Mapping[str, str | None]
    before: tuple[CheckpointRecord, ...]
    after: tuple[CheckpointRecord, ...]
    cuts: ActiveAtCuts

    def successors(self, files: frozenset[str]) -> frozenset[str]:
        """Return these files, with erased ones replaced by their successors."""
        now = (self.into.get(path, path) for path in files)
        return frozenset(path for path in now if path is not None)


@dataclass(frozen=True, slots=True)
class ErasureOver:
    """The cut of an entry that erased rows is recorded. `cuts` is what the cuts show then."""

    checkpoint: CheckpointId
    cuts: ActiveAtCuts


RestEvent = (
    CameToRest
    | ReservedGone
    | EntryStored
    | EntryRead
    | EntryTranslated
    | LieTold
    | FoundFinished
    | EntryAtRest
    | ImportBegun
    | ErasureAsked
    | RowsErased
    | ErasureOver
)


# ------------------------------------------------------------------
# A step of a door as its driver sees it: a fact, and the effects with which the door answered.


@dataclass(frozen=True, slots=True)
class Begun:
    """A door was started at this time."""

    setup: JobSetup
    now_ms: int


@dataclass(slots=True)
class Step:
    """A door got a fact and answered. `next_id` is the first checkpoint id that was unused after that.

    The class is not frozen, because a run has many steps, and frozen ones take three times as long to make. Nobody
    changes a step.
    """

    told: Begun | Fact
    effects: tuple[Effect, ...]
    next_id: CheckpointId


# ------------------------------------------------------------------
# Events of claims by processes that cannot see the holder, but only its lease (G5).
#
# Safety does not depend on this. But if the holder lives and renews its lease, other processes must leave it alone.


@dataclass(frozen=True, slots=True)
class UnseenLeft:
    """A process claimed a job whose holder it could not see. `now_ms` is the time by this process's clock.

    `before` is the generation of that holder, which had not released the job. `lease` is the lease that the process
    found.
    """

    generation: Generation
    holder: Holder
    before: Generation
    holder_before: Holder
    lease: Lease | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class UnseenRefused:
    """A process was refused, because it could not see the holder of this generation. `lease` was in force then."""

    before: Generation
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class JobClaimed:
    """A generation's claim, or its claim of a further block of ids, was appended."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A generation has released the job."""

    release: Release


@dataclass(frozen=True, slots=True)
class LeftoversGone:
    """Before its work, a generation has deleted unreferenced staged files of older generations."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class RowCommitted:
    """A checkpoint's entry was appended. `kept` are the checkpoints that the table holds after that commit."""

    record: CheckpointRecord
    kept: tuple[CheckpointId, ...]
    abandoned: tuple[CheckpointId, ...] | None = None
    """The checkpoints that are marked as abandoned then. None if this is unknown."""


@dataclass(frozen=True, slots=True)
class TableChanged:
    """A publication changed a table. `active` are its files at the new version."""

    checkpoint: CheckpointId
    publication: Publication
    version: int
    active: frozenset[str]
    columns: frozenset[str] = frozenset()
    """The names of its columns at the new version."""


@dataclass(frozen=True, slots=True)
class CutWritten:
    """A cut was recorded. `active` are the files of each table at its version."""

    checkpoint: CheckpointId
    versions: tuple[tuple[TableName, int], ...]
    active: tuple[tuple[TableName, frozenset[str]], ...]
    columns: tuple[tuple[TableName, frozenset[str]], ...] = ()
    """The names of each table's columns at that version. A table that no commit has reached is left out."""


@dataclass(frozen=True, slots=True)
class CutsDropped:
    """Recorded cuts were dropped. `needed` are the dropped cuts that an entry still needed."""

    dropped: tuple[CheckpointId, ...]
    needed: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class CutsCorrected:
    """Recorded cuts name other versions now, because damaged tables were published again."""

    cuts: tuple[tuple[CheckpointId, tuple[tuple[TableName, int], ...]], ...]


@dataclass(frozen=True, slots=True)
class FilesDiscarded:
    """Files were deleted. `needed` are the deleted files that an entry or a table still named at that time."""

    paths: tuple[str, ...]
    needed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileMissed:
    """A process that holds the job, or that publishes, needed a file that had been deleted."""

    path: str
    wanted_by: str


@dataclass(frozen=True, slots=True)
class ColumnMissed:
    """A micro-batch did not find a file's values under its pipeline's name for the column."""

    path: str
    wanted: str


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """A generation used an id."""

    generation: Generation
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointEnded:
    """A checkpoint was reported to listeners as complete (`reason` is None) or as aborted."""

    generation: Generation
    checkpoint: CheckpointId
    reason: CheckpointFailureReason | None
    positions: tuple[tuple[VertexId, SplitId, str], ...] = ()
    """For a completion: the position of each split, as reported to sources and listeners."""


@dataclass(frozen=True, slots=True)
class SavepointAsked:
    """Somebody asked the tick of a generation for a savepoint."""

    generation: Generation
    request: str
    kind: SavepointKind


@dataclass(frozen=True, slots=True)
class SavepointAnswered:
    """The request got its answer: the savepoint's id, or None if there is no savepoint."""

    generation: Generation
    request: str
    checkpoint: CheckpointId | None


@dataclass(frozen=True, slots=True)
class SavepointDisposed:
    """The owner of a savepoint disposed of it, while no tick ran."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class ResetAsked:
    """While no tick ran, somebody asked for a reset of these splits to these positions. None is a split's start."""

    positions: tuple[tuple[SplitId, str | None], ...]


@dataclass(frozen=True, slots=True)
class DoorStarted:
    """A generation's door was built over this graph, from this entry, or from the start if it is None."""

    generation: Generation
    graph: JobGraph
    restored: CheckpointRecord | None
    cut_groups: Mapping[VertexId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TablesLookedAt:
    """The output tables were checked for a checkpoint. `allow` is None if the check failed."""

    generation: Generation
    checkpoint: CheckpointId
    allow: bool | None


@dataclass(frozen=True, slots=True)
class CheckBegun:
    """A generation asked whether these tables fit a checkpoint, and still have the files that must leave them."""

    generation: Generation
    checkpoint: CheckpointId
    tables: tuple[TableName, ...]
    leaving: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SegmentSent:
    """A vertex sent a segment, which this micro-batch wrote. `micro_batch` is 0 for a slice of a source."""

    generation: Generation
    vertex: VertexId
    micro_batch: int
    segment: Segment


@dataclass(frozen=True, slots=True)
class SegmentsRun:
    """A vertex's micro-batch began over these segments."""

    generation: Generation
    vertex: VertexId
    micro_batch: int
    inputs: tuple[InputSegments, ...]


@dataclass(frozen=True, slots=True)
class SegmentsTakenBack:
    """The files of a vertex's micro-batch could not be written. It counts as if it had never run."""

    generation: Generation
    vertex: VertexId
    micro_batch: int


@dataclass(frozen=True, slots=True)
class WorkMeasured:
    """The tasks of a micro-batch reported their measurements, one item for each subtask."""

    generation: Generation
    vertex: VertexId
    micro_batch: int
    work: tuple[TaskWork, ...]


@dataclass(frozen=True, slots=True)
class OrderBroken:
    """A vertex got rows of one channel in an order other than that of sending."""

    vertex: str
    what: str


@dataclass(frozen=True, slots=True)
class TickOver:
    """A tick ended by itself. `readable` is how many rows each split had when the tick last polled it."""

    generation: Generation
    end: EndTick
    readable: tuple[tuple[SplitId, int], ...]
    newest: CheckpointRecord | None
    """The newest entry at that time."""


@dataclass(frozen=True, slots=True)
class TickStuck:
    """A tick waits for nothing (a deadlock), or works without end (a livelock)."""

    generation: Generation
    why: str


@dataclass(frozen=True, slots=True)
class DoorBroke:
    """A door raised an error that it does not promise, or a tick without faults did not catch up."""

    generation: Generation
    error: str


Event = (
    JobClaimed
    | UnseenLeft
    | UnseenRefused
    | JobReleased
    | LeftoversGone
    | RowCommitted
    | TableChanged
    | CutWritten
    | CutsDropped
    | CutsCorrected
    | CutsSeen
    | PowerLost
    | NamedTooEarly
    | EntriesLost
    | TableRestored
    | ListsWereStale
    | FilesDiscarded
    | RestEvent
    | FileMissed
    | ColumnMissed
    | CheckpointTriggered
    | CheckpointEnded
    | SavepointAsked
    | SavepointAnswered
    | SavepointDisposed
    | ResetAsked
    | DoorStarted
    | HookRestoring
    | HookReady
    | HookAsked
    | HookTold
    | JudgementBegun
    | JudgementCancelled
    | CompactionTold
    | JudgementTold
    | JudgementBroke
    | TablesLookedAt
    | CheckBegun
    | SegmentSent
    | CutReached
    | SegmentsRun
    | SegmentsTakenBack
    | WorkMeasured
    | OrderBroken
    | TickOver
    | TickStuck
    | DoorBroke
    | AttemptEvent
    | OutsideEvent
)

FLOW: Final = (SegmentSent, SegmentsRun, SegmentsTakenBack, WorkMeasured)
"""Events of rows on their way. A run has more of them than of all others."""
Rows = tuple[tuple[int, ...], ...]
"""The rows of a file, each a tuple of whole numbers."""
_E = TypeVar("_E", bound=Event)


@dataclass(slots=True)
class History:
    """The events of a run in order, the content of its files (also of deleted ones), and settings for the judges."""

    mode: CheckpointingMode
    retained: int
    max_parallelism: int
    rows: Callable[[str], Rows]
    """Returns the rows of a table's or channel's file."""
    state: Callable[[KeyedFile], dict[int, tuple[object, ...] | None]]
    """Returns the content of a state file: a dict from each key to its state. None means that the key is deleted."""
    baseline: tuple[CheckpointId, ...] = ()
    """The checkpoints that existed before the first event, oldest first, without savepoints."""
    pinned: tuple[CheckpointId, ...] = ()
    """The savepoints that existed then, and the abandoned checkpoints after which one of them was taken."""
    stood_upon: tuple[CheckpointId, ...] = ()
    """The entries after which the plain savepoints were taken that existed then."""
    tolerable: int | None = None
    """How many checkpoints in a row may fail (`tolerable_failures`). None if this is unknown."""
    events: list[Event] = field(default_factory=list)
    steps: dict[Generation, list[Step]] = field(default_factory=dict)
    """The steps of each generation's door, in order. The first one begins it."""
    due: dict[int, tuple[CheckpointRecord, Contents]] = field(default_factory=dict, init=False)
    """The reference's contents for an entry, by the entry's identity, because several invariants need it."""
    found_at_doors: tuple[int, dict[str, list[str]]] = field(default=(0, {}), init=False)
    """The number of steps, and what the judges of doors found in them, because several invariants need it."""
    _without_flow: tuple[int, list[Event]] = field(default=(0, []), init=False)
    """The number of all events, and the list of the events outside the flow."""
    _by_kind: tuple[int, dict[type, list[Event]]] = field(default=(0, {}), init=False)
    """The number of all events, and a dict from each kind of event outside the flow to the events of this kind."""

    @property
    def without_flow(self) -> list[Event]:
        """The events without those about rows on their way (FLOW). Most invariants look at these only.

        The list is computed again if the number of events has changed. To replace an event, make a new history.
        """
        if self._without_flow[0] != len(self.events):
            others: list[Event] = [event for event in self.events if not isinstance(event, FLOW)]
            self._without_flow = (len(self.events), others)
        return self._without_flow[1]

    def of(self, kind: type[_E]) -> list[_E]:
        """Return the events of one kind outside the flow, in order. As in `without_flow`, they are cached."""
        if self._by_kind[0] != len(self.events):
            found: dict[type, list[Event]] = {}
            for event in self.without_flow:
                found.setdefault(type(event), []).append(event)
            self._by_kind = (len(self.events), found)
        return cast("list[_E]", self._by_kind[1].get(kind, []))

    def add(self, event: Event) -> None:
        self.events.append(event)

    def stepped(
        self, generation: Generation, told: Begun | Fact, effects: tuple[Effect, ...], next_id: CheckpointId
    ) -> None:
        """Add a step of a generation's door."""
        self.steps.setdefault(generation, []).append(Step(told, effects, next_id))

    def multiset(self, paths: frozenset[str]) -> Counter[tuple[int, ...]]:
        """Return the rows of these files together."""
        return Counter(row for path in paths for row in self.rows(path))
