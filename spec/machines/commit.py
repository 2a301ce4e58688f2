"""The machine of the commit: the tick door and the two-phase commit of up to three coordinators.

All are alive at the same time, and none knows of the others: the older ones are zombies. Each goes through the tick
door, as every tick does: it observes, claims, recovers, works, releases. A rule carries each effect out. Its answer may
be lost, and the coordinator may die before any answer. Its outstanding effects may still be carried out later.
"""

from dataclasses import dataclass, field
from enum import Enum

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.two_phase import (
    CheckpointCommitted,
    CommitEffect,
    CommitEnded,
    CommitIdentity,
    Declined,
    Draft,
    TwoPhaseCommit,
)
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName
from checkpointing.job.ids import CheckpointIds
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CutRecorded,
    EndTick,
    PublishFailed,
    PublishTable,
    RecordCut,
    RowAppended,
    RowRefused,
    RowUnknown,
    TablePublished,
    TablesChecked,
    TickOutcome,
)
from checkpointing.metadata.record import RowKind, Statistics, VertexRecord
from checkpointing.snapshots import RangeFiles, SubtaskSnapshot
from checkpointing.tick.door import TickDoor
from checkpointing.tick.errand import TICK, Terms
from checkpointing.tick.messages import (
    AppendClaim,
    AppendRelease,
    Broke,
    Finish,
    TickEffect,
    TickFact,
    Work,
    WorkEnded,
)
from spec.at_the_door import SOMEBODY, Carrier
from spec.machines.commit_world import COUNT, GRAPH, NUMBERS, SINK, SOURCE, CommitWorld, counted, position
from spec.machines.judging import expect, is_unwinding

ALIVE_MAX = 3
STEPS_MAX = 100
_STATISTICS = Statistics(triggered_ms=0, committed_ms=0, rows=0)
_pick = st.integers(0, 20)
_Change = AppendRow | AppendClaim | AppendRelease | PublishTable | RecordCut
_Changed = RowAppended | RowRefused | RowUnknown | TablePublished | PublishFailed | CutRecorded


class Luck(Enum):
    """How an effect goes."""

    WELL = "well"
    REPLY_LOST = "reply lost"
    """The effect was carried out, and nobody knows."""
    WRITE_LOST = "write lost"
    """The effect was not carried out, and nobody knows."""
    REFUSED = "refused"


_luck = st.sampled_from([Luck.WELL, Luck.WELL, Luck.REPLY_LOST, Luck.WELL, Luck.WRITE_LOST, Luck.REFUSED])


_trouble = st.sampled_from([(CheckTables, Luck.REFUSED), (AppendRow, Luck.REPLY_LOST), (PublishTable, Luck.REFUSED)])


@dataclass(slots=True, eq=False)
class Life:
    """One coordinator: its way through the tick door, and its work."""

    tick: TickDoor
    carrier: Carrier
    work: Work | None = None
    """The work that it was given. None before and after."""
    asked: list[_Change | CheckTables] = field(default_factory=list)
    """The outstanding effects of its commit."""
    commit: TwoPhaseCommit = field(init=False)
    ids: CheckpointIds = field(init=False)
    at_version: int = 0
    passed: CheckpointId = NO_CHECKPOINT
    position: int = 0
    micro_batch: int = 0
    staged: list[StagedFile] = field(default_factory=list)
    count: FileHandle | None = None

    def begin(self, work: Work, versions: dict[TableName, int]) -> None:
        """Begin the work, from the cut that recovery has left."""
        restored, claim = work.plan.restore, work.claim
        identity = CommitIdentity(job="job", generation=claim.generation, nonce=claim.nonce, max_parallelism=1)
        self.commit = TwoPhaseCommit(GRAPH, identity, parent=restored, versions=versions, at_version=work.at_version)
        self.work, self.ids, self.at_version = work, CheckpointIds(claim), work.at_version
        if restored is not None:
            sink = restored.vertices[1]
            self.passed, self.position, self.micro_batch = restored.checkpoint, position(restored), sink.micro_batch
            self.count = next((keyed.file for own in sink.subtasks[0].ranges for keyed in own.files), None)


class CommitMachine(RuleBasedStateMachine):
    """Coordinators on one warehouse, and the warehouse's one-sentence reference."""

    def __init__(self) -> None:
        """Begin with an empty warehouse."""
        super().__init__()
        self.world = CommitWorld()
        self.lives: list[Life] = []
        self.ghosts: list[_Change] = []
        self.started = 0

    # -------------------------------------------------------------- a coordinator at the tick door

    @precondition(lambda self: len(self.lives) < ALIVE_MAX)
    @rule(known_dead=st.booleans(), at_once=st.sampled_from([True, True, False]))
    def start(self, known_dead: bool, at_once: bool) -> None:  # noqa: FBT001
        """Let a coordinator observe and decide. Perhaps it claims and recovers at once."""
        life = self._start(known_dead=known_dead)
        while at_once and life in self.lives and life.work is None:
            self._advance(life, Luck.WELL)

    def _start(self, *, known_dead: bool) -> Life:
        self.started += 1
        carrier = Carrier(self.world, lambda claim: False if claim and known_dead else None, f"life-{self.started}")
        life = Life(TickDoor(TICK, Terms(holder=SOMEBODY, take_over=not known_dead)), carrier)
        self.lives.append(life)
        life.tick.start(carrier.moment())
        self._advance(life, Luck.WELL)
        expect(life in self.lives, "recovers", "the job was refused although nobody holds it")
        return life

    @precondition(lambda self: self._at_the_door())
    @rule(pick=_pick, luck=_luck, steps=st.integers(1, 6))
    def advance(self, pick: int, luck: Luck, steps: int) -> None:
        """Carry out what a coordinator's door waits for: it observes, claims, rolls forward or releases."""
        waiting = self._at_the_door()
        life = waiting[pick % len(waiting)]
        for step in range(steps):
            if life in self.lives and life.work is None:
                self._advance(life, Luck.WELL if step else luck)

    def _at_the_door(self) -> list[Life]:
        return [life for life in self.lives if life.work is None]

    def _advance(self, life: Life, luck: Luck) -> None:
        self._answer(life, self._at_door(life, luck))

    def _at_door(self, life: Life, luck: Luck) -> TickFact:
        effect = life.tick.awaits
        match effect:
            case AppendClaim() | AppendRelease() | PublishTable() | RecordCut():
                return self._done(effect, luck)
            case _:
                fact = life.carrier.carry_out(effect) if effect is not None else None
                return fact or Broke(LookupError(f"nobody carries out {effect}"))

    def _answer(self, life: Life, fact: TickFact) -> None:
        effect: TickEffect = life.tick.step(fact, life.carrier.moment())[-1]
        if isinstance(effect, Work):
            restored = effect.plan.restore
            life.begin(effect, self.world.cuts.get(restored.checkpoint, {}) if restored is not None else {})
        elif isinstance(effect, Finish):
            self.lives.remove(life)

    # -------------------------------------------------------------- a coordinator works

    def _ready(self) -> list[Life]:
        return [life for life in self.lives if life.work is not None]

    @precondition(lambda self: self._ready())
    @rule(
        pick=_pick,
        rows=st.integers(0, 3),
        kind=st.sampled_from([RowKind.CHECKPOINT, RowKind.CHECKPOINT, RowKind.CHECKPOINT, RowKind.SAVEPOINT]),
    )
    def offer(self, pick: int, rows: int, kind: RowKind) -> None:
        """Let all acknowledge a checkpoint with this many new rows, perhaps none."""
        ready = self._ready()
        self._offer(ready[pick % len(ready)], rows, kind)

    def _offer(self, life: Life, rows: int, kind: RowKind) -> None:
        taken = life.ids.take()
        if life.work is None or taken is None:
            return
        if rows:
            generation, new = life.work.claim.generation, range(life.position, life.position + rows)
            life.micro_batch, life.position = life.micro_batch + 1, new.stop
            life.staged.append(StagedFile(NUMBERS, self.world.stage(generation, life.micro_batch, new), life.passed))
            count = counted(new.stop)
            life.count = self.world.stage(generation, life.micro_batch, count) if count else None
        life.passed = taken
        self._take(life, life.commit.offer(self._draft(life, life.work, kind), 0))

    def _draft(self, life: Life, work: Work, kind: RowKind) -> Draft:
        version = Version(work.claim.generation, life.passed)
        files = () if life.count is None else (KeyedFile(life.count, KeyedFileKind.BASE, 0, 0, version),)
        sink = SubtaskSnapshot(staged=tuple(life.staged), ranges=(RangeFiles(COUNT, files),))
        source = SubtaskSnapshot(position=str(life.position))
        vertices = (
            VertexRecord(vertex=SOURCE, micro_batch=0, subtasks=(source,), splits=("a",)),
            VertexRecord(vertex=SINK, micro_batch=life.micro_batch, subtasks=(sink,)),
        )
        return Draft(life.passed, vertices, _STATISTICS, (), kind, pinned=kind is RowKind.SAVEPOINT)

    @precondition(lambda self: self._ready())
    @rule(pick=_pick)
    def reserve(self, pick: int) -> None:
        """Let a coordinator reserve a further block of ids: another claim of the same generation."""
        ready = self._ready()
        life = ready[pick % len(ready)]
        if not any(isinstance(effect, AppendRow) for effect in life.asked):
            self._take(life, life.commit.reserve(life.ids.further(0)))

    @precondition(lambda self: any(life.asked for life in self.lives))
    @rule(pick=_pick, which=_pick, luck=_luck)
    def carry_out(self, pick: int, which: int, luck: Luck) -> None:
        """Carry out one outstanding effect of a coordinator."""
        asking = [life for life in self.lives if life.asked]
        life = asking[pick % len(asking)]
        self._carry_out(life, which, luck)

    @precondition(lambda self: any(life.asked for life in self.lives))
    @rule(pick=_pick, steps=st.integers(1, 6))
    def go_well(self, pick: int, steps: int) -> None:
        """Carry out a coordinator's outstanding effects, one after the other."""
        asking = [life for life in self.lives if life.asked]
        life = asking[pick % len(asking)]
        for _ in range(steps):
            if life.asked:
                self._carry_out(life, 0, Luck.WELL)

    @precondition(lambda self: any(life.asked for life in self.lives))
    @rule(trouble=_trouble)
    def go_badly(self, trouble: tuple[type[_Change | CheckTables], Luck]) -> None:
        """Give the first commit that waits trouble: tables forbid it, its reply is lost, or a table refuses it."""
        kind, luck = trouble
        for life in self.lives:
            for which, effect in enumerate(life.asked):
                if isinstance(effect, kind):
                    self._carry_out(life, which, luck)
                    return

    def _carry_out(self, life: Life, which: int, luck: Luck) -> None:
        effect = life.asked.pop(which % len(life.asked))
        fact = self._checked(effect, luck) if isinstance(effect, CheckTables) else self._done(effect, luck)
        if isinstance(fact, RowAppended):
            life.at_version = fact.version
        self._take(life, life.commit.step(fact, 0))

    def _checked(self, effect: CheckTables, luck: Luck) -> TablesChecked:
        if luck is Luck.REFUSED:
            return TablesChecked(effect.checkpoint, ("a column is gone",))
        self.world.checked[effect.checkpoint] = frozenset(effect.tables)
        return TablesChecked(effect.checkpoint, ())

    def _done(self, effect: _Change, luck: Luck) -> _Changed:
        match effect:
            case AppendRow() | AppendClaim() | AppendRelease():
                unknown = RowUnknown(effect.row.nonce, "no answer")
                if luck is Luck.WRITE_LOST:
                    return unknown
                answer = self.world.append(effect.row, effect.at_version)
                return unknown if luck is Luck.REPLY_LOST else answer
            case PublishTable(checkpoint, publication):
                if luck in (Luck.REFUSED, Luck.WRITE_LOST):
                    return PublishFailed(checkpoint, publication.table, "the log refuses")
                published = self.world.publish(checkpoint, publication)
                lost = luck is Luck.REPLY_LOST
                return PublishFailed(checkpoint, publication.table, "no answer") if lost else published
            case RecordCut(checkpoint, versions):
                self.world.record_cut(checkpoint, versions, self.world.retained())
                return CutRecorded(checkpoint)

    def _take(self, life: Life, effects: tuple[CommitEffect, ...]) -> None:
        for effect in effects:
            match effect:
                case CheckTables() | AppendRow() | PublishTable() | RecordCut():
                    life.asked.append(effect)
                case CheckpointCommitted(record):
                    told = record.checkpoint in self.world.cuts
                    expect(told, "told-truly", f"{record.checkpoint} is told complete without a cut")
                    life.staged = [file for file in life.staged if file.after >= record.checkpoint]
                case Declined(checkpoint):
                    self.world.decline(checkpoint)
                case CommitEnded(_, reason, message):
                    self._end(life, EndTick(TickOutcome.FAILED, reason, message))
                case _:
                    pass

    # -------------------------------------------------------------- a coordinator ends

    @precondition(lambda self: self._ready())
    @rule(pick=_pick)
    def release(self, pick: int) -> None:
        """Let a coordinator end normally, unless an entry is being appended."""
        ready = self._ready()
        life = ready[pick % len(ready)]
        if not life.commit.in_doubt:
            self._take(life, life.commit.withdraw())
            self._end(life, EndTick(TickOutcome.STOPPED))

    def _end(self, life: Life, end: EndTick) -> None:
        """End the work and release the job. Outstanding effects may still come."""
        if life.work is not None:
            life.work = None
            self._leave(life)
            self._answer(life, WorkEnded(end, life.ids.next_id, life.at_version))

    @precondition(lambda self: self.lives)
    @rule(pick=_pick, really=st.sampled_from([True, False, False]))
    def crash(self, pick: int, really: bool) -> None:  # noqa: FBT001
        """Let a coordinator die. Its outstanding effects may still come."""
        if really:
            self._die(self.lives.pop(pick % len(self.lives)))

    def _die(self, life: Life) -> None:
        self._leave(life)
        if life.work is None and isinstance(life.tick.awaits, _Change):
            self.ghosts.append(life.tick.awaits)

    def _leave(self, life: Life) -> None:
        self.ghosts += [effect for effect in life.asked if isinstance(effect, _Change)]
        life.asked.clear()

    @precondition(lambda self: self.ghosts)
    @rule(pick=_pick)
    def come_late(self, pick: int) -> None:
        """Carry out an outstanding effect of a dead coordinator."""
        self._done(self.ghosts.pop(pick % len(self.ghosts)), Luck.WELL)

    # -------------------------------------------------------------- judging

    @invariant()
    def holds(self) -> None:
        """The tables and the cuts show exactly what the committed entries say."""
        self.world.judge()

    def teardown(self) -> None:
        """A coordinator without trouble recovers and commits. Effects that come late change nothing then."""
        if is_unwinding():
            return
        while self.lives:
            self._die(self.lives.pop())
        life = self._start(known_dead=False)
        while life in self.lives and life.work is None:
            self._advance(life, Luck.WELL)
        expect(life in self.lives, "recovers", "a coordinator without trouble did not recover")
        before = position(newest_checkpoint(self.world.rows()))
        self._offer(life, 2, RowKind.CHECKPOINT)
        for _ in range(STEPS_MAX):
            if life.asked:
                self._carry_out(life, 0, Luck.WELL)
        self.world.judge()
        newest = self.world.line()[-1] if self.world.line() else None
        done = newest is not None and newest.checkpoint == life.passed and newest.checkpoint in self.world.cuts
        expect(done and position(newest) == before + 2, "recovers", "a coordinator without trouble did not commit")
        seen = self._shown()
        while self.ghosts:
            self._done(self.ghosts.pop(), Luck.WELL)
        after = self._shown()
        expect(seen == after, "one-generation", f"what came late changed {seen} to {after}")

    def _shown(self) -> dict[TableName, tuple[int, frozenset[str]]]:
        return {name: (log.shown[-1], log.active) for name, log in self.world.tables.items()}
