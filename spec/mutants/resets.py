"""Plants bugs in resets: what moves, what must not move, and from where the job goes on (K2)."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from checkpointing.commit import fencing, recovery, reset
from checkpointing.commit.at_rest import SourceReset, Stamp
from checkpointing.commit.fencing import Refused
from checkpointing.commit.recovery import Observed, RecoveryPlan
from checkpointing.commit.reset import Move
from checkpointing.identifiers import SplitId
from checkpointing.metadata.record import CheckpointRecord, Claim, Row, RowKind, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot
from spec.mutants.judges import RESETS
from spec.mutants.parents import build_on_the_row_before
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ positions that move


Otherwise = Callable[[CheckpointRecord, Move], Move]


def _move_otherwise(patch: Patch, otherwise: Otherwise) -> None:
    real = reset.moved

    def moved(newest: CheckpointRecord, move: Move) -> tuple[VertexRecord, ...]:
        return real(newest, otherwise(newest, move))

    patch.function(reset, "moved", moved)


@mutant("only-positions-move", RESETS)
def a_reset_of_one_split_moves_the_whole_source(patch: Patch) -> None:
    def all_of_them(newest: CheckpointRecord, move: Move) -> Move:
        splits = next(vertex.splits for vertex in newest.vertices if vertex.vertex == move.source)
        return replace(move, positions=dict.fromkeys(map(SplitId, splits), next(iter(move.positions.values()))))

    _move_otherwise(patch, all_of_them)


@mutant("only-positions-move", RESETS)
def a_reset_of_a_source_forgets_all_splits_but_the_first(patch: Patch) -> None:
    def first(_: CheckpointRecord, move: Move) -> Move:
        return replace(move, positions=dict([next(iter(move.positions.items()))]))

    _move_otherwise(patch, first)


# ------------------------------------------------------------------ everything else stays


Changes = Callable[[CheckpointRecord], Mapping[str, object]]
"""The wrong fields of a reset's entry, computed from the entry that it moves."""


def _append_otherwise(patch: Patch, changes: Changes) -> None:
    real = SourceReset.row

    def row(self: SourceReset, claim: Claim, at: Stamp) -> CheckpointRecord:
        return real(self, claim, at).model_copy(update=dict(changes(self.newest)))

    patch.put(SourceReset, "row", row)


@mutant("only-positions-move", RESETS)
def a_reset_publishes_the_newest_entry_once_more(patch: Patch) -> None:
    _append_otherwise(patch, lambda newest: {"tables": newest.tables})


@mutant("only-positions-move", RESETS)
def a_reset_of_a_savepoint_is_pinned_too(patch: Patch) -> None:
    _append_otherwise(patch, lambda newest: {"pinned": newest.pinned})


@mutant("ids-rise", RESETS)
def a_reset_takes_the_id_of_the_entry_that_it_moves(patch: Patch) -> None:
    _append_otherwise(patch, lambda newest: {"checkpoint": newest.checkpoint})


def _snapshot_otherwise(patch: Patch, otherwise: Callable[[SubtaskSnapshot], SubtaskSnapshot]) -> None:
    real = reset.moved

    def moved(newest: CheckpointRecord, move: Move) -> tuple[VertexRecord, ...]:
        return tuple(
            vertex.model_copy(update={"subtasks": tuple(map(otherwise, vertex.subtasks))})
            for vertex in real(newest, move)
        )

    patch.function(reset, "moved", moved)


@mutant("cut-is-exact", RESETS)
def a_reset_drops_the_rows_in_flight(patch: Patch) -> None:
    _snapshot_otherwise(patch, lambda snapshot: replace(snapshot, in_flight=()))


@mutant("state-is-exact", RESETS)
def a_reset_begins_with_no_state(patch: Patch) -> None:
    _snapshot_otherwise(patch, lambda snapshot: replace(snapshot, state=()))


# ------------------------------------------------------------------ from where the job goes on


@mutant("cut-is-exact", RESETS)
def the_tick_after_a_reset_reads_on_where_it_stood(patch: Patch) -> None:
    real = recovery.decide_recovery

    def decide_recovery(seen: Observed, *, take_over: bool) -> RecoveryPlan | Refused:
        plan = real(seen, take_over=take_over)
        if isinstance(plan, Refused) or plan.restore is None or plan.restore.kind is not RowKind.RESET:
            return plan
        there = {row.checkpoint: row for row in seen.rows if isinstance(row, CheckpointRecord)}
        before = there[plan.restore.parent]
        return replace(plan, restore=plan.restore.model_copy(update={"vertices": before.vertices}))

    patch.function(recovery, "decide_recovery", decide_recovery)


@mutant("line", RESETS)
def a_tick_begins_from_the_entry_before_a_reset(patch: Patch) -> None:
    real = fencing.newest_checkpoint

    def newest_checkpoint(rows: tuple[Row, ...]) -> CheckpointRecord | None:
        return real(tuple(row for row in rows if getattr(row, "kind", None) is not RowKind.RESET))

    patch.function(fencing, "newest_checkpoint", newest_checkpoint)


@mutant("parent-line", RESETS)
def the_entry_after_a_reset_builds_on_the_entry_before_it(patch: Patch) -> None:
    build_on_the_row_before(patch, RowKind.RESET)
