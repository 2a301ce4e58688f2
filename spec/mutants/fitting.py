"""Plants bugs in the checks of a cut that is restored into a changed pipeline.

The simulator restores only cuts that fit. So it finds a wrong refusal, and cannot find a missing one.
"""

from collections.abc import Iterator

from checkpointing.graph import JobGraph, Table, Vertex
from checkpointing.identifiers import SubtaskId, TableName, VertexId
from checkpointing.job import restoring, unfit_tables
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from spec.mutants.judges import RESTORES
from spec.mutants.planting import Patch, mutant


@mutant("cuts-fit", RESTORES)
def state_of_hooks_is_lost_in_silence(patch: Patch) -> None:
    patch.put(restoring, "hooks_left", lambda _graph, _record: ())


@mutant("cuts-fit", RESTORES)
def a_split_may_go_without_a_word(patch: Patch) -> None:
    def check(vertex: Vertex, was: VertexRecord, record: CheckpointRecord) -> None:
        """Say nothing."""

    patch.put(restoring, "_check_splits", check)


@mutant("cuts-fit", RESTORES)
def only_staged_files_keep_the_layout(patch: Patch) -> None:
    real = restoring._check_layout

    def check(table: Table, record: CheckpointRecord) -> None:
        real(table, record.model_copy(update={"tables": ()}))

    patch.put(restoring, "_check_layout", check)


@mutant("cuts-fit", RESTORES)
def broadcast_state_counts_as_none(patch: Patch) -> None:
    def left(_graph: JobGraph, _record: CheckpointRecord) -> Iterator[VertexId]:
        yield from ()

    patch.put(restoring, "broadcasts_left", left)


@mutant("cuts-fit", RESTORES)
def a_table_may_get_another_writer(patch: Patch) -> None:
    def unfit(
        vertex: Vertex, before: dict[VertexId, VertexRecord], known: tuple[TableName, ...] | None
    ) -> Iterator[str]:
        del vertex, before, known
        yield from ()

    patch.put(unfit_tables, "_unfit_sets", unfit)


@mutant("cuts-fit", RESTORES)
def a_split_that_a_part_finds_after_its_end_is_read(patch: Patch) -> None:
    def ended(graph: JobGraph, record: CheckpointRecord | None) -> frozenset[SubtaskId]:
        found = set()
        for source in graph.sources():
            was = restoring._vertex(record, source.id)
            over = {split: each.finished for split, each in zip(was.splits, was.subtasks, strict=True)} if was else {}
            found |= {
                SubtaskId(source.id, index)
                for index, split in enumerate(source.splits)
                if source.ends(split) and over.get(split)
            }
        return frozenset(found)

    patch.function(restoring, "ended_splits", ended)
