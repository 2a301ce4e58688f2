"""Tests what the source learns from an input file of any format without Spark."""

import bz2
import gzip
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, orc
from pyspark.sql.types import LongType, MapType, StringType, StructType, TimestampType

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources.files.file_columns import RECORDS_BYTES_MAX
from jobs.sources.files.file_formats import csv_header, format_named
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError
from jobs.storage.place import local

SCHEMA = StructType().add("n", LongType()).add("word", StringType())


def poll(source, position=None, rows_max=100):
    return source.poll(PollSource(VertexId("in"), SplitId("a"), position, rows_max))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a").mkdir()
    return tmp_path / "a"


def source(folder, **given):
    return FileSource(folder.parent, SCHEMA, **given)


@pytest.mark.parametrize(
    ("line", "options", "names"),
    [
        (b"n,word\n", {}, ("n", "word")),
        (b"\xef\xbb\xbfn,word\r\n", {}, ("n", "word")),
        (b'"n";"a;b"\n', {"sep": ";"}, ("n", "a;b")),
        (b"'n'\t'a\nb'\n", {"delimiter": "\t", "quote": "'"}, ("n", "a\nb")),
        (b"\n# said\nn,word\n", {"comment": "#"}, ("n", "word")),
        ("n,größe\n".encode("latin-1"), {"encoding": "latin-1"}, ("n", "größe")),
        (b"", {}, ()),
    ],
)
def test_the_header_of_a_csv_file_is_read_as_spark_reads_it(folder, line, options, names):
    """The options give separators, quotes, comments and encodings. The file may be compressed."""
    (folder / "1.csv").write_bytes(line)
    with gzip.open(folder / "1.csv.gz", "wb") as file:
        file.write(line)
    assert names == csv_header(local(folder / "1.csv"), options) == csv_header(local(folder / "1.csv.gz"), options)


def test_a_csv_file_in_another_encoding_is_named(folder):
    """The error names the file."""
    (folder / "1.csv").write_bytes("größe,n\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"1\.csv: line 1 is no text in the file's encoding: name the right one"):
        poll(source(folder, format="csv", options={"header": "true"}))


def test_a_slice_of_whole_files_stays_within_the_estimate(folder):
    """A file is never split, and a slice takes at least one. Lines are counted, since their length may be any."""
    for name in "123":
        (folder / f"{name}.jsonl").write_bytes(b'{"n": 1}\n' * 200)
    read = source(folder, format="json")
    first = poll(read, rows_max=1)
    assert 200 == first.rows
    both = poll(read, first.end, rows_max=400)
    assert 400 == both.rows
    assert poll(read, both.end) is None


def test_an_empty_file_has_no_rows(folder):
    """It is skipped until rows follow."""
    (folder / "1.jsonl").touch()
    assert poll(source(folder, format="json")) is None


def test_contents_are_compared_in_full(folder):
    """A byte in the middle of a read file changes. Size and name stay the same."""
    path = folder / "1.jsonl"
    path.write_bytes(b'{"n": 1}\n' * 100_000)
    read = source(folder, format="json")
    end = poll(read).end
    path.write_bytes(b'{"n": 1}\n' * 50_000 + b'{"n": 2}\n' + b'{"n": 1}\n' * 49_999)
    with pytest.raises(SourceError, match="its contents have changed"):
        poll(read, end)


def test_files_of_other_formats_are_ignored_and_named(folder):
    """The message says how the names of the source's files end."""
    (folder / "1.parquet").touch()
    what, way_out = source(folder, format="csv").look().told()
    assert "1 whose names do not end in .csv (a/1.parquet)" in what
    assert "write those as CSV, or rename them" in way_out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "xls"}, r"no format 'xls' of input files: write one of avro, csv, json, orc, parquet"),
        ({"glob": "../*.csv"}, "write a pattern of paths below the folder"),
        ({"glob": "/data/*"}, "write a pattern of paths below the folder"),
        ({"glob": ""}, "write a pattern of paths below the folder"),
        ({"columns": "guess"}, "write one of fail, ignore, quarantine, evolve"),
        ({"columns": "quarantine"}, "needs a corrupt_column"),
        ({"corrupt_column": "n"}, "has the corrupt column 'n' too"),
        ({"corrupt_column": "_position"}, "a name that is taken"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_pipeline_is_built(folder, given, message):
    """The message says what to write."""
    with pytest.raises(SourceError, match=message):
        source(folder, **given)


def test_a_map_of_json_whose_keys_are_no_texts_is_refused(folder):
    """Spark reads none. Parquet has such maps."""
    schema = StructType().add("m", MapType(LongType(), LongType()))
    assert schema == FileSource(folder.parent, schema).schema()
    with pytest.raises(SourceError, match=r"column 'm' has a map whose keys are no texts.*make the key a string"):
        FileSource(folder.parent, schema, format="json")


def test_a_column_that_appears_is_refused_by_default(folder):
    """The message has both ways out."""
    pq.write_table(pa.table({"n": [1], "word": ["w"], "more": [1]}), folder / "1.parquet")
    with pytest.raises(SourceError, match=r"a column 'more' that the source's schema does not have: add it .*ignore"):
        poll(source(folder))
    assert 1 == poll(source(folder, columns="ignore")).rows


@pytest.mark.parametrize("kind", ["parquet", "orc", "csv"])
def test_a_column_that_is_called_otherwise_in_case_is_no_column_to_ignore(folder, kind):
    """Spark would read its values, and a source that ignored it would read nulls."""
    path, rows = folder / f"1.{kind}", pa.table({"N": [1], "word": ["w"]})
    {"parquet": pq.write_table, "orc": orc.write_table, "csv": csv.write_csv}[kind](rows, str(path))
    options = {"options": {"header": "true"}} if kind == "csv" else {}
    with pytest.raises(
        SourceError, match=rf"1\.{kind}: column 'N' has the name of column 'n' .* but for its case: rename"
    ):
        poll(source(folder, format=kind, columns="ignore", **options))


@pytest.mark.parametrize("columns", ["ignore", "quarantine"])
def test_a_file_that_lacks_a_column_is_read_if_the_source_says_so(folder, columns):
    """By default it is refused."""
    pq.write_table(pa.table({"n": [1]}), folder / "1.parquet")
    with pytest.raises(SourceError, match="no column 'word'"):
        poll(source(folder))
    assert 1 == poll(source(folder, columns=columns, corrupt_column="unfit")).rows


def test_orc_files_have_columns_with_types(folder):
    """A wrong type is refused. A timestamp fits both kinds of timestamps."""
    moments = pa.array([0], pa.timestamp("us"))
    orc.write_table(pa.table({"n": [1], "at": moments}), folder / "1.orc")
    right = StructType().add("n", LongType()).add("at", TimestampType())
    assert poll(FileSource(folder.parent, right, format="orc")) is not None
    wrong = StructType().add("n", StringType()).add("at", TimestampType())
    with pytest.raises(SourceError, match="column 'n' is bigint, but the source's schema says string"):
        poll(FileSource(folder.parent, wrong, format="orc"))


def test_a_half_written_orc_file_is_named(folder):
    """The message recommends a temporary name."""
    (folder / "1.orc").write_bytes(b"ORC half")
    with pytest.raises(SourceError, match=r"1\.orc cannot be read as ORC .*temporary name"):
        poll(source(folder, format="orc"))


RECORDS = b'{"n": 1, "more": 0.5}\n{"word": "two", "n": 2, "more": 3, "empty": null}\nno record\n'


@pytest.mark.parametrize("compressed", [False, True])
def test_a_field_that_the_schema_does_not_have_is_refused_by_default(folder, compressed):
    """In JSON lines too, where records may lack fields, and a field without a value is none."""
    name = "1.json.gz" if compressed else "1.json"
    (folder / name).write_bytes(gzip.compress(RECORDS) if compressed else RECORDS)
    with pytest.raises(SourceError, match=rf"{name} has a column 'more' .* \(columns=\"ignore\"\) or add them itself"):
        poll(source(folder, format="json"))
    for columns in ("ignore", "quarantine"):
        assert poll(source(folder, format="json", columns=columns, corrupt_column="unfit")) is not None
    (folder / name).write_bytes(b'{"n": 1}\n{"word": "two"}\n[]\n7\n')
    (folder / name).rename(folder / "1.json")
    assert poll(source(folder, format="json")) is not None


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_a_field_that_only_late_records_of_json_lines_have_is_found(folder, suffix):
    """Texts that look like names, and names inside of fields, are no columns. A null says no type."""
    many = b'{"n": 1, "late": null, "in": {"deep": ["\\"x\\": 1", ":"]}}\n' * (RECORDS_BYTES_MAX // 40)
    late = b'{"n": 2, "in": {"deeper": 1, "more": 1}}\nno record: "n":\n{"n": 3, "more": 1.5, ":odd": true}\n'
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    path = folder / f"1.json{suffix}"
    path.write_bytes(pack(many + late + many + b'{"last": "x", "late": 1.5}'))
    found = {each.name: each.type.simpleString() for each in format_named("json").footer(local(path), {}).columns}
    late_ones = {"more": "double", ":odd": "boolean", "last": "string", "late": "double"}
    assert {"n": "bigint", "in": "string", **late_ones} == found


def test_a_late_field_of_json_lines_is_refused_by_default(folder):
    """It was read without the field, and nobody was told."""
    (folder / "1.json").write_bytes(b'{"n": 1}\n' * (RECORDS_BYTES_MAX // 9 + 1) + b'{"n": 2, "more": 3}\n')
    with pytest.raises(SourceError, match="has a column 'more' that the source's schema does not have"):
        poll(source(folder, format="json"))


@pytest.mark.parametrize(
    ("values", "type_name"),
    [
        ("true false", "boolean"),
        ("1 2", "bigint"),
        ("1 2.5", "double"),
        ('1 "a"', "string"),
        ("9223372036854775808", "string"),
        ('{"a":1} [1]', "string"),
        ("null 1", "bigint"),
    ],
)
def test_a_field_gets_the_type_of_its_values(folder, values, type_name):
    """The next tick reads the column as this type."""
    text = "\n".join(f'{{"found": {value}}}' for value in values.split())
    (folder / "1.json").write_text(text)
    (found,) = format_named("json").footer(local(folder / "1.json"), {}).columns
    assert type_name == found.type.simpleString()


def test_a_header_that_would_become_a_row_is_refused(folder):
    """The columns may be text, so that the line would be read without an error."""
    (folder / "1.csv").write_text("word,n\na,1\n")
    with pytest.raises(
        SourceError, match=r"1\.csv: its first line names the columns.*options=\{\"header\": \"true\"\}"
    ):
        poll(source(folder, format="csv", columns="ignore"))
    assert poll(source(folder, format="csv", options={"header": "true"})) is not None
    for text in ("n,other\n", "größe", ""):
        (folder / "1.csv").write_bytes(f"1,a\n{text}".encode("latin-1"))
        assert poll(source(folder, format="csv", options={"encoding": "ISO-8859-1"})) is not None


@pytest.mark.parametrize(
    ("form", "options", "said"),
    [
        ("csv", {"encoding": "windows-1252"}, "Spark reads no encoding 'windows-1252': write one of UTF-8, ISO-8859-1"),
        ("json", {"CharSet": "latin1", "multiLine": "true"}, "Spark reads no encoding 'latin1': write one of"),
        ("json", {"encoding": "utf-16", "lineSep": "\n"}, "Spark reads no JSON lines in utf-16, whose byte order"),
        ("json", {"encoding": "ISO-8859-1"}, r'line break of JSON lines in ISO-8859-1: give options={"lineSep": "\n"}'),
    ],
)
def test_an_encoding_that_spark_cannot_read_is_refused_when_the_source_is_built(folder, form, options, said):
    """Spark itself would say so in the middle of a tick, without the folder."""
    with pytest.raises(SourceError, match=re.escape(said)):
        source(folder, format=form, options=options)


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("csv", {"encoding": "utf-16"}),
        ("json", {"encoding": "UTF-16", "multiLine": "true"}),
        ("json", {"encoding": "iso-8859-1", "lineSep": "\n"}),
        ("parquet", {"encoding": "nonsense"}),
    ],
)
def test_an_encoding_that_spark_reads_is_taken(folder, form, options):
    """Spark does not tell large letters from small ones."""
    assert source(folder, format=form, options=options).schema()
