"""Tests files of other formats than Parquet on real Spark: each row comes once and in order, in slices of any size."""

import bz2
import datetime as dt
import gzip
import json
from datetime import UTC, datetime
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.errors import SparkRuntimeException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError, read_schema
from tests.avro_types import FIELDS, READ, RECORD, write_file
from tests.avro_types import SCHEMA as EVERY_TYPE

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
    for split in source.splits():
        position = None
        while (piece := source.poll(PollSource(VertexId("in"), split, position, rows_max))) is not None:
            yield piece
            position = piece.end


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    name, options, suffix, write = CASES[request.param]
    for split in ("EWR", "a=1"):
        (tmp_path / split).mkdir()
        write(tmp_path / split / f"1 [x]{suffix}", ROWS)
        write(tmp_path / split / f"2{suffix}", [(n + 10, word) for n, word in ROWS])
    return FileSource(tmp_path, SCHEMA, format=name, options=options)


@pytest.mark.parametrize("rows_max", [1, 1_000])
def test_each_row_is_read_once_and_in_order(spark, case, rows_max):
    """A slice contains only whole files. Positions are unique, and follow the order of the files and of their rows."""
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
    write_file(tmp_path / "all" / "1.avro", EVERY_TYPE, [RECORD])
    schema = StructType.fromDDL(", ".join(f"`{name}` {kind}" for name, _, _, kind, _ in FIELDS))
    source = FileSource(tmp_path, schema, format="avro")
    (row,) = source.read(spark, list(polls(source, 10))).toArrow().to_pylist()
    assert READ | {"map": [("a", 1)]} == {name: row[name] for name in READ}


def test_an_avro_file_with_other_columns_is_refused_or_read_as_the_source_says(spark, tmp_path):
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
    """The corrupt column has the record's text. The record keeps its place among the others.

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
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text("n,other\n1,x\n")
    schema = StructType().add("n", LongType()).add("amount", DoubleType())
    source = FileSource(
        tmp_path, schema, format="csv", options={"header": "true"}, columns="quarantine", corrupt_column="unfit"
    )
    (row,) = source.read(spark, list(polls(source, 1_000))).collect()
    assert (None, None, '{"n":"1","other":"x"}') == (row.n, row.amount, row.unfit)


def test_fields_that_appear_in_json_lines_become_columns(spark, tmp_path):
    """A file with new fields waits for the next tick.

    That tick's source reads a new field of each file with the type that it has found.
    """
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


# ------------------------------------------------------------------
# Headers of CSV files as Spark parses them: each value goes to the column of its name, or the file is refused.


HEADERS = {
    "quoted": ('"n","two words"\n1,x\n', "two words", {}),
    "a byte order mark": ('\ufeffn,"w"\n1,x\n', "w", {}),
    "an escaped quote": ('n,"a\\"b"\n1,x\n', 'a"b', {}),
    "a doubled quote": ('n,"a""b"\n1,x\n', 'a"b', {"escape": '"'}),
    "a doubled quote that Spark keeps": ('n,"a""b"\n1,x\n', '"a""b"', {}),
    "another separator and quote": ("n;'a;b'\n1;x\n", "a;b", {"sep": ";", "quote": "'"}),
    "a separator of two characters": ("n||w\n1||x\n", "w", {"delimiter": "||"}),
    "a tab": ("n\tw\n1\tx\n", "w", {"sep": "\\t"}),
    "no quotes": ('n,"w"\n1,x\n', '"w"', {"quote": ""}),
    "comments and blank lines": ("\n  \n#no\nn,w\n#no\n1,x\n", "w", {"comment": "#"}),
    "a line break": ('n,"a\nb"\n1,x\n', "a\nb", {}),
    "lines of CR LF": ('n,"a\nb"\r\n1,x\r\n', "a\nb", {}),
    "spaces": ("n, w \n1,x\n", " w ", {}),
    "trimmed spaces": ("n, w \n1,x\n", "w", {"ignoreLeadingWhiteSpace": "true", "ignoreTrailingWhiteSpace": "true"}),
    "an option in other letters": ("n;w\n1;x\n", "w", {"SEP": ";"}),
}


def read(spark, folder, schema, **options):
    source = FileSource(folder, schema, format="csv", options={"header": "true"} | options)
    frame = source.read(spark, list(polls(source, 1_000))).orderBy("_position")
    return [tuple(row)[: len(schema)] for row in frame.collect()]


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_names_the_columns_as_spark_parses_it(spark, tmp_path, case):
    """The file has the columns in another order than the schema."""
    text, name, options = HEADERS[case]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_bytes(text.encode())
    schema = StructType().add(name, StringType()).add("n", LongType())
    assert [("x", 1)] == read(spark, tmp_path, schema, **options)


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "UTF-16", "UTF-16LE"])
def test_a_header_is_read_in_the_encoding_of_its_file(spark, tmp_path, encoding):
    """Spark alone would split the lines of UTF-16 in the middle of a character."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_bytes("n,größe\n1,ä\n2,ü\n".encode(encoding))
    schema = StructType().add("größe", StringType()).add("n", LongType())
    assert [("ä", 1), ("ü", 2)] == read(spark, tmp_path, schema, encoding=encoding)


def test_each_file_is_read_by_its_own_header(spark, tmp_path):
    """A second file has another order and a further column. Empty files have no rows.

    Each file is there plain and gzipped.
    """
    (tmp_path / "a").mkdir()
    for number, text in enumerate(("n,w\n1,x\n", "w,more,n\ny,m,2\n", "", "n,w\n")):
        (tmp_path / "a" / f"{number}.csv").write_text(text)
        (tmp_path / "a" / f"{number}.csv.gz").write_bytes(gzip.compress(text.encode()))
    schema = StructType().add("w", StringType()).add("n", LongType())
    source = FileSource(tmp_path, schema, format="csv", options={"header": "true"}, columns="ignore")
    rows = source.read(spark, list(polls(source, 1_000))).orderBy("_position").collect()
    assert [("x", 1), ("x", 1), ("y", 2), ("y", 2)] == [(row.w, row.n) for row in rows]


@pytest.mark.parametrize(("header", "why"), [("n,w,w", "two columns 'w'"), ("n,w,W", "'w' and 'W'"), ('n,"w', "quote")])
def test_a_header_that_means_several_things_is_refused(tmp_path, header, why):
    """Spark would rename the columns, take one of them, or read the file as one value."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text(f"{header}\n1,x,y\n")
    schema = StructType().add("w", StringType()).add("n", LongType())
    source = FileSource(tmp_path, schema, format="csv", options={"header": "true"}, columns="ignore")
    with pytest.raises(SourceError, match=rf"1\.csv.*{why}"):
        list(polls(source, 10))


# ------------------------------------------------------------------
# Records and values that Spark's parsers may misread: here each is read right or is bad, however the file is read.


N, WORD, AT = (StructField(*each) for each in (("n", LongType()), ("word", StringType()), ("at", TimestampType())))
AMOUNT = StructField("amount", DecimalType(5, 2))
WIDE = StructField("wide", DecimalType(38, 18))
MOST = Decimal("-99999999999999999999.999999999999999999")
DEEP = StructField("deep", StructType([AT]))
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC).replace(tzinfo=None)

GOOD = {
    "a line break in quotes": ("csv", '1,"two\nlines"\n2,x\n', [N, WORD], [(1, "two\nlines"), (2, "x")]),
    "and lines of CR LF": ("csv", '1,"a\nb"\r\n2,"a\r\nb"\r\n', [N, WORD], [(1, "a\nb"), (2, "a\r\nb")]),
    "a quote inside of a value": ("csv", '1,5" pipe\n2,x\n', [N, WORD], [(1, '5" pipe'), (2, "x")]),
    "decimals": ("csv", '"1.50"\n"-1.5"\n', [AMOUNT], [(Decimal("1.50"),), (Decimal("-1.50"),)]),
    "38 digits": ("json", f'{{"wide": {MOST}}}\n{{"wide": "{MOST}"}}\n', [WIDE], [(MOST,), (MOST,)]),
    "a time": ("csv", "2024-05-01 12:00\n2024-05-01T12:00:00Z\n", [AT], [(NOON,), (NOON,)]),
    "braces in a text": ("json", '{"n": 1, "word": "}{"}\n', [N, WORD], [(1, "}{")]),
    "a number as it is written": ("json", '{"n": 1, "word": 1.10}\n', [N, WORD], [(1, "1.10")]),
    "a time in a text": ("json", '{"n": 1, "word": "12:00"}\n', [N, WORD, AT], [(1, "12:00", None)]),
}
BAD = {
    "a time without a day": ("csv", "{},12:00\n", [N, AT]),
    "a time in a zone": ("csv", "{},T12:00:01+01:00\n", [N, AT]),
    "a decimal with a comma": ("csv", '{},"1,5"\n', [N, AMOUNT]),
    "too many digits": ("csv", "{},1.239\n", [N, AMOUNT]),
    "too few values": ("csv", "{}\n", [N, WORD]),
    "too many values": ("csv", "{},x,y\n", [N, WORD]),
    "no text": ("csv", b"{},\xff\n", [N, WORD]),
    "two objects": ("json", '{"n": {}}{"n": 9}\n', [N]),
    "two objects with braces": ("json", '{"n": {}} {"n": 9, "word": "}"}\n', [N, WORD]),
    "something behind the object": ("json", '{"n": {}}]\n', [N]),
    "a list": ("json", '[{"n": {}}]\n', [N]),
    "half an object": ("json", '{"n": {}, "word": "x\n', [N, WORD]),
    "a time in an object": ("json", '{"n": {}, "at": "12:00"}\n', [N, AT]),
    "a time with escapes": ("json", '{"n": {}, "at": "\\u0031\\u0032:00"}\n', [N, AT]),
    "a time inside": ("json", '{"n": {}, "deep": {"at": "T12:00"}}\n', [N, DEEP]),
    "a comma in JSON": ("json", '{"n": {}, "amount": "1,5"}\n', [N, AMOUNT]),
    "digits in JSON": ("json", '{"n": {}, "amount": 1.239}\n', [N, AMOUNT]),
    "more than 38 digits": ("json", '{"n": {}, "wide": "0.1234567890123456789"}\n', [N, WIDE]),
    "bytes in JSON": ("json", b'{"n": {}, "word": "\xff"}\n', [N, WORD]),
}


def read_whole(spark, folder, form, fields, **more):
    source = FileSource(folder, StructType(fields), format=form, **more)
    frame = source.read(spark, list(polls(source, 1_000)))
    return [tuple(row)[: len(fields) + ("corrupt_column" in more)] for row in frame.orderBy("_position").collect()]


@pytest.mark.parametrize("case", GOOD)
def test_a_value_is_read_right(spark, tmp_path, case):
    """The expected values are those that CSV and JSON prescribe. A corrupt column stays null."""
    form, text, fields, rows = GOOD[case]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"1.{form}").write_bytes(text.encode())
    assert rows == read_whole(spark, tmp_path, form, fields)
    assert [(*row, None) for row in rows] == read_whole(spark, tmp_path, form, fields, corrupt_column="bad")


@pytest.mark.parametrize("case", BAD)
def test_a_bad_record_is_told(spark, tmp_path, case):
    """A corrupt column gets the bad record's text. Without one, the error names the file. A good record stays good."""
    form, text, fields = BAD[case]
    data = text if isinstance(text, bytes) else text.encode()
    good = b"2" + b"," * (len(fields) - 1) + b"\n" if form == "csv" else b'{"n": 2}\n'
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"1.{form}").write_bytes(data.replace(b"{}", b"1", 1) + good)
    rows = read_whole(spark, tmp_path, form, fields, corrupt_column="bad")
    assert [True, False] == [row[-1] is not None for row in rows]
    assert "1" in rows[0][-1]
    assert all(value is None for value in rows[0][1:-1] if value != "x")
    assert (2, *(None for _ in fields[1:]), None) == rows[1]
    with pytest.raises(Exception, match=rf"1\.{form}"):
        read_whole(spark, tmp_path, form, fields)


GERMAN, NEW_YORK = {"sep": ";", "locale": "de-DE"}, {"sep": ";", "timeZone": "America/New_York"}


@pytest.mark.parametrize(
    ("text", "field", "options"),
    [
        ("1;1,5\n2;1.234,25\n3;-7\n4;\n", StructField("amount", DecimalType(8, 2)), GERMAN),
        ("1;1,234.5\n2;0.25\n", StructField("amount", DecimalType(8, 2)), GERMAN | {"locale": "en"}),
        ("1;2024-05-01 12:00\n2;2024-05-01T12:00:00Z\n3;\n", AT, NEW_YORK),
        ("1;12:00\n", AT, {"sep": ";", "timestampFormat": "HH:mm"}),
        ("1;01.05.2024 12:00\n", AT, NEW_YORK | {"timestampFormat": "dd.MM.yyyy HH:mm"}),
    ],
)
def test_values_of_a_locale_a_zone_and_a_format_are_those_of_spark(spark, tmp_path, text, field, options):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text(text)
    own = spark.read.options(**options).schema(StructType([N, field])).csv(str(tmp_path / "a"))
    rows = [tuple(row) for row in own.orderBy("n").collect()]
    assert any(row[1] is not None for row in rows)
    assert rows == read_whole(spark, tmp_path, "csv", [N, field], options=options)
    assert [(*row, None) for row in rows] == read_whole(
        spark, tmp_path, "csv", [N, field], options=options, corrupt_column="bad"
    )


@pytest.mark.parametrize(
    ("value", "field", "options"),
    [
        ("12:00", AT, NEW_YORK),
        ("T12:00", AT, NEW_YORK | {"timestampFormat": "yyyy", "enableDateTimeParsingFallback": "true"}),
        ("1.5", AMOUNT, GERMAN),
        ("1,239", AMOUNT, GERMAN),
        ("1,5 ", AMOUNT, GERMAN | {"locale": "en"}),
    ],
)
def test_options_do_not_make_a_bad_value_good(spark, tmp_path, value, field, options):
    """A time without a day would get another day tomorrow. A decimal must keep its point and its digits."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text(f"1;{value}\n")
    ((_, read_as, record),) = read_whole(spark, tmp_path, "csv", [N, field], options=options, corrupt_column="bad")
    assert read_as is None
    assert value.strip() in record
    with pytest.raises(Exception, match=r"1\.csv"):
        read_whole(spark, tmp_path, "csv", [N, field], options=options)


@pytest.mark.parametrize(
    ("name", "data", "options", "why"),
    [
        ("1.csv", b'n\n"two\n1\n', {"header": "true"}, "line 2 opens a quote that is never closed"),
        ("1.csv", b'n\r\n"a\nb"\n1\r\n', {"header": "true"}, "its lines end in several ways"),
        ("1.csv.gz", gzip.compress(b"n\n" * 5_000, mtime=0)[:-9], {"header": "true"}, "cannot be read as CSV"),
        ("1.json.gz", gzip.compress(b'{"n": 1}\n' * 5_000, mtime=0)[:-9], {}, "cannot be read as JSON"),
        ("1.json", b'[{"word": "1"}] x', {"multiLine": "true"}, "stands behind its end"),
        ("1.json", b'[{"word": "1",\n "at": "12:00"}]', {"multiLine": "true"}, "a time without a day"),
        ("1.json", b"[{'word': '1',\n 'at': '12:00'}]", {"multiLine": "true"}, "is no strict JSON"),
        (
            "1.json",
            "{'word': 'é', 'at': 'T12:00'}\n".encode("latin-1"),
            {"encoding": "ISO-8859-1", "lineSep": "\n"},
            "is no strict JSON",
        ),
        (
            "1.json",
            '{"word": "é"}{}\n'.encode("latin-1"),
            {"encoding": "ISO-8859-1", "lineSep": "\n"},
            "more than one record",
        ),
    ],
    ids=["open quote", "line ends", "cut CSV", "cut JSON", "behind", "time", "loose", "loose lines", "two records"],
)
def test_a_file_that_ends_inside_of_a_record_or_of_which_spark_reads_a_part_is_refused(
    tmp_path, name, data, options, why
):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_bytes(data)
    source = FileSource(tmp_path, StructType([WORD, AT]), format=name.split(".")[1], options=options, columns="ignore")
    with pytest.raises(SourceError, match=rf"{name}.*{why}"):
        list(polls(source, 10))


# ------------------------------------------------------------------
# Tests that real Spark reads files from pandas, Polars and pyarrow as the types of the source's schema.


EWR = SplitId("EWR")
MOMENTS = StructType().add("at", TimestampType()).add("wall clock", TimestampNTZType()).add("n", LongType())


@pytest.fixture
def split(tmp_path):
    (tmp_path / EWR).mkdir()
    return tmp_path / EWR


@pytest.fixture(params=["vectorized", "row by row"])
def session(spark, request):
    """Return the session in another time zone than the machine's, with each of Spark's two Parquet readers."""
    wanted = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.parquet.enableVectorizedReader": str(request.param == "vectorized").lower(),
    }
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


def slice_of(source):
    return source.poll(PollSource(VertexId("in"), EWR, None, 1_000))


def rows(spark, source, slices, *columns):
    """Return the rows in the order of their positions. Each column is a SQL expression."""
    read = source.read(spark, slices)
    assert read_schema(source).simpleString() == read.schema.simpleString()
    return [tuple(row) for row in read.orderBy("_position").selectExpr(*columns).collect()]


MICROS = ("unix_micros(at)", "date_format(`wall clock`, 'yyyy-MM-dd HH:mm:ss.SSSSSS')", "n", "_position")


def test_moments_that_spark_wrote_are_read_to_the_microsecond(session, split):
    at = pa.array([1357016400123456, -1, None], pa.timestamp("us", "UTC"))
    table = pa.table({"at": at, "n": pa.array([0, 1, 2], pa.int64())})
    pq.write_table(table, split / "1.parquet", use_deprecated_int96_timestamps=True)
    source = FileSource(split.parent, StructType().add("at", TimestampType()).add("n", LongType()))
    expected = [(1357016400123456, 0), (-1, 1), (None, 2)]
    assert expected == rows(session, source, [slice_of(source)], "unix_micros(at)", "n")


def test_nanoseconds_that_pandas_wrote_are_read_as_microseconds(session, split):
    """Times have a zone or none, and lie before or after 1970. They are cut to the microsecond, and null stays null."""
    at = pd.Series(pd.to_datetime([1357016400123456789, -1, -1_000, None], utc=True))
    naive = at.dt.tz_localize(None)
    frame = pd.DataFrame({"at": at, "wall clock": naive, "n": [0, 1, 2, 3]})
    frame.to_parquet(split / "1.parquet")
    stored = pq.read_schema(split / "1.parquet")
    assert (pa.timestamp("ns", "UTC"), pa.timestamp("ns")) == (stored.field("at").type, stored.field("wall clock").type)
    source = FileSource(split.parent, MOMENTS)
    assert [
        (1357016400123456, "2013-01-01 05:00:00.123456", 0, 0),
        (-1, "1969-12-31 23:59:59.999999", 1, 1),
        (-1, "1969-12-31 23:59:59.999999", 2, 2),
        (None, None, 3, 3),
    ] == rows(session, source, [slice_of(source)], *MICROS)


def test_files_of_different_writers_are_one_source(spark, split):
    """One slice has nano-, micro- and milliseconds, and a column without values. Positions go on over the files."""
    moment = dt.datetime(2013, 1, 1, 5, tzinfo=UTC)
    naive = moment.replace(tzinfo=None)
    pd.DataFrame({"at": [moment], "wall clock": [naive], "n": [0]}).astype(
        {"at": "datetime64[ns, UTC]", "wall clock": "datetime64[ns]"}
    ).to_parquet(split / "1.parquet")
    pl.DataFrame({"n": [1], "wall clock": [naive], "at": [moment]}).write_parquet(split / "2.parquet")
    coarse = {"at": pa.array([moment], pa.timestamp("ms", "Europe/Zurich")), "wall clock": pa.nulls(1), "n": [2]}
    pq.write_table(pa.table(coarse), split / "3.parquet")
    pl.DataFrame({"at": [None], "wall clock": [naive], "n": [3]}).write_parquet(split / "4.parquet")
    source = FileSource(split.parent, MOMENTS)
    micros, wall = 1_357_016_400_000_000, "2013-01-01 05:00:00.000000"
    assert [(micros, wall, 0, 0), (micros, wall, 1, 1), (micros, None, 2, 2), (None, wall, 3, 3)] == rows(
        spark, source, [slice_of(source)], *MICROS
    )


def test_further_types_that_polars_and_pandas_write_are_read(session, split):
    """These are categories, enums, large types, fixed lists, unsigned integers, and a column with only nulls."""
    schema = StructType().add("word", StringType()).add("kind", StringType()).add("raw", BinaryType())
    schema = schema.add("list", ArrayType(LongType())).add("pair", ArrayType(LongType())).add("byte", ShortType())
    schema = schema.add("count", LongType()).add("huge", DecimalType(20, 0)).add("never", StringType())
    pl.DataFrame(
        {
            "word": pl.Series(["a"], dtype=pl.Categorical),
            "kind": pl.Series(["x"], dtype=pl.Enum(["x", "y"])),
            "raw": [b"r"],
            "list": [[1, 2]],
            "pair": pl.Series([[3, 4]], dtype=pl.Array(pl.Int64, 2)),
            "byte": pl.Series([255], dtype=pl.UInt8),
            "count": pl.Series([2**32 - 1], dtype=pl.UInt32),
            "huge": pl.Series([2**64 - 1], dtype=pl.UInt64),
            "never": [None],
        }
    ).write_parquet(split / "1.parquet")
    frame = pd.DataFrame({"word": pd.Categorical(["b"]), "kind": pd.array(["y"], dtype="string"), "raw": [b"s"]})
    frame = frame.assign(list=[[5]], pair=[[6, 7]], byte=pd.array([1], "uint8"), count=pd.array([2], "uint32"))
    frame.assign(huge=pd.array([3], "uint64"), never=[None]).to_parquet(split / "2.parquet")
    source = FileSource(split.parent, schema)
    first = ("a", "x", bytearray(b"r"), [1, 2], [3, 4], 255, 2**32 - 1, Decimal(2**64 - 1), None)
    second = ("b", "y", bytearray(b"s"), [5], [6, 7], 1, 2, Decimal(3), None)
    assert [first, second] == rows(session, source, [slice_of(source)], *schema.names)


@pytest.mark.parametrize(
    ("kind", "exact", "lossy", "wanted"),
    [
        (pa.int64(), 2**53, 2**53 + 1, DoubleType()),
        (pa.int64(), -(2**62), 2**63 - 1, DoubleType()),
        (pa.int64(), 2**24, 2**24 + 1, FloatType()),
        (pa.float64(), 0.5, 0.1, FloatType()),
        (pa.float64(), 3.0, 3.5, LongType()),
        (pa.decimal128(20, 4), Decimal("1.5000"), Decimal("1.2345"), DecimalType(10, 2)),
        (pa.decimal128(20, 4), Decimal("0.5"), Decimal("1234567890123456.7891"), DoubleType()),
        (
            pa.timestamp("us", "UTC"),
            dt.datetime(2024, 5, 1, tzinfo=UTC),
            dt.datetime(2024, 5, 1, 12, tzinfo=UTC),
            DateType(),
        ),
        (pa.struct([("a", pa.int64())]), {"a": 1}, {"a": 2**53 + 1}, StructType().add("a", DoubleType())),
    ],
)
def test_a_cast_keeps_every_digit_or_says_that_it_cannot(spark, tmp_path, kind, exact, lossy, wanted):
    """`ignore` casts to the source's type. If a cast changes a value, the error names the file and the column."""
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"v": pa.array([exact, None], kind)}), tmp_path / "a" / "1.parquet")
    schema = StructType().add("v", wanted)

    def read(**more):
        source = FileSource(tmp_path, schema, columns="ignore", **more)
        piece = source.poll(PollSource(VertexId("in"), SplitId("a"), None, 100))
        return source.read(spark, [piece]).orderBy("_position").select("v", *more.values()).collect()

    assert [False, True] == [row.v is None for row in read()]
    pq.write_table(pa.table({"v": pa.array([lossy, exact], kind)}), tmp_path / "a" / "1.parquet")
    with pytest.raises(SparkRuntimeException, match=r"a/1\.parquet.*column 'v'"):
        read()
    assert [(True, False), (False, True)] == [(row.v is None, row.bad is None) for row in read(corrupt_column="bad")]
