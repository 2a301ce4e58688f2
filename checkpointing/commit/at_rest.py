"""Builds the entries that no tick writes: savepoints at rest, their copies, rollbacks, resets, imports, approvals.

A recipe takes an existing entry and appends it again under a new id, with the changes that its kind makes. Only a copy
keeps the id. The claim of the process that holds the job gives the id and the generation. The stamp gives the time and
a nonce.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from checkpointing.commit.line import Turn, turn_back
from checkpointing.commit.net import nothing_staged
from checkpointing.commit.reset import Move, moved
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import (
    CheckpointRecord,
    Claim,
    Holder,
    Release,
    Row,
    RowKind,
    Statistics,
    TableRecord,
)

NO_TURN = Turn((), (), ())
"""The other entries stay as they are."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What comes with each fact from outside: the time, a unique nonce, and whether the tick was asked to stop."""

    now_ms: int
    nonce: str
    stopping: bool = False


def is_savable(cut: CheckpointRecord) -> bool:
    """Return whether a savepoint can be made of a committed cut: only if the cut holds no rows in flight.

    Flink's savepoints never hold any, since their barriers are always aligned (`CheckpointOptions.forConfig`).
    """
    return not cut.has_rows_in_flight


@dataclass(frozen=True, slots=True)
class SavepointAtRest:
    """A plain savepoint of a cut that `is_savable`. It has the cut's snapshots, and no files of its own (A9)."""

    cut: CheckpointRecord

    def row(self, claim: Claim, at: Stamp) -> CheckpointRecord:
        """Return the entry that a process with this claim appends."""
        changed = {"kind": RowKind.SAVEPOINT, "pinned": True, "vertices": nothing_staged(self.cut), "tables": ()}
        return _under_a_new_id(self.cut, claim, at, **changed)


@dataclass(frozen=True, slots=True)
class Rollback:
    """An older cut under a new id (K2).

    `tables` take each table from what it shows now to its content at the older cut: which files come and go, and which
    columns the table loses. `outside` are the tables that have outside sinks.
    """

    target: CheckpointRecord
    tables: tuple[TableRecord, ...]
    outside: tuple[TableName, ...] = ()

    def row(self, claim: Claim, at: Stamp) -> CheckpointRecord:
        """Return the entry that a process with this claim appends."""
        changed = {"kind": RowKind.ROLLBACK, "pinned": False, "vertices": nothing_staged(self.target)}
        return _under_a_new_id(self.target, claim, at, **changed, tables=self.tables, outside=self.outside)


@dataclass(frozen=True, slots=True)
class SourceReset:
    """The newest cut under a new id, with other positions for one source. It publishes nothing (K2)."""

    newest: CheckpointRecord
    move: Move

    def row(self, claim: Claim, at: Stamp) -> CheckpointRecord:
        """Return the entry that a process with this claim appends."""
        changed = {"kind": RowKind.RESET, "pinned": False, "vertices": moved(self.newest, self.move), "tables": ()}
        return _under_a_new_id(self.newest, claim, at, **changed)


@dataclass(frozen=True, slots=True)
class Imported:
    """An entry of another warehouse. Its files are copied here, and the next tick publishes its tables here (G1)."""

    record: CheckpointRecord

    def row(self, claim: Claim, at: Stamp) -> CheckpointRecord:
        """Return the entry that a process with this claim appends. Its parent and its statistics stay as they were.

        Outside sinks get nothing of it, since the other warehouse gave them its rows.
        """
        stays = {"parent": self.record.parent, "statistics": self.record.statistics, "outside": ()}
        return _under_a_new_id(self.record, claim, at, kind=RowKind.CHECKPOINT, pinned=False, **stays)


@dataclass(frozen=True, slots=True)
class Approved:
    """A held cut that a person approved. It becomes a checkpoint, which continues from the held cut's parent.

    It keeps everything that was measured, except the counts: they are those of the generation that held the cut.
    """

    held: CheckpointRecord

    def row(self, claim: Claim, at: Stamp) -> CheckpointRecord:
        """Return the entry that a process with this claim appends."""
        statistics = self.held.statistics.model_copy(update={"committed_ms": at.now_ms, "counts": None})
        stays = {"parent": self.held.parent, "statistics": statistics}
        return _under_a_new_id(self.held, claim, at, kind=RowKind.CHECKPOINT, pinned=False, **stays)


Recipe = SavepointAtRest | Rollback | SourceReset | Imported | Approved


def turn_of(recipe: Recipe, rows: Iterable[CheckpointRecord]) -> Turn:
    """Return what the new entry does to the existing ones: a rollback leaves some behind, an approval replaces one."""
    match recipe:
        case Rollback():
            return turn_back(rows, recipe.target)
        case Approved():
            return Turn((recipe.held.checkpoint,), (), ())
        case SavepointAtRest() | SourceReset() | Imported():
            return NO_TURN
        case _ as unreachable:
            assert_never(unreachable)


def copied(
    savepoint: CheckpointRecord, rows: Iterable[Row], holder: Holder, at: Stamp
) -> tuple[Claim, CheckpointRecord, Release]:
    """Return the entries of a savepoint's copy. They reuse no id and no generation of the original's `rows`."""
    known = tuple(rows)
    used = [row.checkpoint for row in known if isinstance(row, CheckpointRecord)]
    last = max((*used, *(row.next_id - 1 for row in known if isinstance(row, Release))))
    generation, now_ms = max(row.generation for row in known), at.now_ms
    first = savepoint.checkpoint
    claim = Claim(generation=generation, holder=holder, first_id=first, last_id=last, at_ms=now_ms, nonce=at.nonce)
    next_id, nonce = CheckpointId(last + 1), f"{at.nonce}-end"
    inside = savepoint.model_copy(update={"outside": ()})
    return claim, inside, Release(generation=generation, next_id=next_id, at_ms=now_ms, nonce=nonce)


def _under_a_new_id(record: CheckpointRecord, claim: Claim, at: Stamp, **changed: object) -> CheckpointRecord:
    """Return an entry again, as a child of the original, under the claim's first id."""
    new = {
        "abandoned": False,
        "checkpoint": claim.first_id,
        "parent": record.checkpoint,
        "generation": claim.generation,
        "nonce": at.nonce,
        "statistics": Statistics(triggered_ms=at.now_ms, committed_ms=at.now_ms, rows=0),
    }
    return record.model_copy(update=new | changed)
