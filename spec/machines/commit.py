"""The machine of the commit: the tick door and the two-phase commit of up to three coordinators.

All coordinators are alive at the same time, and none knows of the others: the older ones are zombies. Each goes through
the tick door, as every tick does: it observes, claims, recovers, works, releases. A rule of the machine carries each
effect out. The effect's answer may be lost, and the coordinator may die before any answer. Outstanding effects may
still be carried out later.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.commit.fencing import newest_checkpoint
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
from checkpointing.config import CheckpointingMode
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, EdgeId, Generation, SplitId, TableName, VertexId
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
from checkpointing.metadata.record import CheckpointRecord, Row, RowKind, Statistics, TableKeys, VertexRecord
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
from spec.history import FileMissed, History
from spec.machines.judging import expect, is_unwinding
from spec.world.stores import World, Written
from spec.world.tick_door import SOMEBODY, Carrier

# ------------------------------------------------------------------
# A warehouse that is small enough to judge at a glance: an append table of numbers, an upsert table of their count.
#
# The source's rows are 0, 1, 2 and so on. So the tables at a cut must show exactly the numbers below its position,
# whatever was declined, lost, repeated or rolled forward. This sentence is the whole reference. If the count is a
# multiple of four, the upsert table is empty.


COMMITS_GO_ON: Final = "commits-go-on"
"""As long as checkpoints wait for their commit, some effect of the commit is outstanding."""
SHOWN_ONCE: Final = "exactly-once"
"""At each cut, and at its newest version, a table shows each row before the barrier once, and no other row."""
OUTSIDE_EXACT: Final = "outside-exact"
"""An outside sink shows the rows before its newest checkpoint once. This checkpoint was committed, and is not older
than the newest cut."""
RECOVERS: Final = "recovers"
"""A tick without trouble takes the job over and commits, whatever happened to the ticks before it."""
EXACTLY_ONCE: Final = CheckpointingMode.EXACTLY_ONCE
SOURCE: Final = VertexId("source")
SINK: Final = VertexId("sink")
NUMBERS: Final = TableName("out/numbers")
COUNT: Final = TableName("out/count")
_ON_THE_LINE: Final = (RowKind.CHECKPOINT, RowKind.ROLLBACK)
GRAPH: Final = JobGraph(
    (
        Vertex(SOURCE, VertexKind.SOURCE, 1, splits=(SplitId("a"),)),
        Vertex(
            SINK,
            VertexKind.KEYED,
            1,
            (
                Table(NUMBERS, TableMode.APPEND, outside=True),
                Table(COUNT, TableMode.UPSERT, ("key",), outside=True),
            ),
        ),
    ),
    (EdgeId(SOURCE, SINK),),
)


def position(record: CheckpointRecord | None) -> int:
    """Return how many rows of the source lie before the barrier."""
    return int(record.vertices[0].subtasks[0].position or "0") if record is not None else 0


def counted(rows: int) -> range:
    """Return the count that the upsert table shows after this many rows. It may be empty."""
    return range(rows, rows + (rows % 4 > 0))


class CommitWorld(World):
    """The simulator's stores, and which checkpoints were reported as failed."""

    def __init__(self) -> None:
        super().__init__(lambda world: History(EXACTLY_ONCE, 1, 1, world.rows_of, world.state_of))
        self.declined: set[CheckpointId] = set()
        self.checked: dict[CheckpointId, frozenset[TableName]] = {}
        """Maps each checkpoint to the tables that were checked and fit it."""
        self.positions: dict[CheckpointId, int] = {NO_CHECKPOINT: 0}
        """Maps each checkpoint that was ever committed to the number of rows before it. Savepoints are left out."""
        self.went_back = NO_CHECKPOINT
        """The newest rollback, even a subsumed one. After a rollback, only the simulator judges outside sinks."""

    def stage(self, generation: Generation, micro_batch: int, numbers: range) -> FileHandle:
        """Write a new file of these numbers."""
        rows = tuple((number,) for number in numbers)
        return self.write(NUMBERS, Written(generation, SINK, micro_batch, rows), len(rows))

    def _commit(self, row: Row, subsumed: tuple[CheckpointId, ...], marks: Mapping[CheckpointId, bool]) -> None:
        if isinstance(row, CheckpointRecord):
            self._judge_row(row)
            if row.kind in _ON_THE_LINE:
                self.positions[row.checkpoint] = position(row)
        super()._commit(row, subsumed, marks)

    def decline(self, checkpoint: CheckpointId) -> None:
        """Record that a coordinator considers this checkpoint failed."""
        self.declined.add(checkpoint)
        committed = [row.checkpoint for row in self.checkpoints()]
        expect(checkpoint not in committed, "no-commit-after-abort", f"{checkpoint} is declined, but it is committed")

    # -------------------------------------------------------------- the reference

    def line(self) -> list[CheckpointRecord]:
        """Return the committed checkpoints and rollbacks, without savepoints."""
        return [row for row in self.checkpoints() if row.kind in _ON_THE_LINE]

    def _judge_row(self, row: CheckpointRecord) -> None:
        expect(row.checkpoint not in self.declined, "no-commit-after-abort", f"{row.checkpoint} was declined")
        holder = self.generation
        expect(row.generation == holder, "one-generation", f"{row.generation} commits, {holder} holds the job")
        used = [each.checkpoint for each in self.checkpoints()]
        expect(all(n < row.checkpoint for n in used), "ids-rise", f"{row.checkpoint} after {used}")
        if row.kind is RowKind.ROLLBACK:
            self.went_back = row.checkpoint
            return  # its target is chosen, and what the tables show then is judged like any cut
        line = self.line()
        newest = line[-1].checkpoint if line else NO_CHECKPOINT
        expect(row.parent == newest, "parent-line", f"{row.checkpoint} builds on {row.parent}, not on {newest}")
        waiting = [each.checkpoint for each in line if each.checkpoint > max(self.cuts, default=NO_CHECKPOINT)]
        expect(not waiting, "published-in-order", f"{row.checkpoint} while {waiting} has no cut")
        if row.kind is RowKind.CHECKPOINT:
            missing = {NUMBERS, COUNT} - self.checked.get(row.checkpoint, frozenset())
            expect(not missing, "tables-are-checked", f"{row.checkpoint} is in, {missing} were not checked")
        self._judge_tables(row, line[-1] if line else None)
        net = [file.path for table in row.tables if table.table == NUMBERS for file in table.adds]
        due = range(position(line[-1] if line else None), position(row))
        self._shows(self.shown_by(net), due, f"net of {row.checkpoint}")

    def _judge_tables(self, row: CheckpointRecord, parent: CheckpointRecord | None) -> None:
        """Judge one entry's tables: each names its version at the parent's cut, and a changed count is published."""
        cut = self.cuts.get(row.parent, {})
        for table in row.tables:
            due = cut.get(table.table, 0)
            expect(table.parent_version == due, "tables-follow", f"{table.table}: {table.parent_version}, not {due}")
        published = {table.table: {file.path for file in table.files} for table in row.tables}
        now, before = _count_of(row), _count_of(parent)
        said = published.get(COUNT, before)
        expect(said == now, "tables-follow", f"{row.checkpoint} publishes {said} as the count, not {now}")

    def judge_start(self, restored: CheckpointRecord | None) -> None:
        """Judge that a holder does not restore an entry that is newer than the newest cut."""
        newest = max(self.cuts, default=NO_CHECKPOINT)
        late = restored is not None and restored.checkpoint > newest
        expect(not late, "published-in-order", f"work goes on from {restored}, and the newest cut is {newest}")

    def judge(self) -> None:
        """Judge what readers see now and at each cut."""
        missed = [event for event in self.history.events if isinstance(event, FileMissed)]
        expect(not missed, "no-file-is-missed", missed)
        at = self.positions
        for name, log in self.tables.items():
            shown = CheckpointId(log.shown[-1])
            expect(shown in at, "visible-after-commit", f"{name} shows {shown}, which is not committed")
            self._is_exact(name, log.version, at[shown], f"{name} shows {shown}")
        for checkpoint, versions_at in self.cuts.items():
            expect(checkpoint in at, "visible-after-commit", f"cut {checkpoint} is recorded, it is not committed")
            for name, version in versions_at.items():
                self._is_exact(name, version, at[checkpoint], f"cut {checkpoint} of {name}")
        if not self.went_back:
            self._judge_outside()

    def _judge_outside(self) -> None:
        """Judge the outside sinks: each shows the rows of its newest checkpoint, and is not behind the newest cut."""
        at, newest = self.positions, max(self.cuts, default=NO_CHECKPOINT)
        for table, due in ((NUMBERS, range), (COUNT, counted)):
            shown = self.outside.shown.get(table, NO_CHECKPOINT)
            expect(shown in at, OUTSIDE_EXACT, f"{shown} is outside, and it is not committed")
            held, rows = self.shown_by(self.outside.paths.get(table, ())), due(at[shown])
            expect(held == Counter(rows), OUTSIDE_EXACT, f"{dict(held)} is outside, due are {rows}")
            expect(at[shown] >= at[newest], OUTSIDE_EXACT, f"{shown} is outside, the newest cut is {newest}")

    def _is_exact(self, name: TableName, version: int, rows: int, what: str) -> None:
        log = self.table(name)
        expect(version <= log.version, SHOWN_ONCE, f"{what} needs version {version}, the newest is {log.version}")
        held = self.shown_by(log.versions[version])
        self._shows(held, range(rows) if name == NUMBERS else counted(rows), what)

    def shown_by(self, paths: Iterable[str]) -> Counter[int]:
        """Return the numbers in these files."""
        return Counter(number for path in paths for (number,) in self.rows_of(path))

    @staticmethod
    def _shows(held: Counter[int], due: range, what: str) -> None:
        expect(held == Counter(due), SHOWN_ONCE, f"{what}: {dict(held)}, due are {due}")


def _count_of(record: CheckpointRecord | None) -> set[str]:
    subtasks = record.vertices[1].subtasks if record is not None else ()
    return {keyed.file.path for subtask in subtasks for own in subtask.ranges for keyed in own.files}


# ------------------------------------------------------------------
# Coordinators of a commit, for the machines that drive them: each goes through the tick door and the two-phase commit.
#
# All coordinators may be alive at the same time, and none knows of the others. Each effect waits until a rule carries
# it out.


_COUNT_KEYS = TableKeys(table=COUNT, columns=("key",))
_STATISTICS = Statistics(triggered_ms=0, committed_ms=0, rows=0)
Change = AppendRow | AppendClaim | AppendRelease | PublishTable | RecordCut
Changed = RowAppended | RowRefused | RowUnknown | TablePublished | PublishFailed | CutRecorded


class Luck(Enum):
    """The outcome of an effect."""

    WELL = "well"
    REPLY_LOST = "reply lost"
    """The effect was carried out, but its sender gets no reply."""
    WRITE_LOST = "write lost"
    """The effect was not carried out, and its sender gets no reply."""
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Life:
    """One coordinator: its tick door, and its work."""

    tick: TickDoor
    carrier: Carrier
    work: Work | None = None
    """The work that the tick door asked for. None before and afterwards."""
    asked: list[Change | CheckTables] = field(default_factory=list)
    """The outstanding effects of its commit."""
    waits: set[CheckpointId] = field(default_factory=set)
    """Checkpoints offered to its commit that have not ended. NO_CHECKPOINT stands for a claim of more ids."""
    commit: TwoPhaseCommit = field(init=False)
    ids: CheckpointIds = field(init=False)
    at_version: int = 0
    passed: CheckpointId = NO_CHECKPOINT
    position: int = 0
    micro_batch: int = 0
    staged: list[StagedFile] = field(default_factory=list)
    count: FileHandle | None = None
    notes: list[str] = field(default_factory=list)
    """Notes about the tables that were published since the coordinator's last entry was appended."""

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
        super().__init__()
        self.world = CommitWorld()
        self.lives: list[Life] = []
        self.ghosts: list[Change] = []
        self.started = 0
        self.retained: int | None = None
        """How many checkpoints are retained. None means all of them."""

    def _start(self, *, known_dead: bool) -> Life:
        self.started += 1
        carrier = Carrier(self.world, lambda claim: False if claim and known_dead else None, f"life-{self.started}")
        life = Life(TickDoor(TICK, Terms(holder=SOMEBODY, take_over=not known_dead)), carrier)
        self.lives.append(life)
        life.tick.start(carrier.moment())
        self._advance(life, Luck.WELL)
        expect(life in self.lives, RECOVERS, "the job was refused although nobody holds it")
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
        """Send new rows, and a barrier after them, through all vertices.

        Return the draft of its checkpoint, or None if no id is left.
        """
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
        """End the work and release the job. Outstanding effects may still be carried out."""
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


ALIVE_MAX = 3
STEPS_MAX = 100
_pick = st.integers(0, 20)
_luck = st.sampled_from([Luck.WELL, Luck.WELL, Luck.REPLY_LOST, Luck.WELL, Luck.WRITE_LOST, Luck.REFUSED])
_trouble = st.sampled_from([(CheckTables, Luck.REFUSED), (AppendRow, Luck.REPLY_LOST), (PublishTable, Luck.REFUSED)])


class CommitMachine(Coordinators):
    """Coordinators on one warehouse, and the warehouse's one-sentence reference."""

    # -------------------------------------------------------------- a coordinator at the tick door

    @precondition(lambda self: len(self.lives) < ALIVE_MAX)
    @rule(known_dead=st.booleans(), at_once=st.sampled_from([True, True, False]))
    def start(self, known_dead: bool, at_once: bool) -> None:  # noqa: FBT001
        """Let a coordinator observe and decide. Perhaps it claims and recovers at once."""
        life = self._start(known_dead=known_dead)
        while at_once and life in self.lives and life.work is None:
            self._advance(life, Luck.WELL)

    @precondition(lambda self: self._at_the_door())
    @rule(pick=_pick, luck=_luck, steps=st.integers(1, 6))
    def advance(self, pick: int, luck: Luck, steps: int) -> None:
        """Carry out what a coordinator's door waits for: it observes, claims, rolls forward or releases."""
        waiting = self._at_the_door()
        life = waiting[pick % len(waiting)]
        for step in range(steps):
            if life in self.lives and life.work is None:
                self._advance(life, Luck.WELL if step else luck)

    # -------------------------------------------------------------- a coordinator works

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

    @precondition(lambda self: self._ready())
    @rule(pick=_pick, rows=st.integers(0, 3))
    def offer_a_slow_savepoint(self, pick: int, rows: int) -> None:
        """Let a savepoint's barrier pass first, and let its suites take so long that the next checkpoint is first."""
        ready = self._ready()
        life = ready[pick % len(ready)]
        slow = self._drafted(life, 0, RowKind.SAVEPOINT)
        self._offer(life, rows, RowKind.CHECKPOINT)
        if slow is not None:
            self._offer_draft(life, slow)

    @precondition(lambda self: self._ready())
    @rule(pick=_pick)
    def reserve(self, pick: int) -> None:
        """Let a coordinator reserve a further block of ids: another claim of the same generation."""
        ready = self._ready()
        life = ready[pick % len(ready)]
        if not any(isinstance(effect, AppendRow) for effect in life.asked):
            life.waits.add(NO_CHECKPOINT)
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
    def go_badly(self, trouble: tuple[type[Change | CheckTables], Luck]) -> None:
        """Give the first commit that waits trouble: tables forbid it, its reply is lost, or a table refuses it."""
        kind, luck = trouble
        for life in self.lives:
            for which, effect in enumerate(life.asked):
                if isinstance(effect, kind):
                    self._carry_out(life, which, luck)
                    return

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

    @precondition(lambda self: self.lives)
    @rule(pick=_pick, really=st.sampled_from([True, False, False]))
    def crash(self, pick: int, really: bool) -> None:  # noqa: FBT001
        """Let a coordinator die. Its outstanding effects may still come."""
        if really:
            self._die(self.lives.pop(pick % len(self.lives)))

    @precondition(lambda self: self.ghosts)
    @rule(pick=_pick)
    def come_late(self, pick: int) -> None:
        """Carry out an outstanding effect of a dead coordinator."""
        self._done(self.ghosts.pop(pick % len(self.ghosts)), Luck.WELL)

    # -------------------------------------------------------------- judging

    @invariant()
    def holds(self) -> None:
        """The tables and the cuts show exactly what the committed entries say, and no commit stands still."""
        self.world.judge()
        for life in self._ready():
            goes_on = bool(life.asked) or not life.waits
            expect(goes_on, COMMITS_GO_ON, f"{life.waits} wait, and the commit asks for nothing")

    def teardown(self) -> None:
        """A coordinator without trouble recovers and commits. Effects that come late change nothing then."""
        if is_unwinding():
            return
        while self.lives:
            self._die(self.lives.pop())
        life = self._start(known_dead=False)
        while life in self.lives and life.work is None:
            self._advance(life, Luck.WELL)
        expect(life in self.lives, RECOVERS, "a coordinator without trouble did not recover")
        before = position(newest_checkpoint(self.world.rows()))
        self._offer(life, 2, RowKind.CHECKPOINT)
        for _ in range(STEPS_MAX):
            if life.asked:
                self._carry_out(life, 0, Luck.WELL)
        self.world.judge()
        newest = self.world.line()[-1] if self.world.line() else None
        done = newest is not None and newest.checkpoint == life.passed and newest.checkpoint in self.world.cuts
        expect(done and position(newest) == before + 2, RECOVERS, "a coordinator without trouble did not commit")
        seen = self._shown()
        while self.ghosts:
            self._done(self.ghosts.pop(), Luck.WELL)
        after = self._shown()
        expect(seen == after, "one-generation", f"what came late changed {seen} to {after}")

    def _shown(self) -> dict[TableName, tuple[int, frozenset[str]]]:
        return {name: (log.shown[-1], log.active) for name, log in self.world.tables.items()}
