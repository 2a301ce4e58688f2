"""Rows are split into the files of their partitions."""

from datetime import date

import polars as pl
import pyarrow as pa
import pytest

from checkpointing.handles import Version
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.key_groups import KeyGroupRange
from checkpointing.metadata.paths import partition_of
from jobs.sinks import staged_files as module
from jobs.sinks.staged_files import PartitionError, StagedFiles, partitions
from jobs.state.keyed_rows import KeyedRows
from jobs.state.upsert_range import UpsertRange

TABLE = TableName("gold/t")
SCHEMA = pa.schema([("k", pa.int64()), ("city", pa.string()), ("v", pa.int64())])


def test_each_partition_gets_its_rows_in_their_order():
    """Null has a partition of its own, and an empty text is null. A date and a boolean are written as Delta does."""
    rows = pa.table(
        {
            "n": range(7),
            "city": ["a/b", "", "a/b", None, "null", "a/b", "__HIVE_DEFAULT_PARTITION__"],
            "at": [date(2024, 5, 1)] * 7,
            "good": [True, False, True, False, None, False, False],
        }
    )
    found = {folder: part.column("n").to_pylist() for folder, part in partitions(TABLE, rows, ("at", "city", "good"))}
    assert {
        "at=2024-05-01/city=a%2Fb/good=true": [0, 2],
        "at=2024-05-01/city=a%2Fb/good=false": [5],
        "at=2024-05-01/city=null/good=__HIVE_DEFAULT_PARTITION__": [4],
        "at=2024-05-01/city=__HIVE_DEFAULT_PARTITION__/good=false": [1, 3, 6],
    } == found


def test_values_that_no_folder_can_have_are_refused_by_name(monkeypatch):
    """A name has 255 bytes, and a task writes a bounded number of partitions."""
    long = pa.table({"city": ["x" * 251], "n": [1]})
    with pytest.raises(PartitionError, match=r"gold/t: a value of partition column city .* 255 bytes .*shorter"):
        list(partitions(TABLE, long, ("city",)))
    fits = pa.table({"city": ["x" * 250], "n": [1]})
    assert [f"city={'x' * 250}"] == [folder for folder, _ in partitions(TABLE, fits, ("city",))]
    monkeypatch.setattr(module, "PARTITIONS_MAX", 2)
    assert 2 == len(list(partitions(TABLE, pa.table({"c": [1, 2, 1], "n": [1, 2, 3]}), ("c",))))
    with pytest.raises(PartitionError, match=r"rows of 3 partitions by c .* at most 2: .*fewer values"):
        list(partitions(TABLE, pa.table({"c": [1, 2, 3], "n": [1, 2, 3]}), ("c",)))


@pytest.fixture
def upsert(tmp_path):
    """Return a function that makes a range of an upsert table over these files."""

    def of(files=(), keys=("k",), *, all_files=False):
        writer = StagedFiles(str(tmp_path), JobName("job"), Generation(1), VertexId("sums"), len(files))
        return UpsertRange(
            operator="sums",
            table=TABLE,
            keys=keys,
            schema=SCHEMA,
            range=KeyGroupRange(first=0, last=3),
            files=files,
            writer=writer,
            version=Version(Generation(1), len(files)),
            partitioned_by=("city",),
            all_files=all_files,
        )

    return of


def frame(*rows):
    """Return rows of (k, city, v)."""
    return pl.DataFrame(list(rows), schema={"k": pl.Int64, "city": pl.String, "v": pl.Int64}, orient="row")


def test_only_partitions_whose_rows_change_are_written_again(upsert):
    """A row that moves to another partition changes both. A partition that loses its last row has no file."""
    none = frame()
    first = upsert().write(KeyedRows.of(none), frame((1, "a", 1), (2, "b", 1), (3, None, 1), (4, "c", 1)), none)
    assert [(("city", city),) for city in ("a", "b", "c", None)] == [partition_of(each.file.path) for each in first]
    held = upsert(first)
    second = held.write(held.load(), frame((1, "b", 2)), frame((4, "c", 1)))
    assert {"b", None} == {city for each in second for _, city in partition_of(each.file.path)}
    assert first[3] in second
    assert first[1] not in second
    assert [(1, "b", 2), (2, "b", 1), (3, None, 1)] == sorted(upsert(second).load().frame().rows())
    again = upsert(second, all_files=True)
    third = again.write(again.load(), none, none)
    assert not set(second) & set(third)
    assert sorted(upsert(second).load().frame().rows()) == sorted(upsert(third).load().frame().rows())


def test_a_key_that_is_an_empty_text_cannot_be_a_partition(upsert):
    """It would be the same as null. In another column it is null."""
    with pytest.raises(PartitionError, match="key city is '', which"):
        upsert(keys=("k", "city")).write(KeyedRows.of(frame()), frame((1, "", 1)), frame())
    (file,) = upsert().write(KeyedRows.of(frame()), frame((1, "", 1)), frame())
    assert (("city", None),) == partition_of(file.file.path)
    assert [(1, None, 1)] == upsert((file,)).load().frame().rows()


@pytest.mark.parametrize(
    "odd",
    [
        pa.array([4_000_000], pa.int32()).view(pa.date32()),
        pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers()),
    ],
)
def test_a_value_without_a_text_names_table_and_column(odd):
    """A date after the year 9999 was an OverflowError, and bytes that are no UTF-8 a UnicodeDecodeError."""
    with pytest.raises(PartitionError, match="partition column odd holds a date outside of the years 1 to 9999"):
        list(partitions(TableName("silver/days"), pa.table({"odd": odd, "n": [1]}), ("odd",)))
