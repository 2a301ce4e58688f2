"""Tests what a source of files finds out about an input file of any format without Spark."""

import bz2
import gzip
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, orc
from pyspark.sql.types import LongType, MapType, StringType, StructType, TimestampType

from checkpointing.identifiers import CheckpointId, SplitId, VertexId
from checkpointing.messages import PollSource
from jobs.sources import generator
from jobs.sources.arrow_types import Conversion, conversion_of
from jobs.sources.csv_text import Dialect, header_of, looked_through
from jobs.sources.files.file_columns import RECORDS_BYTES_MAX
from jobs.sources.files.file_footer import column
from jobs.sources.files.file_formats import csv_header, format_named
from jobs.sources.files.file_source import FOUND, FileSource
from jobs.sources.generator import GeneratorSource
from jobs.sources.port import Lag, SourceError, has_ended
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
    """Options set separators, quotes, comments and encodings. The file may be compressed."""
    (folder / "1.csv").write_bytes(line)
    with gzip.open(folder / "1.csv.gz", "wb") as file:
        file.write(line)
    assert names == csv_header(local(folder / "1.csv"), options) == csv_header(local(folder / "1.csv.gz"), options)


def test_a_csv_file_in_another_encoding_is_named(folder):
    (folder / "1.csv").write_bytes("größe,n\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"1\.csv: line 1 is no text in the file's encoding: name the right one"):
        poll(source(folder, format="csv", options={"header": "true"}))


def test_a_slice_of_whole_files_stays_within_the_estimate(folder):
    """A file is never split, and a slice has at least one file. Lines are counted, since lines may have any length."""
    for name in "123":
        (folder / f"{name}.jsonl").write_bytes(b'{"n": 1}\n' * 200)
    read = source(folder, format="json")
    first = poll(read, rows_max=1)
    assert 200 == first.rows
    both = poll(read, first.end, rows_max=400)
    assert 400 == both.rows
    assert poll(read, both.end) is None


def test_an_empty_file_has_no_rows(folder):
    """The source skips an empty file until the file has rows."""
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
    """The message shows the suffix of the source's files."""
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
    """Spark cannot read such maps from JSON. In Parquet, they are allowed."""
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
    """Spark would read the values of such a column. A source that ignored the column would get nulls."""
    path, rows = folder / f"1.{kind}", pa.table({"N": [1], "word": ["w"]})
    {"parquet": pq.write_table, "orc": orc.write_table, "csv": csv.write_csv}[kind](rows, str(path))
    options = {"options": {"header": "true"}} if kind == "csv" else {}
    with pytest.raises(
        SourceError, match=rf"1\.{kind}: column 'N' has the name of column 'n' .* but for its case: rename"
    ):
        poll(source(folder, format=kind, columns="ignore", **options))


@pytest.mark.parametrize("columns", ["ignore", "quarantine"])
def test_a_file_that_lacks_a_column_is_read_if_the_source_says_so(folder, columns):
    pq.write_table(pa.table({"n": [1]}), folder / "1.parquet")
    with pytest.raises(SourceError, match="no column 'word'"):
        poll(source(folder))
    assert 1 == poll(source(folder, columns=columns, corrupt_column="unfit")).rows


def test_orc_files_have_columns_with_types(folder):
    """A wrong type is refused. A timestamp of the file fits both timestamp types."""
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
    """This holds for JSON lines, too.

    There, records may lack fields, and a field that is always null does not count.
    """
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
    """Texts that look like field names, and names inside of fields, are no columns. A null shows no type."""
    many = b'{"n": 1, "late": null, "in": {"deep": ["\\"x\\": 1", ":"]}}\n' * (RECORDS_BYTES_MAX // 40)
    late = b'{"n": 2, "in": {"deeper": 1, "more": 1}}\nno record: "n":\n{"n": 3, "more": 1.5, ":odd": true}\n'
    pack = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[suffix]
    path = folder / f"1.json{suffix}"
    path.write_bytes(pack(many + late + many + b'{"last": "x", "late": 1.5}'))
    found = {each.name: each.type.simpleString() for each in format_named("json").footer(local(path), {}).columns}
    late_ones = {"more": "double", ":odd": "boolean", "last": "string", "late": "double"}
    assert {"n": "bigint", "in": "string", **late_ones} == found


def test_a_late_field_of_json_lines_is_refused_by_default(folder):
    """Without the check, the file would be read without the field, and silently."""
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
    """If the columns are texts, the header would be read as a row without an error."""
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
    """Spark itself would report it only in the middle of a tick, and without naming the folder."""
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
    """For Spark, upper and lower case are the same."""
    assert source(folder, format=form, options=options).schema()


# ------------------------------------------------------------------
# Tests that headers are read as by Spark's parser, and what is found out about a CSV file before Spark reads it.


@pytest.mark.parametrize(
    ("text", "options", "names"),
    [
        ('\ufeff"a","b c"\r\n1,2', {}, ("a", "b c")),
        ("\n  \n#x\na,b", {"comment": "#"}, ("a", "b")),
        ('"a\nb",c\n', {}, ("a\nb", "c")),
        ('"a""b",c', {}, ('"a""b"', "c")),
        ('"a""b",c', {"escape": '"'}, ('a"b', "c")),
        ('"a\\"b",c', {}, ('a"b', "c")),
        ('"two"x,y', {}, ('"two"x', "y")),
        ("'a';'b'", {"quote": "'", "sep": ";"}, ("a", "b")),
        ("a||b", {"SEP": "||"}, ("a", "b")),
        ('a,"b"', {"quote": ""}, ("a", '"b"')),
        (" a ,b ", {"ignoreLeadingWhiteSpace": "true"}, ("a ", "b ")),
        ("", {}, ()),
    ],
)
def test_a_header_is_parsed_as_spark_parses_it(text, options, names):
    """Each of these headers was tried with Spark 4.2. Python's own reader returns other names for most of them."""
    assert names == header_of(text, Dialect.of(options))


@pytest.mark.parametrize("size", [1, 3, 1_000])
@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        ("a,b\r\n1,2", {}, (2, False, "\r\n", None, None)),
        ('1,"two\nlines"\n2,x\n', {}, (2, True, "\n", None, None)),
        ('1,"two\nlines\n2,x\n', {}, (3, True, "\n", None, 1)),
        ('x\n1,5" pipe\n2,"y"\n', {}, (3, True, "\n", None, None)),
        ('"a\\"b\nc"\n', {}, (1, True, "\n", None, None)),
        ('"a""b"\n"c', {"escape": '"'}, (2, True, "\n", None, 2)),
        ('a\n"x"\r\n', {}, (2, True, None, None, None)),
        (b"a\n\xff\n", {}, (2, False, "\n", 2, None)),
        ("a\né\n".encode("utf-16"), {"encoding": "UTF-16"}, (2, False, "\n", None, None)),
    ],
)
def test_a_look_finds_quotes_line_breaks_and_bytes_that_are_no_text(text, options, found, size):
    """For any cut of the file into parts, the look finds the lines, quotes, line break, and the places of errors."""
    data = text if isinstance(text, bytes) else text.encode()
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    look = looked_through(lambda: parts, Dialect.of(options))
    assert found == (look.lines, look.has_quotes, look.break_, look.broken_at, look.open_at)


# ------------------------------------------------------------------
# Tests that with `columns="evolve"` a source gets the columns of the files that it reads, and never loses a column
# again.


NUMBERS = StructType().add("n", LongType())


def write(root, name, **columns):
    (root / "a").mkdir(exist_ok=True)
    pq.write_table(pa.table({"n": pa.array([1], pa.int64())} | columns), root / "a" / name)


def evolving(root, **given):
    return FileSource(root, NUMBERS, **({"columns": "evolve"} | given))


def names(read):
    return [(field.name, field.dataType.simpleString()) for field in read.schema()]


def test_a_file_with_a_new_column_waits_for_the_next_tick(tmp_path):
    """The source still reads the files before this one. The next tick's source has the column, and reads on."""
    write(tmp_path, "1.parquet")
    write(tmp_path, "2.parquet", at=pa.array([None], pa.timestamp("ns", "UTC")), word=pa.array(["w"]))
    write(tmp_path, "3.parquet")
    first = evolving(tmp_path)
    slice_ = poll(first)
    assert (1, None) == (slice_.rows, poll(first, slice_.end))
    assert [("n", "bigint")] == names(first)
    then = evolving(tmp_path)
    assert [("n", "bigint"), ("at", "timestamp"), ("word", "string")] == names(then)
    assert 2 == poll(then, slice_.end).rows


def test_a_bounded_split_does_not_end_before_a_file_that_waits(tmp_path):
    write(tmp_path, "1.parquet")
    write(tmp_path, "2.parquet", word=pa.array(["w"]))
    first, split = evolving(tmp_path, bounded=True), SplitId("a")
    read = poll(first)
    assert (None, False) == (poll(first, read.end), has_ended(first, split, read.end))
    then = evolving(tmp_path, bounded=True)
    rest = poll(then, read.end)
    assert (1, None, True) == (rest.rows, poll(then, rest.end), has_ended(then, split, rest.end))


def test_a_column_stays_when_its_files_are_gone(tmp_path):
    """A completed checkpoint has their rows. A file without a declared column is still refused."""
    write(tmp_path, "1.parquet", word=pa.array(["w"]))
    assert poll(evolving(tmp_path)) is None
    then = evolving(tmp_path)
    then.notify_checkpoint_complete(CheckpointId(1), {SplitId("a"): poll(then).end})
    (tmp_path / "a" / "1.parquet").unlink()
    write(tmp_path, "2.parquet", more=pa.array([1.5]))
    assert poll(evolving(tmp_path)) is None
    assert [("n", "bigint"), ("word", "string"), ("more", "double")] == names(evolving(tmp_path))
    assert 1 == poll(evolving(tmp_path)).rows
    pq.write_table(pa.table({"word": ["w"]}), tmp_path / "a" / "3.parquet")
    with pytest.raises(SourceError, match="no column 'n'"):
        poll(evolving(tmp_path))


@pytest.mark.parametrize("mend", [True, False])
def test_a_file_that_was_never_read_is_forgotten_when_it_is_removed_or_mended(tmp_path, mend):
    """The columns of a bad file must not be kept: the next file may have the column with another type."""
    write(tmp_path, "1.parquet", word=pa.array([1]))
    assert poll(evolving(tmp_path)) is None
    assert [("n", "bigint"), ("word", "bigint")] == names(evolving(tmp_path))
    (tmp_path / "a" / "1.parquet").unlink()
    assert [("n", "bigint")] == names(evolving(tmp_path))
    write(tmp_path, "1.parquet" if mend else "2.parquet", word=pa.array(["w"]))
    assert poll(evolving(tmp_path)) is None
    assert [("n", "bigint"), ("word", "string")] == names(evolving(tmp_path))
    assert 1 == poll(evolving(tmp_path)).rows


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("1.json", b'{"n": 1, "word": "w"}\n{"n": 2,\n', "line 2 is no JSON object, so its columns are not added"),
        ("1.json", b'{"n": 1, "N": "w"}\n', "column 'N' has the name of column 'n' but for its case"),
        ("1.parquet", None, "cannot be read as Parquet"),
    ],
)
def test_a_damaged_file_teaches_nothing(tmp_path, name, data, why):
    """The error names the damaged file. When the file is gone, the split goes on."""
    write(tmp_path, name, word=pa.array(["w" * 1_000]))
    path = tmp_path / "a" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 60 + whole[64:] if data is None else data)
    with pytest.raises(SourceError, match=why):
        poll(evolving(tmp_path, format=name.split(".")[1]))
    assert not (tmp_path / FOUND).exists()
    path.unlink()
    assert poll(evolving(tmp_path, format=name.split(".")[1])) is None


def test_digits_that_a_double_would_lose_stay(tmp_path):
    """A field that has a number of 16 digits and a number with a point becomes text.

    Without the point it is a bigint.
    """
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.json").write_text('{"x": 9007199254740993, "y": 9007199254740993}\n{"x": 0.5, "y": 1}\n')
    assert poll(evolving(tmp_path, format="json")) is None
    assert [("n", "bigint"), ("x", "string"), ("y", "bigint")] == names(evolving(tmp_path, format="json"))


def test_a_column_that_is_declared_later_comes_once(tmp_path):
    """The source has the column once, with the declared type."""
    write(tmp_path, "1.parquet", word=pa.array(["w"]))
    assert poll(evolving(tmp_path)) is None
    declared = FileSource(tmp_path, StructType().add("word", StringType()).add("n", LongType()), columns="evolve")
    assert [("word", "string"), ("n", "bigint")] == names(declared)


def test_another_type_is_refused(tmp_path):
    """A later file has a found column with another type. The error names it, like a wrong type of a declared column."""
    write(tmp_path, "1.parquet", word=pa.array(["w"]))
    assert poll(evolving(tmp_path)) is None
    write(tmp_path, "2.parquet", word=pa.array([1], pa.int64()))
    with pytest.raises(SourceError, match="column 'word' is bigint, but the source's schema says string"):
        poll(evolving(tmp_path))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([None], pa.null()), "has no values and no type"),
        (pa.array([1], pa.duration("ns")), "a type that Spark cannot read"),
    ],
)
def test_a_column_that_cannot_be_added_is_named(tmp_path, column, message):
    write(tmp_path, "1.parquet", word=column)
    with pytest.raises(SourceError, match=rf"1\.parquet: column 'word' .*{message}"):
        poll(evolving(tmp_path))


@pytest.mark.parametrize("text", ["", "{}", '{"columns": {"fields": 1}}', '{"columns": {}, "secret": 1}'])
def test_a_damaged_file_of_recorded_columns_is_named(tmp_path, text):
    """Otherwise columns would be lost silently."""
    write(tmp_path, "1.parquet")
    (tmp_path / FOUND).write_text(text)
    with pytest.raises(SourceError, match=r"_columns\.json, .* cannot be read .* put it back as it was"):
        evolving(tmp_path)


# ------------------------------------------------------------------
# Tests that a source reads types that other programs write, converts them, or refuses them with an error that has the
# type's name.


@pytest.mark.parametrize(
    ("arrow", "name"),
    [
        (pa.timestamp("ns", "UTC"), "timestamp"),
        (pa.timestamp("ns"), "timestamp_ntz"),
        (pa.timestamp("ms", "Europe/Zurich"), "timestamp"),
        (pa.dictionary(pa.int8(), pa.timestamp("ns", "UTC")), "timestamp"),
        (pa.dictionary(pa.uint32(), pa.large_string()), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.large_list(pa.large_string()), "array<string>"),
        (pa.list_(pa.uint8(), 2), "array<smallint>"),
        (pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]), "struct<a:string>"),
        (pa.map_(pa.large_string(), pa.uint32()), "map<string,bigint>"),
        (pa.uint64(), "decimal(20,0)"),
    ],
)
def test_a_readable_type_has_sparks_name(arrow, name):
    """The source reads such a type in any form that the file's writer chose."""
    assert name == column("c", arrow).said == column("c", arrow).type.simpleString()


@pytest.mark.parametrize(
    "arrow",
    [
        pa.struct([("at", pa.timestamp("ns"))]),
        pa.list_(pa.timestamp("ns", "UTC")),
        pa.duration("ns"),
        pa.time64("ns"),
        pa.float16(),
    ],
)
def test_a_type_that_spark_would_refuse_or_misread_keeps_its_own_name(arrow):
    """So the refusal shows what the file holds."""
    found = column("c", arrow)
    assert (str(arrow), None) == (found.said, found.type)


@pytest.mark.parametrize(
    ("arrow", "conversion"),
    [
        (pa.timestamp("ns", "UTC"), Conversion.NANOSECONDS),
        (pa.timestamp("ns"), Conversion.NANOSECONDS_WITHOUT_ZONE),
        (pa.null(), Conversion.NOTHING),
        (pa.timestamp("us", "UTC"), None),
        (pa.large_string(), None),
    ],
)
def test_only_what_spark_cannot_read_is_converted(arrow, conversion):
    """Only nanoseconds, and columns without a value, are converted."""
    assert conversion is conversion_of(arrow)


# ------------------------------------------------------------------
# Tests a source of made-up rows without Spark: how many rows come, and when.


def polled(source, split="0", position=None, rows=1_000):
    found = source.poll(PollSource(VertexId("made"), SplitId(split), position, rows))
    return 0 if found is None else found.rows


def test_the_splits_share_the_rows():
    """Each split has its share of the rows, and ends. Without a number of rows, no split ends."""
    source = GeneratorSource(rows=10, splits=3)
    assert [4, 3, 3] == [polled(source, split) for split in source.splits()]
    assert {SplitId("0"): Lag(2), SplitId("1"): Lag(3), SplitId("2"): Lag(3)} == source.lag({SplitId("0"): "2"})
    assert 1_000 == polled(GeneratorSource(), position="123456789")


def test_rows_come_at_their_rate_from_the_first_poll_on(monkeypatch):
    """Rows come from the position of the first poll on, and only as many as exist.

    Rows before that position come at once.
    """
    now_s = 50.0
    monkeypatch.setattr(generator.time, "monotonic", lambda: now_s)
    source = GeneratorSource(rows=200, rate=20, splits=2)
    assert 0 == polled(source, position="40")
    now_s += 1.55
    assert 15 == polled(source, position="40")
    assert 25 == polled(source, position="30")
    assert 3 == polled(source, position="40", rows=3)
    assert 0 == polled(source, "1")
    now_s += 100
    assert 60 == polled(source, position="40")


@pytest.mark.parametrize("wrong", [{"splits": 0}, {"rate": 0}, {"rows": -1}])
def test_a_number_that_makes_no_rows_is_refused(wrong):
    """The message names the number."""
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name} of a generator must be positive"):
        GeneratorSource(**wrong)


def test_the_source_describes_what_it_makes():
    """The description has the seed and the rate."""
    assert "made up from seed 7, 20 rows a second" == GeneratorSource(rate=20, seed=7, splits=4).described().place
