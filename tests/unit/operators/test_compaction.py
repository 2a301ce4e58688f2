"""Decides when a base is due, and which files still count."""

import pytest

from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import Generation
from jobs.state.backend import CompactionPolicy, is_base_due, live_files

BASE, DELTA = KeyedFileKind.BASE, KeyedFileKind.DELTA


def file(kind, rows, number, first=0, last=9):
    """Return a state file with this many rows."""
    return KeyedFile(FileHandle(f"{number}", rows, 1, 0), kind, first, last, Version(Generation(1), number))


@pytest.mark.parametrize(
    ("files", "delta_rows", "due"),
    [
        pytest.param([], 3, True, id="nothing yet"),
        pytest.param([file(BASE, 100, 1)], 99, False, id="small delta"),
        pytest.param([file(BASE, 100, 1)], 100, True, id="delta as big as the base"),
        pytest.param([file(BASE, 100, 1), file(DELTA, 60, 2)], 40, True, id="deltas together as big"),
        pytest.param([file(BASE, 100, 1), file(DELTA, 60, 2)], 39, False, id="together still smaller"),
        pytest.param([file(DELTA, 500, 1), file(BASE, 100, 2)], 1, False, id="what a base ended does not count"),
        pytest.param([file(BASE, 100, 1), *[file(DELTA, 1, n) for n in range(2, 5)]], 1, True, id="too many deltas"),
        pytest.param(
            [file(BASE, 100, 1), *[file(DELTA, 1, n) for n in range(2, 4)]], 1, False, id="as many as allowed"
        ),
    ],
)
def test_a_base_is_due_by_ratio_of_rows_or_number_of_deltas(files, delta_rows, due):
    """The deltas have as many rows as the base, or there would be more than three of them."""
    assert due == is_base_due(CompactionPolicy(ratio=1.0, deltas_max=3), files, delta_rows)


def test_a_base_replaces_the_files_before_it_only_in_its_range():
    """After a change of parallelism, one list has files of several ranges. A base replaces no file of another range."""
    low = [file(BASE, 1, 1, 0, 4), file(DELTA, 1, 2, 0, 4)]
    high = [file(BASE, 1, 3, 5, 9), file(DELTA, 1, 4, 5, 9)]
    whole = file(BASE, 1, 5, 0, 9)
    assert (*low, *high) == live_files([*low, *high])
    assert (whole,) == live_files([*low, *high, whole])
    assert (whole, low[0]) == live_files([whole, low[0]])
    assert (high[0], low[1]) == live_files([high[0], low[1]])


@pytest.mark.parametrize(("ratio", "deltas_max"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_limits_must_be_positive(ratio, deltas_max):
    """A policy that could never or always compact is refused."""
    with pytest.raises(ValueError, match="must be positive"):
        CompactionPolicy(ratio, deltas_max)
