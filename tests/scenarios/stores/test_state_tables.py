"""Tests state tables: their columns follow their files (D6), and they also show state that lies in the entry (D2)."""

import zlib
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId
from checkpointing.messages import Publication, PublishFailed, TablePublished
from jobs.sinks.staged_files import StagedFiles
from jobs.warehouse.output_tables import Shows
from jobs.warehouse.table_columns import declared_columns

STATE = TableName("_tidemark/flights/state/join")
OLD = pa.schema([("k", pa.string()), ("v", pa.int32()), ("gone", pa.int64())])
NEW = pa.schema([("k", pa.string()), ("v", pa.int64()), ("more", pa.string())])
IN_OLD, IN_NEW = declared_columns(OLD), declared_columns(NEW)


@pytest.fixture
def writer(warehouse):
    """Return the object that stages the state's files."""
    return StagedFiles(str(warehouse.root), warehouse.paths.job, Generation(1), VertexId("join"), 1)


def rows(schema, *keys):
    """Return a row per key."""
    return pa.Table.from_pylist([{"k": key, "v": 1} for key in keys], schema=schema)


def publish(tables, number, *files, columns=()):
    """Publish a state table's files. If columns are given, the entry says that the table has these from now on."""
    gone = ("gone",) if columns == IN_NEW else ()
    publication = Publication(STATE, TableMode.STATE, files=files, columns=columns, leaving=gone)
    answer = tables.publisher.publish(publication, CheckpointId(number))
    if isinstance(answer, TablePublished):
        tables.output.published(STATE, columns)
    return answer


def opened(tables, version=None):
    """Return the state table as any reader opens it."""
    return DeltaTable(str(tables.warehouse.path(STATE)), version=version)


def names(table):
    """Return name and type of each column."""
    return {field.name: field.type.type for field in table.schema().fields}


WAS = {"k": "string", "v": "integer", "gone": "long"}
IS = {"k": "string", "v": "long", "more": "string"}


@pytest.fixture
def evolving(tables, another, writer):
    """Return the tables of a later process, whose columns are new, and a published file with the old columns."""
    tables.output.ensure(STATE, OLD, TableMode.STATE)
    old = writer.write(STATE, rows(OLD, "a"))
    publish(tables, 1, old)
    later = another()
    later.output.ensure(STATE, NEW, TableMode.STATE, Shows(IN_OLD))
    return later, old


def test_the_table_keeps_its_columns_while_the_entries_list_them(evolving, writer):
    """The later process ensures and checks the table, and publishes the old file again. The table stays as it was."""
    later, old = evolving
    assert () == later.output.check([STATE])
    publish(later, 2, old, writer.write(STATE, rows(OLD, "b")), columns=IN_OLD)
    assert WAS == names(opened(later))
    assert () == later.output.check([STATE])


def test_the_table_gets_its_columns_in_the_commit_that_publishes_all_files(evolving, writer):
    """One log entry removes the old files, adds the new ones and changes the columns.

    The old version reads as before.
    """
    later, _ = evolving
    before = opened(later).version()
    said = "column more is new, column gone is gone, column v was int and is now bigint"
    assert TablePublished(CheckpointId(2), STATE, before + 1, said) == publish(
        later, 2, writer.write(STATE, rows(NEW, "a")), writer.write(STATE, rows(NEW, "b")), columns=IN_NEW
    )
    assert IS == names(opened(later))
    got = opened(later).to_pyarrow_table().sort_by("k").to_pylist()
    assert [{"k": "a", "v": 1, "more": None}, {"k": "b", "v": 1, "more": None}] == got
    assert [{"k": "a", "v": 1, "gone": None}] == opened(later, before).to_pyarrow_table().to_pylist()
    assert "flights" == opened(later).metadata().configuration["tidemark.job"]
    assert () == later.output.check([STATE])
    assert TablePublished(CheckpointId(2), STATE, before + 1) == publish(later, 2)


def test_an_entry_from_before_the_change_of_columns_is_published_with_the_old_ones(evolving, writer):
    """The entry was committed before. Rolling it forward publishes a file with the old columns that no log has yet."""
    later, _ = evolving
    publish(later, 2, writer.write(STATE, rows(OLD, "a", "b")), columns=IN_OLD)
    assert WAS == names(opened(later))
    publish(later, 3, writer.write(STATE, rows(NEW, "a", "b")), columns=IN_NEW)
    assert IS == names(opened(later))


def test_a_fork_shows_the_old_columns_until_its_files_have_the_new_ones(tables, writer):
    """A fork makes its tables with the columns of the imported entry, and first publishes the restored files."""
    tables.output.ensure(STATE, NEW, TableMode.STATE, Shows(IN_OLD, settled=False))
    publish(tables, 1, writer.write(STATE, rows(OLD, "a")), writer.write(STATE, rows(OLD, "b")), columns=IN_OLD)
    assert WAS == names(opened(tables))
    assert () == tables.output.check([STATE])
    publish(tables, 2, writer.write(STATE, rows(NEW, "a", "b")), columns=IN_NEW)
    assert IS == names(opened(tables))
    assert () == tables.output.check([STATE])


def test_a_foreign_change_of_a_state_table_is_a_problem_by_name(evolving):
    """A column that neither the old nor the new state has is foreign."""
    later, _ = evolving
    assert () == later.output.check([STATE])
    opened(later).alter.add_columns(Field("note", PrimitiveType("string"), nullable=True))
    (problem,) = later.output.check([STATE])
    assert "column note" in problem


def test_a_state_in_the_entry_is_written_to_its_place_when_it_is_published(tables, writer):
    """The handle itself holds the content. A lost or torn file is written again, and the table can be read (K3)."""
    tables.output.ensure(STATE, NEW, TableMode.STATE)
    file = writer.inline(STATE, rows(NEW, "a"))
    place = tables.warehouse.path(file.path)
    assert not place.exists()
    place.parent.mkdir(parents=True)
    place.write_bytes(b"torn")
    publish(tables, 1, file)
    assert (file.bytes, file.crc32) == (place.stat().st_size, zlib.crc32(place.read_bytes()))
    assert [{"k": "a", "v": 1, "more": None}] == opened(tables).to_pyarrow_table().to_pylist()


def test_a_missing_file_also_stops_the_change_of_columns(evolving, writer):
    """The columns do not change for a file that nobody can read."""
    later, _ = evolving
    file = writer.write(STATE, rows(NEW, "a"))
    gone = replace(file, path=file.path.replace("join-1-", "join-9-"))
    assert isinstance(publish(later, 2, gone, columns=IN_NEW), PublishFailed)
    assert WAS == names(opened(later))
