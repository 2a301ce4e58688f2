"""Finds all files of a job's tables and state, and writes successors of those from which rows are erased (K6, ADR 24).

A file is searched if it exists, or if an entry contains it, and if an entry or any log entry of its table names it. So
files of old cuts, of savepoints and of other writers are searched too.
"""

import base64
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.handles import FileHandle
from checkpointing.identifiers import Generation, TableName, VertexId
from checkpointing.metadata.files import handles_of
from checkpointing.metadata.paths import StagedName, is_data_file, is_state_table, relative_to_table, staged_name_in
from checkpointing.metadata.record import CheckpointRecord, ErasedFile, RenameKind
from jobs.sinks.staged_files import StagedFiles
from jobs.state.backend import keys_of
from jobs.storage.parquet import parquet_of
from jobs.warehouse.cleanup import HeldLogs, job_tables
from jobs.warehouse.log_entries import log_of
from jobs.warehouse.log_rewriting import adds_in, has_change_data, must_be_rewritable, path_of
from jobs.warehouse.table_rules import purge
from jobs.warehouse.table_snapshot import active_paths, delta_table
from jobs.warehouse.warehouse import Warehouse


class NotErasableError(Exception):
    """Rows of a table cannot be erased. The message names the table, the reason and the way out."""


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """A file of a table or of state. `inline` is its content as base64, if an entry carries it.

    `partition` has the partition values of the file in the table's log. `marked`: at some version, a deletion vector
    hides some of the file's rows.
    """

    path: str
    inline: str = ""
    partition: Mapping[str, str | None] = field(default_factory=dict)
    marked: bool = False


@dataclass(frozen=True, slots=True)
class SearchedTable:
    """A table, or an operator's state: its columns and all its files. `has_log`: it is a Delta table.

    `version` is the newest Delta version that was searched.
    """

    name: TableName
    schema: pa.Schema
    files: tuple[SearchedFile, ...]
    has_log: bool
    partitioned_by: tuple[str, ...] = ()
    version: int = 0

    @property
    def is_state(self) -> bool:
        """Whether this is state of an operator."""
        return is_state_table(self.name)

    def named(self, column: str) -> tuple[str, ...]:
        """Return the table's own names for a column.

        As in Spark, case is ignored, so there may be several names.
        """
        return tuple(name for name in self.schema.names if name.lower() == column.lower())

    def own(self, columns: Iterable[str]) -> tuple[str, ...]:
        """Return the table's own names for these columns."""
        return tuple(name for column in columns for name in self.named(column))

    def within(self, columns: Collection[str]) -> tuple[str, ...]:
        """Return the paths of fields inside structs, lists and maps that have the name of one of these columns."""
        inside = (path for each in self.schema for path in _inside(each.type, each.name))
        wanted = {each.lower() for each in columns}
        return tuple(path for path in inside if path.rpartition(".")[2].lower() in wanted)


def _inside(kind: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for each in kind:
            yield f"{path}.{each.name}"
            yield from _inside(each.type, f"{path}.{each.name}")
    elif pa.types.is_map(kind):
        yield from (*_inside(kind.key_type, path), *_inside(kind.item_type, path))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _inside(kind.value_type, path)


def tables_of(logs: HeldLogs, records: Sequence[CheckpointRecord]) -> tuple[SearchedTable, ...]:
    """Return all tables and states of the job that have columns, in order of their names.

    Raises NotErasableError for a table that names files outside its folder, OSError, and the errors of delta-rs.
    """
    warehouse = logs.warehouse
    named: dict[TableName, dict[str, FileHandle]] = {}
    for handle in (handle for record in records for handle in handles_of(record)):
        named.setdefault(_table_of(warehouse, handle.path), {})[handle.path] = handle
    channels = f"{warehouse.paths.channels}/"
    names = {table.name for table in job_tables(logs)} | named.keys() - {TableName("")}
    wanted = sorted(name for name in names if not name.startswith(channels) and name != warehouse.paths.manifests)
    found = (_found(warehouse, name, named.get(name, {})) for name in wanted)
    return tuple(table for table in found if table is not None)


def _table_of(warehouse: Warehouse, path: str) -> TableName:
    """Return the table in whose folder a file lies. Names of tables have two parts, and names of states four."""
    parts = 4 if path.startswith(f"{warehouse.paths.states}/") else 2
    inside = path.startswith((f"{warehouse.paths.channels}/", f"{warehouse.paths.manifests}/"))
    return TableName("" if inside else "/".join(path.split("/")[:parts]))


def _found(warehouse: Warehouse, name: TableName, handles: Mapping[str, FileHandle]) -> SearchedTable | None:
    folder = warehouse.place(name)
    files = {path: SearchedFile(path, each.inline) for path, each in handles.items()}
    there = {f"{name}/{each.name}" for each in folder.entries(deep=True)}
    has_log, schema = log_of(folder).is_folder(), None
    by: tuple[str, ...] = ()
    version = 0
    if has_log:
        table = delta_table(folder)
        version = table.version()
        schema, by = pa.schema(table.schema().to_arrow()), tuple(table.metadata().partition_columns)
        for add in adds_in(folder):
            path = f"{name}/{path_of(add)}"
            if not is_data_file(path_of(add)):
                raise NotErasableError(
                    f"table {name} names a file outside its folder ({path_of(add)}), as a shallow clone does: copy the "
                    "table whole, or leave it out with --except"
                )
            known = files.get(path, SearchedFile(path))
            marked = known.marked or add.get("deletionVector") is not None
            files[path] = replace(known, partition=add.get("partitionValues") or {}, marked=marked)
    present = tuple(each for _, each in sorted(files.items()) if each.inline or each.path in there)
    if schema is None and present:
        with _file(warehouse, present[0]) as content:
            schema = content.schema_arrow
    if schema is None:
        return None
    return SearchedTable(name, schema, present, has_log, by, version)


def must_be_erasable(warehouse: Warehouse, table: SearchedTable, matched: Mapping[str, Sequence[int]]) -> None:
    """Raise NotErasableError if files of other programs would hide, or still show, rows that a successor does not have.

    These are deletion vectors and files of Change Data Feed.

    Raises LogNotRewrittenError for a log that cannot be rewritten.
    """
    if table.has_log:
        must_be_rewritable(warehouse.place(table.name))
    vectors = [each.path for each in table.files if each.marked and each.path in matched]
    if vectors:
        raise NotErasableError(
            f"table {table.name}: a DELETE or UPDATE left a deletion vector on {vectors[0]}, which has matching rows: "
            f"{purge(str(warehouse.place(table.name)))} and wait until no kept cut and no log entry has it, or leave "
            f"the table out with --except {table.name}"
        )
    if table.has_log and has_change_data(warehouse.place(table.name)):
        raise NotErasableError(
            f"table {table.name} has files of Change Data Feed, which other programs wrote and which Tidemark does not "
            f"rewrite: let the log forget them, or leave the table out with --except {table.name}"
        )


def older_names(records: Iterable[CheckpointRecord]) -> dict[str, tuple[str, ...]]:
    """Return the older names of each renamed column, newest first, as far as the entries record them."""
    pairs = {(each.now, each.was) for row in records for each in row.renames if each.kind is RenameKind.COLUMN}
    found: dict[str, tuple[str, ...]] = {}
    for now in {now for now, _ in pairs}:
        names, due = list[str](), [now]
        while due:
            at = due.pop()
            older = sorted(was for later, was in pairs if later == at and was not in names)
            names += older
            due += older
        found[now] = tuple(names)
    return found


def rows_at(table: SearchedTable, matched: Mapping[str, Sequence[int]], paths: Iterable[str]) -> int:
    """Return how many matching rows these files have. Paths lie inside the table's folder."""
    return sum(len(matched.get(f"{table.name}/{path}", ())) for path in paths)


def shown_at(warehouse: Warehouse, name: TableName, version: int | None) -> list[str]:
    """Return the paths of the files that a table shows at a version (None: now), inside its folder."""
    return active_paths(delta_table(warehouse.place(name), version))


# ------------------------------------------------------------------
# Keyed state, whose rows are found by their key.


def older_rows_would_return(
    warehouse: Warehouse, table: SearchedTable, matched: Mapping[str, Sequence[int]], columns: Collection[str]
) -> bool:
    """Return whether keyed state has an older or newer row of a matching key that does not match itself.

    If only the matching row were erased, the other row would become valid in some cut. If the predicate names only key
    columns, all rows of a key match, or none does.
    """
    keys = _keys(warehouse, table)
    if not keys or set(table.own(columns)) <= set(keys) or not matched:
        return False
    files = {each.path: each for each in table.files}
    gone = pa.concat_tables(_rows(warehouse, files[path], keys, matched[path], match=True) for path in matched)
    gone = gone.group_by(list(keys)).aggregate([])
    wanted = {tuple(row.values()) for row in gone.to_pylist()}
    for each in table.files:
        left = _rows(warehouse, each, keys, matched.get(each.path, ()), match=False)
        if any(tuple(row.values()) in wanted for row in left.to_pylist()):
            return True
    return False


def key_columns(warehouse: Warehouse, table: SearchedTable) -> tuple[str, ...]:
    """Return the key columns of keyed state. A table, and broadcast state, have none here."""
    return _keys(warehouse, table)


def _keys(warehouse: Warehouse, table: SearchedTable) -> tuple[str, ...]:
    if not table.is_state or not table.files:
        return ()
    with _file(warehouse, table.files[-1]) as content:
        return keys_of(content.schema_arrow) or ()


def _rows(
    warehouse: Warehouse, file: SearchedFile, keys: Sequence[str], places: Sequence[int], *, match: bool
) -> pa.Table:
    with _file(warehouse, file) as content:
        rows = content.read(columns=[name for name in keys if name in content.schema_arrow.names])
    hit = np.zeros(rows.num_rows, dtype=bool)
    hit[list(places)] = True
    return rows.filter(pa.array(hit if match else ~hit))


# ------------------------------------------------------------------
# Writes successors.


@dataclass(frozen=True, slots=True)
class Successors:
    """Writes successors for the claim of this generation. After a crash they are leftovers, which are deleted."""

    warehouse: Warehouse
    generation: Generation

    def of(
        self, table: SearchedTable, matched: Mapping[str, Sequence[int]], columns: Collection[str]
    ) -> list[ErasedFile]:
        """Return the erased files of a table, each with its successor, which is not durable yet.

        A file of which no row is left gets an empty successor. But if its folder's name has a value of the predicate's
        `columns`, it gets no successor. Raises OSError and ArrowException.
        """
        files = {each.path: each for each in table.files}
        named = not set(table.partitioned_by).isdisjoint(table.own(columns))
        return [
            ErasedFile(table=table.name, path=path, into=self._written(table, files[path], places, named=named))
            for path, places in sorted(matched.items())
        ]

    def _written(
        self, table: SearchedTable, file: SearchedFile, places: Sequence[int], *, named: bool
    ) -> FileHandle | None:
        with _file(self.warehouse, file) as content:
            if named and len(places) == content.metadata.num_rows:
                return None
            name = staged_name_in(file.path)
            vertex = name.vertex if name is not None else VertexId("")
            job = self.warehouse.paths.job
            files = StagedFiles(str(self.warehouse.root), job, self.generation, vertex, 0)
            handle = files.write_parts(
                table.name,
                _left(content, np.asarray(places, dtype=np.int64)),
                content.schema_arrow,
                folder=name.partition if name is not None else "",
                path=self._path(table.name, file.path, name),
            )
        if not file.inline:
            return handle
        written = self.warehouse.place(handle.path).read()
        return replace(handle, inline=base64.b64encode(written).decode("ascii"))

    def _path(self, table: TableName, was: str, name: StagedName | None) -> str:
        """Return the successor's path.

        It has the same vertex, partition and version, or is marked as another writer's file.
        """
        paths = self.warehouse.paths
        if name is None:
            return paths.foreign_file(table, self.generation, relative_to_table(table, was) or "", uuid4().hex)
        return paths.staged_file(table, self.generation, replace(name, micro_batch=0, unique=str(uuid4())))


def _left(content: pq.ParquetFile, places: np.ndarray) -> Iterator[pa.Table]:
    """Yield the rows of a file, except the rows at these places, row group by row group."""
    at = 0
    for group in range(content.num_row_groups):
        rows = content.read_row_group(group)
        keep = np.ones(rows.num_rows, dtype=bool)
        keep[places[(places >= at) & (places < at + rows.num_rows)] - at] = False
        at += rows.num_rows
        if keep.any():
            yield rows.filter(pa.array(keep))


def _file(warehouse: Warehouse, file: SearchedFile) -> pq.ParquetFile:
    if file.inline:
        return pq.ParquetFile(pa.BufferReader(base64.b64decode(file.inline)))
    return pq.ParquetFile(parquet_of(warehouse.place(file.path)))
