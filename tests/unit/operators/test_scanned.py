"""Tasks that read all files themselves keep the rows of their own subtasks, which are those that an exchange brings."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.operators.exchange import SUBTASK, Splitter, arrived, take_apart
from jobs.operators.scan.scanned import KeyedScan
from jobs.storage.parquet import FileScan

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string())])
KEYS = 500


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Return parts of two files with more keys than key groups, some of them null."""
    root = tmp_path_factory.mktemp("files")
    for number in range(2):
        keys = [None if key % 50 == number else key for key in range(KEYS)]
        pq.write_table(pa.table([keys, [f"{number} {key}" for key in keys]], schema=SCHEMA), root / f"{number}.parquet")
    return tuple(
        FileScan(root=str(root), name=f"{number}.parquet", first=number, end=KEYS, bytes=1) for number in range(2)
    )


@given(max_parallelism=st.integers(1, 40), data=st.data())
def test_each_row_belongs_to_the_subtask_to_which_an_exchange_brings_it(scans, max_parallelism, data):
    """They come in the order of the files, whether one task runs all subtasks or each subtask has its own."""
    parallelism = data.draw(st.integers(1, max_parallelism))
    splitter = Splitter(tag=0, schema=SCHEMA, parallelism=parallelism, max_parallelism=max_parallelism)
    scan = KeyedScan(shares=(scans[:1], scans[1:]), keys=("key",), max_parallelism=max_parallelism, splitter=splitter)
    blocks = [*scan.run([pa.record_batch([[0, 1]], ["share"])])]
    together = scan.by_subtask(range(parallelism))
    for subtask in range(parallelism):
        of_exchange = [batch.filter(pc.equal(batch.column(SUBTASK), subtask)) for batch in blocks]
        expected = take_apart(of_exchange, [SCHEMA]).frames[0]
        for rows in (together, scan.by_subtask([subtask])):
            assert expected.equals(arrived({0: rows[subtask]}, [SCHEMA]).frames[0])
    assert 2 * KEYS - 1 == sum(rows.num_rows for parts in together.values() for rows in parts)
