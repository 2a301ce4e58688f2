"""The machine of damaged tables: logs lose their newest entries, cuts are lost, and the next tick repairs both.

Its reference is the content of the tables (`commit`). After a tick's start, each table and each recorded cut show
exactly the numbers below the position of their checkpoint, whatever was lost before. Undamaged tables and cuts are left
alone. Everything is repaired that the retained entries can bring back. Between ticks, the job is also rolled back to
older entries.
"""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from checkpointing.commit.lost_publications import Cuts, Lost, reference
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import (
    EndTick,
    TickOutcome,
)
from checkpointing.metadata.record import (
    CheckpointRecord,
    RowKind,
)
from spec.machines.commit import COUNT, GRAPH, NUMBERS, RECOVERS, Coordinators, Life, Luck
from spec.machines.judging import BrokenRuleError, expect, is_unwinding
from spec.world.tick_door import Visitor, doubt, rebuilt_cuts
from spec.world.visits import others_than_the_newest, rolling_back

REPAIRED = "repaired"
"""After a tick's start, each table shows the newest checkpoint, and each recorded cut shows its own."""
UNDAMAGED = "undamaged-left-alone"
"""A table is in doubt only if its log has lost entries, and cuts are rebuilt only if one was lost."""
NOT_LOST = "not-lost"
"""A table is given up as lost only if the retained entries do not hold the rows that it lacks."""
CUTS_COME_BACK = "cuts-come-back"
"""If no log was ever damaged, a lost cut is rebuilt. A table's version is unknown only if no published entry names the
table."""
_tables = st.sampled_from([NUMBERS, COUNT])
_pick = st.integers(0, 20)


class RepairMachine(Coordinators):
    """One tick after the other on one warehouse. Between two of them, logs and cuts lose something."""

    def __init__(self) -> None:
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
        """Roll back to another entry, after a tick has repaired the damage.

        With `long_ago`, the logs then drop all older entries, and the cut of the rollback's target is lost.
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
        """A log is put together from two backups. It lacks one entry, and has newer entries that came after this one.

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

        It drops no entry from the place of a missing entry on. Otherwise the log would look whole.
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
        expect(life in self.lives, RECOVERS, "a tick without trouble did not start")
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
        """Return True if the log entry with the missing rows may have been dropped in order instead of being lost.

        The cut that would show this was lost, and is not rebuilt because a rollback came after it.
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
