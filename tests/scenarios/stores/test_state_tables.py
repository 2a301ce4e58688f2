"""State tables: their columns follow their files (D6), and a state that lies in the row is shown all the same (D2)."""

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
from jobs.stores.output_tables import Shows
from jobs.stores.table_columns import declared_columns

STATE = TableName("_tidemark/flights/state/join")
OLD = pa.schema([("k", pa.string()), ("v", pa.int32()), ("gone", pa.int64())])
NEW = pa.schema([("k", pa.string()), ("v", pa.int64()), ("more", pa.string())])
IN_OLD, IN_NEW = declared_columns(OLD), declared_columns(NEW)


@pytest.fixture
def writer(warehouse):
    """Return what stages the state's files."""
    return StagedFiles(str(warehouse.root), warehouse.paths.job, Generation(1), VertexId("join"), 1)


def rows(schema, *keys):
    """Return a row per key."""
    return pa.Table.from_pylist([{"k": key, "v": 1} for key in keys], schema=schema)


def publish(tables, number, *files, columns=()):
    """Publish a state table's files; with columns the row says that the table has these from now on."""
    gone = ("gone",) if columns == IN_NEW else ()
    publication = Publication(STATE, TableMode.STATE, files=files, columns=columns, leaving=gone)
    answer = tables.publisher.publish(publication, CheckpointId(number))
    if isinstance(answer, TablePublished):
        tables.output.published(STATE, columns)
    return answer


def opened(tables, version=None):
    """Return the state table as any reader would open it."""
    return DeltaTable(str(tables.warehouse.path(STATE)), version=version)


def names(table):
    """Return name and type of each column."""
    return {field.name: field.type.type for field in table.schema().fields}


WAS = {"k": "string", "v": "integer", "gone": "long"}
IS = {"k": "string", "v": "long", "more": "string"}


@pytest.fixture
def evolving(tables, another, writer):
    """Return (the tables of a later process with new columns, a file with the old ones that is published)."""
    tables.output.ensure(STATE, OLD, TableMode.STATE)
    old = writer.write(STATE, rows(OLD, "a"))
    publish(tables, 1, old)
    later = another()
    later.output.ensure(STATE, NEW, TableMode.STATE, Shows(IN_OLD))
    return later, old


def test_the_table_keeps_its_columns_while_the_rows_say_so(evolving, writer):
    """Ensured, checked and published again with the old file, it is as it was: nobody reads a file in wrong columns."""
    later, old = evolving
    assert () == later.output.check([STATE])
    publish(later, 2, old, writer.write(STATE, rows(OLD, "b")), columns=IN_OLD)
    assert WAS == names(opened(later))
    assert () == later.output.check([STATE])


def test_the_table_gets_its_columns_in_the_commit_that_brings_all_files(evolving, writer):
    """One log entry: old files out, new ones in, columns changed; the old version reads as before."""
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


def test_a_row_that_was_committed_before_the_columns_changed_is_published_in_the_old_ones(evolving, writer):
    """Rolling forward meets a file that no log has and that has the old columns."""
    later, _ = evolving
    publish(later, 2, writer.write(STATE, rows(OLD, "a", "b")), columns=IN_OLD)
    assert WAS == names(opened(later))
    publish(later, 3, writer.write(STATE, rows(NEW, "a", "b")), columns=IN_NEW)
    assert IS == names(opened(later))


def test_a_fork_shows_the_old_columns_until_its_files_have_the_new_ones(tables, writer):
    """Its tables are made in the columns of the imported row, and what is published first are the restored files."""
    tables.output.ensure(STATE, NEW, TableMode.STATE, Shows(IN_OLD, settled=False))
    publish(tables, 1, writer.write(STATE, rows(OLD, "a")), writer.write(STATE, rows(OLD, "b")), columns=IN_OLD)
    assert WAS == names(opened(tables))
    assert () == tables.output.check([STATE])
    publish(tables, 2, writer.write(STATE, rows(NEW, "a", "b")), columns=IN_NEW)
    assert IS == names(opened(tables))
    assert () == tables.output.check([STATE])


def test_what_others_do_to_a_state_table_meanwhile_is_a_problem_by_name(evolving):
    """A column that neither the old nor the new state has is foreign."""
    later, _ = evolving
    assert () == later.output.check([STATE])
    opened(later).alter.add_columns(Field("note", PrimitiveType("string"), nullable=True))
    (problem,) = later.output.check([STATE])
    assert "column note" in problem


def test_a_state_in_the_row_is_put_in_its_place_when_it_is_published(tables, writer):
    """The handle alone says what the file holds: lost or torn, it is written again; the table can be read (K3)."""
    tables.output.ensure(STATE, NEW, TableMode.STATE)
    file = writer.inline(STATE, rows(NEW, "a"))
    place = tables.warehouse.path(file.path)
    assert not place.exists()
    place.parent.mkdir(parents=True)
    place.write_bytes(b"torn")
    publish(tables, 1, file)
    assert (file.bytes, file.crc32) == (place.stat().st_size, zlib.crc32(place.read_bytes()))
    assert [{"k": "a", "v": 1, "more": None}] == opened(tables).to_pyarrow_table().to_pylist()


def test_a_file_that_is_missing_stops_the_change_of_columns_too(evolving, writer):
    """No columns change for a file that nobody can read."""
    later, _ = evolving
    file = writer.write(STATE, rows(NEW, "a"))
    gone = replace(file, path=file.path.replace("join-1-", "join-9-"))
    assert isinstance(publish(later, 2, gone, columns=IN_NEW), PublishFailed)
    assert WAS == names(opened(later))
