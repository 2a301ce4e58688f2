"""Tests output tables beside other writers: made once, checked before each commit point, refused by name."""

import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.table import TableFeatures

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, job_name
from checkpointing.messages import Publication, PublishFailed
from checkpointing.metadata.paths import ProtocolPaths
from jobs.warehouse.output_tables import OutputTables, Shows, TableMismatchError, TableNotCheckedError
from jobs.warehouse.table_columns import declared_columns
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse


def _open(tables, table):
    return DeltaTable(str(tables.warehouse.path(table)))


def test_a_table_is_made_once_and_keeps_its_history(tables, another, silver, schema):
    """A second process finds the table. No retention by age deletes files and log entries of old cuts."""
    tables.output.ensure(silver, schema, TableMode.UPSERT)
    another().output.ensure(silver, schema, TableMode.UPSERT)
    table = _open(tables, silver)
    assert 0 == table.version()
    expected = {
        "delta.deletedFileRetentionDuration": "interval 3650 days",
        "delta.logRetentionDuration": "interval 3650 days",
        "delta.enableExpiredLogCleanup": "false",
        "tidemark.job": "flights",
    }
    assert expected == table.metadata().configuration
    assert (1, 2) == (table.protocol().min_reader_version, table.protocol().min_writer_version)
    assert () == tables.output.check([silver])


def test_a_new_column_comes_with_the_commit_that_uses_it(tables, another, silver, schema):
    """A starting tick changes no columns.

    They come with the entry that lists them, and old rows are null there (D6).
    """
    tables.output.ensure(silver, schema, TableMode.UPSERT)
    file = tables.stage(silver, {"a": 1})
    tables.publisher.publish(Publication(silver, TableMode.UPSERT, files=(file,)), CheckpointId(1))
    wider = schema.append(pa.field("extra", pa.float64()))
    later, shown = another(), Shows(columns=declared_columns(schema))
    later.output.ensure(silver, wider, TableMode.UPSERT, shown)
    assert ["k", "v"] == [field.name for field in _open(tables, silver).schema().fields]
    assert () == later.output.check([silver])
    says = Publication(silver, TableMode.UPSERT, files=(file,), columns=declared_columns(wider))
    later.publisher.publish(says, CheckpointId(2))
    assert [{"k": "a", "v": 1, "extra": None}] == _open(tables, silver).to_pyarrow_table().to_pylist()


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (pa.schema([("k", pa.string()), ("v", pa.string())]), "has column v as long, and the pipeline writes string"),
        (pa.schema([("k", pa.string())]), "has a column v that the pipeline does not write"),
    ],
)
def test_columns_that_no_entry_lists_are_foreign(tables, another, silver, schema, declared, expected):
    """The tick is refused before anything runs, and the message names table and column (D6)."""
    tables.output.ensure(silver, schema, TableMode.UPSERT)
    tables.publisher.publish(Publication(silver, TableMode.UPSERT), CheckpointId(1))
    with pytest.raises(TableMismatchError, match="table silver/flights") as error:
        another().output.ensure(silver, declared, TableMode.UPSERT)
    assert expected in str(error.value)


def test_a_table_without_any_commit_is_made_anew_with_other_columns(tables, another, silver, schema):
    """The first tick died, and the user corrected the pipeline. Nobody has ever read the table."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    corrected = pa.schema([("k", pa.int64())])
    another().output.ensure(silver, corrected, TableMode.APPEND)
    assert corrected.names == [field.name for field in _open(tables, silver).schema().fields]
    assert "long" == _open(tables, silver).schema().fields[0].type.type


def test_a_table_of_another_job_is_refused(tables, silver, schema):
    """Two jobs never write one table."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    other = Warehouse(tables.warehouse.root, ProtocolPaths(job_name("other")))
    with pytest.raises(TableMismatchError, match="table silver/flights belongs to job flights"):
        OutputTables(other, TableLogs(other)).ensure(silver, schema, TableMode.APPEND)


def test_an_upsert_does_not_erase_rows_that_the_job_never_wrote(tables, silver, schema):
    """If the columns fit, Tidemark appends to a foreign table, but it does not take the table over."""
    path = str(tables.warehouse.path(silver))
    write_deltalake(path, pa.table({"k": ["theirs"], "v": [1]}, schema=schema))
    with pytest.raises(TableMismatchError, match="holds rows that job flights never wrote, and an upsert would erase"):
        tables.output.ensure(silver, schema, TableMode.UPSERT)
    tables.output.ensure(silver, schema, TableMode.APPEND)
    assert 1 == _open(tables, silver).to_pyarrow_table().num_rows


def test_a_users_nullable_column_stops_an_upsert_by_name_and_not_an_append(tables, silver, schema):
    """A user adds the column between two checkpoints.

    Our files read null there, and an upsert would erase its values.
    """
    gold = "gold/routes"
    tables.output.ensure(silver, schema, TableMode.APPEND)
    tables.output.ensure(gold, schema, TableMode.UPSERT)
    for table in (silver, gold):
        _open(tables, table).alter.add_columns(Field("note", PrimitiveType("string"), nullable=True))
    assert () == tables.output.check([silver])
    (problem,) = tables.output.check([silver, gold])
    assert problem.startswith("table gold/routes has a column note that the pipeline does not write")
    assert "(since version 1, ADD COLUMN)" in problem
    assert "RESTORE TABLE" in problem
    assert "column note" in problem


def test_a_forbidding_feature_is_named_with_the_version_that_brought_it(tables, silver, schema):
    """If it is enabled before the commit point, the check declines.

    If it is enabled after it, the publisher stops by name.
    """
    tables.output.ensure(silver, schema, TableMode.APPEND)
    assert () == tables.output.check([silver])
    _open(tables, silver).alter.add_feature(TableFeatures.RowTracking, allow_protocol_versions_increase=True)
    (problem,) = [each for each in tables.output.check([silver]) if "rowTracking" in each]
    assert "table silver/flights has the table feature rowTracking (since version 1, " in problem
    assert "DROP FEATURE rowTracking" in problem
    file = tables.stage(silver, {"a": 1})
    result = tables.publisher.publish(Publication(silver, TableMode.APPEND, adds=(file,)), CheckpointId(1))
    assert isinstance(result, PublishFailed)
    assert "DROP FEATURE" in result.error


def test_a_constraint_stops_by_name_and_dropping_it_helps(tables, silver, schema):
    """Staged files were not checked against the constraint. After the named way out, publishing goes on."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    _open(tables, silver).alter.add_constraint({"positive": "v > 0"})
    (problem,) = tables.output.check([silver])
    assert "has the check constraint positive" in problem
    _open(tables, silver).alter.drop_constraint("positive")
    assert () == tables.output.check([silver])


def test_an_append_only_table_stops_an_upsert_by_name(tables, silver, schema):
    """The check names it before the commit point, and the publisher after it."""
    tables.output.ensure(silver, schema, TableMode.UPSERT)
    first, second = tables.stage(silver, {"a": 1}), tables.stage(silver, {"b": 1})
    tables.publisher.publish(Publication(silver, TableMode.UPSERT, files=(first,)), CheckpointId(1))
    _open(tables, silver).alter.set_table_properties({"delta.appendOnly": "true"})
    (problem,) = tables.output.check([silver])
    assert "is append-only" in problem
    result = tables.publisher.publish(Publication(silver, TableMode.UPSERT, files=(second,)), CheckpointId(2))
    assert isinstance(result, PublishFailed)
    assert "'delta.appendOnly'='false'" in result.error


def test_a_dropped_table_is_named(tables, silver, schema):
    """delta-rs does not panic, and no new table silently replaces the old one."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    shutil.rmtree(tables.warehouse.path(silver))
    (problem,) = tables.output.check([silver])
    assert problem.startswith("table silver/flights is gone: restore its folder")


def test_a_log_that_cannot_be_read_does_not_count_as_a_changed_table(tables, silver, schema):
    """Nobody knows the state of the table then. The check raises by name, and later finds the table sound."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    tables.publisher.publish(Publication(silver, TableMode.APPEND, adds=(tables.stage(silver, {"a": 1}),)), 1)
    DeltaTable(str(tables.warehouse.path(silver))).alter.set_table_properties({"delta.appendOnly": "false"})
    entry = max((tables.warehouse.path(silver) / "_delta_log").glob("*.json"))
    content = entry.read_bytes()
    entry.write_bytes(b'{"garb')
    with pytest.raises(TableNotCheckedError, match="table silver/flights: its log cannot be read") as raised:
        tables.output.check([silver])
    assert "\n" not in str(raised.value)
    entry.write_bytes(content)
    assert () == tables.output.check([silver])
