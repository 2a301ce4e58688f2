"""A whole job that somebody else's choices drive: the real door on in-memory stores, nothing happens by itself.

Who drives it chooses which outstanding effect is carried out next, when a timer fires, when the tick crashes and
what of its last wishes comes true. Files are named after what wrote them, so that equal work has equal names.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from checkpointing.channel_items import SourceSlice, StagedSegment
from checkpointing.commit.fencing import HolderObserved, newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan, decide_recovery, publications
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, EdgeId, Generation, JobName, SplitId, VertexId
from checkpointing.job.door import JobDoor
from checkpointing.job.setup import JobSetup, TickLimits
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    DiscardFiles,
    Effect,
    EndTick,
    Fact,
    JudgeSuites,
    MicroBatchFinished,
    NotifyAborted,
    NotifyComplete,
    PollSource,
    PublishTable,
    RecordCut,
    RunMicroBatch,
    SliceOffered,
    TimeAdvanced,
)
from checkpointing.metadata.record import CheckpointRecord, Holder
from spec.carrying_out import Hands
from spec.faults import NONE, Faults
from spec.history import (
    CheckpointEnded,
    CheckpointTriggered,
    CutWritten,
    DoorBroke,
    DoorStarted,
    FileMissed,
    FilesDiscarded,
    History,
    OrderBroken,
    RowCommitted,
    SegmentSent,
    SegmentsRun,
    TableChanged,
    TickOver,
)
from spec.pipeline import (
    JOINED,
    JOINED_STATE,
    JOINED_TABLE,
    MAX_PARALLELISM,
    ORDERS,
    PAYMENTS,
    ROW_BYTES,
    TOTALS,
    TOTALS_STATE,
    TOTALS_TABLE,
)
from spec.world import World, Written

NEVER_MS = 1_000_000_000
TELLING = (RowCommitted, CutWritten, TableChanged, FileMissed, FilesDiscarded, OrderBroken, TickOver, DoorBroke)
"""What makes it worth while to judge a history again."""
_STORE = (AppendRow, PublishTable, RecordCut)
_ANSWERED = (PollSource, RunMicroBatch, JudgeSuites, CheckTables, AppendRow, PublishTable, RecordCut)


def join_graph() -> JobGraph:
    """Return two sources, a join of two inputs, and a sink that sums up."""
    return JobGraph(
        (
            Vertex(ORDERS, VertexKind.SOURCE, 1, splits=(SplitId("a"),)),
            Vertex(PAYMENTS, VertexKind.SOURCE, 1, splits=(SplitId("c"),)),
            Vertex(
                JOINED,
                VertexKind.KEYED,
                1,
                (Table(JOINED_TABLE, TableMode.APPEND), Table(JOINED_STATE, TableMode.STATE)),
            ),
            Vertex(
                TOTALS,
                VertexKind.KEYED,
                1,
                (Table(TOTALS_TABLE, TableMode.UPSERT, ("key",)), Table(TOTALS_STATE, TableMode.STATE)),
            ),
        ),
        (EdgeId(ORDERS, JOINED, 0), EdgeId(PAYMENTS, JOINED, 1), EdgeId(JOINED, TOTALS)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallJob:
    """What does not change while it is driven."""

    graph: JobGraph
    config: CheckpointConfig
    rows: Mapping[SplitId, int]
    """How many rows each split has."""
    limits: TickLimits = field(default_factory=TickLimits)
    credit_bytes: int = NEVER_MS


class NamedWorld(World):
    """A warehouse whose files are named after what wrote them."""

    def write(self, folder: str, written: Written, rows: int) -> FileHandle:
        """Stage a file; one that a crashed generation left under this name cannot exist: generations differ."""
        stem = f"{folder}/_data/{written.generation}/{written.vertex}-{written.micro_batch}"
        path, copy = f"{stem}.parquet", 0
        while path in self.files:
            copy += 1
            path = f"{stem}-{copy}.parquet"
        self.files[path] = written
        return FileHandle(path, rows, rows * ROW_BYTES, 0)


class DrivenJob:
    """One warehouse and, one after the other, the ticks over it."""

    def __init__(self, job: SmallJob, *, in_order: bool = True) -> None:
        """Begin with an empty warehouse and no tick. `in_order`: whether a channel's order must be seen."""
        self.job = job
        self.world: World = NamedWorld(self._new_history)
        self.hands = Hands(self.world, Random(0), in_order=in_order)  # noqa: S311 - no fault is drawn
        self.hands.readable = dict(job.rows)
        self.generation = Generation(0)
        self.door: JobDoor | None = None
        self.outstanding: list[Effect] = []
        self.end: EndTick | None = None
        self._next_id = CheckpointId(1)

    def _new_history(self, world: World) -> History:
        config = self.job.config
        return History(config.mode, config.retained, MAX_PARALLELISM, world.rows_of, world.state_of)

    # -------------------------------------------------------------- a tick

    def start(self) -> None:
        """Claim, recover, and start the door: all of it at once."""
        world = self.world
        holder = HolderObserved(alive=False, lease=None)
        seen = Observed(world.version, world.rows(), frozenset(world.cuts), holder, world.now_ms)
        plan = decide_recovery(seen, take_over=True)
        if not isinstance(plan, RecoveryPlan):
            raise TypeError(f"nobody holds the job, and yet: {plan}")
        claim = plan.claim.claim(Holder(host="here", pid=1, started=""), 0, f"nonce-{plan.claim.generation}")
        world.append(claim, world.version)
        self.generation, self._next_id, self.end = claim.generation, claim.first_id, None
        if plan.roll_forward is not None:
            self._roll_forward(plan.roll_forward)
        world.discard_leftovers(self.generation)
        setup = JobSetup(
            graph=self.job.graph,
            config=self.job.config,
            job=JobName("small"),
            claim=claim,
            at_version=world.version,
            restored=plan.restore,
            retained=tuple(row for row in seen.rows if isinstance(row, CheckpointRecord)),
            versions=world.cuts[plan.restore.checkpoint] if plan.restore else {},
            limits=self.job.limits,
            idle_poll_ms=NEVER_MS,
            linger_ms=0,
            credit_bytes=self.job.credit_bytes,
        )
        self.door = JobDoor(setup)
        world.history.add(DoorStarted(self.generation, self.job.graph, plan.restore))
        self._take(self.door.start(world.now_ms))

    def _roll_forward(self, record: CheckpointRecord) -> None:
        parent = self.world.cuts.get(record.parent, {})
        touched = {table.table: table.parent_version for table in record.tables}
        names = [table.name for table in self.job.graph.tables()]
        versions = {name: parent.get(name, touched.get(name, 0)) for name in names}
        for publication in publications(record):
            versions[publication.table] = self.world.publish(record.checkpoint, publication).version
        self.world.record_cut(record.checkpoint, tuple(versions.items()))

    def crash(self, come_true: int = 0) -> None:
        """Drop the tick; what it wanted of the stores comes true where `come_true` has a bit, unheard."""
        for place, effect in enumerate(self.last_wishes()):
            if come_true >> place & 1:
                self.hands.carry_out(effect, self.generation, NONE)
        self.door, self.outstanding = None, []

    def last_wishes(self) -> list[Effect]:
        """Return what is outstanding and changes the stores."""
        return [effect for effect in self.outstanding if isinstance(effect, _STORE)]

    # -------------------------------------------------------------- what may happen next

    def answer(self, place: int, faults: Faults = NONE) -> None:
        """Carry out one outstanding effect, and tell the door."""
        effect = self.outstanding.pop(place)
        fact = self.hands.carry_out(effect, self.generation, faults)
        if fact is not None:
            self.tell(fact)

    def wake_at_ms(self) -> int | None:
        """Return when the next timer of the job is due, if there is one."""
        if self.door is None:
            return None
        rooms = self.door._job  # noqa: SLF001 - a door at rest is looked into, not changed
        timers = [run.gate_wake_ms for run in rooms.runs.values()]
        timers.append(rooms.coordinator.wake_at_ms)
        return min((at for at in timers if at is not None), default=None)

    def pending(self) -> int:
        """Return how many checkpoints are pending."""
        return len(self.door._job.coordinator.pending) if self.door is not None else 0  # noqa: SLF001 - as above

    def fire(self) -> None:
        """Let the time come at which the next timer is due."""
        due = self.wake_at_ms()
        if due is not None:
            self.world.now_ms = max(self.world.now_ms, due)
            self.tell(TimeAdvanced(self.world.now_ms))

    def tell(self, fact: Fact) -> None:
        """Step the door with a fact."""
        if self.door is None:
            raise TypeError(f"no tick is running that could be told {fact}")
        self._note(fact)
        self._take(self.door.step(fact))

    def _take(self, effects: tuple[Effect, ...]) -> None:
        history, door = self.world.history, self.door
        next_id = door.next_id if door is not None else self._next_id
        for checkpoint in range(self._next_id, next_id):
            history.add(CheckpointTriggered(self.generation, CheckpointId(checkpoint)))
        self._next_id = next_id
        for effect in effects:
            self._note(effect)
            match effect:
                case NotifyComplete():
                    history.add(CheckpointEnded(self.generation, effect.checkpoint, None))
                case NotifyAborted():
                    history.add(CheckpointEnded(self.generation, effect.checkpoint, effect.reason))
                case DiscardFiles():
                    self.world.discard(effect.paths)
                case EndTick():
                    self._over(effect)
                case _ if isinstance(effect, _ANSWERED):
                    self.outstanding.append(effect)
                case _:
                    """Timers are asked for when one is to fire; nobody listens to the rest."""

    def _over(self, effect: EndTick) -> None:
        self.end, self.outstanding = effect, []
        readable = tuple(self.hands.readable.items())
        newest = newest_checkpoint(self.world.rows())
        self.world.history.add(TickOver(self.generation, effect, readable, newest))

    def _note(self, message: Fact | Effect) -> None:
        for vertex, micro_batch, segment in _sent(message):
            self.world.history.add(SegmentSent(self.generation, vertex, micro_batch, segment))
        if isinstance(message, RunMicroBatch):
            ran = SegmentsRun(self.generation, message.vertex, message.micro_batch, message.inputs)
            self.world.history.add(ran)


def _sent(message: Fact | Effect) -> Iterator[tuple[VertexId, int, SourceSlice | StagedSegment]]:
    match message:
        case SliceOffered(SourceSlice() as sent):
            yield sent.source, 0, sent
        case MicroBatchFinished():
            for output in message.outputs:
                yield message.vertex, message.micro_batch, StagedSegment(output.emitted)
        case _:
            pass
