"""Only files that certainly nothing refers to are deleted."""

from pathlib import Path
from uuid import uuid4

import pytest

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.cleanup import (
    Referenced,
    is_leftover,
    is_unreferenced,
    oldest_with_leftovers,
    referenced,
)
from checkpointing.handles import FileHandle, StagedFile
from checkpointing.identifiers import CheckpointId, Generation, VertexId, job_name, table_name
from checkpointing.messages import RunMicroBatch
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics, VertexRecord
from jobs.warehouse.cleanup import LISTED_ALONE, delete_leftovers, delete_unfinished
from jobs.warehouse.warehouse import Warehouse

SILVER = table_name("silver/flights")
JOIN = VertexId("join")


def _row(generation: int, micro_batch: int) -> CheckpointRecord:
    return CheckpointRecord(
        job="flights",
        checkpoint=CheckpointId(5),
        parent=CheckpointId(4),
        generation=Generation(generation),
        nonce="n",
        max_parallelism=8,
        vertices=(VertexRecord(vertex=JOIN, micro_batch=micro_batch, subtasks=()),),
        tables=(),
        statistics=Statistics(triggered_ms=1, committed_ms=1, rows=1),
    )


@pytest.mark.parametrize(
    ("generation", "micro_batch", "vertex", "expected"),
    [
        (1, 99, "join", False),  # older than the newest entry's generation: retained entries may name it
        (2, 7, "join", False),  # of the newest entry itself
        (2, 8, "join", True),  # after the newest barrier
        (2, 8, "other", False),  # of a vertex that the entry does not know
        (3, 1, "join", True),  # a generation that committed nothing
        (4, 1, "join", False),  # the present claim's own
        (5, 1, "join", False),  # newer than the present claim: a successor's
    ],
)
def test_a_staged_file_is_a_leftover_only_after_the_newest_entry(
    generation: int, micro_batch: int, vertex: str, expected: bool
) -> None:
    """The newest entry has generation 2 and micro-batch 7, and the claim has generation 4."""
    name = StagedName(VertexId(vertex), micro_batch, str(uuid4()))
    assert expected == is_leftover(name, Generation(generation), current=Generation(4), newest=_row(2, 7))


def test_without_any_entry_all_files_of_older_generations_are_leftovers() -> None:
    """Before the first checkpoint nothing is referenced. The present generation's files are its own."""
    name = StagedName(JOIN, 1, str(uuid4()))
    assert is_leftover(name, Generation(1), current=Generation(2), newest=None)
    assert not is_leftover(name, Generation(2), current=Generation(2), newest=None)


@pytest.mark.parametrize(("kind", "pinned"), [(RowKind.SAVEPOINT, False), (RowKind.CHECKPOINT, True)])
def test_files_of_a_savepoint_are_kept_wherever_they_are(kind: RowKind, pinned: bool) -> None:
    """A savepoint after the newest checkpoint names files of later micro-batches.

    These stay, and others are deleted.
    """
    name = StagedName(JOIN, 8, str(uuid4()))
    path = f"silver/flights/_data/2/{name}"
    staged = StagedFile(SILVER, FileHandle(path, 1, 1, 1), CheckpointId(5))
    vertex = VertexRecord(vertex=JOIN, micro_batch=8, subtasks=(SubtaskSnapshot(staged=(staged,)),))
    changes = {"kind": kind, "pinned": pinned, "vertices": (vertex,), "checkpoint": CheckpointId(4)}
    by = referenced((_row(2, 7), _row(2, 7).model_copy(update=changes)))
    assert (_row(2, 7), frozenset({path})) == (by.newest, by.pinned)
    assert not is_unreferenced(path, name, Generation(2), current=Generation(4), by=by)
    assert is_unreferenced(path + ".other", name, Generation(2), current=Generation(4), by=by)


def test_only_leftovers_are_deleted(tmp_path: Path) -> None:
    """Foreign names, the log, visible files and other generations are never touched."""
    warehouse = Warehouse(tmp_path, ProtocolPaths(job_name("flights")))
    root = tmp_path / "silver/flights"
    kept = ["_data/2/join-7-{}.parquet", "_data/4/join-1-{}.parquet", "_data/3/readme.txt", "_data/x/join-1-{}.parquet"]
    kept += ["_delta_log/00000000000000000000.json", "part-00000-{}.parquet", "_data/join-9-{}.parquet"]
    gone = ["_data/2/join-8-{}.parquet", "_data/3/join-1-{}.parquet"]
    names = {name: name.format(uuid4()) for name in [*kept, *gone]}
    for name in names.values():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    expected = tuple(f"silver/flights/{names[name]}" for name in gone)
    deleted = delete_leftovers(warehouse, [SILVER], current=Generation(4), by=Referenced(_row(2, 7)))
    assert sorted(expected) == sorted(deleted)
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert {names[name] for name in kept} == left
    assert () == delete_leftovers(warehouse, [SILVER], current=Generation(4), by=Referenced(_row(2, 7)))


def test_no_generation_before_the_oldest_one_has_leftovers() -> None:
    """So the folders of these generations need not be listed."""
    name = StagedName(JOIN, 9, str(uuid4()))
    for newest in (None, _row(2, 7)):
        oldest = oldest_with_leftovers(Referenced(newest))
        found = [g for g in range(1, 9) if is_leftover(name, Generation(g), current=Generation(9), newest=newest)]
        assert oldest == found[0]


def test_leftovers_of_many_dead_generations_are_found(tmp_path: Path) -> None:
    """One after the other died before its first checkpoint, so the folders of all of them may have leftovers."""
    warehouse = Warehouse(tmp_path, ProtocolPaths(job_name("flights")))
    dead = 3 + LISTED_ALONE
    names = [
        warehouse.paths.staged_file(SILVER, Generation(g), StagedName(JOIN, 9, str(uuid4()))) for g in range(1, dead)
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    deleted = delete_leftovers(warehouse, [SILVER], current=Generation(dead), by=Referenced(_row(2, 7)))
    assert sorted(names[1:]) == sorted(deleted)


def test_a_table_that_does_not_exist_yet_has_no_leftovers(tmp_path: Path) -> None:
    """This is the first tick of a job."""
    warehouse = Warehouse(tmp_path, ProtocolPaths(job_name("flights")))
    assert () == delete_leftovers(warehouse, [SILVER], current=Generation(1), by=Referenced())


def test_exactly_the_files_of_a_failed_micro_batch_are_deleted(tmp_path):
    """Files of other micro-batches, vertices and generations stay. So do files with other names."""
    warehouse = Warehouse(tmp_path, ProtocolPaths(job_name("flights")))
    gone, stays = [], []
    for generation, vertex, micro_batch in [(2, "join", 7), (2, "join", 8), (2, "other", 7), (1, "join", 7)]:
        for partition in ("", "day=2024-05-01/city=a%2Fb"):
            name = StagedName(VertexId(vertex), micro_batch, str(uuid4()), partition)
            path = tmp_path / warehouse.paths.staged_file(SILVER, Generation(generation), name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
            (gone if (generation, vertex, micro_batch) == (2, "join", 7) else stays).append(path)
    foreign = tmp_path / warehouse.paths.staged_folder(SILVER, Generation(2)) / "notes.txt"
    foreign.write_text("x")
    effect = RunMicroBatch("join", 7, 2, (), (), ())
    delete_unfinished(warehouse, [SILVER, table_name("gold/absent")], effect)
    assert [False, False] == [path.exists() for path in gone]
    assert {True} == {path.exists() for path in (*stays, foreign)}
