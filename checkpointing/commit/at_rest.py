"""Builds the entries that no tick writes: savepoints at rest, copies, rollbacks, resets, erasures, imports, approvals.

A recipe takes an existing entry and returns it as a new entry under a new id, with the changes that its kind makes.
Only a copy keeps the id. The id and the generation come from the claim of the process that holds the job, and the time
and a nonce from the stamp.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from checkpointing.commit.erasure import successors, without
from checkpointing.commit.fencing import Turn, newest_checkpoint, turn_back
from checkpointing.commit.net_files import nothing_staged
from checkpointing.event_time import END_OF_TIME
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, SplitId, TableName, VertexId
from checkpointing.metadata.record import (
    CheckpointRecord,
    Claim,
    ErasedFile,
    Holder,
    Release,
    Row,
    RowKind,
    Statistics,
    TableRecord,
    VertexRecord,
)

# ------------------------------------------------------------------
# Decides what a held cut prevents, and how a person settles it (the pattern write-audit-publish).
#
# A tick that holds its checkpoint appends an entry of kind HELD in place of the checkpoint's entry, and ends. The held
# entry has everything that the checkpoint's entry would have: positions, state, and the files to publish for each
# table. But nothing of it is published, no entry continues from it, and no tick begins from it.
#
# - **Approval** appends the same cut under a new id as a checkpoint, which continues from the held cut's parent. The
#   same commit drops the held entry. That is the commit point. The new checkpoint is then rolled forward as usual.
# - **Rejection** drops the held entry with the release of the process that rejects it. Its files are then leftovers:
#   they belong to a newer generation than the newest checkpoint, and no entry names them. So the next tick deletes them
#   before it does anything else. It reads the same rows again, as after a suite that rejected them.
#
# Until then no process moves the job on: an errand whose `moves_on` is true is refused with an error that names the
# held cut. So the newest checkpoint is still the held cut's parent when the cut is settled, and there is never more
# than one held cut.


def held_cut(rows: Iterable[Row]) -> CheckpointRecord | None:
    """Return the cut that waits for approval, or None."""
    held = (row for row in rows if isinstance(row, CheckpointRecord) and row.kind is RowKind.HELD)
    return max(held, key=lambda row: row.checkpoint, default=None)


def waits_for_approval(held: CheckpointRecord) -> str:
    """Return the message, with the way out, for a process that may not move the job on now."""
    return (
        f"cut {held.checkpoint} of {held.job} waits for approval: 'tidemark approve {held.job}' publishes it, "
        f"'tidemark reject {held.job}' discards it, 'tidemark cut {held.job} pending' shows it"
    )


@dataclass(frozen=True, slots=True)
class Settlement:
    """The held cut that a person settles, or None with the reason why that cannot be done."""

    held: CheckpointRecord | None
    why_not: str = ""


def to_settle(rows: Iterable[Row], job: str, *, approve: bool) -> Settlement:
    """Return the held cut that may be settled now.

    A cut that does not continue from the newest checkpoint cannot be approved, because its files were computed on
    another checkpoint. It may be rejected. Tidemark writes no such entries.
    """
    known = tuple(rows)
    held, newest = held_cut(known), newest_checkpoint(known)
    if held is None:
        return Settlement(None, f"no cut of {job} waits for approval: 'tidemark run {job} --hold' makes one")
    stands = newest.checkpoint if newest is not None else NO_CHECKPOINT
    if approve and held.parent != stands:
        return Settlement(
            None,
            f"cut {held.checkpoint} of {job} continues from checkpoint {held.parent}, but the job stands at {stands}: "
            f"'tidemark reject {job}' discards it, and the next tick reads its rows again",
        )
    return Settlement(held)


# ------------------------------------------------------------------
# Moves the positions of a source in the newest cut, so that the source is read from other positions (K2).
#
# Tables and state stay as they are. Rows that the source sends again are processed again. Rows that it skips are never
# processed. Rows that the cut holds in flight have been read already, and stay in it.


@dataclass(frozen=True, slots=True)
class Move:
    """The new positions of a source's splits. Only the source understands a position. None is the split's start."""

    source: VertexId
    positions: Mapping[SplitId, str | None]


def moved(newest: CheckpointRecord, move: Move) -> tuple[VertexRecord, ...]:
    """Return the vertices of the cut after the move. Splits that the move does not name keep their position.

    A split that the move names counts as not ended, even if it had ended. So the job is not finished any more (B4), and
    no table is complete for ever: more rows come, as after a drain.
    """
    vertices = (_with_more_to_come(each) for each in nothing_staged(newest))
    return tuple(_moved(each, move) if each.vertex == move.source else each for each in vertices)


def _with_more_to_come(vertex: VertexRecord) -> VertexRecord:
    if vertex.time is None or vertex.time.watermark_ms != END_OF_TIME:
        return vertex
    return vertex.model_copy(update={"time": vertex.time.model_copy(update={"drained": True})})


def _moved(source: VertexRecord, move: Move) -> VertexRecord:
    subtasks = (
        replace(subtask, position=move.positions[SplitId(split)], finished=False)
        if split in move.positions
        else subtask
        for split, subtask in zip(source.splits, source.subtasks, strict=True)
    )
    return source.model_copy(update={"subtasks": tuple(subtasks)})


NO_TURN = Turn((), (), ())
"""The other entries stay as they are."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the driver adds to each fact: the time, a unique nonce, and whether the tick was asked to stop."""

    now_ms: int
    nonce: str
    stopping: bool = False


def is_savable(cut: CheckpointRecord) -> bool:
    """Return whether a committed cut can be saved as a savepoint. It can if the cut holds no rows in flight.

    Flink's savepoints never hold rows in flight, since their barriers are always aligned
    (`CheckpointOptions.forConfig`).
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

    `tables` say what takes each table from what it shows now to its content at the older cut: which files come and go,
    and which columns the table loses. `outside` are the tables that have outside sinks.
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
class Forget:
    """The newest cut under a new id, without erased rows (K6).

    `tables` are all tables whose logs are written again. `erased` has all erased files of the job. The commit of the
    entry replaces these files in every other entry too (`erasure`).
    """

    newest: CheckpointRecord
    tables: tuple[TableRecord, ...]
    erased: tuple[ErasedFile, ...]

    def row(self, claim: Claim, at: Stamp) -> CheckpointRecord:
        """Return the entry that a process with this claim appends."""
        left = without(self.newest, successors(self.erased))
        changed = {"kind": RowKind.FORGET, "pinned": False, "vertices": nothing_staged(left), "tables": self.tables}
        return _under_a_new_id(left, claim, at, **changed, erased=self.erased)


@dataclass(frozen=True, slots=True)
class Imported:
    """An entry of another warehouse.

    Its files are copied into this warehouse, where the next tick publishes its tables (G1).
    """

    record: CheckpointRecord

    def row(self, claim: Claim, at: Stamp) -> CheckpointRecord:
        """Return the entry that a process with this claim appends. Its parent and its statistics stay as they were.

        Outside sinks get nothing of this entry, since the other warehouse gave them its rows.
        """
        stays = {"parent": self.record.parent, "statistics": self.record.statistics, "outside": ()}
        return _under_a_new_id(self.record, claim, at, kind=RowKind.CHECKPOINT, pinned=False, **stays)


@dataclass(frozen=True, slots=True)
class Approved:
    """A held cut that a person approved. It becomes a checkpoint, which continues from the held cut's parent.

    It keeps all measurements of the held cut. It leaves out the counts, because they belong to the generation that held
    the cut.
    """

    held: CheckpointRecord

    def row(self, claim: Claim, at: Stamp) -> CheckpointRecord:
        """Return the entry that a process with this claim appends."""
        statistics = self.held.statistics.model_copy(update={"committed_ms": at.now_ms, "counts": None})
        stays = {"parent": self.held.parent, "barriers": self.held.barriers, "statistics": statistics}
        return _under_a_new_id(self.held, claim, at, kind=RowKind.CHECKPOINT, pinned=False, **stays)


Recipe = SavepointAtRest | Rollback | SourceReset | Forget | Imported | Approved


def turn_of(recipe: Recipe, rows: Iterable[CheckpointRecord]) -> Turn:
    """Return what the new entry does to existing entries: a rollback abandons some, and an approval replaces one."""
    match recipe:
        case Rollback():
            return turn_back(rows, recipe.target)
        case Approved():
            return Turn((recipe.held.checkpoint,), (), ())
        case SavepointAtRest() | SourceReset() | Forget() | Imported():
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
    inside = savepoint.model_copy(update={"outside": (), "erased": ()})
    return claim, inside, Release(generation=generation, next_id=next_id, at_ms=now_ms, nonce=nonce)


def _under_a_new_id(record: CheckpointRecord, claim: Claim, at: Stamp, **changed: object) -> CheckpointRecord:
    """Return a copy of an entry that continues from the original, under the claim's first id."""
    new = {
        "abandoned": False,
        "checkpoint": claim.first_id,
        "parent": record.checkpoint,
        "generation": claim.generation,
        "nonce": at.nonce,
        "barriers": (),
        "erased": (),
        "statistics": Statistics(triggered_ms=at.now_ms, committed_ms=at.now_ms, rows=0),
    }
    return record.model_copy(update=new | changed)
