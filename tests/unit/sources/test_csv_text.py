"""Reads headers as Spark's parser does, and finds what must be known of a CSV file before Spark reads it."""

import pytest

from jobs.sources.csv_text import Dialect, header_of, looked_through


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
    """Each of these was tried with Spark 4.2. Python's own reader gives other names for most of them."""
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
    """However the file is cut into parts: the lines, whether it has quotes, its line break, and what is wrong where."""
    data = text if isinstance(text, bytes) else text.encode()
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    look = looked_through(lambda: parts, Dialect.of(options))
    assert found == (look.lines, look.has_quotes, look.break_, look.broken_at, look.open_at)
