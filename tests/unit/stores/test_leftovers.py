"""A file is deleted only if certainly nothing refers to it."""

import json
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.commit.cleanup import Referenced, is_leftover, is_unreferenced, oldest_with_leftovers, referenced
from checkpointing.handles import FileHandle, StagedFile
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId, job_name, table_name
from checkpointing.messages import RunMicroBatch, SavepointKind
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import CheckpointRecord, RowKind, VertexRecord
from jobs.storage.place import drop_unfinished
from jobs.tick.trace_files import drop_old_traces
from jobs.warehouse.cleanup import LISTED_ALONE, delete_leftovers, delete_unfinished
from jobs.warehouse.cuts_table import ReservationStore
from jobs.warehouse.lease import this_process
from jobs.warehouse.requests import RequestFolder
from jobs.warehouse.warehouse import Warehouse, obstacles
from tests.unit.full_entry import plain_entry

SILVER = table_name("silver/flights")
JOIN = VertexId("join")


def _row(generation: int, micro_batch: int) -> CheckpointRecord:
    return plain_entry(
        job="flights",
        checkpoint=CheckpointId(5),
        parent=CheckpointId(4),
        generation=Generation(generation),
        vertices=(VertexRecord(vertex=JOIN, micro_batch=micro_batch, subtasks=()),),
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
    name = StagedName(VertexId(vertex), micro_batch, str(uuid4()))
    assert expected == is_leftover(name, Generation(generation), current=Generation(4), newest=_row(2, 7))


def test_without_any_entry_all_files_of_older_generations_are_leftovers() -> None:
    """Before the first checkpoint, no file is referenced. Files of the present generation are no leftovers."""
    name = StagedName(JOIN, 1, str(uuid4()))
    assert is_leftover(name, Generation(1), current=Generation(2), newest=None)
    assert not is_leftover(name, Generation(2), current=Generation(2), newest=None)


@pytest.mark.parametrize(("kind", "pinned"), [(RowKind.SAVEPOINT, False), (RowKind.CHECKPOINT, True)])
def test_files_of_a_savepoint_are_kept_wherever_they_are(kind: RowKind, pinned: bool) -> None:
    """A savepoint after the newest checkpoint names files of later micro-batches.

    These files stay, and others are deleted.
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
    """Each generation died before its first checkpoint, so the folders of all of them may have leftovers."""
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
    """This is the case in the first tick of a job."""
    warehouse = Warehouse(tmp_path, ProtocolPaths(job_name("flights")))
    assert () == delete_leftovers(warehouse, [SILVER], current=Generation(1), by=Referenced())


def test_exactly_the_files_of_a_failed_micro_batch_are_deleted(tmp_path):
    """Files of other micro-batches, vertices and generations stay, and so do files with other names."""
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


# ------------------------------------------------------------------
# Tests that behind a symbolic link that was planted in the warehouse, nothing is deleted, listed or answered.


PATHS = ProtocolPaths(job_name("shop"))
TABLE = TableName("gold/cities")
LATER_MS = 4_000_000_000_000


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "warehouse", PATHS, now_ms=lambda: LATER_MS)


@pytest.fixture
def foreign(tmp_path):
    """Return a folder of another program, with files that are named like Tidemark's."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    asker = this_process().model_copy(update={"pid": 2**22, "started": "long ago"}).model_dump(mode="json")
    request = {"request": "mine", "kind": "plain", "asker": asker, "asked_at_ms": 1}
    answer = {"request": "old", "status": "failed", "asker": asker, "answered_at_ms": 1}
    reservation = {"checkpoint": 1, "published_at_ms": 1, "versions": {}, "given_ms": 1, "lapses_ms": 2}
    for name, content in {
        "mine.json": request,
        "old.answer.json": answer,
        "reader.json": reservation,
        "settings.json": {"a": 1},
        "1.ndjson": {},
        ".x.tmp": {},
        f"bronze-1-{'0' * 8}-0000-4000-8000-{'0' * 12}.parquet": {},
        f"{0:020}.json": {},
    }.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def plant(warehouse, name, foreign):
    place = warehouse.root / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(foreign, target_is_directory=True)


def content(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("name", [PATHS.requests, PATHS.traces, PATHS.reservations])
def test_a_link_in_the_place_of_a_jobs_folder_is_not_followed(warehouse, foreign, name):
    """A tick cleans up requests, traces and reservations. Behind a link, it deletes, answers and lists nothing."""
    plant(warehouse, name, foreign)
    before = content(foreign)
    requests = RequestFolder(warehouse)
    assert () == requests.waiting()
    requests.clean(lambda holder: False)
    requests.withdraw("mine")
    drop_old_traces(warehouse.place(PATHS.traces), Generation(1_000))
    reservations = ReservationStore(warehouse)
    reservations.forget()
    reservations.release("reader")
    drop_unfinished(warehouse.place(name), before_ms=LATER_MS)
    assert before == content(foreign)


@pytest.mark.parametrize(
    "name",
    [
        PATHS.checkpoints,
        f"{PATHS.checkpoints}/_rows",
        f"{PATHS.checkpoints}/_delta_log",
        PATHS.manifests,
        PATHS.states,
        PATHS.state_table(VertexId("sums")),
        PATHS.staged_root(TABLE),
        PATHS.staged_folder(TABLE, Generation(1)),
        f"{PATHS.staged_folder(TABLE, Generation(1))}/city=Graz",
        f"{TABLE}/_delta_log",
    ],
)
def test_no_file_behind_a_link_is_deleted(warehouse, foreign, name):
    """Maintenance, clean-up and the deletion of leftovers all delete by the methods that this test calls."""
    plant(warehouse, name, foreign)
    before = content(foreign)
    for each in before:
        warehouse.place(name).storage.delete(f"{name}/{each}")
        (warehouse.place(name) / each).delete()
        assert not warehouse.delete(f"{name}/{each}")
    delete_leftovers(warehouse, (TABLE,), current=Generation(9), by=Referenced())
    assert before == content(foreign)


def test_a_schema_and_a_table_may_be_links(warehouse, foreign):
    """A user may put a schema or table on another disk. Files behind such a link are deleted."""
    plant(warehouse, str(TABLE), foreign)
    assert warehouse.delete(f"{TABLE}/settings.json")
    assert "settings.json" not in content(foreign)


@pytest.mark.parametrize("name", [PATHS.requests, PATHS.traces, PATHS.reservations, PATHS.checkpoints, PATHS.manifests])
def test_a_tick_is_refused_before_its_claim(warehouse, foreign, name):
    """The message names the link, and says what to do."""
    plant(warehouse, name, foreign)
    said = [str(each) for each in obstacles(warehouse)]
    assert [
        f"{warehouse.root / name} is a symbolic link, and a tick deletes files there: put the folder itself there"
    ] == said


def test_a_request_is_still_asked_and_answered_in_a_folder(warehouse):
    """In a folder that is no link, requests work."""
    requests = RequestFolder(replace(warehouse))
    asked = requests.ask(SavepointKind.PLAIN, this_process())
    assert (asked,) == requests.waiting()
    requests.withdraw(asked.request)
    assert () == requests.waiting()
