"""Plants bugs in broadcast state: every subtask must hold all of it, over restores, rescales, renames and rollbacks."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from checkpointing.commit import live_files
from checkpointing.graph import Table
from checkpointing.job import broadcasting, operator_run, renaming, restoring
from checkpointing.job.operator_run import OperatorRun
from checkpointing.messages import MicroBatchFinished, SubtaskOutput
from checkpointing.metadata.paths import table_of_state
from checkpointing.metadata.record import VertexRecord
from checkpointing.snapshots import RangeFiles
from spec.mutants.judges import BROADCASTS, BROADCASTS_WITH_RELEASES
from spec.mutants.planting import Patch, mutant

_Restored = tuple[tuple[RangeFiles, ...], ...]


@mutant("broadcast-is-whole", BROADCASTS)
def only_the_subtask_that_wrote_the_broadcast_state_holds_it(patch: Patch) -> None:
    def handed_to_all(tables: Sequence[Table], outputs: Sequence[SubtaskOutput]) -> tuple[SubtaskOutput, ...]:
        del tables
        return tuple(outputs)

    patch.put(operator_run, "handed_to_all", handed_to_all)


@mutant("broadcast-is-whole", BROADCASTS)
def a_subtask_without_rows_keeps_the_older_broadcast_state(patch: Patch) -> None:
    real = broadcasting.handed_to_all

    def handed_to_all(tables: Sequence[Table], outputs: Sequence[SubtaskOutput]) -> tuple[SubtaskOutput, ...]:
        given = zip(outputs, real(tables, outputs), strict=True)
        return tuple(new if own.state or own.ranges else own for own, new in given)

    patch.put(operator_run, "handed_to_all", handed_to_all)


@mutant("broadcast-is-whole", BROADCASTS)
def a_new_subtask_begins_without_the_broadcast_state(patch: Patch) -> None:
    real = broadcasting.restored_broadcasts

    def restored_broadcasts(tables: Sequence[Table], was: VertexRecord, parallelism: int) -> _Restored:
        known = len(was.subtasks)
        return tuple(own if index < known else () for index, own in enumerate(real(tables, was, parallelism)))

    patch.put(restoring, "restored_broadcasts", restored_broadcasts)


@mutant("broadcast-is-exact", BROADCASTS)
def a_restore_forgets_the_broadcast_state(patch: Patch) -> None:
    def restored_broadcasts(tables: Sequence[Table], was: VertexRecord, parallelism: int) -> _Restored:
        del tables, was
        return ((),) * parallelism

    patch.put(restoring, "restored_broadcasts", restored_broadcasts)


@mutant("tables-follow", BROADCASTS)
def the_table_of_the_broadcast_state_shows_the_keyed_state(patch: Patch) -> None:
    real: Callable[[Table, VertexRecord], live_files.Lists] = live_files.lists_of

    def lists_of(table: Table, record: VertexRecord) -> live_files.Lists:
        return real(replace(table, broadcast=False), record)

    patch.function(live_files, "lists_of", lists_of)


@mutant("broadcast-is-exact", BROADCASTS_WITH_RELEASES)
def a_renamed_vertex_leaves_its_broadcast_state_under_the_old_name(patch: Patch) -> None:
    patch.put(renaming, "_STATES", (table_of_state,))


@mutant("broadcast-is-exact", BROADCASTS)
def the_broadcast_state_of_a_micro_batch_is_not_taken(patch: Patch) -> None:
    real = OperatorRun.finish

    def finish(self: OperatorRun, fact: MicroBatchFinished) -> tuple[str, ...]:
        names = {table.name for table in self.vertex.tables if table.broadcast}
        outputs = tuple(
            replace(each, ranges=tuple(own for own in each.ranges if own.table not in names)) for each in fact.outputs
        )
        return real(self, replace(fact, outputs=outputs))

    patch.put(OperatorRun, "finish", finish)
