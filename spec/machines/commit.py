"""The machine of the commit: the tick door and the two-phase commit of up to three coordinators.

All are alive at the same time, and none knows of the others: the older ones are zombies. Each goes through the tick
door, as every tick does: it observes, claims, recovers, works, releases. A rule carries each effect out. Its answer may
be lost, and the coordinator may die before any answer. Its outstanding effects may still be carried out later.
"""

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import NO_CHECKPOINT, TableName
from checkpointing.messages import AppendRow, CheckTables, EndTick, PublishTable, TickOutcome
from checkpointing.metadata.record import RowKind
from spec.machines.commit_lives import Change, Coordinators, Luck
from spec.machines.commit_world import position
from spec.machines.judging import expect, is_unwinding

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
            expect(goes_on, "commits-go-on", f"{life.waits} wait, and the commit asks for nothing")

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
