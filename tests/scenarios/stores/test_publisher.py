"""Tests that a checkpoint is published once and no row twice, after any crash and despite other writers."""

from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.messages import CompactFiles, FilesCompacted, Publication, PublishFailed, TablePublished
from jobs.sinks.staged_files import StagedFiles
from jobs.storage.address import StoreUrl
from jobs.warehouse.compaction import CompactionEndedError, Compactor
from jobs.warehouse.delta_log import CommitMoment
from jobs.warehouse.output_tables import OutputTables, TableMismatchError
from jobs.warehouse.publisher import TRIES, Publisher
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse

MODES = (TableMode.APPEND, TableMode.UPSERT)


def _content(tables, table):
    data = DeltaTable(str(tables.warehouse.path(table))).to_pyarrow_table()
    return sorted(zip(data["k"].to_pylist(), data["v"].to_pylist(), strict=True))


def _publication(mode, table, *files):
    return Publication(table, mode, adds=files, files=files)


def _publish(tables, publication, checkpoint):
    return tables.publisher.publish(publication, CheckpointId(checkpoint))


@pytest.mark.parametrize("mode", MODES)
def test_publishing_again_changes_nothing_and_answers_the_same_version(tables, another, silver, schema, mode):
    """This holds in the same process and in another one, and after later checkpoints and foreign commits."""
    tables.output.ensure(silver, schema, mode)
    first = _publication(mode, silver, tables.stage(silver, {"a": 1}))
    expected = _publish(tables, first, 1)
    assert expected == _publish(tables, first, 1) == _publish(another(), first, 1)
    assert 1 == DeltaTable(str(tables.warehouse.path(silver))).version()
    _publish(tables, _publication(mode, silver, tables.stage(silver, {"b": 2})), 2)
    DeltaTable(str(tables.warehouse.path(silver))).alter.set_table_properties({"delta.checkpointInterval": "20"})
    before = _content(tables, silver)
    assert expected == _publish(another(), first, 1)
    assert before == _content(tables, silver)


def test_an_append_adds_and_an_upsert_becomes_exactly_its_files(tables, another, silver, schema):
    tables.output.ensure(silver, schema, TableMode.UPSERT)
    kept, old, new = (tables.stage(silver, {name: number}) for number, name in enumerate("abc"))
    _publish(tables, _publication(TableMode.UPSERT, silver, kept, old), 1)
    _publish(another(), _publication(TableMode.UPSERT, silver, kept, new), 2)
    assert [("a", 0), ("c", 2)] == _content(tables, silver)
    _publish(tables, _publication(TableMode.UPSERT, silver), 3)
    assert [] == _content(tables, silver)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moment", CommitMoment)
def test_a_lost_reply_or_request_publishes_once(warehouse, tables, silver, schema, mode, moment):
    """After an error before or after the commit, the publisher reads the log again."""
    tables.output.ensure(silver, schema, mode)
    publication = _publication(mode, silver, tables.stage(silver, {"a": 1}))
    struck = []

    def hook(now):
        if now is moment and not struck:
            struck.append(now)
            raise OSError("the reply is lost")

    publisher = Publisher(warehouse, TableLogs(warehouse, hook=hook))
    assert TablePublished(CheckpointId(1), silver, 1) == publisher.publish(publication, CheckpointId(1))
    assert [("a", 1)] == _content(tables, silver)
    assert [moment] == struck


def test_a_publisher_gives_up_on_a_log_that_always_fails(warehouse, tables, silver, schema):
    """The publisher tries a bounded number of times. The error names the table, and says that nothing is lost."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    struck = []

    def hook(now):
        if now is CommitMoment.BEFORE:
            struck.append(now)
            raise OSError("disk full")

    publisher = Publisher(warehouse, TableLogs(warehouse, hook=hook))
    publication = _publication(TableMode.APPEND, silver, tables.stage(silver, {"a": 1}))
    result = publisher.publish(publication, CheckpointId(1))
    assert isinstance(result, PublishFailed)
    assert "table silver/flights: its log refuses the commit (disk full)" in result.error
    assert TRIES == len(struck)


@pytest.mark.parametrize("mode", MODES)
def test_two_publishers_of_one_checkpoint_enter_it_once(warehouse, tables, another, silver, schema, mode):
    """A zombie and its successor publish the same entry at the same moment."""
    tables.output.ensure(silver, schema, mode)
    publication = _publication(mode, silver, tables.stage(silver, {"a": 1}))
    rival, met = another(), []

    def hook(now):
        if now is CommitMoment.BEFORE and not met:
            met.append(_publish(rival, publication, 1))

    ours = Publisher(warehouse, TableLogs(warehouse, hook=hook)).publish(publication, CheckpointId(1))
    assert [ours] == met
    assert [("a", 1)] == _content(tables, silver)


def test_a_tick_that_was_overtaken_publishes_nothing_and_misses_no_file(warehouse, tables, another, silver, schema):
    """Its successor has published a newer checkpoint and deleted the older one's file. The table stays as it is."""
    tables.output.ensure(silver, schema, TableMode.UPSERT)
    older = _publication(TableMode.UPSERT, silver, tables.stage(silver, {"a": 1}))
    newer = _publication(TableMode.UPSERT, silver, tables.stage(silver, {"b": 2}))
    assert () == tables.output.check([silver])
    _publish(another(), newer, 2)
    warehouse.path(older.files[0].path).unlink()
    result = tables.publisher.publish(older, CheckpointId(1), by=Generation(1))
    assert TablePublished(CheckpointId(1), silver, 1) == result
    assert [("b", 2)] == _content(tables, silver)


def _insert(path):
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(path, pa.table({"k": ["foreign"], "v": [99]}), mode="append")


FOREIGN = {
    "INSERT": _insert,
    "OPTIMIZE": lambda path: DeltaTable(path).optimize.compact(),
    "DELETE": lambda path: DeltaTable(path).delete("k = 'a'"),
    "UPDATE": lambda path: DeltaTable(path).update({"v": "7"}, predicate="k = 'a'"),
    "VACUUM": lambda path: DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
    "PROPERTIES": lambda path: DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "20"}),
}
APPEND_EXPECTED = {
    "INSERT": [("a", 1), ("b", 2), ("c", 3), ("foreign", 99)],
    "DELETE": [("b", 2), ("c", 3)],
    "UPDATE": [("a", 7), ("b", 2), ("c", 3)],
}


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("between", [True, False], ids=["during", "before"])
@pytest.mark.parametrize("mode", MODES)
def test_a_foreign_commit_at_any_step_doubles_nothing(tables, silver, schema, mode, foreign, between):
    warehouse = tables.warehouse
    path = str(warehouse.path(silver))
    tables.output.ensure(silver, schema, mode)
    first, second = tables.stage(silver, {"a": 1}), tables.stage(silver, {"b": 2})
    _publish(tables, _publication(mode, silver, first, second), 1)
    third = tables.stage(silver, {"c": 3})
    files = (third,) if mode is TableMode.APPEND else (first, second, third)
    struck = []

    def hook(now):
        if now is CommitMoment.BEFORE and not struck:
            struck.append(now)
            FOREIGN[foreign](path)

    if not between:
        hook(CommitMoment.BEFORE)
    result = Publisher(warehouse, TableLogs(warehouse, hook=hook)).publish(
        _publication(mode, silver, *files), CheckpointId(2)
    )
    assert isinstance(result, TablePublished)
    exact = [("a", 1), ("b", 2), ("c", 3)]
    assert (APPEND_EXPECTED.get(foreign, exact) if mode is TableMode.APPEND else exact) == _content(tables, silver)
    if mode is TableMode.UPSERT and foreign not in ("VACUUM", "PROPERTIES"):
        assert "foreign" in result.note
        assert "at version 2" in result.note


def test_a_missing_or_short_staged_file_is_named_and_nothing_is_published(warehouse, tables, silver, schema):
    tables.output.ensure(silver, schema, TableMode.APPEND)
    whole, broken = tables.stage(silver, {"a": 1}), tables.stage(silver, {"b": 1})
    warehouse.path(broken.path).write_bytes(b"PAR1")
    result = _publish(tables, _publication(TableMode.APPEND, silver, whole, broken), 1)
    assert isinstance(result, PublishFailed)
    assert f"staged file {broken.path} of checkpoint 1 has 4 bytes instead of {broken.bytes}" in result.error
    warehouse.path(broken.path).unlink()
    result = _publish(tables, _publication(TableMode.APPEND, silver, whole, broken), 1)
    assert "is missing" in result.error
    assert [] == _content(tables, silver)


def test_a_file_of_another_table_is_refused(tables, silver, schema):
    tables.output.ensure(silver, schema, TableMode.APPEND)
    foreign = tables.stage("gold/routes", {"a": 1})
    result = _publish(tables, _publication(TableMode.APPEND, silver, foreign), 1)
    assert "does not lie in the table's folder" in result.error


def test_a_missing_table_is_a_failure_by_name(tables, silver):
    result = _publish(tables, _publication(TableMode.APPEND, silver), 1)
    assert isinstance(result, PublishFailed)
    assert "table silver/flights: its log cannot be used" in result.error


def test_a_log_checkpoint_keeps_opening_cheap_and_removes_no_version(warehouse, tables, silver, schema):
    """Maintenance of an output table writes a Delta log checkpoint, and every version stays readable."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    for number in range(1, 61):
        file = tables.stage(silver, {f"k{number}": number})
        _publish(tables, _publication(TableMode.APPEND, silver, file), number)
        tables.publisher.maintain(silver)
    log = warehouse.path(silver) / "_delta_log"
    assert 1 == len(list(log.glob("*.checkpoint.parquet")))
    assert 61 == len(list(log.glob("*.json")))
    assert 1 == DeltaTable(str(warehouse.path(silver)), version=1).to_pyarrow_table().num_rows


# ------------------------------------------------------------------
# Without Spark, small files of real Delta tables are compacted into larger ones, which a publication puts in their
# place.


@pytest.fixture
def compactor(warehouse):
    return Compactor(warehouse, Generation(2), lambda: False)


def publish(tables, table, checkpoint, *files, compactions=()):
    publication = Publication(table, TableMode.APPEND, adds=files, compactions=compactions)
    return tables.publisher.publish(publication, CheckpointId(checkpoint))


def filled(tables, table, schema, files=4):
    tables.output.ensure(table, schema, TableMode.APPEND)
    staged = [tables.stage(table, {f"{number}": number, f"{number}+": number}) for number in range(files)]
    for checkpoint, file in enumerate(staged, start=1):
        publish(tables, table, checkpoint, file)
    return staged


def asked(table, files_min=3, bytes_max=1_000_000):
    return CompactFiles((table,), files_min, bytes_max)


def active(tables, table):
    opened = DeltaTable(str(tables.warehouse.path(table)))
    return {f"{table}/{path}" for path in pa.table(opened.get_add_actions()).column("path").to_pylist()}


def content(tables, table):
    rows = DeltaTable(str(tables.warehouse.path(table))).to_pyarrow_table()
    return sorted(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


def only(answer):
    (found,) = answer.found
    return found.compactions


def test_small_files_change_places_with_one_of_the_same_rows(tables, another, compactor, silver, schema):
    """The table has the small files until the next publication. Publishing again changes nothing."""
    staged = filled(tables, silver, schema)
    before = content(tables, silver)
    (made,) = only(compactor.compact(asked(silver)))
    assert made.of == tuple(sorted((file.path for file in staged), key=made.of.index))
    assert {*made.of} == active(tables, silver)
    assert made.into.rows == len(before)
    new = tables.stage(silver, {"new": 9})
    for publisher in (tables, tables, another()):
        assert TablePublished(CheckpointId(5), silver, 5) == publish(publisher, silver, 5, new, compactions=(made,))
        assert {made.into.path, new.path} == active(tables, silver)
        assert [*before, ("new", 9)] == content(tables, silver)
    logged = pa.table(DeltaTable(str(tables.warehouse.path(silver))).get_add_actions()).to_pylist()
    (shown,) = [each for each in logged if each["num_records"] == made.into.rows]
    assert (0, 3) == (shown["min"]["v"], shown["max"]["v"])


def test_a_compaction_is_left_out_if_somebody_changed_one_of_its_files(tables, compactor, silver, schema):
    """Another writer deletes a row, or overwrites all. The job's new rows are added. No deleted row comes back."""
    filled(tables, silver, schema)
    made = only(compactor.compact(asked(silver)))
    DeltaTable(str(tables.warehouse.path(silver))).delete("k = '2'")
    new = tables.stage(silver, {"new": 9})
    assert isinstance(publish(tables, silver, 5, new, compactions=made), TablePublished)
    assert "2" not in dict(content(tables, silver))
    assert dict(content(tables, silver))["new"] == 9
    write_deltalake(
        str(tables.warehouse.path(silver)), pa.table({"k": ["x"], "v": [1]}, schema=schema), mode="overwrite"
    )
    publish(tables, silver, 6, compactions=made)
    assert [("x", 1)] == content(tables, silver)


def test_a_damaged_new_file_is_left_out(tables, warehouse, compactor, silver, schema):
    """Nobody needs the new file, because the table still has the small ones."""
    filled(tables, silver, schema)
    before = content(tables, silver)
    made = only(compactor.compact(asked(silver)))
    warehouse.path(made[0].into.path).unlink()
    assert isinstance(publish(tables, silver, 5, compactions=made), TablePublished)
    assert before == content(tables, silver)


def test_files_with_other_columns_stay_apart(tables, compactor, warehouse, silver, schema):
    """Files from before a new column are compacted only with each other. So engines read what they read before."""
    staged = filled(tables, silver, schema, files=5)
    for file in staged[3:]:
        wide = pq.read_table(warehouse.path(file.path)).append_column("more", pa.array([1, 1]))
        pq.write_table(wide, warehouse.path(file.path))
    made = only(compactor.compact(asked(silver)))
    assert [{file.path for file in staged[:3]}, {file.path for file in staged[3:]}] == sorted(
        ({*each.of} for each in made), key=len, reverse=True
    )
    assert {("k", "v"), ("k", "v", "more")} == {
        tuple(pq.read_schema(warehouse.path(each.into.path)).names) for each in made
    }


def test_files_of_others_are_left_alone(tables, compactor, silver, schema):
    """Files of other writers do not hold rows of the job. Two files of the job are too few to compact."""
    filled(tables, silver, schema, files=2)
    for _ in range(4):
        write_deltalake(
            str(tables.warehouse.path(silver)), pa.table({"k": ["x"], "v": [1]}, schema=schema), mode="append"
        )
    assert FilesCompacted() == compactor.compact(asked(silver))


def test_one_request_ends_after_a_large_file_and_says_that_there_is_more(tables, compactor, warehouse, silver, schema):
    size = filled(tables, silver, schema, files=12)[0].bytes
    first = compactor.compact(asked(silver, bytes_max=4 * size))
    assert (silver,) == first.more
    assert 1 == len(only(first))
    publish(tables, silver, 13, compactions=only(first))
    checkpoint = 14
    while only(answer := compactor.compact(asked(silver, bytes_max=4 * size))):
        publish(tables, silver, checkpoint, compactions=only(answer))
        checkpoint += 1
        if not answer.more:
            break
    assert len(active(tables, silver)) < 12
    assert 24 == len(content(tables, silver))


def test_after_an_error_nothing_is_left(tables, warehouse, silver, schema):
    """An unreadable file ends the request, and so does the end of the attempt. Files written until then are deleted."""
    staged = filled(tables, silver, schema, files=3)
    large = [tables.stage(silver, {f"{number}-{row}": row for row in range(9_000)}) for number in range(3)]
    publish(tables, silver, 4, *large)
    opened = []

    def is_over():
        opened.append(1)
        return len(opened) > 8

    with pytest.raises(CompactionEndedError):
        Compactor(warehouse, Generation(2), is_over).compact(asked(silver))
    warehouse.path(large[0].path).write_bytes(b"damaged")
    with pytest.raises(pa.ArrowException):
        Compactor(warehouse, Generation(2), lambda: False).compact(asked(silver))
    assert {file.path for file in staged} <= active(tables, silver)
    assert warehouse.path(f"{silver}/_data/2").is_dir()
    assert [] == [*warehouse.path(silver).glob("_data/2/*.parquet")]


# ------------------------------------------------------------------
# Files of partitioned tables are published, replaced and removed, in a folder and in a real object store.


BY = ("city",)
CITIES = ["a/b", "100 % {x}", "größe=1", None, "it s %2F", "C:*?", "x"]


@pytest.fixture(params=["folder", "store"])
def place(request, warehouse):
    if request.param == "folder":
        return warehouse
    server, patch = request.getfixturevalue("store_server"), request.getfixturevalue("monkeypatch")
    for name, value in server.environment.items():
        patch.setenv(name, value)
    return Warehouse(StoreUrl(f"s3://lake/{uuid4().hex}"), warehouse.paths, writer=warehouse.writer)


class Laid:
    """A partitioned table with columns city and n, as a tick writes it."""

    schema = pa.schema([("city", pa.string()), ("n", pa.int64())])

    def __init__(self, warehouse, table, mode):
        self.warehouse, self.table, self.mode, self.logs = warehouse, table, mode, TableLogs(warehouse)
        self.output = OutputTables(warehouse, self.logs)
        self.output.ensure(table, self.schema, mode, partitioned_by=BY)

    def stage(self, number, *, by=BY):
        job = self.warehouse.paths.job
        writer = StagedFiles(str(self.warehouse.root), job, Generation(1), VertexId("rows"), number)
        rows = pa.table({"city": CITIES, "n": [number] * len(CITIES)}, schema=self.schema)
        return writer.write_partitions(self.table, rows, by)

    def publish(self, checkpoint, *files, removes=()):
        adds, whole = (files, ()) if self.mode is TableMode.APPEND else ((), files)
        publication = Publication(self.table, self.mode, adds=adds, files=whole, removes=removes)
        return Publisher(self.warehouse, TableLogs(self.warehouse)).publish(publication, CheckpointId(checkpoint))

    def rows(self):
        query = (
            QueryBuilder().register("t", DeltaTable(str(self.warehouse.place(self.table)))).execute("SELECT * FROM t")
        )
        return sorted(
            zip(
                *pa.RecordBatchReader.from_stream(query).read_all().select(["city", "n"]).to_pydict().values(),
                strict=True,
            ),
            key=str,
        )


def of(*numbers):
    return sorted(((city, number) for number in numbers for city in CITIES), key=str)


@pytest.mark.parametrize("mode", [TableMode.APPEND, TableMode.UPSERT])
def test_files_of_all_partitions_are_published_replaced_and_removed(place, silver, mode):
    """Another process finds the files in the log, whatever the names of their folders."""
    laid = Laid(place, silver, mode)
    first, second = laid.stage(1), laid.stage(2)
    assert len(CITIES) == len(first)
    assert isinstance(laid.publish(1, *first), TablePublished)
    assert of(1) == laid.rows()
    both = (*first, *second) if mode is TableMode.UPSERT else second
    version = laid.publish(2, *both).version
    assert (of(1, 2), version) == (laid.rows(), laid.publish(2, *both).version)
    if mode is TableMode.UPSERT:
        assert isinstance(laid.publish(3, *second), TablePublished)
    else:
        assert isinstance(laid.publish(3, removes=first), TablePublished)
    assert of(2) == laid.rows()
    assert BY == tuple(DeltaTable(str(place.place(silver))).metadata().partition_columns)


def test_another_layout_is_refused(place, silver):
    laid = Laid(place, silver, TableMode.APPEND)
    for by in ((), ("n",)):
        with pytest.raises(TableMismatchError, match="is laid out by city, and the pipeline says"):
            OutputTables(place, TableLogs(place)).ensure(silver, Laid.schema, TableMode.APPEND, partitioned_by=by)
        refused = laid.publish(1, *laid.stage(1, by=by))
        assert isinstance(refused, PublishFailed)
        assert "is laid out by city, and file" in refused.error
    assert [] == laid.rows()


def test_a_vacuum_keeps_files_of_partitions_that_are_not_published(warehouse, silver):
    """The files lie below a folder whose name begins with an underscore."""
    laid = Laid(warehouse, silver, TableMode.APPEND)
    first, second = laid.stage(1), laid.stage(2)
    laid.publish(1, *first)
    table = DeltaTable(str(warehouse.place(silver)))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    laid.publish(2, *second)
    assert of(1, 2) == laid.rows()
