"""A new holder repairs, publishes and deletes in this order, and publishes what a dead holder has committed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit.cleanup import Referenced
from checkpointing.commit.fencing import HolderObserved, MayClaim
from checkpointing.commit.lost_publications import Again, Doubt, Repairs, Standing
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
from spec.machines.judging import expect
from tests.unit.full_entry import plain_entry

# ------------------------------------------------------------------
# Tests the steps of a new holder before its work: in which order it repairs, publishes and deletes, and which steps it
# omits. The reference lists the due steps. The decisions inside the steps are tested by the machines of damaged tables
# and of the roll-forward.


STEPS: Final = "steps-in-order"
"""A new holder first repairs tables, then publishes an entry that is not published yet, and deletes leftovers last.

It deletes nothing if an entry cannot be read, or if a rollback skips the unpublished entry. If a cut was lost, outside
sinks get the cut's entry once more."""

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
    """Whether an append table and an upsert table have outside sinks."""
    seen: str
    """What the tables show: all entries (whole), too few (behind), or too few for good (lost)."""
    rebuilt: bool
    """Whether the newest cut was lost."""
    pinned: bool
    leaves: CheckpointId | None

    @property
    def leaves_newest(self) -> bool:
        """Whether the holder rolls back to another entry than the newest."""
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


@settings(max_examples=5 * settings.default.max_examples)
@given(case=_cases)
def test_recover_recover(case):
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
            _judge(case, effect, plan, rows)
            fact = _answer(effect, doubt)
    except StopIteration as end:
        done = end.value
    due = [*_due(case)]
    expect(asked == due, STEPS, f"{asked}, due are {due}: {case}")
    left = 3 if DiscardLeftovers.__name__ in due else 0
    expect(done == Recovered(plan, left), STEPS, f"{done}, due is {left}")


def _judge(case: _Case, effect: TickEffect, plan: RecoveryPlan, rows: tuple[CheckpointRecord, ...]) -> None:
    """Judge the content of one step."""
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
            """Only the kind of this step matters."""


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
# Tests the roll-forward: the next holder publishes an entry that a dead holder committed. The reference lists the due
# effects in order, and the versions in the cut. The parent's cut may lack a table whose log lost entries. Another
# process may have recorded the entry's own cut meanwhile. A table may refuse the entry.


FORWARD: Final = "rolls-forward"
"""An entry is published table by table, then to its outside sinks. Its cut has the version of each table.

A table that was removed from the parent's cut keeps only the columns of this entry. A cut that is already recorded is
used."""
SAYS_WHY: Final = "says-why"
"""If a table refuses an entry, the tick fails.

Its message has the entry's number, the reason, and whether the entry was published before. Only a rollback to another
entry continues without this entry."""

_KEPT, _SUMS, _STILL = TableName("bronze/kept"), TableName("gold/sums"), TableName("gold/still")
_OTHER_OF_ROLLING_FORWARD, _PARENT, _OWN = CheckpointId(3), CheckpointId(4), CheckpointId(5)
_Table = tuple[TableName, TableMode, int, bool]
"""A table's name, its mode, its parent version in the entry, and whether the parent's cut has the table."""
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


@settings(max_examples=5 * settings.default.max_examples)
@given(case=_cases_of_rolling_forward)
def test_roll_forward_roll_forward(case):
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
        _ends(steps, done=False)
        return
    due = list(_due_of_rolling_forward(record, parent))
    _is(next(steps), ReadCut(_PARENT))
    _is(steps.send(CutRead(parent)), ReadCut(_OWN))
    effect = steps.send(CutRead(own))
    if case.is_recorded:
        _is(effect, RolledForward(record, tuple(own.items()), ()))
        _ends(steps, done=True)
        return
    versions, said = _versions(record, parent, names), []
    for place, (table, no_others, goes_outside) in enumerate(due):
        _is_publication(effect, table, no_others=no_others, outside=goes_outside)
        if place == case.refuses:
            _is_refused(steps, table, case.leaves)
            return
        note = case.notes[place]
        said += [f"{table}: {note}"] if note else []
        versions |= {} if goes_outside else {table: 9}
        effect = steps.send(TablePublished(_OWN, table, 0 if goes_outside else 9, note, outside=goes_outside))
    if not isinstance(effect, RecordCut):
        _is(effect, RecordCut(_OWN, tuple(versions.items())))
        return
    recorded = (effect.checkpoint, dict(effect.versions))
    expect(recorded == (_OWN, versions), FORWARD, f"{recorded} is recorded, due is {versions}: {record.tables}")
    effect = steps.send(CutRecorded(_OWN))
    told = isinstance(effect, RolledForward) and (effect.record, dict(effect.versions), [*effect.notes])
    expect(told == (record, versions, said), FORWARD, f"{effect}, due are {versions} and {said}")
    _ends(steps, done=True)


@settings(max_examples=5 * settings.default.max_examples)
@given(table=st.sampled_from([_KEPT, _SUMS]))
def test_roll_forward_publish_again(table):
    """A table refuses a publication that is repeated."""
    again = Again(_OWN, Publication(table, TableMode.APPEND))
    steps = asked(PublishAgain(again), TablePublished)
    next(steps)
    _fails(steps, table, f"checkpoint {_OWN} could not be published again: it is locked")


def _is_refused(steps: Steps[bool], table: TableName, leaves: CheckpointId | None) -> None:
    """Let a table refuse the entry. A rollback to another entry continues without it."""
    if leaves == _OTHER_OF_ROLLING_FORWARD:
        try:
            effect: object = steps.send(PublishFailed(_OWN, table, "it is locked"))
        except StopIteration as end:
            expect(end.value is False, SAYS_WHY, f"{end.value} of an entry that is left behind")
            return
        _is(effect, None)
    _fails(steps, table, f"checkpoint {_OWN} is committed, but not published: it is locked")


def _fails(steps: Steps[bool] | Steps[TablePublished], table: TableName, message: str) -> None:
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


def _is(effect: object, due: object) -> None:
    expect(effect == due, FORWARD, f"{effect}, due is {due}")


def _is_publication(effect: TickEffect, table: TableName, *, no_others: bool, outside: bool) -> None:
    if not isinstance(effect, PublishTable):
        expect(holds=False, invariant=FORWARD, what=f"{effect}, due is a publication of {table}")
        return
    said = (effect.checkpoint, effect.publication.table, effect.publication.no_others, effect.publication.outside)
    due = (_OWN, table, no_others, outside)
    expect(said == due, FORWARD, f"{said}, due is {due}")


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
    """Yield each publication: its table, whether only the entry's columns are kept, and whether it goes to a sink."""
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
    return plain_entry(
        kind=kind,
        checkpoint=_OWN,
        parent=_PARENT,
        tables=tuple(
            TableRecord(table=name, mode=mode, adds=(file,) if mode is TableMode.APPEND else (), parent_version=version)
            for name, mode, version, _ in tables
        ),
        columns=tuple(TableColumns(name, (TableColumn("a", "long"),)) for name in listed),
        outside=(_KEPT,) if outside else (),
    )
