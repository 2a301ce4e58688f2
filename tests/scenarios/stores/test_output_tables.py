"""Tests output tables beside other writers: a table is made once, and checked before each commit point.

A table that forbids publishing is refused with an error that names it.
"""

import shutil
import zlib
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.table import TableFeatures

from checkpointing.columns import TableColumn
from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId, job_name
from checkpointing.messages import Publication, PublishFailed, TablePublished
from checkpointing.metadata.paths import ProtocolPaths
from jobs.sinks.port import NOTHING_SAID, Description
from jobs.sinks.staged_files import StagedFiles
from jobs.storage.place import place_in
from jobs.warehouse.delta_log import DeltaLog
from jobs.warehouse.output_tables import OutputTables, Shows, TableMismatchError, TableNotCheckedError
from jobs.warehouse.table_columns import declared_columns
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse


def _open(tables, table):
    return DeltaTable(str(tables.warehouse.path(table)))


def test_a_table_is_made_once_and_keeps_its_history(tables, another, silver, schema):
    """A second process finds the table. Its properties forbid deleting files and log entries of old cuts by age."""
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
    """A starting tick changes no columns. A new column comes with the entry that lists it. Old rows have null (D6)."""
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
    """The first tick died, and the user corrected the pipeline. No row was ever published into the table."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    corrected = pa.schema([("k", pa.int64())])
    another().output.ensure(silver, corrected, TableMode.APPEND)
    assert corrected.names == [field.name for field in _open(tables, silver).schema().fields]
    assert "long" == _open(tables, silver).schema().fields[0].type.type


def test_a_table_of_another_job_is_refused(tables, silver, schema):
    tables.output.ensure(silver, schema, TableMode.APPEND)
    other = Warehouse(tables.warehouse.root, ProtocolPaths(job_name("other")))
    with pytest.raises(TableMismatchError, match="table silver/flights belongs to job flights"):
        OutputTables(other, TableLogs(other)).ensure(silver, schema, TableMode.APPEND)


def test_an_upsert_does_not_erase_rows_that_the_job_never_wrote(tables, silver, schema):
    """If the columns fit, Tidemark appends to a table with foreign rows, but does not upsert into it."""
    path = str(tables.warehouse.path(silver))
    write_deltalake(path, pa.table({"k": ["theirs"], "v": [1]}, schema=schema))
    with pytest.raises(TableMismatchError, match="holds rows that job flights never wrote, and an upsert would erase"):
        tables.output.ensure(silver, schema, TableMode.UPSERT)
    tables.output.ensure(silver, schema, TableMode.APPEND)
    assert 1 == _open(tables, silver).to_pyarrow_table().num_rows


def test_a_users_nullable_column_stops_an_upsert_by_name_and_not_an_append(tables, silver, schema):
    """A user adds the column between two checkpoints.

    Files of the job have null in this column, so an upsert would erase the user's values.
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
    """If the feature is enabled before the commit point, the check finds it.

    If the feature is enabled after the commit point, publishing fails with the feature's name.
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
    """Staged files were not checked against the constraint. Once the user drops it, the check finds nothing."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    _open(tables, silver).alter.add_constraint({"positive": "v > 0"})
    (problem,) = tables.output.check([silver])
    assert "has the check constraint positive" in problem
    _open(tables, silver).alter.drop_constraint("positive")
    assert () == tables.output.check([silver])


def test_an_append_only_table_stops_an_upsert_by_name(tables, silver, schema):
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
    """The table's state is unknown then, so the check raises an error that names it. Later the check passes."""
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


# ------------------------------------------------------------------
# Tests that a table's columns change in the same commit that publishes a checkpoint. Foreign columns stay.


K, V = TableColumn("k", "string"), TableColumn("v", "long")
NTZ = pa.timestamp("us")
LATE = TableColumn("late", "double", CheckpointId(1))
COMES = "column late is new and holds only what came after checkpoint 1"


def opened(tables, table, version=None):
    return DeltaTable(str(tables.warehouse.path(table)), version=version)


def names(tables, table, version=None):
    return [field.name for field in opened(tables, table, version).schema().fields]


@pytest.fixture
def appended(tables, silver, schema):
    tables.output.ensure(silver, schema, TableMode.APPEND)
    says = Publication(silver, TableMode.APPEND, adds=(tables.stage(silver, {"a": 1}),), columns=(K, V))
    assert isinstance(tables.publisher.publish(says, CheckpointId(1)), TablePublished)
    return silver


def wider(tables, table, number, **parts):
    file = tables.stage(table, {"b": 2})
    says = Publication(table, TableMode.APPEND, adds=(file,), columns=(K, V, LATE), **parts)
    return tables.publisher.publish(says, CheckpointId(number))


def test_a_column_comes_with_the_files_in_one_commit(tables, appended):
    """No version shows the column without its files or the files without it.

    The old file stays active, with null in the new column.
    """
    assert TablePublished(CheckpointId(2), appended, 2, COMES) == wider(tables, appended, 2)
    assert ["k", "v"] == names(tables, appended, 1)
    assert ["k", "v", "late"] == names(tables, appended)
    rows = opened(tables, appended).to_pyarrow_table().sort_by("k").to_pylist()
    assert [{"k": "a", "v": 1, "late": None}, {"k": "b", "v": 2, "late": None}] == rows
    late = opened(tables, appended).schema().fields[2]
    assert {"comment": "holds only what came after checkpoint 1"} == late.metadata
    assert "flights" == opened(tables, appended).metadata().configuration["tidemark.job"]


def test_going_back_removes_the_column_with_its_files(tables, appended):
    """The table gets the columns of the cut that it goes back to.

    A reader of the newer version still sees the removed column.
    """
    file = tables.stage(appended, {"b": 2})
    there = Publication(appended, TableMode.APPEND, adds=(file,), columns=(K, V, LATE))
    tables.publisher.publish(there, CheckpointId(2))
    back = Publication(appended, TableMode.APPEND, removes=(file,), columns=(K, V), leaving=("late",))
    tables.publisher.publish(back, CheckpointId(3))
    assert [{"k": "a", "v": 1}] == opened(tables, appended).to_pyarrow_table().to_pylist()
    assert ["k", "v", "late"] == names(tables, appended, 2)


def test_a_foreign_column_stays_when_our_columns_come_and_go(tables, appended):
    opened(tables, appended).alter.add_columns(Field("note", PrimitiveType("string"), nullable=True))
    wider(tables, appended, 2)
    assert ["k", "v", "note", "late"] == names(tables, appended)
    back = Publication(appended, TableMode.APPEND, columns=(K, V), leaving=("late",))
    tables.publisher.publish(back, CheckpointId(3))
    assert ["k", "v", "note"] == names(tables, appended)


def test_a_foreign_commit_in_between_is_not_overwritten(tables, another, appended):
    """A log entry is linked into place only as the next version.

    If another commit came first, the publisher reads the log again.
    """
    slow = another()
    slow.logs.log(appended).current()
    opened(tables, appended).alter.add_columns(Field("note", PrimitiveType("string"), nullable=True))
    assert TablePublished(CheckpointId(2), appended, 3, COMES) == wider(slow, appended, 2)
    assert ["k", "v", "note", "late"] == names(tables, appended)
    log = tables.warehouse.path(appended) / "_delta_log"
    assert [] == [path.name for path in log.iterdir() if path.suffix == ".tmp"]


def test_a_foreign_column_with_the_name_of_a_new_one_is_named(tables, another, appended, schema):
    """A starting tick names the column, and so does the publisher. Nothing of the other writer is overwritten."""
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
    """delta-rs does not check a log entry that changes columns, so Tidemark checks the table itself."""
    file = tables.stage(appended, {"b": 2})
    there = Publication(appended, TableMode.APPEND, adds=(file,), columns=(K, V, LATE))
    tables.publisher.publish(there, CheckpointId(2))
    change(opened(tables, appended))
    back = Publication(appended, TableMode.APPEND, removes=(file,), columns=(K, V), leaving=("late",))
    answer = tables.publisher.publish(back, CheckpointId(3))
    assert isinstance(answer, PublishFailed)
    assert says in answer.error


def test_a_type_that_needs_a_feature_brings_it_in_the_same_commit(tables, appended):
    """The type is a timestamp without time zone. The protocol announces the feature to readers, and writers go on."""
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
    """delta-rs alone would create a table without the feature, which it then cannot read."""
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


# ------------------------------------------------------------------
# Tests that a table's metadata contain the pipeline's description of it, from the commit that publishes a checkpoint
# on.


SAYS = Description("orders as they came", {"k": "the shop's number"}, {"team": "sales"})
K, V = TableColumn("k", "string"), TableColumn("v", "long")


def comments(table: DeltaTable) -> dict[str, str]:
    return {field.name: field.metadata["comment"] for field in table.schema().fields if field.metadata}


def published(tables, table, number, columns=(K, V)) -> str:
    says = Publication(table, TableMode.APPEND, adds=(tables.stage(table, {str(number): 1}),), columns=columns)
    done = tables.publisher.publish(says, CheckpointId(number))
    assert isinstance(done, TablePublished)
    return done.note


def test_a_new_table_is_made_with_its_description(tables, silver, schema) -> None:
    """Readers see the description before the first row is there."""
    tables.output.ensure(silver, schema, TableMode.APPEND, says=SAYS)
    table = opened(tables, silver)
    assert ("orders as they came", "sales") == (table.metadata().description, table.metadata().configuration["team"])
    assert {"k": "the shop's number"} == comments(table)
    assert "flights" == table.metadata().configuration["tidemark.job"]


@pytest.fixture
def plain(tables, silver, schema):
    """Return a table that shows checkpoint 1 and has no description. A user has given it a property."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    published(tables, silver, 1)
    opened(tables, silver).alter.set_table_properties({"quality": "good"}, raise_if_not_exists=False)
    return silver


def test_a_table_that_exists_gets_its_description_with_the_next_rows(tables, plain, schema) -> None:
    """The same commit publishes the checkpoint. Properties that others have set stay, and so do the columns."""
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), SAYS)
    assert opened(tables, plain).metadata().description is None
    assert not published(tables, plain, 2)
    table = opened(tables, plain)
    assert {"team": "sales", "quality": "good"}.items() <= table.metadata().configuration.items()
    assert {"k": "the shop's number"} == comments(table)
    assert 2 == table.transaction_version(tables.warehouse.paths.transaction_id(plain))
    assert pa.table({"k": ["1", "2"], "v": [1, 1]}) == table.to_pyarrow_table().sort_by("k").cast(schema)


def test_metadata_are_written_only_when_they_change(tables, plain, schema) -> None:
    """Repeating the metadata at each checkpoint would only make the log longer."""
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), SAYS)
    for number in (2, 3, 4):
        published(tables, plain, number)
    log = tables.warehouse.path(plain) / "_delta_log"
    assert [True, False, False] == ["metaData" in entry.read_text() for entry in sorted(log.glob("*.json"))[-3:]]


def test_a_description_that_is_taken_out_stays_in_the_table(tables, plain, schema) -> None:
    """Somebody else may rely on the description by now, and Tidemark cannot know this."""
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), SAYS)
    published(tables, plain, 2)
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), NOTHING_SAID)
    published(tables, plain, 3)
    assert "orders as they came" == opened(tables, plain).metadata().description


def test_a_comment_comes_before_the_words_that_say_since_when_a_column_is_valid(tables, plain, schema) -> None:
    """These words stay, so that nobody takes the nulls of a late column for values."""
    said = Description(columns={"late": "minutes of delay"})
    tables.output.ensure(plain, schema, TableMode.APPEND, Shows((K, V)), said)
    note = published(tables, plain, 2, (K, V, LATE))
    assert "column late is new and minutes of delay; holds only what came after checkpoint 1" == note
    assert {"late": "minutes of delay; holds only what came after checkpoint 1"} == comments(opened(tables, plain))


# ------------------------------------------------------------------
# Tests state tables: their columns follow their files (D6), and they also show state that is stored in the entry (D2).


STATE = TableName("_tidemark/flights/state/join")
OLD = pa.schema([("k", pa.string()), ("v", pa.int32()), ("gone", pa.int64())])
NEW = pa.schema([("k", pa.string()), ("v", pa.int64()), ("more", pa.string())])
IN_OLD, IN_NEW = declared_columns(OLD), declared_columns(NEW)


@pytest.fixture
def writer(warehouse):
    """Return the object that stages the state's files."""
    return StagedFiles(str(warehouse.root), warehouse.paths.job, Generation(1), VertexId("join"), 1)


def rows(schema, *keys):
    return pa.Table.from_pylist([{"k": key, "v": 1} for key in keys], schema=schema)


def publish(tables, number, *files, columns=()):
    gone = ("gone",) if columns == IN_NEW else ()
    publication = Publication(STATE, TableMode.STATE, files=files, columns=columns, leaving=gone)
    answer = tables.publisher.publish(publication, CheckpointId(number))
    if isinstance(answer, TablePublished):
        tables.output.published(STATE, columns)
    return answer


def opened_state(tables, version=None):
    return DeltaTable(str(tables.warehouse.path(STATE)), version=version)


def types_of(table):
    return {field.name: field.type.type for field in table.schema().fields}


WAS = {"k": "string", "v": "integer", "gone": "long"}
IS = {"k": "string", "v": "long", "more": "string"}


@pytest.fixture
def evolving(tables, another, writer):
    tables.output.ensure(STATE, OLD, TableMode.STATE)
    old = writer.write(STATE, rows(OLD, "a"))
    publish(tables, 1, old)
    later = another()
    later.output.ensure(STATE, NEW, TableMode.STATE, Shows(IN_OLD))
    return later, old


def test_the_table_keeps_its_columns_while_the_entries_list_them(evolving, writer):
    """A later process ensures and checks the table, and publishes the old file again. The table stays as it was."""
    later, old = evolving
    assert () == later.output.check([STATE])
    publish(later, 2, old, writer.write(STATE, rows(OLD, "b")), columns=IN_OLD)
    assert WAS == types_of(opened_state(later))
    assert () == later.output.check([STATE])


def test_the_table_gets_its_columns_in_the_commit_that_publishes_all_files(evolving, writer):
    """One log entry removes the old files, adds the new ones and changes the columns.

    The old version reads as before.
    """
    later, _ = evolving
    before = opened_state(later).version()
    said = "column more is new, column gone is gone, column v was int and is now bigint"
    assert TablePublished(CheckpointId(2), STATE, before + 1, said) == publish(
        later, 2, writer.write(STATE, rows(NEW, "a")), writer.write(STATE, rows(NEW, "b")), columns=IN_NEW
    )
    assert IS == types_of(opened_state(later))
    got = opened_state(later).to_pyarrow_table().sort_by("k").to_pylist()
    assert [{"k": "a", "v": 1, "more": None}, {"k": "b", "v": 1, "more": None}] == got
    assert [{"k": "a", "v": 1, "gone": None}] == opened_state(later, before).to_pyarrow_table().to_pylist()
    assert "flights" == opened_state(later).metadata().configuration["tidemark.job"]
    assert () == later.output.check([STATE])
    assert TablePublished(CheckpointId(2), STATE, before + 1) == publish(later, 2)


def test_an_entry_from_before_the_change_of_columns_is_published_with_the_old_ones(evolving, writer):
    """The entry was committed before the change. Rolling it forward publishes a new file with the old columns."""
    later, _ = evolving
    publish(later, 2, writer.write(STATE, rows(OLD, "a", "b")), columns=IN_OLD)
    assert WAS == types_of(opened_state(later))
    publish(later, 3, writer.write(STATE, rows(NEW, "a", "b")), columns=IN_NEW)
    assert IS == types_of(opened_state(later))


def test_a_fork_shows_the_old_columns_until_its_files_have_the_new_ones(tables, writer):
    """A fork makes its tables with the columns of the imported entry, and first publishes the restored files."""
    tables.output.ensure(STATE, NEW, TableMode.STATE, Shows(IN_OLD, settled=False))
    publish(tables, 1, writer.write(STATE, rows(OLD, "a")), writer.write(STATE, rows(OLD, "b")), columns=IN_OLD)
    assert WAS == types_of(opened_state(tables))
    assert () == tables.output.check([STATE])
    publish(tables, 2, writer.write(STATE, rows(NEW, "a", "b")), columns=IN_NEW)
    assert IS == types_of(opened_state(tables))
    assert () == tables.output.check([STATE])


def test_a_state_in_the_entry_is_written_to_its_place_when_it_is_published(tables, writer):
    """The handle itself holds the content. So a lost or torn file is written again, and the table can be read (K3)."""
    tables.output.ensure(STATE, NEW, TableMode.STATE)
    file = writer.inline(STATE, rows(NEW, "a"))
    place = tables.warehouse.path(file.path)
    assert not place.exists()
    place.parent.mkdir(parents=True)
    place.write_bytes(b"torn")
    publish(tables, 1, file)
    assert (file.bytes, file.crc32) == (place.stat().st_size, zlib.crc32(place.read_bytes()))
    assert [{"k": "a", "v": 1, "more": None}] == opened_state(tables).to_pyarrow_table().to_pylist()


def test_a_missing_file_also_stops_the_change_of_columns(evolving, writer):
    later, _ = evolving
    file = writer.write(STATE, rows(NEW, "a"))
    gone = replace(file, path=file.path.replace("join-1-", "join-9-"))
    assert isinstance(publish(later, 2, gone, columns=IN_NEW), PublishFailed)
    assert WAS == types_of(opened_state(later))
