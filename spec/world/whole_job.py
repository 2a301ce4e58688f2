"""A whole job that the caller's choices drive: the real door on in-memory stores. Nothing happens by itself.

The caller chooses which outstanding effect is carried out next, when a timer fires, when the tick crashes, and which of
its outstanding effects are still carried out then. A file's name describes the work that wrote the file, so equal work
has equal names.
"""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from random import Random

from checkpointing.columns import TableColumn
from checkpointing.commit.at_rest import Move
from checkpointing.commit.fencing import newest_checkpoint
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
    LookForRival,
    PollSource,
    PublishTable,
    RecordCut,
    RunMicroBatch,
    SavepointFailed,
    SavepointTaken,
    TimeAdvanced,
)
from checkpointing.metadata.record import CheckpointRecord
from spec.history import (
    CALLS,
    Begun,
    CheckpointTriggered,
    CutWritten,
    DoorBroke,
    DoorStarted,
    FileMissed,
    FilesDiscarded,
    History,
    OrderBroken,
    RowCommitted,
    SavepointAnswered,
    TableChanged,
    TickOver,
)
from spec.reference.pipeline import (
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
    with_columns,
)
from spec.world.carrier import Hands, events_of_effect, events_of_fact
from spec.world.faults import NONE, Faults
from spec.world.stores import World, Written
from spec.world.tick_door import begun
from spec.world.visits import can_be_reset, disposable, disposing, others_than_the_newest, resetting, rolling_back

NEVER_MS = 1_000_000_000
TELLING = (
    RowCommitted,
    CutWritten,
    TableChanged,
    FileMissed,
    FilesDiscarded,
    OrderBroken,
    SavepointAnswered,
    TickOver,
    DoorBroke,
)
"""The events after which it is worth judging a history again."""
_STORE = (AppendRow, PublishTable, RecordCut)
_READS = (PollSource, CheckTables, LookForRival)
_ANSWERED = (RunMicroBatch, JudgeSuites, *_READS, *_STORE, *CALLS)


def join_graph() -> JobGraph:
    """Return a graph with two sources, a join of two inputs, and a sink that sums up."""
    bare = JobGraph(
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
    return with_columns(bare, (TableColumn("row", "long"),))


class TimedDoor(JobDoor):
    """The product's door. It can also report when the next timer of a checkpoint is due."""

    @property
    def checkpoint_timer_ms(self) -> int | None:
        """When the next timer of a checkpoint is due: an interval, an expiry, an alignment, a hook or a pause."""
        timers = [run.gate_wake_ms for run in self._job.runs.values()]
        timers += [self._job.coordinator.wake_at_ms, self._job.bystanders.hooks.wake_at_ms]
        timers += [] if self._job.pause.is_over(self._job.now_ms) else [self._job.pause.until_ms]
        return min((at for at in timers if at is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallJob:
    """What stays the same while the job is driven."""

    graph: JobGraph
    config: CheckpointConfig
    rows: Mapping[SplitId, int]
    """How many rows each split has."""
    limits: TickLimits = field(default_factory=TickLimits)
    credit_bytes: int = NEVER_MS
    cut_groups: Mapping[VertexId, str] = field(default_factory=dict)
    """The upstream job of each source that reads cuts."""


class NamedWorld(World):
    """A warehouse in which a file's name describes the work that wrote the file."""

    def write(self, folder: str, written: Written, rows: int, inside: str = "") -> FileHandle:
        """Stage a file. No crashed attempt can have left a file of this name, because each has its own generation."""
        stem = f"{folder}/_data/{written.generation}/{inside}{written.vertex}-{written.micro_batch}"
        path, copy = f"{stem}.parquet", 0
        while path in self.files:
            copy += 1
            path = f"{stem}-{copy}.parquet"
        self.files[path] = written
        return FileHandle(path, rows, rows * ROW_BYTES, 0)


class DrivenJob:
    """One warehouse, and the ticks that run in it one after the other."""

    def __init__(self, job: SmallJob, *, in_order: bool = True) -> None:
        self.job = job
        self.world: World = NamedWorld(self._new_history)
        self.hands = Hands(self.world, Random(0), in_order=in_order)  # noqa: S311 - no fault is drawn
        self.hands.readable = dict(job.rows)
        self.generation = Generation(0)
        self.door: TimedDoor | None = None
        self.outstanding: list[Effect] = []
        self.ghosts: list[Effect] = []
        """Effects of dead ticks that may still change the stores."""
        self.answers: tuple[SavepointTaken | SavepointFailed, ...] = ()
        """The answers to requests for savepoints."""
        self.end: EndTick | None = None
        self._next_id = CheckpointId(1)

    def _new_history(self, world: World) -> History:
        config = self.job.config
        return History(
            config.mode,
            config.kept,
            MAX_PARALLELISM,
            world.rows_of,
            world.state_of,
            tolerable=config.tolerable_failures,
        )

    # -------------------------------------------------------------- a tick

    def start(self) -> None:
        """Claim, recover, and start the door, without a pause."""
        world, work = self.world, begun(self.world)
        claim, restored = work.claim, work.plan.restore
        self.generation, self._next_id, self.end = claim.generation, claim.first_id, None
        setup = JobSetup(
            graph=self.job.graph,
            config=self.job.config,
            job=JobName("small"),
            claim=claim,
            at_version=work.at_version,
            restored=restored,
            retained=tuple(row for row in work.seen.rows if isinstance(row, CheckpointRecord)),
            versions=world.cuts[restored.checkpoint] if restored else {},
            limits=self.job.limits,
            idle_poll_ms=NEVER_MS,
            linger_ms=0,
            credit_bytes=self.job.credit_bytes,
            cut_groups=self.job.cut_groups,
        )
        self.door = TimedDoor(setup)
        world.history.add(DoorStarted(self.generation, self.job.graph, restored, setup.cut_groups))
        self._take(Begun(setup, world.now_ms), self.door.start(world.now_ms))

    def overtake(self) -> None:
        """Let another coordinator take the job over, recover and die. The running tick does not notice."""
        begun(self.world)

    def crash(self, come_true: int = 0, *, haunts: bool = False) -> None:
        """Drop the tick. Each outstanding effect with a bit in `come_true` is still carried out, without an answer.

        With `haunts`, the other effects may be carried out later.
        """
        for place, effect in enumerate(self.last_wishes()):
            if come_true >> place & 1:
                self.hands.carry_out(effect, self.generation, NONE)
            elif haunts:
                self.ghosts.append(effect)
        self.door, self.outstanding = None, []

    def abandoned(self) -> "DrivenJob":
        """Drop the tick, and return a zombie that goes on in the same warehouse, with the present input."""
        zombie = copy(self)
        zombie.hands = copy(self.hands)
        zombie.hands.readable = dict(self.hands.readable)
        self.crash()
        return zombie

    def come_late(self, place: int) -> None:
        """Carry out an effect of a dead tick, and drop the answer."""
        self.hands.carry_out(self.ghosts.pop(place), self.generation, NONE)

    def last_wishes(self) -> list[Effect]:
        """Return the outstanding effects that change the stores."""
        return [effect for effect in self.outstanding if isinstance(effect, _STORE)]

    # -------------------------------------------------------------- between two ticks

    def disposable(self) -> list[CheckpointId]:
        """Return the savepoints from which the next tick does not begin."""
        return list(disposable(self.world))

    def dispose(self, checkpoint: CheckpointId) -> None:
        """Claim the job, roll forward, and drop this savepoint with the release."""
        for _ in disposing(self.world, checkpoint):
            """All steps happen without a pause."""

    def others(self) -> tuple[CheckpointId, ...]:
        """Return the entries to which the job may be rolled back."""
        return others_than_the_newest(self.world)

    def roll_back(self, checkpoint: CheckpointId, effects_max: int | None) -> None:
        """Roll back to this entry while no tick runs.

        The process dies after `effects_max` effects. If `effects_max` is None, the process does not die.
        """
        for done, _ in enumerate(rolling_back(self.world, self.job.graph, checkpoint), start=1):
            if done == effects_max:
                break

    def can_be_reset(self) -> bool:
        """Return whether there is an entry whose positions can be reset."""
        return can_be_reset(self.world)

    def reset(self, move: Move, effects_max: int | None) -> None:
        """Reset a source while no tick runs.

        The process dies after `effects_max` effects, or not at all if it is None.
        """
        for done, _ in enumerate(resetting(self.world, move), start=1):
            if done == effects_max:
                break

    # -------------------------------------------------------------- what may happen next

    def answer(self, place: int, faults: Faults = NONE) -> None:
        """Carry out one outstanding effect, and step the door with the answer."""
        effect = self.outstanding.pop(place)
        fact = self.hands.carry_out(effect, self.generation, faults)
        if fact is not None:
            self.tell(fact)

    def wake_at_ms(self) -> int | None:
        """Return when the next timer of the job is due, if there is one."""
        return self.door.checkpoint_timer_ms if self.door is not None else None

    def pending(self) -> int:
        """Return how many checkpoints are pending."""
        return len(self.door.pending) if self.door is not None else 0

    def fire(self) -> None:
        """Advance the time to the next timer."""
        due = self.wake_at_ms()
        if due is not None:
            self.world.now_ms = max(self.world.now_ms, due)
            self.tell(TimeAdvanced(self.world.now_ms))

    def tell(self, fact: Fact) -> None:
        """Step the door with a fact."""
        if self.door is None:
            raise TypeError(f"no tick is running that could be told {fact}")
        self.world.history.events.extend(events_of_fact(self.generation, fact))
        self._take(fact, self.door.step(fact))

    def _take(self, told: Begun | Fact, effects: tuple[Effect, ...]) -> None:
        """Record a step, and process the effects with which the door answered."""
        next_id = self.door.next_id if self.door is not None else self._next_id
        self.world.history.stepped(self.generation, told, effects, next_id)
        self._carry_on(effects)

    def _carry_on(self, effects: tuple[Effect, ...]) -> None:
        history, door = self.world.history, self.door
        next_id = door.next_id if door is not None else self._next_id
        for checkpoint in range(self._next_id, next_id):
            history.add(CheckpointTriggered(self.generation, CheckpointId(checkpoint)))
        self._next_id = next_id
        for effect in effects:
            history.events.extend(events_of_effect(self.generation, effect))
            match effect:
                case DiscardFiles():
                    self.world.discard(effect.paths)
                case SavepointTaken() | SavepointFailed():
                    self.answers = (*self.answers, effect)
                case EndTick():
                    self._over(effect)
                case _ if isinstance(effect, _ANSWERED):
                    self.outstanding.append(effect)
                case _:
                    """The caller itself asks for the next timer. The other effects are only messages."""

    def _over(self, effect: EndTick) -> None:
        self.end, self.outstanding = effect, []
        readable = tuple(self.hands.readable.items())
        newest = newest_checkpoint(self.world.rows())
        self.world.history.add(TickOver(self.generation, effect, readable, newest))
