"""The machine of the line of entries: the job goes on, users take savepoints, roll the job back, and dispose of some.

Its reference remembers the parent of every entry that was ever committed, also of those that are gone. A user may go
back to the entries on the walk from the newest entry along the parents, and to plain savepoints of an entry on it.
"""

from collections.abc import Iterator, Mapping

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from checkpointing.commit.at_rest import Recipe, Rollback, SavepointAtRest, Stamp, turn_of
from checkpointing.commit.cleanup import readable_cuts
from checkpointing.commit.fencing import disposed_with, newest_checkpoint, restorable
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, RowKind, Statistics
from spec.machines.judging import expect

WAY_BACK = "way-back"
"""A rollback drops the checkpoints off its line and nothing else, and it marks the savepoints off its line.

If the entries that could tell whether a savepoint is on the line are gone, the savepoint keeps its mark."""
CUTS_STAY = "cuts-stay"
"""A recorded cut stays while its entry exists, and while another entry exists that is read or published from it."""

_pick = st.integers(0, 20)


class LineMachine(RuleBasedStateMachine):
    """The entries of one job. Between two claims, users roll it back."""

    def __init__(self) -> None:
        """Begin with one checkpoint."""
        super().__init__()
        self.retained = 2
        self.there: dict[CheckpointId, CheckpointRecord] = {}
        self.built_on: dict[CheckpointId, CheckpointId] = {}
        """The parent of each entry that was ever committed."""
        self.end = NO_CHECKPOINT
        """The newest entry with a cut. A rollback's entry is one too."""
        self.untold: set[CheckpointId] = set()
        """Savepoints whose mark may be wrong, because the entries that could tell it are gone."""
        self.cuts: set[CheckpointId] = set()
        """The recorded cuts that nobody has dropped."""
        self.claims = 0
        self.last_id = 0
        self.complete(pinned=False, records=True)

    @initialize(retained=st.integers(1, 4))
    def configure(self, retained: int) -> None:
        """Draw how many checkpoints are retained."""
        self.retained = retained

    # -------------------------------------------------------------- what is committed

    @rule(pinned=st.booleans(), records=st.booleans())
    def complete(self, pinned: bool, records: bool) -> None:  # noqa: FBT001
        """Complete a checkpoint, or the savepoint of a stop (`pinned`). Old checkpoints are dropped.

        If `records` is False, the tick dies before it records the cut. The next tick that goes on from the entry
        records it.
        """
        self._complete(self._next_id(), pinned=pinned)
        self.cuts |= {self.end} if records else set()

    @rule()
    def complete_after_a_later_savepoint(self) -> None:
        """Take a plain savepoint that was triggered after a checkpoint, and is committed before it."""
        checkpoint = self._next_id()
        self._save(self._next_id())
        self._complete(checkpoint, pinned=False)

    @rule()
    def save_in_a_tick(self) -> None:
        """Take a plain savepoint while a tick runs."""
        self._save(self._next_id())

    @rule()
    def save_at_rest(self) -> None:
        """Take a plain savepoint of the newest cut while no tick runs."""
        self._at_rest(SavepointAtRest(self.there[self.end]))

    @precondition(lambda self: len(self.there) > 1)
    @rule(pick=_pick)
    def roll_back(self, pick: int) -> None:
        """Take the job back to an entry. It may be a savepoint that an earlier rollback abandoned."""
        target = self.there[sorted(self.there)[pick % len(self.there)]]
        if target.checkpoint == self.end:
            return
        line = set(self._walk(target.checkpoint))
        told_from = self._told_from(target)
        before = dict(self.there)
        self.end = self._at_rest(Rollback(target, ())).checkpoint
        self.cuts.add(self.end)
        self._judge(before, line, told_from)

    @precondition(lambda self: any(row.pinned for row in self.there.values()))
    @rule(pick=_pick)
    def dispose(self, pick: int) -> None:
        """Dispose of a savepoint, unless the job stands at it."""
        stays = self._stood_upon(self.there) | {self.end}
        pinned = [each for each, row in sorted(self.there.items()) if row.pinned and each not in stays]
        if not pinned:
            return
        gone, before = pinned[pick % len(pinned)], dict(self.there)
        for each in disposed_with(before[gone], tuple(before.values())):
            del self.there[each]
        stood_on, line = self._stood_upon({gone: before[gone]}), set(self._walk(self.end))
        alone = {each for each in stood_on & before.keys() - line if not before[each].pinned}
        due = {gone} | alone - self._stood_upon(self.there)
        went = before.keys() - self.there.keys()
        expect(
            went - due <= self.untold, WAY_BACK, f"{sorted(went)} went with savepoint {gone}, due were {sorted(due)}"
        )
        expect(due - went <= self.untold, WAY_BACK, f"{sorted(due - went)} stay without savepoint {gone}")
        self.untold -= went

    # -------------------------------------------------------------- judging

    @invariant()
    def the_newest_entry_ends_the_line(self) -> None:
        """A tick would begin from the end of the line."""
        newest = newest_checkpoint(tuple(self.there.values()))
        begins = newest.checkpoint if newest is not None else None
        expect(begins == self.end, WAY_BACK, f"a tick begins from {begins}, and the line ends in {self.end}")

    @invariant()
    def cuts_stay(self) -> None:
        """A clean-up drops exactly the recorded cuts that no entry needs any more."""
        unread = {each for each, row in self.there.items() if not row.commits or each not in self.cuts}
        due = self.cuts & (self.there.keys() | {self.built_on[each] for each in unread})
        kept = readable_cuts(self.there.values(), self.cuts)
        expect(kept == due, CUTS_STAY, f"of the cuts {sorted(self.cuts)}, {sorted(kept)} stay, due are {sorted(due)}")
        self.cuts = due

    def _judge(
        self, before: Mapping[CheckpointId, CheckpointRecord], line: set[CheckpointId], told_from: CheckpointId
    ) -> None:
        """Judge a rollback by the entries that it drops, and by those to which a user may go back now."""
        on = {each for each, row in before.items() if each in line or (not row.commits and self.built_on[each] in line)}
        gone = before.keys() - self.there.keys()
        due = {each for each in before.keys() - on - self._stood_upon(before) if not before[each].pinned}
        expect(gone == due, WAY_BACK, f"{sorted(gone)} went, due were {sorted(due)}, the line is {sorted(line)}")
        offered = {row.checkpoint for row in restorable(self.there.values())} - {self.end}
        wrong = offered ^ (on & self.there.keys())
        stands_on = {each: each if row.commits else self.built_on[each] for each, row in before.items()}
        told = {each for each in wrong & before.keys() if stands_on[each] >= told_from}
        expect(told <= self.untold, WAY_BACK, f"{told} are marked wrongly, the line is {sorted(line)}")
        self.untold = wrong
        changed = {each for each in before.keys() & self.there.keys() if _mark(before, each) != _mark(self.there, each)}
        guessed = {each for each in changed if stands_on[each] < told_from}
        expect(
            not guessed, WAY_BACK, f"no existing entry tells whether {guessed} are on the line, and their mark changed"
        )

    def _stood_upon(self, rows: Mapping[CheckpointId, CheckpointRecord]) -> set[CheckpointId]:
        """Return the entries after which one of these plain savepoints was taken. They stay."""
        return {row.parent for row in rows.values() if not row.commits}

    def _walk(self, end: CheckpointId) -> Iterator[CheckpointId]:
        """Yield an entry and its ancestors, also those that are gone."""
        at = end
        while at != NO_CHECKPOINT:
            yield at
            at = self.built_on[at]

    def _told_from(self, target: CheckpointRecord) -> CheckpointId:
        """Return the newest entry that is missing between this one and the present line; NO_CHECKPOINT if none is.

        The existing entries tell which entries stand on the target's line above it, and which stand on it itself.
        """
        present = set(self._walk(self.end))
        missing = (each for each in self._walk(target.checkpoint) if each not in present and each not in self.there)
        return next(missing, NO_CHECKPOINT)

    # -------------------------------------------------------------- the store

    def _next_id(self) -> CheckpointId:
        self.last_id += 1
        return CheckpointId(self.last_id)

    def _complete(self, checkpoint: CheckpointId, *, pinned: bool) -> None:
        self.cuts |= {self.end} - {NO_CHECKPOINT}
        self._put(self._entry(RowKind.CHECKPOINT, checkpoint, pinned=pinned))
        self.end = checkpoint
        own = [each for each, row in sorted(self.there.items()) if not (row.pinned or row.abandoned)]
        for subsumed in set(own[: -self.retained]) - self._stood_upon(self.there):
            del self.there[subsumed]

    def _save(self, checkpoint: CheckpointId) -> None:
        self._put(self._entry(RowKind.SAVEPOINT, checkpoint, pinned=True))

    def _at_rest(self, recipe: Recipe) -> CheckpointRecord:
        """Append the entry of a recipe under a new claim, as the tick door does."""
        self.claims += 1
        first = self._next_id()
        holder = Holder(host="here", pid=1, started="")
        claim = Claim(
            generation=Generation(self.claims),
            holder=holder,
            first_id=first,
            last_id=first,
            at_ms=1,
            nonce=f"claim {first}",
        )
        row, turn = recipe.row(claim, Stamp(1, str(first))), turn_of(recipe, tuple(self.there.values()))
        for each, abandoned in turn.marks.items():
            self.there[each] = self.there[each].model_copy(update={"abandoned": abandoned})
        for each in turn.dropped:
            del self.there[each]
        self._put(row)
        return row

    def _put(self, row: CheckpointRecord) -> None:
        self.there[row.checkpoint] = row
        self.built_on[row.checkpoint] = row.parent

    def _entry(self, kind: RowKind, checkpoint: CheckpointId, *, pinned: bool) -> CheckpointRecord:
        return CheckpointRecord(
            job="small",
            kind=kind,
            pinned=pinned,
            checkpoint=checkpoint,
            parent=self.end,
            generation=Generation(self.claims),
            nonce=str(checkpoint),
            max_parallelism=8,
            vertices=(),
            tables=(),
            statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
        )


def _mark(rows: Mapping[CheckpointId, CheckpointRecord], checkpoint: CheckpointId) -> bool:
    return rows[checkpoint].abandoned
