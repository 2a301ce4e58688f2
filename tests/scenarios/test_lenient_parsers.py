"""What Spark's parsers take for a record although it is none: here it is bad, or read right, with any way to read."""

import gzip
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql.types import DecimalType, LongType, StringType, StructField, StructType, TimestampType

from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError
from tests.scenarios.test_input_formats import polls

pytestmark = pytest.mark.spark

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


def read(spark, folder, form, fields, **more):
    source = FileSource(folder, StructType(fields), format=form, **more)
    frame = source.read(spark, list(polls(source, 1_000)))
    return [tuple(row)[: len(fields) + ("corrupt_column" in more)] for row in frame.orderBy("_position").collect()]


@pytest.mark.parametrize("case", GOOD)
def test_a_value_is_read_right(spark, tmp_path, case):
    """The judge is the letter of CSV and JSON. A corrupt column stays null."""
    form, text, fields, rows = GOOD[case]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"1.{form}").write_bytes(text.encode())
    assert rows == read(spark, tmp_path, form, fields)
    assert [(*row, None) for row in rows] == read(spark, tmp_path, form, fields, corrupt_column="bad")


@pytest.mark.parametrize("case", BAD)
def test_a_bad_record_is_told(spark, tmp_path, case):
    """With a corrupt column it is there, with its text. Without one, the file is named. A good record stays good."""
    form, text, fields = BAD[case]
    data = text if isinstance(text, bytes) else text.encode()
    good = b"2" + b"," * (len(fields) - 1) + b"\n" if form == "csv" else b'{"n": 2}\n'
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"1.{form}").write_bytes(data.replace(b"{}", b"1", 1) + good)
    rows = read(spark, tmp_path, form, fields, corrupt_column="bad")
    assert [True, False] == [row[-1] is not None for row in rows]
    assert "1" in rows[0][-1]
    assert all(value is None for value in rows[0][1:-1] if value != "x")
    assert (2, *(None for _ in fields[1:]), None) == rows[1]
    with pytest.raises(Exception, match=rf"1\.{form}"):
        read(spark, tmp_path, form, fields)


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
    """The judge is Spark's own reader."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text(text)
    own = spark.read.options(**options).schema(StructType([N, field])).csv(str(tmp_path / "a"))
    rows = [tuple(row) for row in own.orderBy("n").collect()]
    assert any(row[1] is not None for row in rows)
    assert rows == read(spark, tmp_path, "csv", [N, field], options=options)
    assert [(*row, None) for row in rows] == read(
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
    """A time without a day has another day tomorrow, and a decimal keeps its point and its digits."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_text(f"1;{value}\n")
    ((_, read_as, record),) = read(spark, tmp_path, "csv", [N, field], options=options, corrupt_column="bad")
    assert read_as is None
    assert value.strip() in record
    with pytest.raises(Exception, match=r"1\.csv"):
        read(spark, tmp_path, "csv", [N, field], options=options)


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
    """The split waits, and the message names the file and what is wrong."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_bytes(data)
    source = FileSource(tmp_path, StructType([WORD, AT]), format=name.split(".")[1], options=options, columns="ignore")
    with pytest.raises(SourceError, match=rf"{name}.*{why}"):
        list(polls(source, 10))
