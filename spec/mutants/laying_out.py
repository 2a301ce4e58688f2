"""Plants bugs in partitioned tables: in the names of their folders, in renames, and in what a restore lets in."""

from collections.abc import Iterable, Iterator

from checkpointing import partitions
from checkpointing.graph import Table, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import TableName
from checkpointing.job import renaming, restoring, unfit_tables
from checkpointing.metadata import paths
from checkpointing.metadata.paths import StagedName
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.snapshots import SubtaskSnapshot
from spec.laying_out import LAID_OUT, LAYOUT_STAYS, MODE_STAYS, files_keep_their_partition, layouts_stay, modes_stay
from spec.mutants.judges import Judge, directed
from spec.mutants.planting import Patch, mutant

_FILES = Judge(
    "model of partitions", lambda seed: frozenset() if files_keep_their_partition(seed) else frozenset({LAID_OUT}), 20
)
_CUTS = directed(layouts_stay, LAYOUT_STAYS)
_MODES = directed(modes_stay, MODE_STAYS)


@mutant(LAID_OUT, _FILES)
def a_rename_forgets_the_partition(patch: Patch) -> None:
    real = renaming._name_of

    def name_of(path: str) -> StagedName:
        known = real(path)
        return StagedName(known.vertex, known.micro_batch, known.unique)

    patch.function(renaming, "_name_of", name_of)


@mutant(LAID_OUT, _FILES)
def null_is_a_text(patch: Patch) -> None:
    def values_of(folder: str) -> tuple[partitions.Value, ...]:
        parts = (part.partition("=") for part in folder.split("/") if part)
        return tuple((partitions.plain(column), partitions.plain(text)) for column, _, text in parts)

    patch.function(partitions, "values_of", values_of)


@mutant(LAID_OUT, _FILES)
def a_slash_begins_another_folder(patch: Patch) -> None:
    real = partitions.escaped

    def escaped(text: str) -> str:
        return real(text).replace("%2F", "/")

    patch.function(partitions, "escaped", escaped)


@mutant(LAID_OUT, _FILES)
def the_mark_of_escaping_is_not_escaped(patch: Patch) -> None:
    """The text `%41` is read back as `A`."""
    real = partitions.escaped

    def escaped(text: str) -> str:
        return real(text).replace("%25", "%")

    patch.function(partitions, "escaped", escaped)


@mutant(LAID_OUT, _FILES)
def a_log_gets_the_escaped_value(patch: Patch) -> None:
    def plain(text: str) -> str:
        return text

    patch.function(partitions, "plain", plain)


@mutant(LAID_OUT, _FILES)
def only_the_first_partition_column_counts(patch: Patch) -> None:
    real = partitions.values_of

    def values_of(folder: str) -> tuple[partitions.Value, ...]:
        return real(folder)[:1]

    patch.function(partitions, "values_of", values_of)


# ------------------------------------------------------------------ restores


@mutant(LAYOUT_STAYS, _CUTS)
def every_layout_is_let_in(patch: Patch) -> None:
    def check(table: Table, record: CheckpointRecord) -> None:
        del table, record

    patch.function(restoring, "_check_layout", check)


@mutant(LAYOUT_STAYS, _CUTS)
def the_order_of_partition_columns_does_not_count(patch: Patch) -> None:
    def otherwise(by: Iterable[str], files: Iterable[str]) -> str | None:
        wanted = frozenset(by)
        return next((path for path in files if {name for name, _ in paths.partition_of(path)} != wanted), None)

    patch.function(restoring, "laid_out_otherwise", otherwise)


@mutant(LAYOUT_STAYS, _CUTS)
def ranges_of_another_layout_are_let_in(patch: Patch) -> None:
    real = restoring._files_of

    def files_of(table: Table, snapshot: SubtaskSnapshot) -> Iterator[FileHandle]:
        return iter(()) if table.mode is TableMode.UPSERT else real(table, snapshot)

    patch.function(restoring, "_files_of", files_of)


@mutant(LAYOUT_STAYS, _CUTS)
def staged_files_of_another_layout_are_let_in(patch: Patch) -> None:
    real = restoring._files_of

    def files_of(table: Table, snapshot: SubtaskSnapshot) -> Iterator[FileHandle]:
        return iter(()) if table.mode is TableMode.APPEND else real(table, snapshot)

    patch.function(restoring, "_files_of", files_of)


@mutant(MODE_STAYS, _MODES)
def only_overwrite_tables_keep_their_mode(patch: Patch) -> None:
    """The first form of the check: an append table became an upsert table, and lost its rows."""
    real = unfit_tables.written_otherwise

    def written_otherwise(table: Table, record: CheckpointRecord) -> tuple[str, str] | None:
        found = real(table, record)
        return found if found is not None and any("overwrite" in each for each in found) else None

    patch.put(restoring, "written_otherwise", written_otherwise)


@mutant(MODE_STAYS, _MODES)
def a_table_without_keys_is_an_upsert_table(patch: Patch) -> None:
    def written_as(name: TableName, record: CheckpointRecord) -> tuple[TableMode, tuple[str, ...]]:
        keys = {each.table: (each.mode, each.columns) for was in record.vertices for each in was.table_keys}
        return keys.get(name, (TableMode.UPSERT, ()))

    patch.put(unfit_tables, "_written_as", written_as)


@mutant(MODE_STAYS, _MODES)
def an_overwrite_table_may_go_by_another_version(patch: Patch) -> None:
    real = unfit_tables._written_as

    def written_as(name: TableName, record: CheckpointRecord) -> tuple[TableMode, tuple[str, ...]]:
        mode, columns = real(name, record)
        return mode, ("v",) if mode is TableMode.OVERWRITE else columns

    patch.put(unfit_tables, "_written_as", written_as)
