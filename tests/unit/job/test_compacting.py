"""When a tick compacts, and which checkpoint commits what was compacted: facts in, effects out."""

import pytest

from checkpointing.commit.two_phase import Draft
from checkpointing.config import CheckpointConfig
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle
from checkpointing.identifiers import TableName, VertexId
from checkpointing.job.drafts import Compacting
from checkpointing.messages import Compacted, CompactFiles, FilesCompacted
from checkpointing.metadata.record import CheckpointRecord, FileCompaction, RowKind, Statistics, TableRecord

ROWS, TOTALS = TableName("bronze/rows"), TableName("gold/totals")
TABLES = (Table(ROWS, TableMode.APPEND), Table(TOTALS, TableMode.UPSERT))
GRAPH = JobGraph((Vertex(VertexId("rows"), VertexKind.STATELESS, 1, TABLES),), ())
STATISTICS = Statistics(triggered_ms=1, committed_ms=2, rows=3)
READY = (Compacted(ROWS, (FileCompaction(into=FileHandle("new", 2, 2, 0), of=("a", "b")),)),)


def begun(files_min=3, unpublished=()):
    """Return the beginning of a tick."""
    return Compacting(GRAPH, CheckpointConfig(compact_files_min=files_min, compacted_bytes_max=99), unpublished)


def draft(checkpoint, kind=RowKind.CHECKPOINT):
    """Return a checkpoint that is ready to be committed."""
    return Draft(checkpoint, (), STATISTICS, kind=kind)


def committed(checkpoint, files=0):
    """Return the entry of a checkpoint that adds files to the append table."""
    adds = tuple(FileHandle(f"{checkpoint}-{number}", 1, 1, 0) for number in range(files))
    return CheckpointRecord(
        job="job",
        checkpoint=checkpoint,
        parent=checkpoint - 1,
        generation=1,
        nonce="n",
        max_parallelism=1,
        vertices=(),
        tables=(TableRecord(table=ROWS, mode=TableMode.APPEND, adds=adds, parent_version=0),),
        statistics=STATISTICS,
    )


ASKED = (CompactFiles((ROWS,), 3, 99),)


def test_a_tick_compacts_when_it_has_rows_and_asks_once():
    """Only append tables are asked for. Nobody asks again while an answer is due, or is not committed yet."""
    job = begun()
    assert job.rows_read() == ASKED
    assert () == job.rows_read()
    job.told(FilesCompacted(READY))
    assert () == job.rows_read()
    assert READY == job.onto(draft(1)).compacted
    job.committed(committed(1, files=3))
    assert job.rows_read() == ASKED


def test_a_tick_asks_again_after_enough_new_files():
    """After an answer without files, or with an error, two new files are too few and three are enough."""
    for answer in (FilesCompacted(), FilesCompacted(error="the disk is full")):
        job = begun()
        job.rows_read()
        job.told(answer)
        job.committed(committed(1, files=2))
        assert () == job.rows_read()
        job.committed(committed(2, files=1))
        assert job.rows_read() == ASKED


def test_a_table_with_more_to_do_is_asked_for_again():
    """One request takes no longer than it takes to write one large file."""
    job = begun()
    job.rows_read()
    job.told(FilesCompacted(more=(ROWS,)))
    assert job.rows_read() == ASKED


@pytest.mark.parametrize("second", [RowKind.CHECKPOINT, RowKind.HELD])
def test_one_checkpoint_commits_it(second):
    """A plain savepoint publishes nothing, so it takes nothing. After a decline, the next checkpoint takes it."""
    job = begun()
    job.rows_read()
    job.told(FilesCompacted(READY))
    assert () == job.onto(draft(1, RowKind.SAVEPOINT)).compacted
    assert READY == job.onto(draft(2)).compacted
    assert () == job.onto(draft(3)).compacted
    job.declined(3)
    assert () == job.onto(draft(4)).compacted
    job.declined(2)
    assert READY == job.onto(draft(5, second)).compacted


def test_a_job_that_compacts_nothing_asks_for_nothing():
    """Neither does a tick whose table nobody has published under its name yet, until it has."""
    assert () == begun(files_min=None).rows_read()
    job = begun(unpublished=(ROWS,))
    assert () == job.rows_read()
    job.committed(committed(1, files=3))
    assert job.rows_read() == ASKED
