"""The machine of damaged tables: logs lose their newest entries, cuts are lost, and the next tick repairs both.

Its reference is the content of the tables (`commit`). After a tick's start, each table and each recorded cut show
exactly the numbers below the position of their checkpoint, whatever was lost before. What nobody damaged is left
alone, and what the retained entries can bring back is brought back. Between ticks, the job also goes back to older
entries.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit.cleanup import Referenced
from checkpointing.commit.fencing import HolderObserved, MayClaim
from checkpointing.commit.lost_publications import Again, Cuts, Doubt, Lost, Repairs, Standing, reference
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName, VertexId
from checkpointing.messages import (
    CutRecorded,
    EndTick,
    Publication,
    PublishFailed,
    PublishTable,
    RecordCut,
    TablePublished,
    TickOutcome,
)
from checkpointing.metadata.record import (
    CheckpointRecord,
    Claim,
    Holder,
    RowKind,
    Statistics,
    TableKeys,
    TableRecord,
    VertexRecord,
)
from checkpointing.tick.attempts import Errand, Terms
from checkpointing.tick.door import Held, StepFailedError, Steps, asked, recovered, rolled_forward_or_left
from checkpointing.tick.messages import (
    CorrectCuts,
    CutRead,
    DiscardLeftovers,
    Done,
    EnsureTables,
    LeftoversDiscarded,
    LogsSeen,
    LookAtLogs,
    LookAtTables,
    PublishAgain,
    ReadCut,
    Recovered,
    RolledForward,
    TablesSeen,
    TickEffect,
    TickFact,
)
from spec.machines.commit import COUNT, GRAPH, NUMBERS, Coordinators, Life, Luck
from spec.machines.full_entry import plain_entry
from spec.machines.judging import BrokenRuleError, expect, is_unwinding
from spec.world.tick_door import Visitor, doubt, rebuilt_cuts
from spec.world.visits import others_than_the_newest, rolling_back

REPAIRED = "repaired"
"""After a tick's start, each table shows the newest checkpoint, and each recorded cut shows its own."""
UNDAMAGED = "undamaged-left-alone"
"""A table is in doubt only if its log has lost entries, and cuts are rebuilt only if one was lost."""
NOT_LOST = "not-lost"
"""A table is lost only if the retained entries do not hold what it lacks."""
CUTS_COME_BACK = "cuts-come-back"
"""A lost cut is rebuilt if no log was ever damaged. It is unknown if no published entry names a table."""
_tables = st.sampled_from([NUMBERS, COUNT])
_pick = st.integers(0, 20)


class RepairMachine(Coordinators):
    """One tick after the other on one warehouse. Between two of them, logs and cuts lose something."""

    def __init__(self) -> None:
        """Begin with an empty warehouse."""
        super().__init__()
        for table in (NUMBERS, COUNT):
            self.world.table(table)
        self.struck: set[TableName] = set()
        """The tables whose logs have lost entries since the last repair."""
        self.was_struck = False
        """True if a log has ever lost entries. Entries then name versions that the tables may no longer have."""
        self.hole: int | None = None
        """The version at which the log of NUMBERS lacks an entry, until the next start."""
        self.lost_cuts: dict[CheckpointId, dict[TableName, int]] = {}
        self.still_lost: set[CheckpointId] = set()
        """The cuts that no start has rebuilt yet. A later one may, once the logs are repaired."""
        self.visits = 0

    @initialize(retained=st.integers(1, 3), idle=st.integers(0, 4))
    def configure(self, retained: int, idle: int) -> None:
        """Draw how many checkpoints are retained. The first checkpoints may have no rows."""
        self.retained = retained
        if idle:
            self.run_a_tick([0] * idle)

    # -------------------------------------------------------------- ticks

    @rule(rows=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def run_a_tick(self, rows: list[int]) -> None:
        """Take checkpoints with so many new rows each, and end in order."""
        self._end(self._worked(rows), EndTick(TickOutcome.STOPPED))
        self._release()

    @rule(rows=st.lists(st.integers(0, 3), max_size=2), last=st.integers(0, 3), steps=st.integers(1, 5))
    def run_a_tick_that_dies(self, rows: list[int], last: int, steps: int) -> None:
        """Do the same, and die in the middle of the last commit: before its entry is in, or before it is published."""
        life = self._worked(rows)
        self._offer(life, last, RowKind.CHECKPOINT)
        for _ in range(steps):
            if life.asked:
                self._carry_out(life, 0, Luck.WELL)
        self.lives.remove(life)

    @rule(steps=st.integers(1, 12))
    def die_at_the_start(self, steps: int) -> None:
        """A tick dies during a repair. It has published some tables or none, or it has not corrected the cuts yet."""
        life = self._begun()
        for _ in range(steps):
            if life in self.lives and life.work is None:
                self._advance(life, Luck.WELL)
        self.lives.clear()
        self.lost_cuts = {at: cut for at, cut in self.lost_cuts.items() if at not in self.world.cuts}

    def _worked(self, rows: list[int]) -> Life:
        life = self._repaired()
        for count in rows:
            self._offer(life, count, RowKind.CHECKPOINT)
            while life.asked:
                self._carry_out(life, 0, Luck.WELL)
        self._judge_contents()
        return life

    def _release(self) -> None:
        while self.lives:
            self._advance(self.lives[0], Luck.WELL)

    @rule(pick=_pick, long_ago=st.booleans())
    def roll_back(self, pick: int, long_ago: bool) -> None:  # noqa: FBT001
        """Go back to another entry, after a tick has repaired what is damaged.

        If that was long ago, the logs have dropped all older entries. Then the cut of the rollback's target is lost.
        """
        self._end(self._repaired(), EndTick(TickOutcome.STOPPED))
        self._release()
        targets = others_than_the_newest(self.world)
        if not targets:
            return
        target = targets[pick % len(targets)]
        self.visits += 1
        for _ in rolling_back(self.world, GRAPH, target, Visitor(f"rollback-{self.visits}")):
            pass
        self._judge_contents()
        if long_ago:
            for log in self.world.tables.values():
                log.oldest = log.version
            if target in self.world.cuts:
                self.lost_cuts[target] = dict(self.world.cuts.pop(target))

    # -------------------------------------------------------------- damage

    @rule(table=_tables, entries=st.integers(1, 4))
    def lose_log_entries(self, table: TableName, entries: int) -> None:
        """A table's log loses its newest entries."""
        log = self.world.table(table)
        if log.version - entries >= log.oldest and self.world.lose(table, entries):
            self.struck.add(table)
            self.was_struck = True

    @rule(rows=st.integers(1, 3), more=st.lists(st.integers(0, 2), min_size=1, max_size=3), table=_tables)
    def lose_log_entries_twice(self, rows: int, more: list[int], table: TableName) -> None:
        """A log loses its newest entry, and a tick publishes it again. Then the log loses the entries that followed."""
        self.run_a_tick([rows])
        self.lose_log_entries(table, 1)
        self.run_a_tick(more)
        self.lose_log_entries(table, sum(each > 0 for each in more) or 1)

    @rule(pick=_pick, table=_tables, entries=st.integers(1, 4), steps=st.integers(1, 12))
    def lose_a_rollback_and_die(self, pick: int, table: TableName, entries: int, steps: int) -> None:
        """A log loses its newest entries, and the last one was a rollback. The tick that repairs the table dies.

        The table may then show the rollback at an older version than the cut of the rollback names.
        """
        self.roll_back(pick, long_ago=False)
        self.lose_log_entries(table, entries)
        self.die_at_the_start(steps)

    @rule(rows=st.integers(1, 3), steps=st.integers(1, 5), table=_tables)
    def lose_log_entries_before_a_pending_entry(self, rows: int, steps: int, table: TableName) -> None:
        """A tick dies in the commit of a checkpoint that changes nothing. The log loses what the one before changed."""
        self.run_a_tick_that_dies([rows], 0, steps)
        self.lose_log_entries(table, 1)

    @rule(pick=_pick, and_its_cut=st.booleans(), others=st.sampled_from([0, 0, 1, 2, 3]))
    def lose_a_log_entry_between(self, pick: int, and_its_cut: bool, others: int) -> None:  # noqa: FBT001
        """A log is put together from two backups. It lacks one entry, and has newer ones, which cannot go before it.

        The cut that names this entry may be lost too, and the other table's log may lose its newest entries.
        """
        log = self.world.table(NUMBERS)
        retained = {record.checkpoint for record in self._since_the_rollback()}
        published = [at for at in range(log.oldest + 1, log.version + 1) if log.shown[at] != log.shown[at - 1]]
        between = [at for at in published[:-1] if log.shown[at] in retained]
        if not between or self.world.went_back:
            return
        at = between[pick % len(between)]
        lost, before = log.shown[at], log.shown[at - 1]
        added = log.versions[at] - log.versions[at - 1]
        log.backup = log.backup or log.copy()
        log.versions[at:] = [files - added for files in log.versions[at:]]
        log.shown[at:] = [before if shown == lost else shown for shown in log.shown[at:]]
        self.world.struck = True
        self.hole = at if self.hole is None else min(at, self.hole)
        self.struck.add(NUMBERS)
        self.was_struck = True
        checkpoint = CheckpointId(lost)
        if and_its_cut and checkpoint in self.world.cuts:
            self.lost_cuts[checkpoint] = dict(self.world.cuts.pop(checkpoint))
        if others:
            self.lose_log_entries(COUNT, others)

    @rule(rows=st.integers(1, 3), more=st.integers(1, 3))
    def lose_the_newest_log_entry_and_the_old_ones(self, rows: int, more: int) -> None:
        """A log drops an entry of a retained checkpoint in order. Then it loses its newest one."""
        self.run_a_tick([rows, more])
        log = self.world.table(NUMBERS)
        log.oldest = max(log.oldest, log.version - 1)
        self.lose_log_entries(NUMBERS, 1)

    @rule(pick=_pick, many=st.integers(1, 4))
    def lose_cuts(self, pick: int, many: int) -> None:
        """Some cuts that follow each other are lost, or all."""
        there = sorted(self.world.cuts)
        for checkpoint in there[pick % (len(there) or 1) :][:many]:
            self.lost_cuts[checkpoint] = dict(self.world.cuts.pop(checkpoint))

    @rule(table=_tables, pick=_pick)
    def drop_old_log_entries(self, table: TableName, pick: int) -> None:
        """A table's log drops its oldest entries in order, as Delta does.

        It drops no entry in whose place there is a hole. Without it, the log would look whole.
        """
        log = self.world.table(table)
        most = log.version if self.hole is None or table != NUMBERS else self.hole
        log.oldest = max(log.oldest, min(pick % (log.version + 1), most))

    # -------------------------------------------------------------- the start of a tick

    def _begun(self) -> Life:
        self._judge_rebuilt()
        self._judge_doubt()
        return self._start(known_dead=True)

    def _repaired(self) -> Life:
        life = self._begun()
        while life in self.lives and life.work is None:
            self._advance(life, Luck.WELL)
        expect(life in self.lives, "recovers", "a tick without trouble did not start")
        self._judge_contents()
        self.struck.clear()
        self.hole = None
        self.still_lost = {each for each in self.still_lost.union(self.lost_cuts) if each not in self.world.cuts}
        self.lost_cuts.clear()
        return life

    def _judge_contents(self) -> None:
        try:
            self.world.judge()
            newest = self.world.line()[-1:]
            for record in newest:
                expect(record.checkpoint in self.world.cuts, REPAIRED, f"{record.checkpoint} has no cut")
        except BrokenRuleError as broken:
            raise BrokenRuleError(REPAIRED, str(broken)) from broken

    def _judge_rebuilt(self) -> None:
        """Judge which lost cuts come back. If a table of the newest cut is unknown, restore the cuts from a backup."""
        found = rebuilt_cuts(self.world)
        was_lost = bool(self.lost_cuts or self.still_lost)
        expect(not found.cuts or was_lost, UNDAMAGED, f"{found.cuts} are rebuilt, and no cut was lost")
        for checkpoint, cut in found.cuts.items():
            whole = cut.keys() >= self.lost_cuts.get(checkpoint, cut).keys()
            expect(whole, CUTS_COME_BACK, f"the cut of {checkpoint} is rebuilt as {cut}")
        if found.unknown is not None:
            log = self.world.table(found.unknown)
            naming = [row for row in self.world.line() if any(each.table == found.unknown for each in row.tables)]
            told = bool(naming) and naming[-1].checkpoint == log.shown[-1] and not log.oldest and not self.was_struck
            expect(not told, CUTS_COME_BACK, f"{found.unknown} is unknown, and shows the newest entry that names it")
            self.world.cuts |= self.lost_cuts
            self.lost_cuts.clear()
        elif not self.was_struck and not any(self.world.table(table).oldest for table in (NUMBERS, COUNT)):
            retained = {record.checkpoint for record in self._since_the_rollback()}
            waits = {record.checkpoint for record in self.world.line()[-1:] if record.checkpoint not in found.cuts}
            missing = (set(self.lost_cuts) & retained) - set(found.cuts) - waits
            expect(not missing, CUTS_COME_BACK, f"the cuts {missing} are not rebuilt, the logs are whole")

    def _since_the_rollback(self) -> list[CheckpointRecord]:
        """Return the line from its newest rollback on. No entry names the versions of the cut before a rollback."""
        line = self.world.line()
        first = max((place for place, row in enumerate(line) if row.kind is RowKind.ROLLBACK), default=0)
        return line[first:]

    def _judge_doubt(self) -> None:
        seen = doubt(self.world)
        spared = seen.repairs.tables - self.struck
        expect(not spared, UNDAMAGED, f"{spared} are in doubt, struck were {self.struck}")
        for lost in seen.repairs.lost:
            at = reference(seen.seen)
            if at is not None and not self._may_be_missing(lost, seen.seen.cuts):
                self._is_lost(lost, at.checkpoint)

    def _may_be_missing(self, lost: Lost, cuts: Cuts) -> bool:
        """Return whether nobody can say if the log entry of what a table lacks was lost, or dropped in order.

        The cut that told it was lost, and is not rebuilt because a rollback came after it.
        """
        return lost.lacks not in (None, *cuts) and self.world.went_back > 0 and self.world.table(lost.table).oldest > 0

    def _is_lost(self, lost: Lost, checkpoint: CheckpointId) -> None:
        """Judge a table that is said to be lost, by what it shows and what the entries up to the cut would add."""
        expect(lost.table == NUMBERS, NOT_LOST, f"{lost} is whole in each entry")
        line = [record for record in self.world.line() if record.checkpoint <= checkpoint]
        if self.world.went_back > lost.shows:
            return  # a rollback builds on the line that it left, whose entries are gone
        log = self.world.table(NUMBERS)
        if log.version in log.again and lost.shows not in {record.checkpoint for record in line}:
            return  # its version number was used before, so it does not prove that the next entry found this content
        there = self.world.shown_by(self.world.table(NUMBERS).active)
        for record in line:
            if record.checkpoint > lost.shows:
                there += self.world.shown_by(_added(record))
        due = Counter(range(self.world.positions[checkpoint]))
        expect(there != due or not line, NOT_LOST, f"{lost}, and the entries hold all that it lacks")

    def teardown(self) -> None:
        """A last tick starts, and repairs what is damaged."""
        if not is_unwinding():
            self._repaired()


def _added(record: CheckpointRecord) -> frozenset[str]:
    return frozenset(file.path for table in record.tables if table.table == NUMBERS for file in table.adds)


# ------------------------------------------------------------------
# Tests the steps of a new holder before its work: in which order it repairs, publishes and deletes, and what it omits.
#
# Its reference lists the due steps. What the single steps decide is the subject of the machines of damaged
# tables and of the roll-forward.


STEPS: Final = "steps-in-order"
"""A new holder first repairs tables, then publishes an entry that is not published yet, and deletes leftovers last. It
deletes nothing if an entry cannot be read, or if a rollback goes on without the entry. If a cut was lost, outside sinks
get its entry once more."""

_TABLE, _OTHER, _KEYED = TableName("bronze/kept"), TableName("gold/sums"), TableName("gold/keyed")
_CLAIM: Final = Claim(
    generation=Generation(8),
    holder=Holder(host="h", pid=1, started="s"),
    first_id=CheckpointId(20),
    last_id=CheckpointId(29),
    at_ms=1,
    nonce="c",
)
_often = st.sampled_from([True, True, False])


@dataclass(frozen=True)
class _Case:
    """The task of a holder, and the state that it finds."""

    repairs: bool
    ensures: bool
    rolls_forward: bool
    discards: bool
    damaged: bool
    pending: bool
    """Whether the newest entry is not published yet."""
    outside: bool
    """Whether outside sinks get the rows of an append table and of an upsert table."""
    seen: str
    """What the tables show: whole, behind (some lost entries), or lost for good."""
    rebuilt: bool
    """Whether the newest cut was lost."""
    pinned: bool
    leaves: CheckpointId | None

    @property
    def leaves_newest(self) -> bool:
        """Whether it is a rollback to another entry than the newest."""
        return self.leaves not in (None, _NEWEST)


_NEWEST: Final = CheckpointId(15)
_cases = st.builds(
    _Case,
    repairs=_often,
    ensures=st.booleans(),
    rolls_forward=_often,
    discards=_often,
    damaged=st.sampled_from([False, False, True]),
    pending=st.booleans(),
    outside=st.booleans(),
    seen=st.sampled_from(["whole", "behind", "behind", "lost"]),
    rebuilt=st.booleans(),
    pinned=st.booleans(),
    leaves=st.sampled_from([None, None, _NEWEST, CheckpointId(12)]),
)


class RecoveringMachine(RuleBasedStateMachine):
    """One holder after the other. Nothing is kept in between."""

    @rule(case=_cases)
    def recover(self, case: _Case) -> None:
        """A holder takes its first steps."""
        rows = (_entry(case, CheckpointId(14)), _entry(case, _NEWEST))
        claim = MayClaim(_CLAIM.generation, _CLAIM.first_id, "")
        plan = RecoveryPlan(claim, rows[1] if case.pending else None, rows[1])
        seen = Observed(5, rows, frozenset(), HolderObserved(None, None), 1, damaged=case.damaged)
        errand = Errand(
            repairs=case.repairs, ensures=case.ensures, rolls_forward=case.rolls_forward, discards=case.discards
        )
        terms = Terms(holder=_CLAIM.holder, leaves_behind=case.leaves)
        steps = recovered(errand, terms, Held(_CLAIM, 6, seen, plan))
        doubt = _doubt(case, rows)
        asked: list[str] = []
        fact: TickFact | None = None
        try:
            while True:
                effect = next(steps) if fact is None else steps.send(fact)
                asked.append(type(effect).__name__)
                self._judge(case, effect, plan, rows)
                fact = _answer(effect, doubt)
        except StopIteration as end:
            done = end.value
        due = [*_due(case)]
        expect(asked == due, STEPS, f"{asked}, due are {due}: {case}")
        left = 3 if DiscardLeftovers.__name__ in due else 0
        expect(done == Recovered(plan, left), STEPS, f"{done}, due is {left}")

    @staticmethod
    def _judge(
        case: _Case,
        effect: TickEffect,
        plan: RecoveryPlan,
        rows: tuple[CheckpointRecord, ...],
    ) -> None:
        """Judge what one step says."""
        match effect:
            case LookAtTables():
                expect(effect.rows == rows, STEPS, f"{effect}")
            case EnsureTables():
                unsettled = {name for name, is_so in ((_TABLE, case.pending), (_OTHER, case.seen == "behind")) if is_so}
                ensured = EnsureTables(plan, frozenset(unsettled))
                expect(effect == ensured, STEPS, f"{effect}, due is {ensured}")
            case PublishTable():
                given = effect.publication
                said = effect.checkpoint, given.table, given.outside, given.since
                rightly = {(_NEWEST, _TABLE, True, None), (_NEWEST, _KEYED, True, rows[0].checkpoint)}
                expect(said in rightly, STEPS, f"{said} is given to outside sinks, due are {rightly}")
            case CorrectCuts():
                changed = {_NEWEST: {_TABLE: 4}} if case.rebuilt else {}
                expect(dict(effect.correction.changed) == changed, STEPS, f"{effect.correction}, due are {changed}")
            case DiscardLeftovers():
                pinned = frozenset({"f14", "f15"}) if case.pinned else frozenset()
                due = DiscardLeftovers(_CLAIM.generation, Referenced(rows[1], pinned), _CLAIM.first_id)
                expect(effect == due, STEPS, f"{effect}, due is {due}")
            case _:
                """Its kind tells all."""


def _due(case: _Case) -> Iterator[str]:
    """Yield the due steps."""
    whole = True
    if case.repairs:
        yield LookAtTables.__name__
        if case.ensures:
            yield EnsureTables.__name__
        whole = case.seen != "lost"
        if case.seen == "behind" or (case.rebuilt and whole):
            yield from [PublishAgain.__name__] * 2 * (case.seen == "behind")
            if case.rebuilt and case.outside and not case.leaves_newest:
                yield from [PublishTable.__name__] * 2
            if case.seen == "behind":
                yield LookAtLogs.__name__
            yield CorrectCuts.__name__
    settled = True
    if case.pending and case.rolls_forward:
        settled = whole or not case.leaves_newest
        if settled:
            yield from (ReadCut.__name__, ReadCut.__name__, RolledForward.__name__)
    if case.discards and settled and not case.damaged:
        yield DiscardLeftovers.__name__


def _answer(effect: TickEffect, doubt: Doubt | None) -> TickFact:
    match effect:
        case LookAtTables():
            return TablesSeen(doubt)
        case PublishAgain():
            return TablePublished(effect.again.checkpoint, effect.again.publication.table, 4)
        case PublishTable():
            return TablePublished(effect.checkpoint, effect.publication.table, 0, outside=True)
        case LookAtLogs():
            return LogsSeen({})
        case ReadCut():
            return CutRead({_TABLE: 4})
        case DiscardLeftovers():
            return LeftoversDiscarded(3)
        case _:
            return Done()


def _doubt(case: _Case, rows: tuple[CheckpointRecord, ...]) -> Doubt | None:
    if case.seen == "lost":
        return None
    again = tuple(Again(_NEWEST, Publication(_OTHER, TableMode.UPSERT)) for _ in range(2))
    repairs = Repairs(frozenset({_OTHER}), again) if case.seen == "behind" else Repairs()
    rebuilt = {_NEWEST: {_TABLE: 4}} if case.rebuilt else {}
    return Doubt(Standing(JobName("small"), rows, rebuilt, {}), repairs, rebuilt)


def _entry(case: _Case, checkpoint: CheckpointId) -> CheckpointRecord:
    file = FileHandle(f"f{checkpoint}", 1, 1, 1)
    keys = TableKeys(table=_KEYED, columns=("key",))
    sums = VertexRecord(vertex=VertexId("sums"), micro_batch=1, subtasks=(SubtaskSnapshot(),), table_keys=(keys,))
    return plain_entry(
        pinned=case.pinned,
        checkpoint=checkpoint,
        parent=CheckpointId(checkpoint - 1),
        generation=Generation(7),
        nonce=str(checkpoint),
        tables=(TableRecord(table=_TABLE, mode=TableMode.APPEND, adds=(file,), parent_version=0),),
        vertices=(sums,),
        outside=(_TABLE, _KEYED) if case.outside else (),
    )


# ------------------------------------------------------------------
# Tests the roll-forward. A dead holder has left a committed entry, and the next holder publishes it.
#
# Its reference lists the due effects in order, and the versions in the cut. The parent's cut may lack a table whose
# log lost entries. Another process may have recorded the entry's own cut meanwhile. A table may refuse the entry.


FORWARD: Final = "rolls-forward"
"""An entry is published table by table, then to its outside sinks. Its cut has the version of each table. A table that
was removed from the parent's cut keeps the columns of this entry alone. If the cut is recorded already, it is used."""
SAYS_WHY: Final = "says-why"
"""If a table refuses an entry, the tick fails. Its message has the entry's number, the reason, and whether the entry
was published before. Only a rollback to another entry goes on without this entry."""

_KEPT, _SUMS, _STILL = TableName("bronze/kept"), TableName("gold/sums"), TableName("gold/still")
_OTHER_OF_ROLLING_FORWARD, _PARENT, _OWN = CheckpointId(3), CheckpointId(4), CheckpointId(5)
_Table = tuple[TableName, TableMode, int, bool]
"""Name, mode, parent version according to the entry, and whether the parent's cut has the table."""
_tables_of_rolling_forward = st.tuples(
    st.tuples(st.just(_KEPT), st.just(TableMode.APPEND), st.sampled_from([0, 3]), st.booleans()),
    st.tuples(
        st.just(_SUMS), st.sampled_from([TableMode.UPSERT, TableMode.STATE]), st.sampled_from([0, 3]), st.booleans()
    ),
)
_kinds = st.sampled_from([RowKind.CHECKPOINT, RowKind.CHECKPOINT, RowKind.ROLLBACK])


@dataclass(frozen=True)
class _CaseOfRollingForward:
    """The entry that a dead holder has left, and what the next holder meets."""

    tables: tuple[_Table, ...]
    named: list[bool]
    """For each table, whether the entry changes it."""
    still: bool
    """Whether the parent's cut has a table that the entry does not change."""
    kind: RowKind
    listed: list[bool]
    """For each table, whether the entry lists its columns."""
    outside: bool
    is_recorded: bool
    refuses: int | None
    """The index of the publication that a table refuses."""
    notes: list[str]
    leaves: CheckpointId | None
    whole: bool


_cases_of_rolling_forward = st.builds(
    _CaseOfRollingForward,
    tables=_tables_of_rolling_forward,
    named=st.lists(st.booleans(), min_size=2, max_size=2),
    still=st.booleans(),
    kind=_kinds,
    listed=st.lists(st.booleans(), min_size=3, max_size=3),
    outside=st.booleans(),
    is_recorded=st.sampled_from([False, False, False, True]),
    refuses=st.sampled_from([None, None, None, 0, 1, 2]),
    notes=st.lists(st.sampled_from(["", "mended"]), min_size=3, max_size=3),
    leaves=st.sampled_from([None, None, _OWN, _OTHER_OF_ROLLING_FORWARD]),
    whole=st.booleans(),
)


class RollingForwardMachine(RuleBasedStateMachine):
    """Draws one entry after the other that a dead holder has left."""

    @rule(case=_cases_of_rolling_forward)
    def roll_forward(self, case: _CaseOfRollingForward) -> None:
        """The next holder publishes an entry. A rollback may leave it behind."""
        parent = {name: 2 for name, _, _, there in case.tables if there} | ({_STILL: 6} if case.still else {})
        own = {_KEPT: 8} if case.is_recorded else {}
        names = [name for name, says in zip((_KEPT, _SUMS, _STILL), case.listed, strict=True) if says]
        record = _entry_of_rolling_forward(
            [each for each, says in zip(case.tables, case.named, strict=True) if says],
            case.kind,
            names,
            outside=case.outside,
        )
        terms = Terms(holder=Holder(host="h", pid=1, started="s"), leaves_behind=case.leaves)
        steps = rolled_forward_or_left(terms, record, (), whole=case.whole)
        if case.leaves == _OTHER_OF_ROLLING_FORWARD and not case.whole:
            self._ends(steps, done=False)
            return
        due = list(_due_of_rolling_forward(record, parent))
        self._is(next(steps), ReadCut(_PARENT))
        self._is(steps.send(CutRead(parent)), ReadCut(_OWN))
        effect = steps.send(CutRead(own))
        if case.is_recorded:
            self._is(effect, RolledForward(record, tuple(own.items()), ()))
            self._ends(steps, done=True)
            return
        versions, said = _versions(record, parent, names), []
        for place, (table, no_others, goes_outside) in enumerate(due):
            self._is_publication(effect, table, no_others=no_others, outside=goes_outside)
            if place == case.refuses:
                self._is_refused(steps, table, case.leaves)
                return
            note = case.notes[place]
            said += [f"{table}: {note}"] if note else []
            versions |= {} if goes_outside else {table: 9}
            effect = steps.send(TablePublished(_OWN, table, 0 if goes_outside else 9, note, outside=goes_outside))
        if not isinstance(effect, RecordCut):
            self._is(effect, RecordCut(_OWN, tuple(versions.items())))
            return
        recorded = (effect.checkpoint, dict(effect.versions))
        expect(recorded == (_OWN, versions), FORWARD, f"{recorded} is recorded, due is {versions}: {record.tables}")
        effect = steps.send(CutRecorded(_OWN))
        told = isinstance(effect, RolledForward) and (effect.record, dict(effect.versions), [*effect.notes])
        expect(told == (record, versions, said), FORWARD, f"{effect}, due are {versions} and {said}")
        self._ends(steps, done=True)

    @rule(table=st.sampled_from([_KEPT, _SUMS]))
    def publish_again(self, table: TableName) -> None:
        """A table refuses a publication that is repeated."""
        again = Again(_OWN, Publication(table, TableMode.APPEND))
        steps = asked(PublishAgain(again), TablePublished)
        next(steps)
        self._fails(steps, table, f"checkpoint {_OWN} could not be published again: it is locked")

    # -------------------------------------------------------------- judging

    def _is_refused(self, steps: Steps[bool], table: TableName, leaves: CheckpointId | None) -> None:
        """Let a table refuse the entry. A rollback to another entry goes on without it."""
        if leaves == _OTHER_OF_ROLLING_FORWARD:
            try:
                effect: object = steps.send(PublishFailed(_OWN, table, "it is locked"))
            except StopIteration as end:
                expect(end.value is False, SAYS_WHY, f"{end.value} of an entry that is left behind")
                return
            self._is(effect, None)
        self._fails(steps, table, f"checkpoint {_OWN} is committed, but not published: it is locked")

    def _fails(self, steps: Steps[bool] | Steps[TablePublished], table: TableName, message: str) -> None:
        due = EndTick(TickOutcome.FAILED, CheckpointFailureReason.TABLE_CHANGED, message)
        try:
            effect = steps.send(PublishFailed(_OWN, table, "it is locked"))
        except StepFailedError as failed:
            expect(failed.outcome == due, SAYS_WHY, f"{failed.outcome}, due is {due}")
            expect(not failed.is_refusal, SAYS_WHY, "the job was held, and something was changed")
            return
        except StopIteration:
            expect(holds=False, invariant=SAYS_WHY, what=f"the steps go on after a refusal of {table}")
        else:
            expect(holds=False, invariant=SAYS_WHY, what=f"{effect} after a refusal of {table}")

    @staticmethod
    def _is(effect: object, due: object) -> None:
        expect(effect == due, FORWARD, f"{effect}, due is {due}")

    @staticmethod
    def _is_publication(effect: TickEffect, table: TableName, *, no_others: bool, outside: bool) -> None:
        if not isinstance(effect, PublishTable):
            expect(holds=False, invariant=FORWARD, what=f"{effect}, due is a publication of {table}")
            return
        said = (effect.checkpoint, effect.publication.table, effect.publication.no_others, effect.publication.outside)
        due = (_OWN, table, no_others, outside)
        expect(said == due, FORWARD, f"{said}, due is {due}")

    @staticmethod
    def _ends(steps: Steps[bool], *, done: bool) -> None:
        try:
            effect = next(steps)
        except StopIteration as end:
            expect(end.value is done, FORWARD, f"{end.value}, due is {done}")
            return
        expect(holds=False, invariant=FORWARD, what=f"{effect}, and the roll-forward is to end")


def _due_of_rolling_forward(
    record: CheckpointRecord, parent: dict[TableName, int]
) -> Iterator[tuple[TableName, bool, bool]]:
    """Yield the publications: table, whether it keeps only the entry's columns, whether it goes outside."""
    removed = [
        each.table
        for each in record.tables
        if each.mode is not TableMode.APPEND and parent and each.parent_version and each.table not in parent
    ]
    yield from ((each.table, each.table in removed, False) for each in record.tables)
    if record.outside and record.kind is RowKind.CHECKPOINT and any(each.table == _KEPT for each in record.tables):
        yield _KEPT, False, True


def _versions(record: CheckpointRecord, parent: dict[TableName, int], names: list[TableName]) -> dict[TableName, int]:
    """Return the versions of the cut before the entry's own tables are published."""
    changed = {each.table: each.parent_version for each in record.tables}
    all_stay = record.kind is RowKind.ROLLBACK or not names
    there = [*names, *changed, *(parent if all_stay else ())]
    return {table: parent.get(table, changed.get(table, 0)) for table in there}


def _entry_of_rolling_forward(
    tables: list[_Table], kind: RowKind, listed: list[TableName], *, outside: bool
) -> CheckpointRecord:
    file = FileHandle("f", 1, 1, 1)
    return CheckpointRecord(
        job="small",
        kind=kind,
        checkpoint=_OWN,
        parent=_PARENT,
        generation=Generation(1),
        nonce="n",
        max_parallelism=8,
        vertices=(),
        tables=tuple(
            TableRecord(table=name, mode=mode, adds=(file,) if mode is TableMode.APPEND else (), parent_version=version)
            for name, mode, version, _ in tables
        ),
        columns=tuple(TableColumns(name, (TableColumn("a", "long"),)) for name in listed),
        outside=(_KEPT,) if outside else (),
        statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
    )
