"""Tests that a table's columns change in the same commit that publishes an entry. Foreign columns stay."""

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from checkpointing.columns import TableColumn
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import Publication, PublishFailed, TablePublished
from jobs.storage.place import place_in
from jobs.warehouse.delta_log import DeltaLog
from jobs.warehouse.output_tables import Shows
from jobs.warehouse.table_columns import declared_columns

K, V = TableColumn("k", "string"), TableColumn("v", "long")
NTZ = pa.timestamp("us")
LATE = TableColumn("late", "double", CheckpointId(1))
COMES = "column late is new and holds only what came after checkpoint 1"


def opened(tables, table, version=None):
    """Return the table as any reader would open it."""
    return DeltaTable(str(tables.warehouse.path(table)), version=version)


def names(tables, table, version=None):
    """Return the names of the columns."""
    return [field.name for field in opened(tables, table, version).schema().fields]


@pytest.fixture
def appended(tables, silver, schema):
    """Return an append table that shows checkpoint 1, with the columns k and v."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    says = Publication(silver, TableMode.APPEND, adds=(tables.stage(silver, {"a": 1}),), columns=(K, V))
    assert isinstance(tables.publisher.publish(says, CheckpointId(1)), TablePublished)
    return silver


def wider(tables, table, number, **parts):
    """Publish the column `late` with a file that has it."""
    file = tables.stage(table, {"b": 2})
    says = Publication(table, TableMode.APPEND, adds=(file,), columns=(K, V, LATE), **parts)
    return tables.publisher.publish(says, CheckpointId(number))


def test_a_column_comes_with_the_files_in_one_commit(tables, appended):
    """No version shows the column without its files or the files without it.

    The old file stays active, with nulls there.
    """
    assert TablePublished(CheckpointId(2), appended, 2, COMES) == wider(tables, appended, 2)
    assert ["k", "v"] == names(tables, appended, 1)
    assert ["k", "v", "late"] == names(tables, appended)
    rows = opened(tables, appended).to_pyarrow_table().sort_by("k").to_pylist()
    assert [{"k": "a", "v": 1, "late": None}, {"k": "b", "v": 2, "late": None}] == rows
    late = opened(tables, appended).schema().fields[2]
    assert {"comment": "holds only what came after checkpoint 1"} == late.metadata
    assert "flights" == opened(tables, appended).metadata().configuration["tidemark.job"]


def test_a_column_is_published_once_however_often_a_publisher_is_asked(tables, another, appended):
    """The transaction id is in the same commit, so a second publisher finds it."""
    wider(tables, appended, 2)
    says = Publication(appended, TableMode.APPEND, columns=(K, V, LATE))
    assert TablePublished(CheckpointId(2), appended, 2) == another().publisher.publish(says, CheckpointId(2))
    assert 2 == opened(tables, appended).version()


def test_going_back_removes_the_column_with_its_files(tables, appended):
    """The table shows the columns of the cut that it goes back to.

    A reader of the newer version still sees both columns.
    """
    file = tables.stage(appended, {"b": 2})
    there = Publication(appended, TableMode.APPEND, adds=(file,), columns=(K, V, LATE))
    tables.publisher.publish(there, CheckpointId(2))
    back = Publication(appended, TableMode.APPEND, removes=(file,), columns=(K, V), leaving=("late",))
    tables.publisher.publish(back, CheckpointId(3))
    assert [{"k": "a", "v": 1}] == opened(tables, appended).to_pyarrow_table().to_pylist()
    assert ["k", "v", "late"] == names(tables, appended, 2)


def test_a_foreign_column_stays_when_our_columns_come_and_go(tables, appended):
    """Only columns that one of our entries listed can be removed."""
    opened(tables, appended).alter.add_columns(Field("note", PrimitiveType("string"), nullable=True))
    wider(tables, appended, 2)
    assert ["k", "v", "note", "late"] == names(tables, appended)
    back = Publication(appended, TableMode.APPEND, columns=(K, V), leaving=("late",))
    tables.publisher.publish(back, CheckpointId(3))
    assert ["k", "v", "note"] == names(tables, appended)


def test_a_foreign_commit_in_between_is_not_overwritten(tables, another, appended):
    """A log entry is linked into place only as the next version.

    If another commit came first, the publisher looks again.
    """
    slow = another()
    slow.logs.log(appended).current()
    opened(tables, appended).alter.add_columns(Field("note", PrimitiveType("string"), nullable=True))
    assert TablePublished(CheckpointId(2), appended, 3, COMES) == wider(slow, appended, 2)
    assert ["k", "v", "note", "late"] == names(tables, appended)
    log = tables.warehouse.path(appended) / "_delta_log"
    assert [] == [path.name for path in log.iterdir() if path.suffix == ".tmp"]


def test_a_foreign_column_with_the_name_of_a_new_one_is_named(tables, another, appended, schema):
    """The check names it before the commit point, the publisher after it.

    Nothing of the other writer is overwritten.
    """
    opened(tables, appended).alter.add_columns(Field("late", PrimitiveType("string"), nullable=True))
    later = another()
    declared = schema.append(pa.field("late", pa.float64()))
    with pytest.raises(ValueError, match="has column late as string, and the pipeline writes double"):
        later.output.ensure(appended, declared, TableMode.APPEND, Shows(columns=(K, V)))
    answer = wider(tables, appended, 2)
    assert isinstance(answer, PublishFailed)
    assert "has column late as string, and checkpoint 2 has it as double" in answer.error


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table.alter.add_constraint({"positive": "v > 0"}), "has the check constraint positive"),
        (lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}), "is append-only"),
    ],
)
def test_a_feature_that_forbids_publishing_also_forbids_new_columns(tables, appended, change, says):
    """delta-rs does not check such a log entry, so Tidemark's own rules do."""
    file = tables.stage(appended, {"b": 2})
    there = Publication(appended, TableMode.APPEND, adds=(file,), columns=(K, V, LATE))
    tables.publisher.publish(there, CheckpointId(2))
    change(opened(tables, appended))
    back = Publication(appended, TableMode.APPEND, removes=(file,), columns=(K, V), leaving=("late",))
    answer = tables.publisher.publish(back, CheckpointId(3))
    assert isinstance(answer, PublishFailed)
    assert says in answer.error


def test_a_type_that_needs_a_feature_brings_it_in_the_same_commit(tables, appended):
    """The type is a timestamp without time zone. The protocol tells readers of the feature, and writers go on."""
    when = TableColumn("at", "timestamp_ntz")
    tables.publisher.publish(Publication(appended, TableMode.APPEND, columns=(K, V, when)), CheckpointId(2))
    protocol = opened(tables, appended).protocol()
    assert (3, 7, ["timestampNtz"]) == (
        protocol.min_reader_version,
        protocol.min_writer_version,
        protocol.reader_features,
    )
    assert {"appendOnly", "invariants", "timestampNtz"} == set(protocol.writer_features)
    more = Publication(appended, TableMode.APPEND, adds=(tables.stage(appended, {"c": 3}),), columns=(K, V, when))
    assert isinstance(tables.publisher.publish(more, CheckpointId(3)), TablePublished)
    assert 2 == opened(tables, appended).to_pyarrow_table().num_rows


@pytest.mark.parametrize("within", [pa.map_(pa.string(), NTZ), pa.list_(pa.map_(NTZ, pa.struct([("a", pa.int64())])))])
def test_a_new_table_has_the_feature_that_a_type_within_a_map_needs(tmp_path, within):
    """delta-rs itself makes a table then that it cannot read."""
    columns = pa.schema([("k", pa.string()), ("nested", within)])
    for _ in range(2):
        DeltaLog(place_in(tmp_path, "table")).create(columns, {"delta.logRetentionDuration": "interval 1 days"}, "said")
    made = DeltaTable(str(tmp_path / "table"))
    assert ["timestampNtz"] == made.protocol().reader_features
    assert ("said", "interval 1 days") == (
        made.metadata().description,
        made.metadata().configuration["delta.logRetentionDuration"],
    )
    assert ["k", "nested"] == made.to_pyarrow_table().column_names


@pytest.mark.spark
def test_spark_reads_every_version_across_the_change(spark, tables, appended):
    """Spark reads the newest version with the new columns, and older ones with theirs.

    No row and no value is missing.
    """
    file = tables.stage(appended, {"b": 2})
    there = Publication(appended, TableMode.APPEND, adds=(file,), columns=(K, V, LATE))
    tables.publisher.publish(there, CheckpointId(2))
    back = Publication(appended, TableMode.APPEND, removes=(file,), columns=(K, V), leaving=("late",))
    tables.publisher.publish(back, CheckpointId(3))
    path = str(tables.warehouse.path(appended))
    reader = spark.read.format("delta")
    assert [("a", 1)] == [tuple(row) for row in reader.load(path).collect()]
    then = reader.option("versionAsOf", 2).load(path)
    assert ["k", "v", "late"] == then.columns
    assert [("a", 1, None), ("b", 2, None)] == sorted(tuple(row) for row in then.collect())
    assert json.loads(then.schema.json())["fields"][2]["metadata"]["comment"].endswith("after checkpoint 1")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES ('c', 3)")
    assert 2 == opened(tables, appended).to_pyarrow_table().num_rows


def test_the_columns_of_the_fixture_are_the_schema(schema):
    """The fixture's rows have the columns of the schema with which the tables are made."""
    assert (K, V) == declared_columns(schema)
