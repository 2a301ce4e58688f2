"""Plants bugs in what a name says: renamed things lose a part of theirs, and files are taken for others."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from checkpointing import partitions, renames, table_versions
from checkpointing.graph import JobGraph
from checkpointing.identifiers import Generation, TableName
from checkpointing.job import renaming
from checkpointing.metadata import paths
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import CheckpointRecord, Rename, VertexRecord
from checkpointing.table_versions import TableVersion
from spec.machines.naming import NAMES
from spec.machines.renames import RENAMED
from spec.mutants.judges import NAMING, RENAMES
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ renames


@mutant(RENAMED, RENAMES)
def a_renamed_vertex_forgets_the_keys_of_its_table(patch: Patch) -> None:
    real = renaming._Names.vertex

    def vertex(self: Any, was: VertexRecord) -> VertexRecord:  # noqa: ANN401 - a class of the module's own
        return real(self, was).model_copy(update={"table_keys": was.table_keys})

    patch.put(renaming._Names, "vertex", vertex)


@mutant(RENAMED, RENAMES)
def a_rename_of_something_that_is_still_there_is_clear(patch: Patch) -> None:
    real = renames.unclear_rename

    def unclear_rename(graph: JobGraph) -> str | None:
        why = real(graph)
        return None if why is not None and "still has" in why else why

    patch.function(renames, "unclear_rename", unclear_rename)


@mutant(RENAMED, RENAMES)
def broadcast_state_stays_in_its_old_folder(patch: Patch) -> None:
    patch.put(renaming, "_STATES", renaming._STATES[:1])


@mutant(RENAMED, RENAMES)
def the_files_of_renamed_tables_in_flight_stay_where_they_are(patch: Patch) -> None:
    patch.put(renaming._Moving, "_segment", lambda self, segment: segment)


@mutant(RENAMED, RENAMES)
def columns_renamed_earlier_belong_to_the_old_name_of_their_vertex(patch: Patch) -> None:
    def of_columns(self: object, renames: Iterable[Rename]) -> Iterator[Rename]:
        del self
        yield from (rename for rename in renames if rename.vertex)

    patch.put(renaming._Names, "of_columns", of_columns)


@mutant(RENAMED, RENAMES)
def only_the_first_of_two_files_is_linked(patch: Patch) -> None:
    real = renaming.relocated

    def relocated(
        record: CheckpointRecord, folders: Mapping[TableName, TableName], generation: Generation
    ) -> renaming.Relocated:
        moved = real(record, folders, generation)
        return replace(moved, links=dict(sorted(moved.links.items())[:1]))

    patch.function(renaming, "relocated", relocated)


# ------------------------------------------------------------------ names


@mutant(NAMES, NAMING)
def a_version_is_told_as_its_folder_has_it(patch: Patch) -> None:
    patch.put(table_versions, "plain", lambda text: text)


@mutant(NAMES, NAMING)
def versions_that_are_numbers_are_compared_as_texts(patch: Patch) -> None:
    patch.put(TableVersion, "order", property(lambda self: (0, self.text)))


@mutant(NAMES, NAMING)
def a_partition_may_have_two_folders(patch: Patch) -> None:
    patch.put(paths, "_is_canonical", lambda name: True)


@mutant(NAMES, NAMING)
def an_empty_value_is_null(patch: Patch) -> None:
    real = partitions.values_of

    def values_of(folder: str) -> tuple[partitions.Value, ...]:
        return tuple((column, value if value != ".." else None) for column, value in real(folder))

    patch.function(partitions, "values_of", values_of)


@mutant(NAMES, NAMING)
def the_rows_of_others_leave_the_folder_of_their_partition(patch: Patch) -> None:
    real = ProtocolPaths.foreign_file

    def foreign_file(self: ProtocolPaths, table: TableName, generation: Generation, was: str, unique: str) -> str:
        return real(self, table, generation, was.rpartition("/")[2], unique)

    patch.put(ProtocolPaths, "foreign_file", foreign_file)


@mutant(NAMES, NAMING)
def generation_12_is_generation_1(patch: Patch) -> None:
    real = paths.parse_generation

    def parse_generation(folder: str) -> Generation | None:
        return real(folder[:1])

    patch.function(paths, "parse_generation", parse_generation)


@mutant(NAMES, NAMING)
def a_micro_batch_of_many_digits_is_not_known(patch: Patch) -> None:
    real = paths.parse_staged_name

    def parse_staged_name(name: str) -> StagedName | None:
        return None if re.search(r"-[0-9]{4,8}-", name) else real(name)

    patch.function(paths, "parse_staged_name", parse_staged_name)
