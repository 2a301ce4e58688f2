"""Tests the roll-forward. A dead holder has left a committed entry, and the next holder publishes it.

Its reference lists the due effects in order, and the versions in the cut. The parent's cut may lack a table whose log
lost entries. Another process may have recorded the entry's own cut meanwhile. A table may refuse the entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.columns import TableColumn, TableColumns
from checkpointing.commit.lost_publications import Again
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, TableName
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
from checkpointing.metadata.record import CheckpointRecord, Holder, RowKind, Statistics, TableRecord
from checkpointing.tick.attempts import Terms
from checkpointing.tick.door import StepFailedError, Steps, asked, rolled_forward_or_left
from checkpointing.tick.messages import CutRead, PublishAgain, ReadCut, RolledForward, TickEffect
from spec.machines.judging import expect

FORWARD: Final = "rolls-forward"
"""An entry is published table by table, then to its outside sinks. Its cut has the version of each table. A table that
was removed from the parent's cut keeps the columns of this entry alone. If the cut is recorded already, it is used."""
SAYS_WHY: Final = "says-why"
"""If a table refuses an entry, the tick fails. Its message has the entry's number, the reason, and whether the entry
was published before. Only a rollback to another entry goes on without this entry."""

_KEPT, _SUMS, _STILL = TableName("bronze/kept"), TableName("gold/sums"), TableName("gold/still")
_OTHER, _PARENT, _OWN = CheckpointId(3), CheckpointId(4), CheckpointId(5)
_Table = tuple[TableName, TableMode, int, bool]
"""Name, mode, parent version according to the entry, and whether the parent's cut has the table."""
_tables = st.tuples(
    st.tuples(st.just(_KEPT), st.just(TableMode.APPEND), st.sampled_from([0, 3]), st.booleans()),
    st.tuples(
        st.just(_SUMS), st.sampled_from([TableMode.UPSERT, TableMode.STATE]), st.sampled_from([0, 3]), st.booleans()
    ),
)
_kinds = st.sampled_from([RowKind.CHECKPOINT, RowKind.CHECKPOINT, RowKind.ROLLBACK])


@dataclass(frozen=True)
class _Case:
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


_cases = st.builds(
    _Case,
    tables=_tables,
    named=st.lists(st.booleans(), min_size=2, max_size=2),
    still=st.booleans(),
    kind=_kinds,
    listed=st.lists(st.booleans(), min_size=3, max_size=3),
    outside=st.booleans(),
    is_recorded=st.sampled_from([False, False, False, True]),
    refuses=st.sampled_from([None, None, None, 0, 1, 2]),
    notes=st.lists(st.sampled_from(["", "mended"]), min_size=3, max_size=3),
    leaves=st.sampled_from([None, None, _OWN, _OTHER]),
    whole=st.booleans(),
)


class RollingForwardMachine(RuleBasedStateMachine):
    """Draws one entry after the other that a dead holder has left."""

    @rule(case=_cases)
    def roll_forward(self, case: _Case) -> None:
        """The next holder publishes an entry. A rollback may leave it behind."""
        parent = {name: 2 for name, _, _, there in case.tables if there} | ({_STILL: 6} if case.still else {})
        own = {_KEPT: 8} if case.is_recorded else {}
        names = [name for name, says in zip((_KEPT, _SUMS, _STILL), case.listed, strict=True) if says]
        record = _entry(
            [each for each, says in zip(case.tables, case.named, strict=True) if says],
            case.kind,
            names,
            outside=case.outside,
        )
        terms = Terms(holder=Holder(host="h", pid=1, started="s"), leaves_behind=case.leaves)
        steps = rolled_forward_or_left(terms, record, (), whole=case.whole)
        if case.leaves == _OTHER and not case.whole:
            self._ends(steps, done=False)
            return
        due = list(_due(record, parent))
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
        if leaves == _OTHER:
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


def _due(record: CheckpointRecord, parent: dict[TableName, int]) -> Iterator[tuple[TableName, bool, bool]]:
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


def _entry(tables: list[_Table], kind: RowKind, listed: list[TableName], *, outside: bool) -> CheckpointRecord:
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
