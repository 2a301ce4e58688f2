"""Headers of CSV files as Spark parses them: each value comes to the column of its name, or the file is refused."""

import gzip

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError
from tests.scenarios.test_input_formats import polls

pytestmark = pytest.mark.spark

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
    """Also in a second file, which has them in the other order."""
    text, name, options = HEADERS[case]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_bytes(text.encode())
    schema = StructType().add(name, StringType()).add("n", LongType())
    assert [("x", 1)] == read(spark, tmp_path, schema, **options)


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "UTF-16", "UTF-16LE"])
def test_a_header_is_read_in_the_encoding_of_its_file(spark, tmp_path, encoding):
    """Spark alone would cut the lines of UTF-16 in the middle of a character."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.csv").write_bytes("n,größe\n1,ä\n2,ü\n".encode(encoding))
    schema = StructType().add("größe", StringType()).add("n", LongType())
    assert [("ä", 1), ("ü", 2)] == read(spark, tmp_path, schema, encoding=encoding)


def test_each_file_is_read_by_its_own_header(spark, tmp_path):
    """A second file has another order and a further column, and empty ones have no rows, packed or not."""
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
