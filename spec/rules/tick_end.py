"""The invariants of how ticks end, and of what is reported to listeners."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from checkpointing.coordinator.messages import HookFailed, OperatorCoordinatorFailed
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.graph import Vertex
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, SplitId, VertexId
from checkpointing.messages import (
    AppendRow,
    CancelJudgement,
    CheckTables,
    CoordinatorResetFailed,
    CutRecorded,
    Effect,
    EndTick,
    Fact,
    HookRestoreFailed,
    InputSegments,
    JudgementFailed,
    JudgeSuites,
    LookForRival,
    MicroBatchFailed,
    NotifyAborted,
    NotifyComplete,
    PollSource,
    PublishFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RowAppended,
    RowRefused,
    RowUnknown,
    SavepointFailed,
    StopKind,
    StopRequested,
    SuitesJudged,
    TableCheckFailed,
    TablePublished,
    TablesChecked,
    TickOutcome,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, RowKind
from checkpointing.tick.attempts import FixedDelay, NoRestart
from spec.history import (
    AttemptBegan,
    Begun,
    CheckpointEnded,
    CheckpointTriggered,
    CutWritten,
    DoorStarted,
    History,
    JobClaimed,
    JudgementBroke,
    JudgementTold,
    ProcessBegan,
    ProcessOver,
    RestartTold,
    RowCommitted,
    SavepointAnswered,
    SavepointAsked,
    SegmentsRun,
    SegmentsTakenBack,
    TablesLookedAt,
    TickOver,
    coordinator_of,
)
from spec.reference.contents import ended_of, in_flight, positions
from spec.reference.pipeline import first_id
from spec.rules import rule
from spec.rules.watching import FLINKS_LIST, DoorJudge, FailuresInARow, Watched, begins_commit

if TYPE_CHECKING:
    from checkpointing.failures import CheckpointFailureReason


_ALL_READ = (TickOutcome.CAUGHT_UP, TickOutcome.FINISHED)


@rule("triggers-end")
def triggers_end(history: History) -> Iterator[str]:
    """Yield every checkpoint that ended twice, or that never ended although its tick caught up."""
    triggered: dict[Generation, list[CheckpointId]] = {}
    ended: Counter[tuple[Generation, CheckpointId]] = Counter()
    rows = (event.record for event in history.of(RowCommitted))
    saved = {record.checkpoint for record in rows if record.kind is RowKind.SAVEPOINT}
    for event in history.without_flow:
        match event:
            case CheckpointTriggered(generation, checkpoint):
                triggered.setdefault(generation, []).append(checkpoint)
            case SavepointAnswered(generation, _, checkpoint) if checkpoint is not None:
                ended[generation, checkpoint] += checkpoint in saved
            case CheckpointEnded(generation, checkpoint):
                ended[generation, checkpoint] += 1
                if ended[generation, checkpoint] > 1:
                    yield f"checkpoint {checkpoint} of generation {generation} ended twice"
            case TickOver(generation, end) if end.outcome in _ALL_READ:
                for checkpoint in triggered.get(generation, ()):
                    if not ended[generation, checkpoint]:
                        yield f"checkpoint {checkpoint} of generation {generation} never ended"
            case _:
                pass


@rule("ends-settled")
def ends_settled(history: History) -> Iterator[str]:
    """Yield every checkpoint that a tick committed and did not publish, although the tick ended without a failure."""
    waiting: dict[CheckpointId, Generation] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _) if record.commits:
                waiting[record.checkpoint] = record.generation
            case CutWritten(checkpoint):
                waiting.pop(checkpoint, None)
            case TickOver(generation, end) if end.outcome is not TickOutcome.FAILED:
                for checkpoint in (known for known, by in waiting.items() if by == generation):
                    yield f"generation {generation} ended as {end.outcome.value}, cut {checkpoint} is not recorded"
            case _:
                pass


@rule("told-truly")
def told_truly(history: History) -> Iterator[str]:
    """Yield every completion that was reported too early, and every committed checkpoint that was reported aborted."""
    recorded, committed = set[CheckpointId](), set[CheckpointId]()
    aborted: dict[CheckpointId, CheckpointFailureReason] = {}
    for event in history.without_flow:
        match event:
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case RowCommitted(record, _):
                committed.add(record.checkpoint)
                if record.checkpoint in aborted:
                    yield f"checkpoint {record.checkpoint} was committed after it was aborted"
            case CheckpointEnded(_, checkpoint, None) if checkpoint not in recorded:
                yield f"checkpoint {checkpoint} was told complete, its cut is not recorded"
            case CheckpointEnded(_, checkpoint, reason) if reason is not None:
                aborted[checkpoint] = reason
                if checkpoint in committed:
                    yield f"checkpoint {checkpoint} was told aborted, but it is committed"
            case _:
                pass


@rule("one-generation")
def one_generation(history: History) -> Iterator[str]:
    """Yield every commit of a generation that no longer holds the job, every late claim, and every second door."""
    newest, started = Generation(0), set[Generation]()
    for event in history.without_flow:
        if isinstance(event, DoorStarted):
            if event.generation in started:
                yield f"two doors were started as generation {event.generation}"
            started.add(event.generation)
        elif isinstance(event, JobClaimed):
            if event.claim.generation < newest:
                yield f"generation {event.claim.generation} claimed after generation {newest}"
            newest = max(newest, event.claim.generation)
        elif isinstance(event, RowCommitted) and event.record.generation != newest:
            yield f"generation {event.record.generation} committed {event.record.checkpoint}, {newest} holds the job"


@rule("caught-up-is-committed")
def caught_up_is_committed(history: History) -> Iterator[str]:
    """Yield the rows that a tick that caught up left unread or in flight. An ended split is read up to its end.

    A zombie is not judged once a newer process has an entry, because that process may have rolled the job back or reset
    a source.
    """
    sources: dict[Generation, tuple[Vertex, ...]] = {}
    for event in history.without_flow:
        if isinstance(event, DoorStarted):
            sources[event.generation] = event.graph.sources()
        if not isinstance(event, TickOver) or event.end.outcome not in _ALL_READ:
            continue
        if event.newest and event.newest.generation > event.generation:
            continue
        read = positions(event.newest) if event.newest and event.readable else {}
        done = _ended(event.newest, sources.get(event.generation, ())) if event.newest else set()
        behind = [split for split, rows in event.readable if split not in done and read.get(split, 0) < rows]
        if behind:
            yield f"split {behind[0]} stands at {read.get(behind[0], 0)} of {dict(event.readable)[behind[0]]}"
        if event.newest and any(in_flight(event.newest)):
            yield f"checkpoint {event.newest.checkpoint} holds rows in flight that no table shows"


def _ended(newest: CheckpointRecord, sources: Iterable[Vertex]) -> set[SplitId]:
    """Return which splits of these sources have ended.

    A part of a source that has ended does not read rows that come later.
    """
    return {
        split
        for vertex in newest.vertices
        for source in sources
        if first_id(source.id) == first_id(vertex.vertex)
        for begin in source.parts or ("",)
        for split in ended_of(source, begin, vertex)
    }


# ------------------------------------------------------------------
# Judges that a tick ends soon if it must stop, cannot go on, or has all its checkpoints.
#
# Such a tick must read no more and begin no checkpoint. It only waits until no entry is in doubt. Another checkpoint
# would be in doubt next, so the tick could go on for long. Flink stops periodic triggering when a job fails
# (CheckpointCoordinatorDeActivator).
#
# A tick that reads another job's cuts may still poll its splits, because they may be on their way to a cut (A10).


@rule("ends-soon")
class EndsSoon(DoorJudge):
    """Judges what a tick begins although it must end."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._why = ""
        self._is_late = False
        """True if after the last step the tick's time was over and no user's request was open."""
        self._holds: set[str] = set()
        """The nonces of cuts that are held for approval."""
        self._is_held = False
        """True if the entry of a held cut has been appended."""
        self._begun_before = CheckpointId(0)
        """Checkpoints below this id had begun when the tick had to end, or one of them waited for a block of ids."""

    def told(self, fact: Begun | Fact) -> None:
        self._is_held |= isinstance(fact, RowAppended) and fact.nonce in self._holds
        stops = isinstance(fact, StopRequested) and fact.kind is StopKind.NOW
        if stops or isinstance(fact, MicroBatchFailed):
            self._must_end("was asked to stop now" if stops else "cannot go on")

    def _must_end(self, why: str) -> None:
        if not self._why:
            self._why = why
            waits_for_id = self.door.next_id > self.door.last_id
            self._begun_before = CheckpointId(self.door.next_id + waits_for_id)

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        """Judge the triggers. Record whether the tick has all its checkpoints, and whether its time is over.

        If the tick has all its checkpoints, it must end, unless a checkpoint is pending or the tick is reserving ids.
        """
        door, limits = self.door, self.door.setup.limits
        for checkpoint in given:
            if self._why and checkpoint >= self._begun_before:
                self.wrong(f"the tick {self._why}, and triggers checkpoint {checkpoint}")
        if limits.checkpoints is None and limits.duration_ms is None:
            return
        if limits.checkpoints is not None and door.completed >= limits.checkpoints and not door.is_over:
            self._must_end("has all its checkpoints")
            if not (door.pending or door.reserving):
                self.wrong(f"the tick has {door.completed} checkpoints of {limits.checkpoints}, and goes on")
        late_ms = None if limits.duration_ms is None else door.started_ms + limits.duration_ms
        self._is_late = late_ms is not None and door.now_ms >= late_ms and not door.requests

    def asked(self, effect: Effect) -> None:
        """Judge which splits are asked, and which checkpoints commit.

        Without an interval, no commit is judged, because every checkpoint was requested.
        """
        match effect:
            case AppendRow(CheckpointRecord(kind=RowKind.HELD) as record):
                self._holds.add(record.nonce)
            case EndTick() if self._is_held and effect.outcome not in (TickOutcome.HELD, TickOutcome.FAILED):
                self.wrong(f"the tick holds a cut for approval, and ends as {effect.outcome.value}")
            case _:
                pass
        if self._is_late and isinstance(effect, PollSource) and not self.door.setup.cut_groups:
            self.wrong(f"the tick's time is over, and it asks split {effect.split} of {effect.source}")
        if not self._why:
            return
        if isinstance(effect, PollSource) and not self.door.setup.cut_groups:
            self.wrong(f"the tick {self._why}, and asks split {effect.split} of {effect.source}")
        commits = begins_commit(effect)
        if commits is not None and commits >= self._begun_before and self.door.setup.config.interval_ms is not None:
            self.wrong(f"the tick {self._why}, and commits checkpoint {commits}, which had not begun")


# ------------------------------------------------------------------
# Judges whether a pending checkpoint can still make progress.
#
# Only unfinished work may hold up a barrier: a poll, a micro-batch, a suite, a hook, a store, or a vertex that collects
# rows before it runs. If there is no such work, nothing forwards the barrier, and the checkpoint can only expire. Once
# a newer checkpoint has completed, the barriers of older ones have passed all vertices. So an older checkpoint then
# waits only for suites, hooks and stores.


@rule("checkpoints-go-on")
class GoesOn(DoorJudge):
    """Judges a door that has a pending checkpoint although no work is under way."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._asked: set[object] = set()
        """The requests to stores and suites that have no answer yet."""
        self._newest = CheckpointId(0)
        """The newest checkpoint that has completed."""
        self._since_ms: int | None = None
        """The time since which a checkpoint has been pending without any work under way, or None."""

    def told(self, fact: Begun | Fact) -> None:
        match fact:
            case TablesChecked() | TableCheckFailed():
                self._asked.discard(("check", fact.checkpoint))
            case SuitesJudged() | JudgementFailed():
                self._asked.discard((fact.vertex, fact.checkpoint))
            case RowAppended() | RowRefused() | RowUnknown():
                self._asked.discard(fact.nonce)
            case TablePublished() | PublishFailed():
                self._asked.discard((fact.table, fact.checkpoint))
            case CutRecorded():
                self._asked.discard(("cut", fact.checkpoint))
            case _:
                """No checkpoint waits for it."""

    def asked(self, effect: Effect) -> None:
        match effect:
            case CheckTables():
                self._asked.add(("check", effect.checkpoint))
            case JudgeSuites():
                self._asked.add((effect.vertex, effect.checkpoint))
            case CancelJudgement():
                self._asked.discard((effect.vertex, effect.checkpoint))
            case AppendRow():
                self._asked.add(effect.row.nonce)
            case PublishTable():
                self._asked.add((effect.publication.table, effect.checkpoint))
            case RecordCut():
                self._asked.add(("cut", effect.checkpoint))
            case NotifyComplete():
                self._newest = effect.checkpoint
            case _:
                """No checkpoint waits for it."""

    def rested(self, given: tuple[object, ...]) -> None:  # noqa: ARG002 - the form of a judge
        if not self._waits_for_nothing():
            self._since_ms = None
            return
        now_ms = self.door.now_ms
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        if now_ms - self._since_ms > self.door.setup.linger_ms:
            self.wrong(f"checkpoint {min(self.door.pending)} waits for nothing since {self._since_ms}")

    def time_passed(self) -> None:
        self.rested(())

    def _waits_for_nothing(self) -> bool:
        door = self.door
        if not door.pending or self._asked or door.asked_hooks or door.reserving or door.restoring or door.is_troubled:
            return False
        is_behind = min(door.pending) < self._newest
        return not door.is_over and (is_behind or not (door.polls or door.failed or door.running))


# ------------------------------------------------------------------
# Checks on any run that a tick looks for another claim after a failure, and ends if its job was taken over (G5).
#
# `one-generation` judges that such a tick commits nothing. This rule judges that it does not go on in vain.


_OF_THE_JOB: Final = (
    Reason.IO_EXCEPTION,
    Reason.CHECKPOINT_ASYNC_EXCEPTION,
    Reason.CHECKPOINT_EXPIRED,
    Reason.CHECKPOINT_DECLINED,
    Reason.FINALIZE_CHECKPOINT_FAILURE,
)
"""The failures after which the tick must look for another claim. Other reasons occur in a job's normal life."""
_COMMITTED: Final = (RowAppended, RowRefused, RowUnknown, TablePublished, PublishFailed, CutRecorded)


@rule("gives-way")
class GivesWay(DoorJudge):
    """Judges what a door does after a failed checkpoint, and after it has learned that the job has another claim."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._looks = False
        self._must_look = False
        self._lost = False
        self._unsettled = 0
        """How many effects of a commit have no answer yet."""

    def told(self, fact: Begun | Fact) -> None:
        if isinstance(fact, RivalSeen):
            self._looks = False
            self._lost |= fact.claim is not None
        self._unsettled -= isinstance(fact, _COMMITTED)

    def asked(self, effect: Effect) -> None:
        match effect:
            case NotifyAborted():
                self._must_look |= effect.reason in _OF_THE_JOB and not self._looks
            case LookForRival():
                self._looks, self._must_look = True, False
                if effect.generation != self.door.setup.claim.generation:
                    self.wrong(f"it looks for claims after generation {effect.generation}, which is not its own")
            case AppendRow() | PublishTable() | RecordCut():
                self._unsettled += 1
            case EndTick() if self._lost and effect.outcome is not TickOutcome.FAILED:
                self.wrong(f"the job was taken over, and the tick ends as {effect.outcome.value}")
            case _:
                pass

    def rested(self, given: tuple[CheckpointId, ...]) -> None:
        del given
        if self.door.is_over:
            return
        if self._must_look:
            self._must_look = False
            self.wrong("a checkpoint failed, and nobody looks for another claim")
        if self._lost and not self._unsettled:
            self.wrong("the job was taken over, and the tick goes on")


# ------------------------------------------------------------------
# The end of a tick waits for savepoints: no tick ends in order before it has answered every request that it has
# accepted.
#
# So a user who asks for a savepoint while the last rows are being committed gets it. A tick gives up a request only if
# it was asked to stop, has reached a limit, or fails.


_IN_ORDER = (TickOutcome.CAUGHT_UP, TickOutcome.FINISHED)


@rule("savepoints-waited-for")
class WaitsForSavepoints(DoorJudge):
    """Judges savepoint requests that a tick gives up because it ends."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._given_up: list[str] = []

    def asked(self, effect: Effect) -> None:
        if isinstance(effect, SavepointFailed) and effect.reason is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN:
            self._given_up.append(effect.request)
        elif isinstance(effect, EndTick) and effect.outcome in _IN_ORDER and self._given_up:
            self.wrong(f"the tick has {effect.outcome.value}, and gives up {self._given_up} for that")


# ------------------------------------------------------------------
# Judges the messages of failures: they must hold the error text of the part that failed (E5).
#
# A hook, a coordinator, a suite, a table check or a micro-batch reports what is wrong. The message of the failed
# checkpoint, or of the tick that ends, must hold the same text. If a checkpoint expires because of a vertex, the
# message must name a vertex. A wrong message makes no table wrong, but it misleads its reader.


_FAILURES: Final = frozenset(
    {
        HookFailed,
        OperatorCoordinatorFailed,
        JudgementFailed,
        SuitesJudged,
        TableCheckFailed,
        TablesChecked,
        MicroBatchFailed,
        HookRestoreFailed,
        CoordinatorResetFailed,
    }
)


@rule("said-why")
class Whys(DoorJudge):
    """Judges the messages of checkpoints that fail, and of a tick that fails."""

    def __init__(self, door: Watched) -> None:
        super().__init__(door)
        self._said: tuple[CheckpointId, tuple[str, ...]] | None = None
        """The checkpoint that fails because of the judged fact, and the texts that its message must hold."""
        self._first: str | None = None
        """The error text of the first fact after which the tick cannot go on."""
        self._was_troubled = False
        self._may_have_failed = False
        """True if a checkpoint has failed and the tick may end because of it.

        A later failure is then not the reason.
        """
        self._in_a_row = FailuresInARow()
        self._committing: set[CheckpointId] = set()
        """The checkpoints whose commit has begun. Later checkpoints wait until such a commit ends."""

    def told(self, fact: Begun | Fact) -> None:
        self._said = None
        if type(fact) in _FAILURES:
            self._failed(fact)
        self._was_troubled = self.door.is_troubled or self.door.is_stopping

    def _failed(self, fact: Begun | Fact) -> None:
        match fact:
            case HookFailed(hook, checkpoint, message) if (hook, checkpoint) in self.door.asked_hooks:
                self._said = checkpoint, (message,)
            case OperatorCoordinatorFailed(name, checkpoint, message) if (
                coordinator_of(name),
                checkpoint,
            ) in self.door.asked_hooks:
                self._said = checkpoint, (message,)
            case JudgementFailed():
                self._said = fact.checkpoint, (fact.error,)
            case SuitesJudged() if not fact.passed:
                self._said = fact.checkpoint, (fact.message or fact.report,)
            case TableCheckFailed():
                self._said = fact.checkpoint, (fact.error,)
            case TablesChecked() if fact.problems:
                self._said = fact.checkpoint, tuple(fact.problems)
            case MicroBatchFailed() | HookRestoreFailed() | CoordinatorResetFailed() if not (
                self._was_troubled or self._may_have_failed
            ):
                self._first = fact.error if self._first is None else self._first
            case _:
                pass

    def asked(self, effect: Effect) -> None:
        commits = begins_commit(effect)
        if commits is not None:
            self._committing.add(commits)
        if isinstance(effect, (NotifyAborted, NotifyComplete)):
            self._ended(effect.checkpoint, effect.reason if isinstance(effect, NotifyAborted) else None)
        match effect:
            case NotifyAborted(checkpoint, _) if self._said is not None and checkpoint == self._said[0]:
                self._judge(f"checkpoint {checkpoint}", effect.message, self._said[1])
            case NotifyAborted(checkpoint, Reason.CHECKPOINT_EXPIRED) if self._waits_for_vertices(checkpoint):
                if not any(vertex.id in effect.message for vertex in self.door.setup.graph.vertices):
                    self.wrong(f"a vertex was late for {checkpoint}, but the message names none: {effect.message!r}")
            case EndTick() if self._first is not None:
                if effect.outcome is not TickOutcome.FAILED:
                    self.wrong(f"the tick ended as {effect.outcome.value}, and it had failed: {self._first}")
                self._judge("the tick", effect.message, (self._first,))
            case _:
                pass

    def _ended(self, checkpoint: CheckpointId, reason: Reason | None) -> None:
        """Record whether the tick may end because of this checkpoint.

        `reason` is None if the checkpoint was completed.
        """
        tolerable = self.door.setup.config.tolerable_failures
        self._in_a_row.ended(checkpoint, reason, tolerable)
        counts = reason not in (None, Reason.CHECKPOINT_SUBSUMED)
        suspended = reason is Reason.CHECKPOINT_COORDINATOR_SUSPEND
        self._may_have_failed |= self._in_a_row.is_over or (tolerable == 0 and counts) or suspended

    def _waits_for_vertices(self, checkpoint: CheckpointId) -> bool:
        """Return True if the checkpoint waited for vertices only: not for a hook, ids, or an earlier commit."""
        asked = any(hook[1] == checkpoint for hook in self.door.asked_hooks)
        return not (asked or self.door.reserving or self.door.pending & self._committing)

    def _judge(self, what: str, message: str, said: tuple[str, ...]) -> None:
        missing = [words for words in said if words not in message]
        if missing:
            self.wrong(f"{what} failed with {missing[0]!r}, and people hear {message!r}")


# ------------------------------------------------------------------
# The invariants of checkpoints that fail: for which reasons, and how many failures the job survives (E3, E5).
#
# They compare the answers of judges and stores with the reports to listeners. So traces of real runs are judged too.


GIVEN = frozenset(
    {
        Reason.QUALITY,
        Reason.CHECKPOINT_ASYNC_EXCEPTION,
        Reason.TABLE_CHANGED,
        Reason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
"""The reasons for which a checkpoint may fail only if an answer gave them."""

_Checkpoint = tuple[Generation, CheckpointId]


@dataclass(slots=True)
class _Answers:
    """The reasons to fail in the answers about each checkpoint."""

    given: dict[_Checkpoint, set[Reason]] = field(default_factory=dict)
    must: dict[_Checkpoint, Reason] = field(default_factory=dict)
    """The checkpoints that must fail now, each with its reason."""
    ended: set[_Checkpoint] = field(default_factory=set)
    unwritten: set[Generation] = field(default_factory=set)
    """Generations in which a micro-batch could not be written. Any checkpoint may have waited for it."""

    def give(self, checkpoint: _Checkpoint, reason: Reason) -> None:
        """Record a reason. The first reason decides how the checkpoint must fail, unless it has ended."""
        self.given.setdefault(checkpoint, set()).add(reason)
        if checkpoint not in self.ended:
            self.must.setdefault(checkpoint, reason)

    def end(self, checkpoint: _Checkpoint, reason: Reason | None) -> Iterator[str]:
        """Process the end of a checkpoint. Yield what is wrong with its reason."""
        self.ended.add(checkpoint)
        due = self.must.pop(checkpoint, None)
        told = "it completed" if reason is None else f"it failed with {reason.name}"
        if due is not None and due is not reason:
            yield f"checkpoint {checkpoint[1]} had to fail with {due.name}, and {told}"
        elif reason is Reason.CHECKPOINT_ASYNC_EXCEPTION and checkpoint[0] in self.unwritten:
            return
        elif reason in GIVEN and reason not in self.given.get(checkpoint, ()):
            yield f"checkpoint {checkpoint[1]}: {told}, and no answer said so"


@rule("declines")
def declines(history: History) -> Iterator[str]:
    """Yield every checkpoint that failed for a reason no answer gave, or that went on although an answer gave one."""
    answers = _Answers()
    for event in history.events:
        match event:
            case JudgementTold(generation, _, checkpoint, passed) if not passed:
                answers.give((generation, checkpoint), Reason.QUALITY)
            case SegmentsTakenBack(generation):
                answers.unwritten.add(generation)
            case JudgementBroke(generation, _, checkpoint):
                answers.give((generation, checkpoint), Reason.CHECKPOINT_ASYNC_EXCEPTION)
            case TablesLookedAt(generation, checkpoint, allow) if not allow:
                known = Reason.FINALIZE_CHECKPOINT_FAILURE if allow is None else Reason.TABLE_CHANGED
                answers.give((generation, checkpoint), known)
            case CheckpointEnded(generation, checkpoint, reason):
                yield from answers.end((generation, checkpoint), reason)
            case TickOver(generation):
                for each in [each for each in answers.must if each[0] == generation]:
                    yield f"checkpoint {each[1]} had to fail with {answers.must.pop(each).name}, and never did"
            case _:
                pass


@dataclass(slots=True)
class _TakenBack:
    """A micro-batch that could not be written: its segments, and an id. A barrier with a greater id allows a retry."""

    inputs: tuple[InputSegments, ...]
    after: CheckpointId


@dataclass(slots=True)
class _Tries:
    """The rows that one generation's vertices run over, and the rows that they had to take back."""

    ids: list[CheckpointId] = field(default_factory=list)
    complete: CheckpointId = NO_CHECKPOINT
    running: dict[VertexId, tuple[InputSegments, ...]] = field(default_factory=dict)
    owed: dict[VertexId, _TakenBack] = field(default_factory=dict)
    used: dict[VertexId, CheckpointId] = field(default_factory=dict)
    """The newest checkpoint whose barrier allowed a vertex to try again."""

    def takes_back(self, vertex: VertexId) -> None:
        """Record a micro-batch that a vertex could not write."""
        after = max(self.complete, self.used.get(vertex, NO_CHECKPOINT))
        self.owed[vertex] = _TakenBack(self.running.get(vertex, ()), after)

    def runs(self, vertex: VertexId, inputs: tuple[InputSegments, ...]) -> Iterator[str]:
        """Process a micro-batch. If it is a retry, yield what is wrong with it."""
        self.running[vertex] = inputs
        owed = self.owed.pop(vertex, None)
        if owed is None:
            return
        newer = [checkpoint for checkpoint in self.ids if checkpoint > owed.after]
        if not newer:
            yield f"{vertex} tried again before the next barrier"
        self.used[vertex] = min(newer, default=owed.after)
        now = {(each.upstream, each.input): each.segments for each in inputs}
        for each in owed.inputs:
            again = now.get((each.upstream, each.input), ())
            if any(one != other for one, other in zip(each.segments, again, strict=False)):
                yield f"{vertex} tried again with other rows of {each.upstream} than those that it took back"


@rule("tried-again")
def tried_again(history: History) -> Iterator[str]:
    """Yield every vertex that retries a micro-batch too soon, or with other rows than in the first try."""
    generations: dict[Generation, _Tries] = {}
    for event in history.events:
        match event:
            case CheckpointTriggered(generation, checkpoint):
                generations.setdefault(generation, _Tries()).ids.append(checkpoint)
            case CheckpointEnded(generation, checkpoint, None):
                tries = generations.setdefault(generation, _Tries())
                tries.complete = max(tries.complete, checkpoint)
            case SegmentsRun(generation, vertex, _, inputs):
                yield from generations.setdefault(generation, _Tries()).runs(vertex, inputs)
            case SegmentsTakenBack(generation, vertex):
                generations.setdefault(generation, _Tries()).takes_back(vertex)
            case _:
                pass


@rule("failures-counted")
def failures_counted(history: History) -> Iterator[str]:
    """Yield every tick that survived one failed checkpoint too many, or that failed too early.

    A tick that was asked for savepoints is not judged. For the failures of savepoints, other rules hold. The
    coordinator's machine checks these.
    """
    if history.tolerable is None:
        return
    rows: dict[Generation, FailuresInARow] = {}
    asked: set[Generation] = set()
    for event in history.without_flow:
        match event:
            case SavepointAsked(generation):
                asked.add(generation)
            case CheckpointEnded(generation, checkpoint, reason):
                rows.setdefault(generation, FailuresInARow()).ended(checkpoint, reason, history.tolerable)
            case TickOver(generation, end) if generation not in asked:
                yield from _of_tick(generation, end, rows.get(generation, FailuresInARow()), history.tolerable)
            case _:
                pass


def _of_tick(generation: Generation, end: EndTick, row: FailuresInARow, tolerable: int) -> Iterator[str]:
    """Judge the end of a tick.

    A commit of unknown outcome ends the tick with FINALIZE_CHECKPOINT_FAILURE, and fails no checkpoint.
    """
    if row.is_over and end.outcome is not TickOutcome.FAILED:
        yield f"generation {generation} survived more than {tolerable} failed checkpoints in a row"
    too_many = end.reason in FLINKS_LIST - {Reason.FINALIZE_CHECKPOINT_FAILURE}
    if too_many and not row.is_over:
        yield f"generation {generation} ended with {end.reason}, after {row.count} failures in a row of {tolerable}"


# ------------------------------------------------------------------
# What must be true of a process and its attempts: restarts are counted, and limits hold for all attempts together (G4).


_ENDS_FOR_GOOD: Final = (Reason.QUALITY, Reason.TABLE_CHANGED, Reason.FENCED)


@dataclass(slots=True)
class _Process:
    """One process, its generations, and the entries that they have committed."""

    began: ProcessBegan
    generations: set[Generation] = field(default_factory=set)
    committed: int = 0
    restarts: int = 0
    ended: EndTick | None = None
    """How the tick's last attempt ended. None if that attempt failed before its job began, or still goes on."""
    is_alone: bool = True
    """True if nobody else has claimed the job since the first attempt, and no reply of a store was lost.

    Then the process itself has reported all its entries as complete."""


@rule("attempts")
def wrongly_repeated(history: History) -> Iterator[str]:  # noqa: PLR0912 - one case an event
    """Yield every restart with a wrong number, delay or cause, and every attempt with wrong limits.

    An attempt gets what the attempts before it have left of the process's limits.
    """
    processes: dict[int, _Process] = {}
    recorded = set[CheckpointId]()
    unheard: dict[Generation, CheckpointId] = {}
    """Maps each generation to its entry that it has not yet reported as complete."""
    for event in history.without_flow:
        match event:
            case ProcessBegan():
                processes[event.process] = _Process(event)
            case JobClaimed(claim):
                _claimed(processes, claim)
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case CheckpointEnded(generation, _, None):
                unheard.pop(generation, None)
            case RowCommitted(record, _) if record.commits:
                unheard[record.generation] = record.checkpoint
                for known in processes.values():
                    known.committed += record.generation in known.generations
            case AttemptBegan():
                yield from _of_limits(event, processes[event.process])
            case RestartTold():
                _broken_off(processes[event.process], unheard, recorded)
                yield from _of_restart(event, processes[event.process])
            case TickOver(generation, end):
                for known in processes.values():
                    if generation in known.generations:
                        known.ended = end
                        known.is_alone &= unheard.get(generation, NO_CHECKPOINT) not in recorded
            case ProcessOver():
                yield from _of_end(event, processes[event.process])
            case _:
                pass


def _claimed(processes: Mapping[int, _Process], claim: Claim) -> None:
    for number, known in processes.items():
        if number == claim.holder.pid:
            known.generations.add(claim.generation)
            known.ended = None
        elif known.generations:
            known.is_alone = False


def _broken_off(
    known: _Process, unheard: Mapping[Generation, CheckpointId], recorded: Collection[CheckpointId]
) -> None:
    """Record that an attempt may have recorded a cut without learning of it, because it failed during its recovery."""
    entries = (unheard.get(each, NO_CHECKPOINT) for each in known.generations)
    if known.ended is None and any(entry in recorded for entry in entries):
        known.is_alone = False


def _of_limits(event: AttemptBegan, known: _Process) -> Iterator[str]:
    given, left = known.began.limits, event.limits
    where = f"generation {event.generation} of process {event.process}"
    if given.checkpoints is not None:
        due = max(0, given.checkpoints - known.committed)
        right = left.checkpoints is not None and left.checkpoints >= due
        if not right or (known.is_alone and left.checkpoints != due):
            yield f"{where} may take {left.checkpoints} checkpoints, {due} are left"
    if given.duration_ms is not None:
        due = given.duration_ms - (event.at_ms - known.began.at_ms) if known.restarts else given.duration_ms
        if left.duration_ms != max(0, due):
            yield f"{where} may take {left.duration_ms} ms, {due} are left"


def _of_restart(event: RestartTold, known: _Process) -> Iterator[str]:
    known.restarts += 1
    strategy, where = known.began.strategy, f"restart {event.restart} of process {event.process}"
    if event.restart != known.restarts:
        yield f"{where} is its {known.restarts}."
    if event.after.outcome is not TickOutcome.FAILED:
        yield f"{where} follows on {event.after}"
    if event.after.reason in _ENDS_FOR_GOOD:
        yield f"{where} follows on {event.after.reason}"
    match strategy:
        case NoRestart():
            yield f"{where}: nothing is to be restarted"
        case FixedDelay(attempts, delay_ms):
            if known.restarts > attempts or event.delay_ms != delay_ms:
                yield f"{where} comes after {event.delay_ms} ms, the strategy says {strategy}"
        case _:
            pass


def _of_end(event: ProcessOver, known: _Process) -> Iterator[str]:
    """Judge the end of a process.

    No simulated process is stopped between attempts, so a failure alone decides on the next.
    """
    if event.restarts != known.restarts:
        yield f"process {event.process} has restarted {known.restarts} times, and says {event.restarts}"
    strategy, end = known.began.strategy, known.ended
    failed = end is not None and end.outcome is TickOutcome.FAILED and end.reason not in _ENDS_FOR_GOOD
    may = isinstance(strategy, FixedDelay) and known.restarts < strategy.attempts
    failed = failed and not event.is_finished
    if failed and may and known.is_alone and known.began.limits.duration_ms is None:
        yield f"process {event.process} is over after {known.restarts} restarts, {strategy} allows more"
