"""Tests that nothing behind a symbolic link that somebody planted in the warehouse is deleted, listed or answered."""

import json
from dataclasses import replace

import pytest

from checkpointing.commit.cleanup import Referenced
from checkpointing.identifiers import Generation, TableName, VertexId, job_name
from checkpointing.messages import SavepointKind
from checkpointing.metadata.paths import ProtocolPaths
from jobs.storage.place import drop_unfinished
from jobs.tick.trace_files import drop_old_traces
from jobs.warehouse.cleanup import delete_leftovers
from jobs.warehouse.cuts_table import ReservationStore
from jobs.warehouse.lease import this_process
from jobs.warehouse.requests import RequestFolder
from jobs.warehouse.warehouse import Warehouse, obstacles

PATHS = ProtocolPaths(job_name("shop"))
TABLE = TableName("gold/cities")
LATER_MS = 4_000_000_000_000


@pytest.fixture
def warehouse(tmp_path):
    return Warehouse(tmp_path / "warehouse", PATHS, now_ms=lambda: LATER_MS)


@pytest.fixture
def foreign(tmp_path):
    """A folder of somebody else, with files that have the names of Tidemark's."""
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
    """A tick cleans up requests, traces and reservations. Behind a link it deletes, answers and lists nothing."""
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
    """Maintenance, clean-up, a failed micro-batch and a dead tick's leftovers all delete by these two."""
    plant(warehouse, name, foreign)
    before = content(foreign)
    for each in before:
        warehouse.place(name).storage.delete(f"{name}/{each}")
        (warehouse.place(name) / each).delete()
        assert not warehouse.delete(f"{name}/{each}")
    delete_leftovers(warehouse, (TABLE,), current=Generation(9), by=Referenced())
    assert before == content(foreign)


def test_a_schema_and_a_table_may_be_links(warehouse, foreign):
    """An owner may put them on another disk. Files below them are deleted."""
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
    """Without a link, everything is as before."""
    requests = RequestFolder(replace(warehouse))
    asked = requests.ask(SavepointKind.PLAIN, this_process())
    assert (asked,) == requests.waiting()
    requests.withdraw(asked.request)
    assert () == requests.waiting()
