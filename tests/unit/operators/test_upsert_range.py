"""A range of an upsert table in files of bounded size: whatever the changes, it shows what a dict would hold."""

from tempfile import TemporaryDirectory

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.handles import Version
from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.key_groups import KeyGroupRange
from jobs.sinks.staged_files import StagedFiles
from jobs.state.files import StateFileError
from jobs.state.keyed_rows import KeyedRows
from jobs.state.upsert_range import FILE_ROWS_MAX, UpsertRange
from jobs.state.worker_copy import WorkerCopies

SCHEMA = pa.schema([("k", pa.int64()), ("city", pa.string()), ("v", pa.int64())])
COLUMNS = {"k": pl.Int64, "city": pl.String, "v": pl.Int64}
TABLE = TableName("gold/t")


def upsert(root, files, copies, *, number=0, by=(), rows_max=4, all_files=False):
    """Return a range over these files."""
    return UpsertRange(
        operator="sums",
        table=TABLE,
        keys=("k",),
        schema=SCHEMA,
        range=KeyGroupRange(first=0, last=3),
        files=files,
        writer=StagedFiles(str(root), JobName("job"), Generation(1), VertexId("sums"), number),
        version=Version(Generation(1), number),
        partitioned_by=by,
        all_files=all_files,
        file_rows_max=rows_max,
        copies=copies,
    )


def frame(rows):
    """Return {k: (city, v)} as rows."""
    return pl.DataFrame([(k, *rest) for k, rest in rows.items()], schema=COLUMNS, orient="row")


def content_of(rows):
    """Return rows as {k: (city, v)}. Fail if a key is there twice."""
    content = {k: rest for k, *rest in rows.frame().rows()}
    assert len(content) == rows.frame().height
    return {k: tuple(rest) for k, rest in content.items()}


ROWS = st.dictionaries(st.integers(0, 30), st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 9)), max_size=12)
CHANGES = st.lists(
    st.tuples(ROWS, st.sets(st.integers(0, 30), max_size=4), st.integers(0, 2), st.booleans()), max_size=8
)


@given(CHANGES, st.sampled_from([(), ("city",)]))
def test_a_range_shows_what_a_dict_would_hold(changes, by):
    """An up-to-date copy, an older copy and the files alone show the same rows. Each file has rows of one partition.

    Hypothesis picks the worker of each change: one of two, or a new one. So a worker often has an older copy.
    """
    with TemporaryDirectory() as root:
        workers, files, expected = [WorkerCopies(), WorkerCopies()], (), {}
        for number, (rows, perhaps_gone, worker, is_all) in enumerate(changes):
            gone = perhaps_gone - set(rows)
            copies = [*workers, WorkerCopies()][worker]
            held = upsert(root, files, copies, number=number, by=by, all_files=is_all)
            files = held.write(held.load(), frame(rows), frame(dict.fromkeys(gone, ("a", 0))))
            expected = {k: row for k, row in (expected | rows).items() if k not in gone}
            assert expected == content_of(upsert(root, files, copies, by=by).load())
            assert expected == content_of(upsert(root, files, WorkerCopies(), by=by).load())
            assert all(1 <= each.file.rows <= 4 for each in files)
            assert sum(each.file.rows for each in files) == len(expected)
            if by:
                parts = upsert(root, files, WorkerCopies(), by=by).load().layers
                assert all(1 == part.rows["city"].n_unique() for part in parts)


def test_a_worker_with_an_older_copy_reads_only_files_that_it_lacks(tmp_path):
    """Files that it has read or written before may even be gone."""
    first, second = WorkerCopies(), WorkerCopies()
    held = upsert(tmp_path, (), first)
    files = held.write(held.load(), frame({k: ("a", k) for k in range(12)}), frame({}))
    other = upsert(tmp_path, files, second, number=1)
    changed = other.write(other.load(), frame({0: ("b", 9)}), frame({}))
    for file in set(files) & set(changed):
        (tmp_path / file.file.path).unlink()
    found = content_of(upsert(tmp_path, changed, first, number=2).load())
    assert {k: ("a", k) for k in range(1, 12)} | {0: ("b", 9)} == found
    with pytest.raises(StateFileError):
        upsert(tmp_path, changed, WorkerCopies(), number=2).load()


def test_files_whose_rows_do_not_change_stay(tmp_path):
    """Rows that change move to the end, so that those which change again soon lie together."""
    first = upsert(tmp_path, (), WorkerCopies()).write(
        KeyedRows.of(frame({})), frame({k: ("a", k) for k in range(16)}), frame({})
    )
    assert [4, 4, 4, 4] == [each.file.rows for each in first]
    held = upsert(tmp_path, first, WorkerCopies(), number=1)
    second = held.write(held.load(), frame({1: ("a", 0), 9: ("a", 0)}), frame({}))
    assert {first[1], first[3]} == set(first) & set(second)
    assert [4, 4, 4, 4] == [each.file.rows for each in second]
    last = upsert(tmp_path, second, WorkerCopies()).load().layers[-1]
    assert [1, 9] == last.rows["k"].to_list()[-2:]
    again = upsert(tmp_path, second, WorkerCopies(), number=2)
    third = again.write(again.load(), frame({1: ("a", 1), 9: ("a", 1)}), frame({}))
    assert 3 == len(set(second) & set(third))


def test_small_files_do_not_become_many(tmp_path):
    """New keys join the small file, and a partition that gets no row keeps its own."""
    files, copies = (), WorkerCopies()
    for number in range(20):
        held = upsert(tmp_path, files, copies, number=number, by=("city",), rows_max=10)
        rows = {-1: ("b", 0)} if number == 0 else {number: ("a", 0)}
        before, files = files, held.write(held.load(), frame(rows), frame({}))
        assert number == 0 or before[0] in files
    assert 1 + 4 == len(files)  # of five rows each, half of the largest number, and one of the other partition
    assert 20 == sum(each.file.rows for each in files)


@pytest.mark.parametrize(("gone", "left"), [(4, 3), (0, 0)])
def test_a_file_without_rows_goes(tmp_path, gone, left):
    """The keys 0 to 3 are one file. A range without rows has no file."""
    held = upsert(tmp_path, (), WorkerCopies())
    first = held.write(KeyedRows.of(frame({})), frame({k: ("a", k) for k in range(16)}), frame({}))
    held = upsert(tmp_path, first, WorkerCopies(), number=1)
    keys = range(gone) if gone else range(16)
    assert left == len(held.write(held.load(), frame({}), frame(dict.fromkeys(keys, ("a", 0)))))


def test_a_file_of_the_default_size_is_not_cut(tmp_path):
    """Small tables have one file for each range, as before."""
    held = upsert(tmp_path, (), WorkerCopies(), rows_max=FILE_ROWS_MAX)
    assert 1 == len(held.write(KeyedRows.of(frame({})), frame({k: ("a", k) for k in range(5000)}), frame({})))


def test_the_last_row_of_a_key_wins(tmp_path):
    """An output may have a key twice."""
    held = upsert(tmp_path, (), WorkerCopies())
    twice = pl.concat([frame({1: ("a", 1), 2: ("a", 1)}), frame({1: ("a", 2)})])
    written = held.write(KeyedRows.of(frame({})), twice, frame({}))
    assert {1: ("a", 2), 2: ("a", 1)} == content_of(upsert(tmp_path, written, WorkerCopies()).load())
