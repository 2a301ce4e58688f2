"""Checks the arithmetic of positions in a folder of files against a plain list of rows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.sources.files.file_position import FilePosition, SeenFile, SliceDetail, advance
from jobs.sources.port import SourceError


def seen(name: str, rows: int) -> SeenFile:
    return SeenFile(name=name, size=rows * 10 + 4, modified_ns=1, rows=rows)


def unseen(position: FilePosition, files: dict[str, SeenFile]) -> list[SeenFile]:
    known = {file.name for file in position.files}
    return [files[name] for name in sorted(files) if name not in known]


arrivals = st.lists(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 9), max_size=4), min_size=1, max_size=5
)


@given(arrivals=arrivals, rows_max=st.integers(1, 12))
def test_every_row_comes_once_in_any_order_of_arrival(arrivals, rows_max):
    """Files arrive in any order, under any names. The source reads each row once, and ordinals have no gap."""
    files: dict[str, SeenFile] = {}
    position, consumed, ordinals = FilePosition(), [], []
    for arrived in arrivals:
        for name, rows in arrived.items():
            files.setdefault(name, seen(name, rows))
        while True:
            position, ranges = advance(position, unseen(position, files), rows_max)
            position = FilePosition.parse(position.text())
            assert sum(part.rows for part in ranges) <= rows_max
            if not ranges:
                break
            for part in ranges:
                consumed += [(part.file.name, row) for row in range(part.first, part.end)]
                ordinals += [part.before + row for row in range(part.first, part.end)]
    assert sorted((name, row) for name, file in files.items() for row in range(file.rows)) == sorted(consumed)
    assert list(range(len(consumed))) == ordinals


@given(rows=st.lists(st.integers(0, 9), max_size=8), rows_max=st.integers(1, 12))
def test_a_file_that_fits_is_never_split(rows, rows_max):
    """A file of at most rows_max rows lies within one slice."""
    files = {f"{number:02}": seen(f"{number:02}", count) for number, count in enumerate(rows)}
    position, slices = FilePosition(), []
    while (step := advance(position, unseen(position, files), rows_max))[1]:
        position, ranges = step
        slices.append(ranges)
    pieces = [part.file.name for ranges in slices for part in ranges if part.file.rows <= rows_max]
    assert sorted(set(pieces)) == sorted(pieces)


def test_a_late_file_under_an_earlier_name_comes_next():
    """Files come in the order of discovery. `a` arrives after `b` was read, so it follows `b`."""
    position, _ = advance(FilePosition(), [seen("b", 3)], 10)
    position, ranges = advance(position, [seen("a", 2)], 10)
    assert ["b", "a"] == [file.name for file in position.files]
    assert [(0, 2, 3)] == [(part.first, part.end, part.before) for part in ranges]


def test_a_file_larger_than_a_slice_is_read_in_parts():
    """A position inside a file counts its read rows. The next file may follow the last part in the same slice."""
    position, first = advance(FilePosition(), [seen("a", 5)], 3)
    position, second = advance(position, [seen("b", 1)], 3)
    assert [(0, 3)] == [(part.first, part.end) for part in first]
    assert [("a", 3, 5, 0), ("b", 0, 1, 5)] == [(p.file.name, p.first, p.end, p.before) for p in second]
    assert (1, 5) == (position.consumed, position.before)


def test_no_more_footers_are_read_than_needed():
    """Of the unseen files, the source opens at most one more than the slice needs."""
    taken = []

    def files():
        for name in "abcdef":
            taken.append(name)
            yield seen(name, 2)

    advance(FilePosition(), files(), 4)
    assert ["a", "b"] == taken


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../other.parquet", "/etc/passwd", "a/../b.parquet", "a//b.parquet", "a\0b"]
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name):
    """An entry of another warehouse brings positions and slices.

    They may not reach a file outside the split's folder.
    """
    file = {"name": name, "size": 1, "modified_ns": 1, "rows": 1}
    detail = {"ranges": [{"file": file, "first": 0, "end": 1, "before": 0}]}
    for files in ([file], [list(file.values())]):
        with pytest.raises(SourceError, match="must be the path of a file below the split's folder"):
            FilePosition.parse(json.dumps({"files": files, "consumed": 1}))
    with pytest.raises(SourceError, match="must be the path of a file below the split's folder"):
        SliceDetail.parse(json.dumps(detail))


@pytest.mark.parametrize(("first", "end"), [(1, 1), (2, 1), (0, 4)])
def test_a_range_that_its_file_does_not_have_is_refused(first, end):
    """No slice reads rows that do not exist, and no position has read them."""
    file = {"name": "a", "size": 1, "modified_ns": 1, "rows": 3}
    detail = {"ranges": [{"file": file, "first": first, "end": end, "before": 0}]}
    with pytest.raises(SourceError, match="must be rows of the file"):
        SliceDetail.parse(json.dumps(detail))
    with pytest.raises(SourceError, match="must not be more than the last file has"):
        FilePosition.parse(json.dumps({"files": [file], "consumed": 4}))


@pytest.mark.parametrize("text", ["", "{}x", '{"format":3}', "17", '{"files":[{"name":"a"}]}'])
def test_a_foreign_position_is_refused_with_the_way_out(text):
    """A position that no file source wrote is an error. The source does not begin from the start."""
    with pytest.raises(SourceError, match="Give the new source an id of its own"):
        FilePosition.parse(text)
