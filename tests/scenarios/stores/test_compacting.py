"""Small files of real Delta tables become larger ones, and a publication lets them change places. Without Spark."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import CompactFiles, FilesCompacted, Publication, TablePublished
from jobs.warehouse.compaction import CompactionEndedError, Compactor


@pytest.fixture
def compactor(warehouse):
    """Return what compacts tables in generation 2."""
    return Compactor(warehouse, Generation(2), lambda: False)


def publish(tables, table, checkpoint, *files, compactions=()):
    """Publish files, and compactions."""
    publication = Publication(table, TableMode.APPEND, adds=files, compactions=compactions)
    return tables.publisher.publish(publication, CheckpointId(checkpoint))


def filled(tables, table, schema, files=4):
    """Make a table of small files, one for each checkpoint. Return their handles."""
    tables.output.ensure(table, schema, TableMode.APPEND)
    staged = [tables.stage(table, {f"{number}": number, f"{number}+": number}) for number in range(files)]
    for checkpoint, file in enumerate(staged, start=1):
        publish(tables, table, checkpoint, file)
    return staged


def asked(table, files_min=3, bytes_max=1_000_000):
    """Return a request for one table."""
    return CompactFiles((table,), files_min, bytes_max)


def active(tables, table):
    """Return the active files, relative to the warehouse."""
    opened = DeltaTable(str(tables.warehouse.path(table)))
    return {f"{table}/{path}" for path in pa.table(opened.get_add_actions()).column("path").to_pylist()}


def content(tables, table):
    """Return the rows of the table."""
    rows = DeltaTable(str(tables.warehouse.path(table))).to_pyarrow_table()
    return sorted(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


def only(answer):
    """Return the compactions of an answer about one table."""
    (found,) = answer.found
    return found.compactions


def test_small_files_change_places_with_one_of_the_same_rows(tables, another, compactor, silver, schema):
    """The table shows them until the next publication. A repetition changes nothing."""
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
    """Another writer deletes a row, or overwrites all. The rows that the job adds come in, and nothing comes back."""
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
    """Nobody needs it, because the table has the small files."""
    filled(tables, silver, schema)
    before = content(tables, silver)
    made = only(compactor.compact(asked(silver)))
    warehouse.path(made[0].into.path).unlink()
    assert isinstance(publish(tables, silver, 5, compactions=made), TablePublished)
    assert before == content(tables, silver)


def test_files_with_other_columns_stay_apart(tables, compactor, warehouse, silver, schema):
    """A file from before a new column is put together with its like. So engines read what they read before."""
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
    """Their rows are not the job's. With two files of the job, there is nothing to do."""
    filled(tables, silver, schema, files=2)
    for _ in range(4):
        write_deltalake(
            str(tables.warehouse.path(silver)), pa.table({"k": ["x"], "v": [1]}, schema=schema), mode="append"
        )
    assert FilesCompacted() == compactor.compact(asked(silver))


def test_one_request_ends_after_a_large_file_and_says_that_there_is_more(tables, compactor, warehouse, silver, schema):
    """The next request goes on. In the end, each file is as large as it may be."""
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
    """A file that cannot be read ends the request. So does the end of the attempt. What was written is deleted."""
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
