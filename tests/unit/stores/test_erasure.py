"""The commit that erases rows replaces all entries and their manifests in one step (K6)."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.at_rest import Forget, Stamp
from checkpointing.commit.fencing import IDS_PER_CLAIM
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName, VertexId
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import ProtocolPaths, table_of_state
from checkpointing.metadata.record import CheckpointRecord, Claim, ErasedFile, Holder, RowKind, VertexRecord
from jobs.tick.at_rest.erased_files import NotErasableError, SearchedFile, SearchedTable, must_be_erasable
from jobs.tick.at_rest.forget import ErasureAsked, _why_not
from jobs.warehouse.checkpoints import Appended, CheckpointStore
from jobs.warehouse.log_rewriting import LogNotRewrittenError
from jobs.warehouse.warehouse import Warehouse
from tests.unit.full_entry import plain_entry

FILES = 1_100
"""More files than an entry itself can list."""
STATE = table_of_state(JobName("small"), VertexId("sums"))


def path(number: int, generation: int = 1) -> str:
    return f"{STATE}/_data/{generation}/sums-1-{number:032x}.parquet"


def held(number: int) -> KeyedFile:
    bounds = f'{{"minValues":{{"customer":"least of {number}"}}}}'
    return KeyedFile(FileHandle(path(number), 9, 100, 7, bounds), KeyedFileKind.DELTA, 0, 7, Version(Generation(1), 1))


def entry(checkpoint: int, files: int, kind: RowKind) -> CheckpointRecord:
    subtask = SubtaskSnapshot(state=tuple(map(held, range(files))))
    vertex = VertexRecord(vertex=VertexId("sums"), micro_batch=1, subtasks=(subtask,))
    told = {"checkpoint": CheckpointId(checkpoint), "parent": CheckpointId(checkpoint - 1), "nonce": f"n{checkpoint}"}
    return plain_entry(kind, vertices=(vertex,), pinned=kind is RowKind.SAVEPOINT, **told)


def claim(generation: int) -> Claim:
    holder, first = Holder(host="here", pid=1, started="now"), CheckpointId(generation * IDS_PER_CLAIM)
    last = CheckpointId(first + IDS_PER_CLAIM - 1)
    return Claim(
        generation=Generation(generation), holder=holder, first_id=first, last_id=last, at_ms=1, nonce=f"c{generation}"
    )


def test_every_entry_and_every_manifest_names_the_successor_alone(tmp_path):
    """There are small and large entries, and a savepoint. All else in the entries stays the same.

    All rows of one file are erased, so this file has no successor.
    """
    warehouse = Warehouse(tmp_path, ProtocolPaths(JobName("small")))
    store = CheckpointStore(warehouse)
    large, small = entry(2, FILES, RowKind.CHECKPOINT), entry(3, 5, RowKind.CHECKPOINT)
    for row in (claim(1), entry(1, FILES - 9, RowKind.SAVEPOINT), large, small, claim(2)):
        assert isinstance(store.append(row, store.observe()[0]), Appended)
    into = FileHandle(path(0, 2), 8, 90, 6, '{"numRecords":8}')
    erased = tuple(ErasedFile(table=TableName(STATE), path=path(n), into=after) for n, after in ((3, into), (4, None)))
    forget = Forget(small, (), erased).row(claim(2), Stamp(5, "forget"))
    assert isinstance(store.append(forget, store.observe()[0]), Appended)
    for known in (store, CheckpointStore(warehouse)):
        rows = {row.checkpoint: row for row in known.observe()[1] if isinstance(row, CheckpointRecord)}
        assert set(rows) == {1, 2, 3, forget.checkpoint}
        assert not any({path(3), path(4)} & files_of(row) for row in rows.values())
        state = rows[2].vertices[0].subtasks[0].state
        left = [path(0, 2) if each == 3 else path(each) for each in range(FILES) if each != 4]
        assert left == [each.file.path for each in state]
        assert replace(state[3], file=large.vertices[0].subtasks[0].state[3].file) == held(3)
        assert rows[1].pinned
        assert rows[3].generation == small.generation
        manifests = {tmp_path / each for row in rows.values() for each in row.held_in}
        assert len(manifests) >= 2
        assert not any(f"{each:032x}" in plain(manifest) for each in (3, 4) for manifest in manifests)


def plain(manifest: Path) -> str:
    with pa.CompressedInputStream(pa.BufferReader(manifest.read_bytes()), "zstd") as content:
        return content.read().decode()


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        (f"{1:020d}.checkpoint.{1:010d}.{2:010d}.parquet", "", "a Delta log checkpoint of several files"),
        (f"{2:020d}.json", '{"cdc":{"path":"_change_data/c.parquet"}}\n', "files of Change Data Feed"),
    ],
)
def test_what_a_successor_would_not_show_the_same_is_refused_by_name(tmp_path, file, content, why):
    """Each message has the way out. A deletion vector is refused only if its file has matching rows."""
    warehouse, log = Warehouse(tmp_path, ProtocolPaths(JobName("small"))), tmp_path / "gold" / "sums" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{1:020d}.json").write_text("{}\n")
    marked = SearchedFile("gold/sums/a.parquet", marked=True)
    table = SearchedTable(TableName("gold/sums"), pa.schema([]), (marked,), has_log=True)
    must_be_erasable(warehouse, table, {})
    with pytest.raises(
        NotErasableError, match=r"deletion vector on gold/sums/a.parquet.*REORG TABLE.*--except gold/sums"
    ):
        must_be_erasable(warehouse, table, {marked.path: [0]})
    (log / file).write_text(content)
    with pytest.raises((NotErasableError, LogNotRewrittenError), match=f"{why}.*--except"):
        must_be_erasable(warehouse, table, {})


def test_a_column_of_several_names_is_not_searched():
    """Two columns differ only in case, so a condition is ambiguous, as in Spark. The message names a nested column."""
    inside = pa.struct([("City", pa.string())])
    schema = pa.schema([("customer", pa.string()), ("Customer", pa.string()), ("N", pa.int64()), ("home", inside)])
    table = SearchedTable(TableName("gold/sums"), schema, (), has_log=True)
    asked = ErasureAsked("bronze/orders", "n = 1")
    assert _why_not(table, asked, ["n"]) == ""
    assert _why_not(table, asked, ["n", "customer"]).startswith("has the columns customer and Customer, and case ")
    assert _why_not(table, asked, ["n", "city"]).startswith("has home.City only inside another column")
