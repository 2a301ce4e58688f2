"""Tests the steps of a new holder before its work: in which order it repairs, publishes and deletes, and what it omits.

Its reference lists the due steps. What the single steps decide is the subject of `repairing` and `rolling_forward`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.cleanup import Referenced
from checkpointing.commit.fencing import HolderObserved, MayClaim
from checkpointing.commit.lost_publications import Again, Doubt, Repairs, Standing
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName, VertexId
from checkpointing.messages import Publication, PublishTable, TablePublished
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, TableKeys, TableRecord, VertexRecord
from checkpointing.tick.attempts import Errand, Terms
from checkpointing.tick.door import Held, recovered
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
from spec.machines.judging import expect
from spec.machines.plain_entry import plain_entry

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
