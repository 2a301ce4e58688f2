"""Columns of a Delta table come, go and get other names while a source follows the table."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql.types import LongType, StringType, StructType

from jobs.sources.delta.delta_source import DeltaSource
from jobs.sources.port import SourceError
from tests.unit.sources.delta_tables import append, delta, ids, poll, rows, slices


@pytest.fixture
def table(tmp_path):
    return tmp_path / "orders"


def test_columns_that_come_later_follow_the_contract(table):
    """Without a schema the next tick takes them. With a schema they are refused or ignored."""
    append(table, 1)
    declared = StructType().add("id", LongType()).add("word", StringType())
    sources = {
        "next": DeltaSource(table),
        "fail": DeltaSource(table, schema=declared),
        "ignore": DeltaSource(table, schema=declared, new_columns="ignore"),
    }
    ends = {name: list(slices(source))[-1].end for name, source in sources.items()}
    delta(table).alter.add_columns([Field("price", PrimitiveType("double"))])
    more = pa.table({"id": pa.array([2], pa.int64()), "word": ["w"], "price": [1.5]})
    write_deltalake(str(table), more, mode="append")
    with pytest.raises(SourceError, match=r"new columns, added since this tick began: 'price'. Run the tick again"):
        poll(sources["next"], ends["next"])
    with pytest.raises(SourceError, match=r"does not have: 'price'. Add them"):
        poll(sources["fail"], ends["fail"])
    assert [2] == ids(sources["ignore"], slices(sources["ignore"], 100, ends["ignore"]))
    anew = DeltaSource(table)
    assert ["id", "word", "price"] == anew.schema().names
    assert [2] == ids(anew, slices(anew, 100, ends["next"]))


def renamed(table: Path) -> None:
    """Give column `word` the name `text`, as a Tidemark job does: the files change places with others."""
    entry = table / "_delta_log" / f"{delta(table).version() + 1:020}.json"
    lines = (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    (first,) = (line["metaData"] for line in map(json.loads, lines) if "metaData" in line)
    said = first | {"schemaString": first["schemaString"].replace('"word"', '"text"')}
    actions = [{"metaData": said}]
    for path in delta(table).file_uris():
        new = table / f"new-{Path(path).name}"
        pq.write_table(pq.read_table(path).rename_columns(["id", "text"]), new)
        add = {"path": new.name, "partitionValues": {}, "size": new.stat().st_size, "modificationTime": 1}
        gone = {"path": Path(path).name, "deletionTimestamp": 1}
        actions += [{"remove": gone | {"dataChange": False}}, {"add": add | {"dataChange": False}}]
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))


def test_rows_from_before_a_rename_are_not_read_as_null(table):
    """A source that has read everything before goes on. One that has not is refused, or leaves the values out."""
    append(table, 1)
    (first,) = slices(DeltaSource(table))
    append(table, 2)
    (second,) = slices(DeltaSource(table), position=first.end)
    delta(table).optimize.compact()
    renamed(table)
    rows_then = pa.table({"id": pa.array([3], pa.int64()), "text": ["w3"]})
    write_deltalake(str(table), rows_then, mode="append")
    assert ["id", "text"] == DeltaSource(table).schema().names
    behind = r"version 1 has columns that the table no longer has: 'word'. They were renamed or dropped before"
    declared = DeltaSource(table, schema=StructType().add("id", LongType()).add("text", StringType()))
    for source in (DeltaSource(table), declared):
        with pytest.raises(SourceError, match=behind):
            poll(source, first.end)
    assert [3] == ids(DeltaSource(table), slices(DeltaSource(table), position=second.end))
    ignoring = DeltaSource(table, schema=declared.schema(), new_columns="ignore")
    assert [2, 3] == ids(ignoring, slices(ignoring, position=first.end))
    whole = DeltaSource(table)
    assert [(1, "w1"), (2, "w2"), (3, "w3")] == sorted(row[1:] for row in rows(whole, slices(whole), "id", "text"))


def test_a_column_of_another_type_or_name_is_refused(table):
    """The schema wants a column that the table lacks or has with another type."""
    append(table, 1)
    with pytest.raises(SourceError, match=r"column 'id' is bigint, but is read as string"):
        poll(DeltaSource(table, schema=StructType().add("id", StringType()), new_columns="ignore"))
    with pytest.raises(SourceError, match=r"has no column 'nr'"):
        poll(DeltaSource(table, schema=StructType().add("nr", StringType()), new_columns="ignore"))
    with pytest.raises(SourceError, match="adds a column '_split' itself"):
        DeltaSource(table, schema=StructType().add("_split", StringType())).schema()
