"""Plants bugs in declared renames: state left behind, incomplete tables, rows of an earlier table (G2)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from checkpointing import columns
from checkpointing.columns import TableColumn
from checkpointing.commit import columns as commit_columns
from checkpointing.commit import net
from checkpointing.commit.draft import Draft
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.graph import JobGraph
from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName
from checkpointing.job import renaming
from checkpointing.metadata.record import CheckpointRecord, Rename, RenameKind, TableRecord, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot
from spec.mutants.judges import RELEASES, RELEASES_WITH_CLEAN_UPS
from spec.mutants.planting import Patch, mutant

_Renamed = Mapping[TableName, net.Renamed]


@mutant("names-follow", RELEASES)
def a_renamed_vertex_leaves_its_state_behind(patch: Patch) -> None:
    real = renaming._Names.vertex

    def vertex(self: Any, was: VertexRecord) -> VertexRecord:  # noqa: ANN401 - a class of the module's own
        named = real(self, was)
        if named.vertex == was.vertex:
            return named
        return named.model_copy(update={"subtasks": tuple(replace(each, state=()) for each in named.subtasks)})

    patch.put(renaming._Names, "vertex", vertex)


@mutant("names-follow", RELEASES)
def a_renamed_source_begins_from_the_start(patch: Patch) -> None:
    real = renaming._Names.vertex

    def vertex(self: Any, was: VertexRecord) -> VertexRecord:  # noqa: ANN401 - a class of the module's own
        named = real(self, was)
        if named.vertex == was.vertex or not named.splits:
            return named
        return named.model_copy(update={"subtasks": tuple(SubtaskSnapshot() for _ in named.subtasks)})

    patch.put(renaming._Names, "vertex", vertex)


@mutant("names-follow", RELEASES)
def a_renamed_table_is_published_when_it_changes(patch: Patch) -> None:
    real = net.net_tables

    def net_tables(*told: Any, renamed: _Renamed) -> tuple[TableRecord, ...]:  # noqa: ANN401 - passed on
        del renamed
        return real(*told)

    patch.function(net, "net_tables", net_tables)


@mutant("names-follow", RELEASES)
def an_entry_does_not_say_that_names_have_changed(patch: Patch) -> None:
    real = TwoPhaseCommit._compose

    def compose(self: TwoPhaseCommit, draft: Draft) -> CheckpointRecord:
        return real(self, draft).model_copy(update={"renames": ()})

    patch.put(TwoPhaseCommit, "_compose", compose)


@mutant("cut-is-exact", RELEASES)
def a_renamed_append_table_begins_with_its_new_files_only(patch: Patch) -> None:
    _forgetting(patch, files=())


@mutant("cut-is-exact", RELEASES)
def an_append_table_keeps_the_files_of_an_older_table_of_its_name(patch: Patch) -> None:
    _forgetting(patch, removes=())


@mutant("columns-of-cut", RELEASES)
def a_table_keeps_the_columns_that_its_name_had_before(patch: Patch) -> None:
    _forgetting(patch, columns=())


@mutant("doors-hold", RELEASES)
def the_ranges_of_a_renamed_table_stay_under_the_old_name(patch: Patch) -> None:
    real = renaming.under_new_names

    def under_new_names(graph: JobGraph, record: CheckpointRecord, due: Iterable[Rename]) -> CheckpointRecord:
        known = tuple(due)
        vertices = tuple(one for one in known if one.kind is RenameKind.VERTEX)
        named = real(graph, record, known)
        bare = real(graph, record, vertices)
        return named.model_copy(update={"vertices": bare.vertices})

    patch.function(renaming, "under_new_names", under_new_names)


@mutant("no-file-is-missed", RELEASES_WITH_CLEAN_UPS)
def a_renamed_table_takes_removed_files_along(patch: Patch) -> None:
    real = renaming.relocated

    def relocated(
        record: CheckpointRecord, folders: Mapping[TableName, TableName], generation: Generation
    ) -> renaming.Relocated:
        moved = real(record, folders, generation)
        gone = [file for table in record.tables for file in table.removes]
        _, links = renaming.relocated_files(gone, JobName(record.job), folders, generation)
        return replace(moved, links={**moved.links, **links})

    patch.function(renaming, "relocated", relocated)


# ------------------------------------------------------------------ columns


@mutant("names-follow", RELEASES)
def a_renamed_column_begins_empty(patch: Patch) -> None:
    def columns_then(now: Collection[str], then: Collection[str], renamed: Mapping[str, str]) -> Mapping[str, str]:
        del now, then, renamed
        return {}

    patch.function(columns, "columns_then", columns_then)


@mutant("names-follow", RELEASES)
def a_column_that_was_renamed_is_looked_for_under_its_old_name_still(patch: Patch) -> None:
    def columns_then(now: Collection[str], then: Collection[str], renamed: Mapping[str, str]) -> Mapping[str, str]:
        del then
        return {new: old for new, old in renamed.items() if new in now}

    patch.function(columns, "columns_then", columns_then)


@mutant("columns-follow", RELEASES)
def a_renamed_column_counts_since_its_rename(patch: Patch) -> None:
    real = commit_columns._dated

    def dated(
        declared: tuple[TableColumn, ...],
        was: tuple[TableColumn, ...],
        parent: CheckpointId,
        renamed: Mapping[str, str],
    ) -> tuple[TableColumn, ...]:
        del renamed
        return real(declared, was, parent, {})

    patch.function(commit_columns, "_dated", dated)


@mutant("names-follow", RELEASES)
def an_entry_does_not_say_which_columns_were_renamed(patch: Patch) -> None:
    real = TwoPhaseCommit._compose

    def compose(self: TwoPhaseCommit, draft: Draft) -> CheckpointRecord:
        record = real(self, draft)
        told = tuple(one for one in record.renames if one.kind is not RenameKind.COLUMN)
        return record.model_copy(update={"renames": told})

    patch.put(TwoPhaseCommit, "_compose", compose)


def _forgetting(patch: Patch, **what: Any) -> None:  # noqa: ANN401 - fields of Renamed
    """Hide this from the first checkpoint after a rename."""
    real = net.net_tables

    def net_tables(*told: Any, renamed: _Renamed) -> tuple[TableRecord, ...]:  # noqa: ANN401 - passed on
        return real(*told, renamed={table: replace(each, **what) for table, each in renamed.items()})

    patch.function(net, "net_tables", net_tables)
