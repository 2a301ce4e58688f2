"""Tests files of other formats than Parquet on real Spark: each row comes once and in order, in slices of any size."""

import bz2
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql.types import DoubleType, LongType, StringType, StructType

from checkpointing.identifiers import VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError, read_schema
from tests.avro_types import FIELDS, READ, RECORD, write_file
from tests.avro_types import SCHEMA as SCHEMA_OF_ALL

pytestmark = pytest.mark.spark

SCHEMA = StructType().add("n", LongType()).add("word", StringType())
ROWS = [(1, "one"), (2, "two, with a comma"), (3, None), (4, 'a "quote"'), (5, "ünïcode")]


def quoted(word):
    return "" if word is None else '"' + word.replace('"', '""') + '"'


def csv_text(rows):
    return "".join(["n,word\n", *(f"{n},{quoted(word)}\n" for n, word in rows)])


def json_text(rows):
    return "".join(json.dumps({"n": n, "word": word}, ensure_ascii=False) + "\n" for n, word in rows)


def write_csv(path, rows):
    path.write_text(csv_text(rows), encoding="utf-8")


def write_gzipped_csv(path, rows):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(csv_text(rows))


def write_json(path, rows):
    path.write_text(json_text(rows), encoding="utf-8")


def write_bzipped_json(path, rows):
    with bz2.open(path, "wt", encoding="utf-8") as file:
        file.write(json_text(rows))


def write_orc(path, rows):
    orc.write_table(pa.table({"n": [n for n, _ in rows], "word": [word for _, word in rows]}), path)


def write_avro(path, rows):
    fields = [{"name": "n", "type": "long"}, {"name": "word", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "Row", "fields": fields}
    write_file(path, schema, [{"n": n, "word": word} for n, word in rows], codec="deflate")


HEADER = {"header": "true", "escape": '"'}
CASES = {
    "csv": ("csv", HEADER, ".csv", write_csv),
    "csv.gz": ("csv", HEADER, ".csv.gz", write_gzipped_csv),
    "json": ("json", {}, ".jsonl", write_json),
    "json.bz2": ("json", {}, ".json.bz2", write_bzipped_json),
    "orc": ("orc", {}, ".orc", write_orc),
    "avro": ("avro", {}, ".avro", write_avro),
}


def polls(source, rows_max):
    """Return every slice of every split, in order."""
    for split in source.splits():
        position = None
        while (piece := source.poll(PollSource(VertexId("in"), split, position, rows_max))) is not None:
            yield piece
            position = piece.end


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """Return a source of two splits with two files each."""
    name, options, suffix, write = CASES[request.param]
    for split in ("EWR", "a=1"):
        (tmp_path / split).mkdir()
        write(tmp_path / split / f"1 [x]{suffix}", ROWS)
        write(tmp_path / split / f"2{suffix}", [(n + 10, word) for n, word in ROWS])
    return FileSource(tmp_path, SCHEMA, format=name, options=options)


@pytest.mark.parametrize("rows_max", [1, 1_000])
def test_each_row_is_read_once_and_in_order(spark, case, rows_max):
    """A slice has whole files. Positions are unique, and follow the order of the files and of their rows."""
    slices = list(polls(case, rows_max))
    assert len(slices) == (4 if rows_max == 1 else 2)
    frame = case.read(spark, slices)
    assert [field.name for field in read_schema(case)] == frame.columns
    found = frame.orderBy("_split", "_position").collect()
    expected = [*ROWS, *((n + 10, word) for n, word in ROWS)]
    assert [(split, *row) for split in ("EWR", "a=1") for row in expected] == [(r._split, r.n, r.word) for r in found]
    positions = [(row._split, row._position) for row in found]
    assert len(set(positions)) == len(positions)
    assert positions == sorted(
        (row._split, row._position)
        for piece in slices
        for row in case.read(spark, [piece]).select("_split", "_position").collect()
    )


def test_each_type_of_avro_is_read(spark, tmp_path):
    """Spark's reader of files gives the same types and values as the decoder of single records."""
    (tmp_path / "all").mkdir()
    write_file(tmp_path / "all" / "1.avro", SCHEMA_OF_ALL, [RECORD])
    schema = StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, _, _, kind, _ in FIELDS))
    source = FileSource(tmp_path, schema, format="avro")
    (row,) = source.read(spark, list(polls(source, 10))).toArrow().to_pylist()
    assert READ | {"map": [("a", 1)]} == {name: row[name] for name in READ}


def test_an_avro_file_with_other_columns_is_refused_or_read_as_the_source_says(spark, tmp_path):
    """The contract is that of the other formats: the file's header says its columns and types."""
    (tmp_path / "all").mkdir()
    write_avro(tmp_path / "all" / "1.avro", ROWS)
    wanted = StructType().add("n", DoubleType()).add("more", StringType())
    with pytest.raises(SourceError, match=r"1\.avro: column 'n' is bigint, but the source's schema says double"):
        list(polls(FileSource(tmp_path, wanted, format="avro"), 10))
    ignoring = FileSource(tmp_path, wanted, format="avro", columns="ignore")
    rows = ignoring.read(spark, list(polls(ignoring, 10))).orderBy("_position").collect()
    assert [(1.0, None), (2.0, None)] == [(row.n, row.more) for row in rows[:2]]
    evolving = FileSource(tmp_path, StructType().add("n", LongType()), format="avro", columns="evolve")
    assert [] == list(polls(evolving, 10))
    assert ["n", "word"] == FileSource(
        tmp_path, StructType().add("n", LongType()), format="avro", columns="evolve"
    ).schema().names


def test_the_rows_of_a_large_file_are_numbered_in_order(spark, tmp_path):
    """Spark reads a file of several megabytes in several tasks."""
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "1.jsonl").write_text("".join(f'{{"n": {n}, "word": "{"w" * 200}"}}\n' for n in range(60_000)))
    source = FileSource(tmp_path, SCHEMA, format="json")
    frame = source.read(spark, list(polls(source, 10)))
    assert frame.filter("n != _position").count() == 0
    assert frame.count() == 60_000


@pytest.mark.parametrize("one_split", [False, True])
@pytest.mark.parametrize(("name", "write"), [("json", write_json), ("parquet", None)])
def test_a_glob_finds_files_at_any_depth(spark, tmp_path, one_split, name, write):
    """Hidden folders and other files are left out. The root may be the only split."""
    for place in ("EWR/1.x", "EWR/2024/01/2.x", "EWR/_hidden/3.x", "EWR/2024/.tmp/4.x", "EWR/5.csv"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        if write is None:
            pq.write_table(pa.table({"n": [n for n, _ in ROWS], "word": [word for _, word in ROWS]}), tmp_path / place)
        else:
            write(tmp_path / place, ROWS)
    source = FileSource(tmp_path, SCHEMA, format=name, glob="**/*.x", one_split=one_split)
    assert (("all",) if one_split else ("EWR",)) == source.splits()
    found = source.read(spark, list(polls(source, 1_000))).orderBy("_position").collect()
    assert [*ROWS, *ROWS] == [(row.n, row.word) for row in found]
    assert {"all" if one_split else "EWR"} == {row._split for row in found}
    assert 2 == source.look().files


def test_columns_of_a_csv_file_are_found_by_name(spark, tmp_path):
    """Two files have their columns in different orders, and one has an extra column."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text("word,n\none,1\n")
    (tmp_path / "a" / "2.csv").write_text("n,other,word\n2,x,two\n")
    source = FileSource(tmp_path, SCHEMA, format="csv", options={"header": "true"}, columns="ignore")
    found = source.read(spark, list(polls(source, 1_000))).orderBy("_position").collect()
    assert [(1, "one"), (2, "two")] == [(row.n, row.word) for row in found]


@pytest.mark.parametrize(
    ("name", "options", "text", "bad"),
    [
        ("csv", {"header": "true"}, "n,word\n1,one\nnot a number,two\n3,three\n", "not a number,two"),
        ("json", {}, '{"n": 1, "word": "one"}\n{"n": 2, "wor\n{"n": 3, "word": "three"}\n', '{"n": 2, "wor'),
    ],
)
def test_a_corrupt_record_is_kept_as_text(spark, tmp_path, name, options, text, bad):
    """The corrupt column has the text, in its place among the other records.

    So a row rule can send it to quarantine.
    """
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"1.{name}").write_text(text)
    source = FileSource(tmp_path, SCHEMA, format=name, options=options, corrupt_column="unreadable")
    found = source.read(spark, list(polls(source, 1_000))).orderBy("_position").collect()
    assert [None, bad, None] == [row.unreadable for row in found]
    assert [1, None, 3] == [row.n for row in found]
    assert found[0]._position + 1 == found[1]._position
    alone = source.read(spark, list(polls(source, 1_000))).select("unreadable").collect()
    assert [bad] == [row.unreadable for row in alone if row.unreadable]


@pytest.mark.parametrize("columns", ["ignore", "quarantine"])
def test_a_file_with_other_columns_is_read_or_set_aside(spark, tmp_path, columns):
    """`ignore` reads what it can. `quarantine` sets all rows of such a file aside."""
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"n": [1], "word": ["one"]}), tmp_path / "a" / "1.parquet")
    pq.write_table(pa.table({"n": ["2", "x"], "more": [0.5, 1.5]}), tmp_path / "a" / "2.parquet")
    pq.write_table(pa.table({"n": [3], "word": ["three"], "more": [2.5]}), tmp_path / "a" / "3.parquet")
    source = FileSource(tmp_path, SCHEMA, columns=columns, corrupt_column="unfit")
    found = source.read(spark, list(polls(source, 1_000))).orderBy("_position").collect()
    assert [0, 1, 2, 3] == [row._position for row in found]
    if columns == "ignore":
        assert [(1, "one"), (2, None), (None, None), (3, "three")] == [(row.n, row.word) for row in found]
        assert {None} == {row.unfit for row in found}
    else:
        assert [(1, "one"), (None, None), (None, None), (3, "three")] == [(row.n, row.word) for row in found]
        assert [None, '{"n":"2","more":0.5}', '{"n":"x","more":1.5}', None] == [row.unfit for row in found]


def test_a_csv_file_without_a_column_is_set_aside(spark, tmp_path):
    """Its rows are kept as text under the names of its header."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text("n,other\n1,x\n")
    schema = StructType().add("n", LongType()).add("amount", DoubleType())
    source = FileSource(
        tmp_path, schema, format="csv", options={"header": "true"}, columns="quarantine", corrupt_column="unfit"
    )
    (row,) = source.read(spark, list(polls(source, 1_000))).collect()
    assert (None, None, '{"n":"1","other":"x"}') == (row.n, row.amount, row.unfit)


def test_fields_that_appear_in_json_lines_become_columns(spark, tmp_path):
    """The file waits for the next tick's source. That reads the field of each file with the type that was found."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.json").write_text('{"n": 1, "word": "one"}\n')
    (tmp_path / "a" / "2.json").write_text('{"n": 2, "more": 7, "deep": {"a": [1]}}\n{"n": 3, "more": 0.5}\n')
    (tmp_path / "a" / "3.json").write_text('{"word": "four"}\n')

    def evolving():
        return FileSource(tmp_path, SCHEMA, format="json", columns="evolve")

    first = list(polls(evolving(), 1_000))
    rows = evolving().read(spark, first).collect()
    assert [(1, "one", None, None)] == [(row.n, row.word, row.more, row.deep) for row in rows]
    rows = evolving().read(spark, list(polls(evolving(), 1_000))).orderBy("_position").collect()
    expected = [(1, "one", None, None), (2, None, 7.0, '{"a": [1]}'), (3, None, 0.5, None), (None, "four", None, None)]
    assert expected == [(row.n, row.word, row.more, row.deep) for row in rows]
