"""Counts from facts and effects how many bytes lie in each channel of a door: sent and not yet processed.

Segments that the restored cut held in flight count too. Each of these is counted in a channel of the same edge whose
sender exists.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from checkpointing.channel_items import Segment, SourceSlice, StagedSegment
from checkpointing.event_time import EventTime
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.graph import JobGraph
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, EdgeId, SplitId, VertexId
from checkpointing.job.door import POLLS
from checkpointing.job.setup import JobSetup
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CoordinatorResetFailed,
    Effect,
    EndTick,
    Fact,
    HookRestoreFailed,
    MicroBatchFailed,
    MicroBatchFinished,
    MicroBatchNotStaged,
    NotifyAborted,
    NotifyComplete,
    PollFailed,
    PollSource,
    RivalSeen,
    RowAppended,
    RunMicroBatch,
    SavepointFailed,
    SavepointKind,
    SavepointRequested,
    SavepointTaken,
    SliceOffered,
    SourceEnded,
    SourceIdle,
    StopKind,
    StopRequested,
    SuitesJudged,
    TablesChecked,
    TimeAdvanced,
    WakeAt,
)
from checkpointing.metadata.record import CheckpointRecord, Claim
from spec.history import (
    Begun,
    HookAsked,
    HookReady,
    HookRestoring,
    HookTold,
    Step,
    answered,
    called,
)
from spec.reference.contents import ended_before, splits_before


@dataclass(slots=True)
class ChannelBytes:
    """The bytes in each channel. A channel is an edge and the number of the sending subtask."""

    graph: JobGraph
    limit: int
    """A channel is full with this many bytes."""
    lying: Counter[tuple[EdgeId, int]] = field(default_factory=Counter)
    segments: Counter[VertexId] = field(default_factory=Counter)
    """How many segments wait for each vertex."""
    out: dict[VertexId, tuple[EdgeId, ...]] = field(default_factory=dict)
    _senders: dict[tuple[EdgeId, Segment], deque[int]] = field(default_factory=dict)
    _running: dict[VertexId, RunMicroBatch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the edges that leave each vertex."""
        for vertex in self.graph.vertices:
            self.out[vertex.id] = tuple(edge for edge in self.graph.edges if edge.upstream == vertex.id)

    def restored(self, record: CheckpointRecord | None) -> None:
        """Put what a cut holds in flight into the channels."""
        for vertex in record.vertices if record else ():
            for held in (held for snapshot in vertex.subtasks for held in snapshot.in_flight):
                senders = self.graph.vertex(held.channel.edge.upstream).parallelism
                for segment in held.segments:
                    sender = held.channel.subtask % senders
                    if isinstance(segment, SourceSlice):
                        sender = self.subtask(held.channel.edge.upstream, segment.split)
                    self._put(held.channel.edge, sender, segment)

    def offered(self, offered: SliceOffered) -> None:
        """Put a slice into the channels of its split."""
        segment = offered.slice
        if isinstance(segment, SourceSlice) and segment.rows:
            self._sent(segment.source, self.subtask(segment.source, segment.split), segment)

    def began(self, effect: RunMicroBatch) -> None:
        self._running[effect.vertex] = effect
        self.segments[effect.vertex] -= sum(len(entry.segments) for entry in effect.inputs)

    def taken_back(self, vertex: VertexId) -> None:
        """Return the segments of a micro-batch to the waiting ones, because it could not be written."""
        ran = self._running.pop(vertex, None)
        self.segments[vertex] += sum(len(entry.segments) for entry in ran.inputs) if ran is not None else 0

    def finished(self, fact: MicroBatchFinished) -> list[Segment]:
        """Remove the segments that a micro-batch ran over, and add those that it emitted. Return the removed ones."""
        ran = self._running.pop(fact.vertex, None)
        for entry in ran.inputs if ran is not None else ():
            edge = EdgeId(entry.upstream, fact.vertex, entry.input)
            for segment in entry.segments:
                known = self._senders.get((edge, segment))
                if known:
                    self.lying[edge, known.popleft()] -= segment.bytes
        for index, output in enumerate(fact.outputs):
            if output.emitted:
                self._sent(fact.vertex, index, StagedSegment(output.emitted))
        return [segment for entry in (ran.inputs if ran is not None else ()) for segment in entry.segments]

    def full(self, vertex: VertexId, subtask: int) -> EdgeId | None:
        for edge in self.out[vertex]:
            if self.lying[edge, subtask] >= self.limit:
                return edge
        return None

    def subtask(self, source: VertexId, split: SplitId | str) -> int:
        """Return the subtask that sends a split."""
        return [str(each) for each in self.graph.vertex(source).splits].index(split)

    def _sent(self, vertex: VertexId, subtask: int, segment: Segment) -> None:
        for edge in self.out[vertex]:
            self._put(edge, subtask, segment)

    def _put(self, edge: EdgeId, subtask: int, segment: Segment) -> None:
        self.lying[edge, subtask] += segment.bytes
        self.segments[edge.downstream] += 1
        self._senders.setdefault((edge, segment), deque()).append(subtask)


# ------------------------------------------------------------------
# Counts the failed checkpoints of a tick in a row, as Flink's `CheckpointFailureManager` does (E5).


FLINKS_LIST = frozenset(
    {
        Reason.IO_EXCEPTION,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.CHECKPOINT_EXPIRED,
        Reason.CHECKPOINT_DECLINED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
"""The reasons that Flink's `CheckpointFailureManager` counts."""


@dataclass(slots=True)
class FailuresInARow:
    """The failures in a row of one generation."""

    count: int = 0
    success: CheckpointId = NO_CHECKPOINT
    is_over: bool = False
    """True if there was one failure too many."""

    def ended(self, checkpoint: CheckpointId, reason: Reason | None, tolerable: int) -> None:
        """Process the end of a checkpoint. Without a reason, the checkpoint was completed."""
        if checkpoint < self.success:
            return
        if reason is None:
            self.count, self.success = 0, checkpoint
        elif reason in FLINKS_LIST:
            self.count += 1
            self.is_over = self.is_over or self.count > tolerable


# ------------------------------------------------------------------
# Watches doors from outside, step by step: the facts that a door got, the effects that it asked for, and what it waits
# for.
#
# Judges of the messages between a door and its driver use `Watched`. It knows these messages, and none of the door's
# code. So simulations, machines and traces of real ticks are judged alike.


Split = tuple[VertexId, SplitId]
_BEFORE_BARRIERS: Final = (Reason.TRIGGER_CHECKPOINT_FAILURE, Reason.CHECKPOINT_COORDINATOR_SUSPEND)
"""Reasons for which the savepoint of a stop fails before any barrier is sent. A failed hook has the same effect.

For other reasons, the job may fail too."""


@dataclass(slots=True)
class Watched:
    """The state of a door, as far as its messages show it."""

    setup: JobSetup
    started_ms: int
    now_ms: int
    next_id: CheckpointId
    last_id: CheckpointId
    """The last id of the reserved block."""
    channels: ChannelBytes
    polls: dict[Split, int] = field(default_factory=dict)
    """For each split with a poll in progress, how many rows the poll may return."""
    idle_since: dict[Split, int] = field(default_factory=dict)
    """When a split was last found idle, or could not be read. A split that has sent rows since then is not listed."""
    ended: set[Split] = field(default_factory=set)
    """The splits that have ended. They are never polled again."""
    before: dict[Split, tuple[Split, ...]] = field(default_factory=dict)
    """The splits that must have ended before a split is read, for sources that are read in parts."""
    failed: dict[Split, int] = field(default_factory=dict)
    """How many polls of a split have failed in a row."""
    running: set[VertexId] = field(default_factory=set)
    held_back: set[VertexId] = field(default_factory=set)
    """The vertices that could not write a micro-batch and have not tried again."""
    restoring: set[str] = field(default_factory=set)
    """Hooks and source coordinators that have not confirmed yet that they are restored."""
    asked_hooks: set[tuple[str, CheckpointId]] = field(default_factory=set)
    """Hooks and coordinators that have neither answered nor failed for a checkpoint that has not ended."""
    pending: set[CheckpointId] = field(default_factory=set)
    """The checkpoints that have an id and have not ended."""
    aborted: int = 0
    """How many checkpoints were reported as aborted."""
    completed: int = 0
    """How many checkpoints were reported as complete."""
    completed_ms: int | None = None
    """When a checkpoint or savepoint was last reported as complete."""
    reached: dict[tuple[VertexId, Split], int] = field(default_factory=dict)
    """How far in event time a vertex has read each split. It is kept only if splits that run ahead are held back."""
    unread: dict[Split, str] = field(default_factory=dict)
    """The end of the newest slice of each split that may be held back, until a vertex has run its rows."""
    reserving: dict[str, CheckpointId] = field(default_factory=dict)
    """The last ids of further blocks, by the nonces of claims that are not appended yet."""
    reserves_for_timer: bool = False
    """True if only the timer can have triggered the checkpoint that waits for a block of ids."""
    requests: dict[str, SavepointKind] = field(default_factory=dict)
    """Users' requests that are not answered yet."""
    stops_failed: int = 0
    """How many savepoints of a stop have failed. After each, periodic triggering begins again."""
    failures: FailuresInARow = field(default_factory=FailuresInARow)
    is_stopping: bool = False
    """True if somebody has asked the tick to stop, with or without a savepoint."""
    is_troubled: bool = False
    """True if the tick ends as soon as no commit is in doubt.

    The tick failed, must stop, or has all its checkpoints.
    """
    is_over: bool = False
    wake_ms: int | None = None
    """When the door wants to be woken. A timer that is set to a time in the past fires at once."""

    @property
    def reads(self) -> bool:
        """True if the door certainly goes on reading."""
        limit = self.setup.limits.duration_ms
        in_time = limit is None or self.now_ms < self.started_ms + limit
        return in_time and not (self.is_stopping or self.is_troubled or self.restoring or self.is_over)

    @property
    def is_busy(self) -> bool:
        """True if the door certainly waits for work or for rows. Then the tick needs no checkpoint to end."""
        return bool(self.running) or any(split not in self.idle_since for split in self.polls)

    @property
    def wants_checkpoint(self) -> bool:
        """True if a user has asked for a checkpoint, or if the tick may want one itself."""
        asks_itself = self.held_back or self.setup.cut_groups or self.setup.config.every_rows is not None
        return bool(self.requests or asks_itself) or not self.is_busy

    def is_idle(self, split: Split) -> bool:
        """Return whether a split must not be polled now: it was idle, could not be read, has ended, or is held."""
        since = self.idle_since.get(split)
        waits = since is not None and self.now_ms < since + self.setup.idle_poll_ms
        return waits or split in self.ended or self.is_held(split)

    def is_held(self, split: Split) -> bool:
        """Return whether a split of an earlier part has not ended."""
        return any(each not in self.ended for each in self.before.get(split, ()))

    def runs_ahead(self, split: Split) -> bool:
        """Return whether a split is, or may be, too far ahead in event time of a split that can catch up (N1).

        A split cannot catch up if it had nothing to read, could not be read, has ended, or waits for an earlier part.
        Until a split's newest rows have run, it may be too far ahead.
        """
        if split in self.unread:
            return True
        behind = [
            ms
            for (_, each), ms in self.reached.items()
            if each not in self.idle_since and each not in self.ended and not self.is_held(each)
        ]
        own = [(name, ms) for (name, each), ms in self.reached.items() if each == split]
        return any(ms - (self._declared(name).hold_back_ms or 0) > min(behind, default=ms) for name, ms in own)

    def _declared(self, vertex: VertexId) -> EventTime:
        return next(each for each in self.setup.graph.vertex(vertex).event_times if each is not None)

    def _read_times(self, fact: MicroBatchFinished) -> None:
        for each in fact.times:
            edges = self.setup.graph.upstream(fact.vertex)
            (source,) = (edge.upstream for edge in edges if edge.input == each.input)
            self.has_read(fact.vertex, (source, each.split), each.ms - self._declared(fact.vertex).delay_ms - 1)

    def _ran(self, segments: list[Segment]) -> None:
        for segment in segments:
            if isinstance(segment, SourceSlice) and self.unread.get((segment.source, segment.split)) == segment.end:
                del self.unread[segment.source, segment.split]

    def has_read(self, vertex: VertexId, split: Split, ms: int) -> None:
        """Record a watermark of a split."""
        if self._declared(vertex).hold_back_ms is not None:
            self.reached[vertex, split] = max(ms, self.reached.get((vertex, split), ms))

    def is_asked_too_soon(self, split: Split) -> bool:
        """Return whether a split was idle so recently that it must not be polled, not even before a barrier."""
        pause_ms = self.setup.idle_poll_ms // POLLS
        since = self.idle_since.get(split)
        return split in self.ended or (since is not None and self.now_ms < since + pause_ms)

    @property
    def inputs_ended(self) -> bool:
        """True if every source is bounded, and all its splits have ended."""
        sources = self.setup.graph.sources()
        splits = ((source.id, split) for source in sources for split in source.splits)
        return all(source.bounded for source in sources) and all(split in self.ended for split in splits)

    # -------------------------------------------------------------- steps

    def told(self, fact: Begun | Fact) -> None:  # noqa: C901, PLR0912 - one line a fact
        match fact:
            case TimeAdvanced():
                self.now_ms = max(self.now_ms, fact.now_ms)
                if self.wake_ms is not None and self.wake_ms <= self.now_ms:
                    self.wake_ms = None
            case SliceOffered(SourceSlice() as offered):
                self.polls.pop((offered.source, offered.split), None)
                self.idle_since.pop((offered.source, offered.split), None)
                self.failed.pop((offered.source, offered.split), None)
                self._found(offered)
                self.channels.offered(fact)
                if offered.rows and any(each == (offered.source, offered.split) for _, each in self.reached):
                    self.unread[offered.source, offered.split] = offered.end
            case SourceIdle():
                self.polls.pop((fact.source, fact.split), None)
                self.idle_since[fact.source, fact.split] = self.now_ms
                self.failed.pop((fact.source, fact.split), None)
            case SourceEnded():
                self.polls.pop((fact.source, fact.split), None)
                self.ended.add((fact.source, fact.split))
                self.failed.pop((fact.source, fact.split), None)
            case PollFailed():
                self._failed((fact.source, fact.split))
            case MicroBatchFinished():
                self.running.discard(fact.vertex)
                self._ran(self.channels.finished(fact))
                self._read_times(fact)
            case MicroBatchNotStaged():
                self.running.discard(fact.vertex)
                self.held_back.add(fact.vertex)
                self.channels.taken_back(fact.vertex)
            case RowAppended():
                self.last_id = self.reserving.pop(fact.nonce, self.last_id)
            case SavepointRequested():
                self.requests.setdefault(fact.request, fact.kind)
                self.is_stopping |= fact.kind is not SavepointKind.PLAIN
            case MicroBatchFailed() | HookRestoreFailed() | CoordinatorResetFailed():
                self.is_troubled = True
            case SuitesJudged():
                self.is_troubled |= not fact.passed and fact.checkpoint in self.pending
            case TablesChecked():
                self.is_troubled |= bool(fact.problems)
            case RivalSeen():
                self.is_troubled |= fact.claim is not None
            case StopRequested():
                self.is_stopping, self.is_troubled = True, self.is_troubled or fact.kind is StopKind.NOW
            case Begun():
                self.channels.restored(fact.setup.restored)
            case _:
                self._heard(fact)

    def asked(self, effect: Effect) -> None:
        match effect:
            case PollSource():
                self.polls[effect.source, effect.split] = effect.max_rows
            case RunMicroBatch():
                self.running.add(effect.vertex)
                self.held_back.discard(effect.vertex)
                self.channels.began(effect)
            case NotifyAborted():
                self.aborted += 1
                self._ended(effect.checkpoint, effect.reason)
            case NotifyComplete():
                self.completed += 1
                limit = self.setup.limits.checkpoints
                self.is_troubled |= limit is not None and self.completed >= limit
                self.completed_ms = self.now_ms
                self._ended(effect.checkpoint)
            case SavepointTaken():
                self.completed_ms = self.now_ms
                self.requests.pop(effect.request, None)
                self._ended(effect.checkpoint)
            case SavepointFailed():
                stops = self.requests.pop(effect.request, SavepointKind.PLAIN) is not SavepointKind.PLAIN
                self.stops_failed += stops
                no_barrier = effect.reason.pre_flight or effect.reason in _BEFORE_BARRIERS or bool(self.asked_hooks)
                self.is_troubled |= stops and not no_barrier
            case AppendRow(Claim() as claim):
                self.reserving[claim.nonce] = claim.last_id
                self.reserves_for_timer = not self.wants_checkpoint
            case EndTick():
                self.is_over = True
            case _:
                self._called(effect)

    def _heard(self, fact: Fact) -> None:
        for event in answered(self.setup.claim.generation, fact):
            match event:
                case HookReady():
                    self.restoring.discard(event.hook)
                case HookTold(good=True):
                    self.asked_hooks.discard((event.hook, event.checkpoint))
                case _:
                    pass

    def _called(self, effect: Effect) -> None:
        for event in called(self.setup.claim.generation, effect):
            match event:
                case HookRestoring():
                    self.restoring.add(event.hook)
                case HookAsked():
                    self.asked_hooks.add((event.hook, event.checkpoint))

    def given(self, step: Step) -> tuple[CheckpointId, ...]:
        """Record the checkpoints that began in a step. Return their ids."""
        if step.next_id == self.next_id:
            return ()
        lapsed = isinstance(step.told, RowAppended) and self._has_lapsed(self.next_id)
        used = tuple(CheckpointId(each) for each in range(self.next_id + lapsed, step.next_id))
        ended = {e.checkpoint for e in step.effects if isinstance(e, NotifyAborted | NotifyComplete)}
        self.pending.update(each for each in used if each not in ended)
        self.next_id = step.next_id
        return used

    def _has_lapsed(self, first: CheckpointId) -> bool:
        """Return True if no checkpoint gets the first id of a new block (A6).

        A trigger of the timer may wait for this block when a user asks for a stop with a savepoint. The stop switches
        the timer off, so that trigger begins no checkpoint. If the job has hooks or source coordinators, a checkpoint
        that begins asks them at once.
        """
        if not any(kind is not SavepointKind.PLAIN for kind in self.requests.values()):
            return False
        if self.setup.graph.hooks or any(vertex.coordinated for vertex in self.setup.graph.vertices):
            return all(checkpoint != first for _, checkpoint in self.asked_hooks)
        return self.reserves_for_timer

    def _failed(self, split: Split) -> None:
        self.polls.pop(split, None)
        self.idle_since[split] = self.now_ms
        self.failed[split] = self.failed.get(split, 0) + 1
        self.is_troubled |= self.failed[split] > self.setup.config.tolerable_poll_failures

    def _found(self, offered: SourceSlice) -> None:
        """If a slice leads to a cut of another job, make all sources of that job ready to be polled at once (A10)."""
        groups = self.setup.cut_groups
        if offered.cut is not None:
            others = {source for source in groups if groups[source] == groups.get(offered.source)}
            self.idle_since = {
                split: since
                for split, since in self.idle_since.items()
                if split[0] not in others or split in self.failed
            }

    def _ended(self, checkpoint: CheckpointId, reason: Reason | None = None) -> None:
        self.failures.ended(checkpoint, reason, self.setup.config.tolerable_failures)
        self.is_troubled |= self.failures.is_over
        self.pending.discard(checkpoint)
        if self.asked_hooks:
            self.asked_hooks = {asked for asked in self.asked_hooks if asked[1] != checkpoint}


class DoorJudge:
    """Judges one door. The judge is called after `door` has recorded a fact, and before `door` records an effect."""

    def __init__(self, door: Watched) -> None:
        self.door = door
        self.found: list[str] = []

    @property
    def applies(self) -> bool:
        return True

    def wrong(self, what: str) -> None:
        """Record what is wrong, and when."""
        self.found.append(f"{what}, at {self.door.now_ms}")

    def told(self, fact: Begun | Fact) -> None:
        """Process a fact that the door got."""

    def asked(self, effect: Effect) -> None:
        """Judge one of the door's effects. The effects come in order."""

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge the door at the end of a step. `given` are the ids that it has used in the step."""

    def time_passed(self) -> None:
        """Judge a door that got the time, and did nothing."""


def drafted(effect: Effect) -> CheckpointRecord | None:
    """Return the entry that a door wants to append. All its barriers have passed by then."""
    return effect.row if isinstance(effect, AppendRow) and isinstance(effect.row, CheckpointRecord) else None


def begins_commit(effect: Effect) -> CheckpointId | None:
    """Return the checkpoint whose commit begins with this effect, or None.

    From then on it cannot expire. It can still fail, for example if the table check finds a problem.
    """
    if isinstance(effect, CheckTables):
        return effect.checkpoint
    return effect.row.checkpoint if isinstance(effect, AppendRow) and isinstance(effect.row, CheckpointRecord) else None


# ------------------------------------------------------------------
# Leads a panel of judges through the steps of one door. Only the methods that a judge defines are called.


def watch(steps: Iterable[Step], judges: Iterable[type[DoorJudge]]) -> list[DoorJudge]:
    """Follow a door from its beginning to its end. Return its judges, with what they found."""
    door: Watched | None = None
    asked = Panel(())
    for step in steps:
        if door is None:
            if not isinstance(step.told, Begun):
                break
            door = _begun(step.told)
            asked = Panel([judge(door) for judge in judges])
        elif door.is_over:
            break
        _follow(door, asked, step)
    return asked.judges


class Panel:
    """The judges of one door. Only the methods that a judge defines are called."""

    def __init__(self, judges: Iterable[DoorJudge]) -> None:
        self.judges = list(judges)
        busy = [judge for judge in self.judges if judge.applies]
        self.told = [judge.told for judge in busy if type(judge).told is not DoorJudge.told]
        self.asked = [judge.asked for judge in busy if type(judge).asked is not DoorJudge.asked]
        self.rested = [judge.rested for judge in busy if type(judge).rested is not DoorJudge.rested]
        self.passed = [judge.time_passed for judge in busy if type(judge).time_passed is not DoorJudge.time_passed]


def _begun(begun: Begun) -> Watched:
    setup, claim = begun.setup, begun.setup.claim
    channels = ChannelBytes(setup.graph, setup.credit_bytes)
    ended, before = set(ended_before(setup.graph, setup.restored)), splits_before(setup.graph)
    first, last = claim.first_id, claim.last_id
    door = Watched(setup, begun.now_ms, begun.now_ms, first, last, channels, ended=ended, before=before)
    _reads_on(door)
    return door


def _reads_on(door: Watched) -> None:
    """Record how far in event time each split was read at the restored cut."""
    record = door.setup.restored
    for vertex in door.setup.graph.vertices:
        was = next((each.time for each in record.vertices if each.vertex == vertex.id), None) if record else None
        then = {(each.upstream, each.split): each.watermark_ms for each in was.inputs} if was is not None else {}
        for edge in door.setup.graph.upstream(vertex.id) if vertex.event_times else ():
            for split in door.setup.graph.vertex(edge.upstream).splits:
                door.has_read(vertex.id, (edge.upstream, split), then.get((edge.upstream, split), -(2**63)))


def _follow(door: Watched, judges: Panel, step: Step) -> None:
    if not step.effects and isinstance(step.told, TimeAdvanced) and step.next_id == door.next_id:
        door.now_ms = max(door.now_ms, step.told.now_ms)
        if door.wake_ms is not None and door.wake_ms <= door.now_ms:
            door.wake_ms = None
        for pass_time in judges.passed:
            pass_time()
        return
    door.told(step.told)
    for tell in judges.told:
        tell(step.told)
    for effect in step.effects:
        if type(effect) is WakeAt:  # there are many timers, and judges look only at the last one
            door.wake_ms = effect.at_ms
            continue
        for ask in judges.asked:
            ask(effect)
        door.asked(effect)
    given = door.given(step)
    for rest in judges.rested:
        rest(given)
