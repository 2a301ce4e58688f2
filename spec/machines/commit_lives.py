"""Coordinators of a commit, for the machines that drive them: each goes through the tick door and the two-phase commit.

All may be alive at the same time, and none knows of the others. Each effect waits until a rule carries it out.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from hypothesis.stateful import RuleBasedStateMachine

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.two_phase import (
    CheckpointCommitted,
    CommitEffect,
    CommitEnded,
    CommitIdentity,
    Declined,
    Draft,
    IdsReserved,
    Saved,
    TwoPhaseCommit,
)
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName
from checkpointing.job.tick_end import CheckpointIds
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
from checkpointing.metadata.record import RowKind, Statistics, TableKeys, VertexRecord
from checkpointing.tick.attempts import TICK, Terms
from checkpointing.tick.door import TickDoor
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
from spec.machines.judging import expect

_COUNT_KEYS = TableKeys(table=COUNT, columns=("key",))
_STATISTICS = Statistics(triggered_ms=0, committed_ms=0, rows=0)
Change = AppendRow | AppendClaim | AppendRelease | PublishTable | RecordCut
Changed = RowAppended | RowRefused | RowUnknown | TablePublished | PublishFailed | CutRecorded


class Luck(Enum):
    """How an effect goes."""

    WELL = "well"
    REPLY_LOST = "reply lost"
    """The effect was carried out, and nobody knows."""
    WRITE_LOST = "write lost"
    """The effect was not carried out, and nobody knows."""
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Life:
    """One coordinator: its way through the tick door, and its work."""

    tick: TickDoor
    carrier: Carrier
    work: Work | None = None
    """The work that it was given. None before and after."""
    asked: list[Change | CheckTables] = field(default_factory=list)
    """The outstanding effects of its commit."""
    waits: set[CheckpointId] = field(default_factory=set)
    """What was offered to its commit and has not ended: checkpoints, and NO_CHECKPOINT for a further block."""
    commit: TwoPhaseCommit = field(init=False)
    ids: CheckpointIds = field(init=False)
    at_version: int = 0
    passed: CheckpointId = NO_CHECKPOINT
    position: int = 0
    micro_batch: int = 0
    staged: list[StagedFile] = field(default_factory=list)
    count: FileHandle | None = None
    notes: list[str] = field(default_factory=list)
    """What was found in the tables that were published since its last entry is in."""

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


class Coordinators(RuleBasedStateMachine):
    """The coordinators of one warehouse, and what dead ones have left behind. It has no rules of its own."""

    def __init__(self) -> None:
        """Begin with an empty warehouse."""
        super().__init__()
        self.world = CommitWorld()
        self.lives: list[Life] = []
        self.ghosts: list[Change] = []
        self.started = 0
        self.retained: int | None = None
        """How many checkpoints are retained. None: all."""

    def _start(self, *, known_dead: bool) -> Life:
        self.started += 1
        carrier = Carrier(self.world, lambda claim: False if claim and known_dead else None, f"life-{self.started}")
        life = Life(TickDoor(TICK, Terms(holder=SOMEBODY, take_over=not known_dead)), carrier)
        self.lives.append(life)
        life.tick.start(carrier.moment())
        self._advance(life, Luck.WELL)
        expect(life in self.lives, "recovers", "the job was refused although nobody holds it")
        return life

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
            self.world.judge_start(restored)
            life.begin(effect, self.world.cuts.get(restored.checkpoint, {}) if restored is not None else {})
        elif isinstance(effect, Finish):
            self.lives.remove(life)

    def _ready(self) -> list[Life]:
        return [life for life in self.lives if life.work is not None]

    def _offer(self, life: Life, rows: int, kind: RowKind) -> None:
        draft = self._drafted(life, rows, kind)
        if draft is not None:
            self._offer_draft(life, draft)

    def _offer_draft(self, life: Life, draft: Draft) -> None:
        life.waits.add(draft.checkpoint)
        self._take(life, life.commit.offer(draft, 0))

    def _drafted(self, life: Life, rows: int, kind: RowKind) -> Draft | None:
        """Let a barrier pass all vertices after new rows. Return the draft of its checkpoint; None: no id is left."""
        taken = life.ids.take()
        if life.work is None or taken is None:
            return None
        if rows:
            generation, new = life.work.claim.generation, range(life.position, life.position + rows)
            life.micro_batch, life.position = life.micro_batch + 1, new.stop
            life.staged.append(StagedFile(NUMBERS, self.world.stage(generation, life.micro_batch, new), life.passed))
            count = counted(new.stop)
            life.count = self.world.stage(generation, life.micro_batch, count) if count else None
        life.passed = taken
        return self._draft(life, life.work, kind)

    def _draft(self, life: Life, work: Work, kind: RowKind) -> Draft:
        version = Version(work.claim.generation, life.passed)
        files = () if life.count is None else (KeyedFile(life.count, KeyedFileKind.BASE, 0, 0, version),)
        sink = SubtaskSnapshot(staged=tuple(life.staged), ranges=(RangeFiles(COUNT, files),))
        source = SubtaskSnapshot(position=str(life.position))
        vertices = (
            VertexRecord(vertex=SOURCE, micro_batch=0, subtasks=(source,), splits=("a",)),
            VertexRecord(vertex=SINK, micro_batch=life.micro_batch, subtasks=(sink,), table_keys=(_COUNT_KEYS,)),
        )
        leaving = (
            tuple(row.checkpoint for row in self.world.line()[: -self.retained + 1 or None]) if self.retained else ()
        )
        return Draft(life.passed, vertices, _STATISTICS, leaving, kind, pinned=kind is RowKind.SAVEPOINT)

    def _carry_out(self, life: Life, which: int, luck: Luck) -> None:
        effect = life.asked.pop(which % len(life.asked))
        fact = self._checked(effect, luck) if isinstance(effect, CheckTables) else self._done(effect, luck)
        if isinstance(fact, RowAppended):
            life.at_version = fact.version
            life.notes.clear()
        if isinstance(fact, TablePublished) and fact.version % 2:
            fact = replace(fact, note="others have merged files")
            life.notes.append(f"{fact.table}: {fact.note}")
        self._take(life, life.commit.step(fact, 0))

    def _checked(self, effect: CheckTables, luck: Luck) -> TablesChecked:
        if luck is Luck.REFUSED:
            return TablesChecked(effect.checkpoint, ("a column is gone",))
        self.world.checked[effect.checkpoint] = frozenset(effect.tables)
        return TablesChecked(effect.checkpoint, ())

    def _done(self, effect: Change, luck: Luck) -> Changed:
        match effect:
            case AppendRow() | AppendClaim() | AppendRelease():
                unknown = RowUnknown(effect.row.nonce, "no answer")
                if luck is Luck.WRITE_LOST:
                    return unknown
                subsumed = effect.subsumed if isinstance(effect, AppendRow) else ()
                answer = self.world.append(effect.row, effect.at_version, subsumed)
                return unknown if luck is Luck.REPLY_LOST else answer
            case PublishTable(checkpoint, publication):
                if luck in (Luck.REFUSED, Luck.WRITE_LOST):
                    return PublishFailed(checkpoint, publication.table, "the log refuses")
                published = self.world.publish(checkpoint, publication)
                lost = luck is Luck.REPLY_LOST
                return PublishFailed(checkpoint, publication.table, "no answer") if lost else published
            case RecordCut(checkpoint, versions):
                self.world.record_cut(checkpoint, versions, self.world.retained(checkpoint))
                return CutRecorded(checkpoint)

    def _take(self, life: Life, effects: tuple[CommitEffect, ...]) -> None:
        for effect in effects:
            match effect:
                case CheckTables() | AppendRow() | PublishTable() | RecordCut():
                    life.asked.append(effect)
                case CheckpointCommitted(record, notes):
                    expect([*notes] == life.notes, "told-truly", f"{notes} is told, found was {life.notes}")
                    life.waits.discard(record.checkpoint)
                    told = record.checkpoint in self.world.cuts
                    expect(told, "told-truly", f"{record.checkpoint} is told complete without a cut")
                    life.staged = [file for file in life.staged if file.after >= record.checkpoint]
                case Saved(record):
                    life.waits.discard(record.checkpoint)
                case IdsReserved():
                    life.waits.discard(NO_CHECKPOINT)
                case Declined(checkpoint):
                    life.waits.discard(checkpoint)
                    self.world.decline(checkpoint)
                case CommitEnded(_, reason, message):
                    self._end(life, EndTick(TickOutcome.FAILED, reason, message))

    def _end(self, life: Life, end: EndTick) -> None:
        """End the work and release the job. Outstanding effects may still come."""
        if life.work is not None:
            life.work = None
            self._leave(life)
            self._answer(life, WorkEnded(end, life.ids.next_id, life.at_version))

    def _die(self, life: Life) -> None:
        self._leave(life)
        if life.work is None and isinstance(life.tick.awaits, Change):
            self.ghosts.append(life.tick.awaits)

    def _leave(self, life: Life) -> None:
        self.ghosts += [effect for effect in life.asked if isinstance(effect, Change)]
        life.asked.clear()
