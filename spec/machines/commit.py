"""The machine of the commit: recovery's decision, the claim and the two-phase commit of up to three coordinators.

All are alive at the same time and none knows of the others: the older ones are zombies. Each effect is carried
out when a rule says so; its answer may get lost, and a coordinator may die before any of them. What it had asked
for may still be carried out, at any later time.
"""

from dataclasses import dataclass, field
from enum import Enum

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from checkpointing.commit.fencing import HolderObserved, newest_checkpoint
from checkpointing.commit.recovery import Observed, RecoveryPlan, decide_recovery, publications
from checkpointing.commit.two_phase import (
    CheckpointCommitted,
    CommitEffect,
    CommitEnded,
    CommitFact,
    CommitIdentity,
    Declined,
    Draft,
    TwoPhaseCommit,
)
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CutRecorded,
    Publication,
    PublishFailed,
    PublishTable,
    RecordCut,
    RowAppended,
    RowUnknown,
    TablesChecked,
)
from checkpointing.metadata.record import Claim, Holder, Release, RowKind, Statistics, VertexRecord
from checkpointing.snapshots import RangeFiles, SubtaskSnapshot
from spec.machines.commit_world import COUNT, GRAPH, NUMBERS, SINK, SOURCE, CommitWorld, position
from spec.machines.judging import BrokenRuleError, expect, is_unwinding

ALIVE_MAX = 3
STEPS_MAX = 100
_STATISTICS = Statistics(triggered_ms=0, committed_ms=0, rows=0)
_pick = st.integers(0, 20)
_StoreEffect = CheckTables | AppendRow | PublishTable | RecordCut


class Luck(Enum):
    """How an effect goes."""

    WELL = "well"
    REPLY_LOST = "reply lost"
    """It was done, and nobody knows."""
    WRITE_LOST = "write lost"
    """It was not done, and nobody knows."""
    REFUSED = "refused"


_luck = st.sampled_from([Luck.WELL, Luck.WELL, Luck.REPLY_LOST, Luck.WELL, Luck.WRITE_LOST, Luck.REFUSED])


_trouble = st.sampled_from([(CheckTables, Luck.REFUSED), (AppendRow, Luck.REPLY_LOST)])


@dataclass(slots=True)
class Life:
    """One coordinator: what it saw, what it has yet to roll forward, what it asked for."""

    number: int
    seen: Observed
    plan: RecoveryPlan
    roll_forward: list[Publication | None] = field(default_factory=list)
    """Publications, and None for the cut."""
    claim: Claim | None = None
    door: TwoPhaseCommit | None = None
    asked: list[_StoreEffect] = field(default_factory=list)
    at_version: int = 0
    next_id: CheckpointId = NO_CHECKPOINT
    passed: CheckpointId = NO_CHECKPOINT
    position: int = 0
    staged: list[StagedFile] = field(default_factory=list)
    count: FileHandle | None = None
    over: bool = False


class CommitMachine(RuleBasedStateMachine):
    """Coordinators on one warehouse, and the warehouse's one-sentence reference."""

    def __init__(self) -> None:
        """Begin with an empty warehouse."""
        super().__init__()
        self.world = CommitWorld()
        self.lives: list[Life] = []
        self.ghosts: list[_StoreEffect] = []
        self.started = 0

    # -------------------------------------------------------------- a coordinator begins

    @precondition(lambda self: len(self.lives) < ALIVE_MAX)
    @rule(known_dead=st.booleans(), at_once=st.booleans())
    def start(self, known_dead: bool, at_once: bool) -> None:  # noqa: FBT001
        """A coordinator observes and decides; perhaps it claims and recovers at once."""
        life = self._start(known_dead=known_dead)
        if at_once:
            self._claim(life)
            while life.roll_forward:
                self._roll_forward(life, 0)

    def _start(self, *, known_dead: bool) -> Life:
        self.started += 1
        holder = HolderObserved(alive=False if known_dead else None, lease=None)
        seen = Observed(self.world.version, tuple(self.world.rows), frozenset(self.world.cuts), holder, self.started)
        plan = decide_recovery(seen, take_over=not known_dead)
        if not isinstance(plan, RecoveryPlan):
            raise BrokenRuleError("recovers", f"the job was refused although nobody holds it: {plan}")
        life = Life(self.started, seen, plan)
        self.lives.append(life)
        return life

    @precondition(lambda self: any(life.claim is None for life in self.lives))
    @rule(pick=_pick)
    def claim(self, pick: int) -> None:
        """A coordinator claims the job as it saw it; whoever comes second must look again."""
        waiting = [life for life in self.lives if life.claim is None]
        self._claim(waiting[pick % len(waiting)])

    def _claim(self, life: Life) -> None:
        claim = life.plan.claim.claim(Holder(host="here", pid=life.number, started=""), 0, f"life-{life.number}")
        answer = self.world.append(claim, life.seen.version)
        if not isinstance(answer, RowAppended):
            self.lives.remove(life)
            return
        life.claim, life.at_version, life.next_id = claim, answer.version, claim.first_id
        record = life.plan.roll_forward
        life.roll_forward = [*publications(record), None] if record is not None else []
        restored = life.plan.restore
        if restored is not None:
            sink = restored.vertices[1].subtasks[0]
            life.passed, life.position = restored.checkpoint, position(restored)
            life.count = sink.ranges[0].files[0].file if sink.ranges else None

    @precondition(lambda self: any(life.roll_forward for life in self.lives))
    @rule(pick=_pick, which=_pick)
    def roll_forward(self, pick: int, which: int) -> None:
        """A coordinator publishes one table of what it found committed, in any order; the cut comes last."""
        waiting = [life for life in self.lives if life.roll_forward]
        self._roll_forward(waiting[pick % len(waiting)], which)

    def _roll_forward(self, life: Life, which: int) -> None:
        record = life.plan.roll_forward
        if record is None:
            raise BrokenRuleError("recovers", "there is nothing to roll forward")
        todo = life.roll_forward.pop(which % max(1, len(life.roll_forward) - 1))
        if todo is not None:
            self.world.publish(record.checkpoint, todo)
        else:
            versions = {name: self._version_of(name, record.checkpoint) for name in (NUMBERS, COUNT)}
            self.world.record_cut(record.checkpoint, versions)

    def _version_of(self, name: str, checkpoint: CheckpointId) -> int:
        """Return at which version a table came to show the checkpoint, or the newest before it."""
        versions = next(versions for known, versions in self.world.tables.items() if known == name)
        return max(at for at, (shown, _) in enumerate(versions) if shown <= checkpoint)

    # -------------------------------------------------------------- a coordinator works

    def _ready(self) -> list[Life]:
        return [life for life in self.lives if life.claim is not None and not life.roll_forward and not life.over]

    @precondition(lambda self: self._ready())
    @rule(
        pick=_pick,
        rows=st.integers(0, 3),
        kind=st.sampled_from([RowKind.CHECKPOINT, RowKind.CHECKPOINT, RowKind.CHECKPOINT, RowKind.SAVEPOINT]),
    )
    def offer(self, pick: int, rows: int, kind: RowKind) -> None:
        """A checkpoint of so many new rows, perhaps none, is fully acknowledged."""
        ready = self._ready()
        self._offer(ready[pick % len(ready)], rows, kind)

    def _offer(self, life: Life, rows: int, kind: RowKind) -> None:
        if rows:
            file = self.world.stage(tuple(range(life.position, life.position + rows)))
            life.staged.append(StagedFile(NUMBERS, file, life.passed))
            life.position += rows
            life.count = self.world.stage((life.position,))
        life.passed, life.next_id = life.next_id, CheckpointId(life.next_id + 1)
        self._take(life, self._door(life).offer(self._draft(life, kind), 0))

    def _door(self, life: Life) -> TwoPhaseCommit:
        if life.door is None:
            restored = life.plan.restore
            identity = CommitIdentity(
                job="job", generation=life.plan.claim.generation, nonce=f"life-{life.number}", max_parallelism=1
            )
            versions = self.world.cuts.get(restored.checkpoint, {}) if restored is not None else {}
            life.door = TwoPhaseCommit(GRAPH, identity, parent=restored, versions=versions, at_version=life.at_version)
        return life.door

    def _draft(self, life: Life, kind: RowKind) -> Draft:
        ranges: tuple[RangeFiles, ...] = ()
        if life.count is not None:
            keyed = KeyedFile(life.count, KeyedFileKind.BASE, 0, 0, Version(life.plan.claim.generation, life.passed))
            ranges = (RangeFiles(COUNT, (keyed,)),)
        sink = SubtaskSnapshot(staged=tuple(life.staged), ranges=ranges)
        source = SubtaskSnapshot(position=str(life.position))
        vertices = (
            VertexRecord(vertex=SOURCE, micro_batch=0, subtasks=(source,), splits=("a",)),
            VertexRecord(vertex=SINK, micro_batch=life.passed, subtasks=(sink,)),
        )
        return Draft(life.passed, vertices, _STATISTICS, (), kind)

    @precondition(lambda self: self._ready())
    @rule(pick=_pick)
    def reserve(self, pick: int) -> None:
        """A coordinator wants a further block of ids: another claim of the same generation."""
        ready = self._ready()
        life = ready[pick % len(ready)]
        if life.claim is not None and not any(isinstance(effect, AppendRow) for effect in life.asked):
            first = CheckpointId(life.claim.last_id + 1)
            block = {"first_id": first, "last_id": CheckpointId(first + 999), "nonce": f"life-{life.number}+{first}"}
            life.claim = life.claim.model_copy(update=block)
            self._take(life, self._door(life).reserve(life.claim))

    @precondition(lambda self: any(life.asked for life in self.lives))
    @rule(pick=_pick, which=_pick, luck=_luck)
    def carry_out(self, pick: int, which: int, luck: Luck) -> None:
        """One of the effects that a coordinator asked for is carried out."""
        asking = [life for life in self.lives if life.asked]
        life = asking[pick % len(asking)]
        self._carry_out(life, which, luck)

    @precondition(lambda self: any(life.asked for life in self.lives))
    @rule(pick=_pick, steps=st.integers(1, 6))
    def go_well(self, pick: int, steps: int) -> None:
        """What a coordinator asked for is done, one thing after the other."""
        asking = [life for life in self.lives if life.asked]
        life = asking[pick % len(asking)]
        for _ in range(steps):
            if life.asked:
                self._carry_out(life, 0, Luck.WELL)

    @precondition(lambda self: any(life.asked for life in self.lives))
    @rule(trouble=_trouble)
    def go_badly(self, trouble: tuple[type[_StoreEffect], Luck]) -> None:
        """Tables forbid a commit, or it is made and nobody is told: the first that waits for it."""
        kind, luck = trouble
        for life in self.lives:
            for which, effect in enumerate(life.asked):
                if isinstance(effect, kind):
                    self._carry_out(life, which, luck)
                    return

    def _carry_out(self, life: Life, which: int, luck: Luck) -> None:
        effect = life.asked.pop(which % len(life.asked))
        fact = self._done(effect, luck)
        if isinstance(fact, RowAppended):
            life.at_version = fact.version
        if not life.over:
            self._take(life, self._door(life).step(fact, 0))

    def _done(self, effect: _StoreEffect, luck: Luck) -> CommitFact:
        match effect:
            case CheckTables(checkpoint):
                return TablesChecked(checkpoint, ("a column is gone",) if luck is Luck.REFUSED else ())
            case AppendRow(row, at_version):
                if luck is Luck.WRITE_LOST:
                    return RowUnknown(row.nonce, "no answer")
                answer = self.world.append(row, at_version)
                return RowUnknown(row.nonce, "no answer") if luck is Luck.REPLY_LOST else answer
            case PublishTable(checkpoint, publication):
                if luck in (Luck.REFUSED, Luck.WRITE_LOST):
                    return PublishFailed(checkpoint, publication.table, "the log refuses")
                published = self.world.publish(checkpoint, publication)
                lost = luck is Luck.REPLY_LOST
                return PublishFailed(checkpoint, publication.table, "no answer") if lost else published
            case RecordCut(checkpoint, versions):
                self.world.record_cut(checkpoint, dict(versions))
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
                case CommitEnded():
                    life.over = True
                case _:
                    pass

    # -------------------------------------------------------------- a coordinator ends

    @precondition(lambda self: self._ready())
    @rule(pick=_pick)
    def release(self, pick: int) -> None:
        """A coordinator ends in order, unless a row is on its way."""
        ready = self._ready()
        life = ready[pick % len(ready)]
        if self._door(life).in_doubt:
            return
        self._take(life, self._door(life).withdraw())
        row = Release(
            generation=life.plan.claim.generation, next_id=life.next_id, at_ms=0, nonce=f"release-{life.number}"
        )
        self.world.append(row, life.at_version)
        self.lives.remove(life)

    @precondition(lambda self: self.lives)
    @rule(pick=_pick, really=st.sampled_from([True, False, False]))
    def crash(self, pick: int, really: bool) -> None:  # noqa: FBT001
        """A coordinator dies; what it asked for may still come."""
        if really:
            life = self.lives.pop(pick % len(self.lives))
            self.ghosts += life.asked

    @precondition(lambda self: self.ghosts)
    @rule(pick=_pick)
    def come_late(self, pick: int) -> None:
        """What a dead coordinator had asked for is carried out."""
        self._done(self.ghosts.pop(pick % len(self.ghosts)), Luck.WELL)

    # -------------------------------------------------------------- judging

    @invariant()
    def holds(self) -> None:
        """The tables and the cuts show exactly what the committed rows say."""
        self.world.judge()

    def teardown(self) -> None:
        """A coordinator that meets no trouble recovers and commits; what comes late then changes nothing."""
        if is_unwinding():
            return
        self.ghosts += [effect for life in self.lives for effect in life.asked]
        self.lives.clear()
        life = self._start(known_dead=False)
        self._claim(life)
        while life.roll_forward:
            self._roll_forward(life, 0)
        before = position(newest_checkpoint(tuple(self.world.rows)))
        self._offer(life, 2, RowKind.CHECKPOINT)
        for _ in range(STEPS_MAX):
            if life.asked:
                self._carry_out(life, 0, Luck.WELL)
        self.world.judge()
        newest = self.world.checkpoints()[-1] if self.world.checkpoints() else None
        done = newest is not None and newest.checkpoint == life.passed and newest.checkpoint in self.world.cuts
        expect(done and position(newest) == before + 2, "recovers", "a coordinator without trouble did not commit")
        seen = {name: versions[-1] for name, versions in self.world.tables.items()}
        while self.ghosts:
            self._done(self.ghosts.pop(), Luck.WELL)
        after = {name: versions[-1] for name, versions in self.world.tables.items()}
        expect(seen == after, "one-generation", f"what came late changed {seen} to {after}")
