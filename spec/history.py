"""The events of a run, in order, as the stores saw them. The invariants judge nothing else.

A simulation writes the history as it goes. It can also be made from a real run's entries, cuts and table logs.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from checkpointing.channel_items import Segment, TaskWork
from checkpointing.config import CheckpointingMode
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph
from checkpointing.handles import KeyedFile
from checkpointing.identifiers import CheckpointId, Generation, SplitId, TableName, VertexId
from checkpointing.messages import Effect, EndTick, Fact, InputSegments, Publication, SavepointKind
from checkpointing.metadata.record import CheckpointRecord, Claim, Release
from spec.attempt_events import AttemptEvent
from spec.compaction_events import CompactionTold
from spec.hook_events import HookAsked, HookReady, HookRestoring, HookTold
from spec.judgement_events import JudgementBegun, JudgementBroke, JudgementCancelled, JudgementTold
from spec.mishap_events import CutsSeen, EntriesLost, ListsWereStale, NamedTooEarly, PowerLost, TableRestored
from spec.model import Contents
from spec.outside_events import OutsideEvent
from spec.politeness import UnseenLeft, UnseenRefused
from spec.rest_events import RestEvent
from spec.steps import Begun, Step
from spec.upstream import CutReached


@dataclass(frozen=True, slots=True)
class JobClaimed:
    """A generation's claim, or its next block of ids, is in."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A generation has released the job."""

    release: Release


@dataclass(frozen=True, slots=True)
class LeftoversGone:
    """A generation has deleted unreferenced staged files of older ones, before its work."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class RowCommitted:
    """A checkpoint's entry is in. `kept` are the checkpoints that the table holds after that commit."""

    record: CheckpointRecord
    kept: tuple[CheckpointId, ...]
    abandoned: tuple[CheckpointId, ...] | None = None
    """The checkpoints that are marked as abandoned then. None: nobody looked."""


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
    """Recorded cuts were dropped. `needed` are those that an entry still needed."""

    dropped: tuple[CheckpointId, ...]
    needed: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class CutsCorrected:
    """Recorded cuts name other versions now, because damaged tables were published again."""

    cuts: tuple[tuple[CheckpointId, tuple[tuple[TableName, int], ...]], ...]


@dataclass(frozen=True, slots=True)
class FilesDiscarded:
    """Files were deleted. `needed` are those that an entry or a table still named then."""

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
    """Listeners were told that a checkpoint is complete (`reason` None) or aborted."""

    generation: Generation
    checkpoint: CheckpointId
    reason: CheckpointFailureReason | None
    positions: tuple[tuple[VertexId, SplitId, str], ...] = ()
    """For a completion: how far each split was read, as sources and listeners are told."""


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
    """While no tick ran, somebody asked to read these splits on from there (None: from their start)."""

    positions: tuple[tuple[SplitId, str | None], ...]


@dataclass(frozen=True, slots=True)
class DoorStarted:
    """A generation's door was built over this graph, from this entry (None: from the start)."""

    generation: Generation
    graph: JobGraph
    restored: CheckpointRecord | None
    cut_groups: Mapping[VertexId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TablesLookedAt:
    """The output tables were checked for a checkpoint. Publishing is allowed, is not, or that is not known (None)."""

    generation: Generation
    checkpoint: CheckpointId
    allow: bool | None


@dataclass(frozen=True, slots=True)
class CheckBegun:
    """A generation asked whether these tables are as a checkpoint expects, and have the files that must leave them."""

    generation: Generation
    checkpoint: CheckpointId
    tables: tuple[TableName, ...]
    leaving: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SegmentSent:
    """A vertex sent a segment. `micro_batch` wrote it; 0 for a slice of a source."""

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
    """A vertex met rows of one channel in another order than they were sent."""

    vertex: str
    what: str


@dataclass(frozen=True, slots=True)
class TickOver:
    """A tick ended by itself. `readable` is how far each split could be read when the tick last polled it."""

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
    """Returns what a state file says of its keys. None: the key is gone."""
    baseline: tuple[CheckpointId, ...] = ()
    """The checkpoints that existed before the first event, oldest first, without savepoints."""
    pinned: tuple[CheckpointId, ...] = ()
    """The savepoints that existed then, and the abandoned checkpoints on which one stands."""
    stood_upon: tuple[CheckpointId, ...] = ()
    """The entries on which plain savepoints stood then."""
    tolerable: int | None = None
    """How many checkpoints in a row may fail (`tolerable_failures`). None: not known."""
    events: list[Event] = field(default_factory=list)
    steps: dict[Generation, list[Step]] = field(default_factory=dict)
    """The steps of each generation's door, in order. The first one begins it."""
    due: dict[int, tuple[CheckpointRecord, Contents]] = field(default_factory=dict, init=False)
    """The reference's contents for an entry, by the entry's identity, because several invariants need it."""
    found_at_doors: tuple[int, dict[str, list[str]]] = field(default=(0, {}), init=False)
    """The number of steps, and what the judges of doors found in them, because several invariants need it."""
    _without_flow: tuple[int, list[Event]] = field(default=(0, []), init=False)
    """The number of events, and those that are none of the flow."""
    _by_kind: tuple[int, dict[type, list[Event]]] = field(default=(0, {}), init=False)
    """The number of events, and those that are none of the flow, by their kind."""

    @property
    def without_flow(self) -> list[Event]:
        """The events without those of rows on their way. Most invariants look at these only.

        They are found again if there are more or fewer events. To put one event in another's place, make a new history.
        """
        if self._without_flow[0] != len(self.events):
            others: list[Event] = [event for event in self.events if not isinstance(event, FLOW)]
            self._without_flow = (len(self.events), others)
        return self._without_flow[1]

    def of(self, kind: type[_E]) -> list[_E]:
        """Return the events of one kind, which is none of the flow, in order. As `without_flow`, it is found again."""
        if self._by_kind[0] != len(self.events):
            found: dict[type, list[Event]] = {}
            for event in self.without_flow:
                found.setdefault(type(event), []).append(event)
            self._by_kind = (len(self.events), found)
        return cast("list[_E]", self._by_kind[1].get(kind, []))

    def add(self, event: Event) -> None:
        """Add an event."""
        self.events.append(event)

    def stepped(
        self, generation: Generation, told: Begun | Fact, effects: tuple[Effect, ...], next_id: CheckpointId
    ) -> None:
        """Add a step of a generation's door."""
        self.steps.setdefault(generation, []).append(Step(told, effects, next_id))

    def multiset(self, paths: frozenset[str]) -> Counter[tuple[int, ...]]:
        """Return the rows of these files together."""
        return Counter(row for path in paths for row in self.rows(path))
