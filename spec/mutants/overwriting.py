"""Plants bugs in overwrite tables: each partition shows the rows of its greatest version, in any order of arrival."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from checkpointing import overwriting
from checkpointing.graph import TableMode, Vertex
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import TableName
from checkpointing.job import renaming, restoring
from checkpointing.job.drafts import Drafts
from checkpointing.job.operator_run import LiveFiles, OperatorRun
from checkpointing.messages import SubtaskOutput
from checkpointing.metadata.paths import StagedName, staged_name_in
from checkpointing.metadata.record import CheckpointRecord, VertexRecord
from checkpointing.table_versions import TableVersion
from spec.mutants.judges import OVERWRITES, OVERWRITES_WITH_RELEASES
from spec.mutants.planting import Patch, mutant


def _place(keyed: KeyedFile | FileHandle) -> tuple[str, str]:
    name = staged_name_in(keyed.file.path if isinstance(keyed, KeyedFile) else keyed.path)
    return (name.partition, name.version) if name is not None else ("", "")


_Judged = tuple[tuple[TableName, tuple[FileHandle, ...]], ...]


@mutant("overwrites-show-newest", OVERWRITES)
def numbers_are_compared_as_texts(patch: Patch) -> None:
    patch.put(TableVersion, "order", property(lambda self: (0, self.text)))


@mutant("overwrites-only-rise", OVERWRITES)
def the_version_that_came_last_is_shown(patch: Patch) -> None:
    def newest(files: Iterable[KeyedFile]) -> tuple[KeyedFile, ...]:
        known = {keyed.file.path: keyed for keyed in files}
        last = dict(map(_place, known.values()))
        return tuple(keyed for keyed in known.values() if _place(keyed) in last.items())

    patch.function(overwriting, "newest", newest)


@mutant("overwrites-show-newest", OVERWRITES)
def the_greatest_version_of_the_table_counts_for_each_partition(patch: Patch) -> None:
    real = overwriting._place
    patch.put(overwriting, "_place", lambda path: ("", real(path)[1]))


@mutant("overwrites-only-rise", OVERWRITES)
def the_rows_of_older_versions_stay(patch: Patch) -> None:
    def newest(files: Iterable[KeyedFile]) -> tuple[KeyedFile, ...]:
        return tuple({keyed.file.path: keyed for keyed in files}.values())

    patch.function(overwriting, "newest", newest)


@mutant("overwrites-show-newest", OVERWRITES)
def a_micro_batch_replaces_the_files_of_its_own_version(patch: Patch) -> None:
    """A delivery that comes in two micro-batches loses its first half."""
    real = LiveFiles.overwrite

    def overwrite(self: LiveFiles, table: TableName, files: Iterable[KeyedFile]) -> tuple[KeyedFile, ...]:
        new = tuple(files)
        here = {*map(_place, new)}
        self.ranges = tuple(
            replace(
                entry,
                files=tuple(each for each in entry.files if _place(each) not in here),
            )
            for entry in self.ranges
        )
        return real(self, table, new)

    patch.put(LiveFiles, "overwrite", overwrite)


@mutant("overwrites-only-rise", OVERWRITES)
def a_restore_forgets_the_files_of_overwrite_tables(patch: Patch) -> None:
    def of_first(vertex: Vertex, was: VertexRecord) -> LiveFiles:
        del vertex, was
        return LiveFiles()

    patch.put(restoring, "_of_first", of_first)


@mutant("discarded-is-unreferenced", OVERWRITES)
def a_replaced_file_is_deleted_although_a_cut_shows_it(patch: Patch) -> None:
    def overwrite(self: OperatorRun, own: LiveFiles, output: SubtaskOutput) -> Iterator[str]:
        for table in self._overwritten():
            new = [self._of_no_key(file) for name, file in output.staged if name == table]
            yield from (keyed.file.path for keyed in own.overwrite(table, new)) if new else ()

    patch.put(OperatorRun, "_overwrite", overwrite)


@mutant("files-are-judged", OVERWRITES)
def a_suite_judges_only_files_of_versions_that_are_new(patch: Patch) -> None:
    """More rows of the version that the table shows already come in unjudged."""
    real = OperatorRun.overwritten_to_judge

    def to_judge(self: OperatorRun, parent: CheckpointRecord | None) -> _Judged:
        was = [each for each in parent.vertices if each.vertex == self.vertex.id] if parent else []
        ranges = (own for each in was for subtask in each.subtasks for own in subtask.ranges)
        shown = {_place(each) for own in ranges for each in own.files}
        found = (
            (table, tuple(file for file in files if _place(file) not in shown)) for table, files in real(self, parent)
        )
        return tuple((table, files) for table, files in found if files)

    patch.put(OperatorRun, "overwritten_to_judge", to_judge)


@mutant("state-is-described", OVERWRITES)
def an_entry_takes_overwrite_tables_for_upsert_tables(patch: Patch) -> None:
    real = Drafts.compose

    def compose(self: Drafts, *args: object) -> object:
        draft = real(self, *args)  # type: ignore[arg-type]
        vertices = (
            each.model_copy(
                update={
                    "table_keys": tuple(keys.model_copy(update={"mode": TableMode.UPSERT}) for keys in each.table_keys)
                }
            )
            for each in draft.vertices
        )
        return replace(draft, vertices=tuple(vertices))

    patch.put(Drafts, "compose", compose)


@mutant("doors-hold", OVERWRITES_WITH_RELEASES)
def a_renamed_table_forgets_the_versions_of_its_files(patch: Patch) -> None:
    real = renaming._name_of

    def name_of(path: str) -> StagedName:
        return replace(real(path), version="")

    patch.put(renaming, "_name_of", name_of)
