"""A damaged checkpoint is found before it is used, and the next that is whole is named with its command."""

import json

import pyarrow.parquet as pq
import pytest

from jobs.cli.main import execute
from jobs.tick.at_rest.roll_back import preview_rollback, roll_back
from jobs.tick.rollback_plan import DamagedCheckpointError, RollbackRefusedError
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.checkpoints import SCHEMA
from jobs.warehouse.job_stores import JobStores
from tests.scenarios.runtime.conftest import Dead, Mortal
from tests.scenarios.runtime.rollback_job import KEEPS_ALL, at_cut, laid_out, newest, tick
from tests.scenarios.runtime.savepoint_job import at, records
from tests.scenarios.runtime.sequence_job import BRONZE, JOB, LocalEngine, read_cut
from tests.scenarios.runtime.test_cancelling import contents
from tests.scenarios.runtime.test_savepoint_copies import spoil_bit, spoil_missing, spoil_short

SPOILED = [(spoil_missing, "is missing"), (spoil_short, "bytes instead of"), (spoil_bit, "its checksum is")]


def state_file(root, checkpoint):
    """Return a state file that this row needs and no older one."""
    rows = records(root)
    older = {file for each, row in rows.items() if each < checkpoint for file in states(row)}
    return root / min(states(rows[checkpoint]) - older)


def states(row):
    """Return the paths of a row's state files."""
    return {keyed.file.path for vertex in row.vertices for subtask in vertex.subtasks for keyed in subtask.state}


def version(root):
    """Return the version of `checkpoints`."""
    return JobStores(at(root), cross_freely, beyond_damage=True).observe().version


@pytest.mark.parametrize(("spoil", "said"), SPOILED)
def test_a_tick_names_the_damage_and_the_way_back(tmp_path, undisturbed, spoil, said):
    """A file is missing, short, or has a flipped bit.

    The tick is refused before its claim, and the named rollback works.
    """
    _, second, third = laid_out(tmp_path, 3)
    spoil(state_file(tmp_path, third))
    before = version(tmp_path)
    offered = f"go back to checkpoint {second}, the next that is whole: 'tidemark rollback numbers {second} --warehouse"
    with pytest.raises(
        DamagedCheckpointError, match=rf"checkpoint {third} of numbers is damaged: file .*{said}.*{offered}"
    ):
        tick(tmp_path)
    assert before == version(tmp_path)
    roll_back(at(tmp_path), second)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


@pytest.mark.parametrize(("spoil", "said"), SPOILED)
def test_a_rollback_to_a_damaged_row_names_an_older_good_one(tmp_path, spoil, said):
    """No entry is appended, and no table changes."""
    first, second, _ = laid_out(tmp_path, 3)
    spoil(state_file(tmp_path, second))
    before, shown = version(tmp_path), contents(tmp_path)
    with pytest.raises(
        RollbackRefusedError, match=rf"checkpoint {second} .*is damaged: file .*{said}.*nothing was changed"
    ):
        roll_back(at(tmp_path), second)
    with pytest.raises(RollbackRefusedError, match="go back to checkpoint"):
        preview_rollback(at(tmp_path), second)
    assert (before, shown) == (version(tmp_path), contents(tmp_path))
    assert first == roll_back(at(tmp_path), first).record.parent


def test_a_lost_table_file_is_found_too(tmp_path):
    """A file of an append table that the cut shows, whichever checkpoint brought it."""
    first, second, _ = laid_out(tmp_path, 3)
    adds = next(table.adds for table in records(tmp_path)[first].tables if table.table == BRONZE)
    spoil_bit(tmp_path / adds[0].path)
    with pytest.raises(RollbackRefusedError, match=rf"file {adds[0].path} is damaged"):
        roll_back(at(tmp_path), second)


def test_a_committed_checkpoint_that_cannot_be_published_is_left_behind(tmp_path, undisturbed, monkeypatch):
    """Its staged file is lost before its tables show it. The tick says so, and the rollback goes on without it."""
    _, second = laid_out(tmp_path, 2)
    expected = at_cut(tmp_path, second)
    settings = RuntimeSettings(warehouse=tmp_path)
    with pytest.raises(Dead):
        run_tick(KEEPS_ALL, settings, engine=LocalEngine(), boundary=Mortal("after:AppendRow"))
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    lost = next(table.adds[0].path for table in newest(tmp_path).tables if table.table == BRONZE)
    (tmp_path / lost).unlink()
    with pytest.raises(DamagedCheckpointError, match=rf"file {lost} is missing.*rollback numbers {second} "):
        tick(tmp_path)
    roll_back(at(tmp_path), second)
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def rewrite_row(root, checkpoint, payload):
    """Damage the row of a checkpoint: its text, or with None the whole file that holds it."""
    for path in (root / f"_tidemark/{JOB}/checkpoints/_rows").iterdir():
        rows = pq.read_table(path).to_pylist()
        if any(row["checkpoint"] == checkpoint for row in rows):
            if payload is None:
                path.write_bytes(path.read_bytes()[:-20])
                return
            changed = [row | {"payload": payload} if row["checkpoint"] == checkpoint else row for row in rows]
            pq.write_table(pq.read_table(path).from_pylist(changed, schema=SCHEMA), path)


@pytest.mark.parametrize(
    ("payload", "which"),
    [
        ("{", 2),
        (None, 1),
        *(
            pytest.param(payload, which, marks=pytest.mark.dear)
            for payload, which in (("{", 1), (None, 2), (json.dumps({"kind": "checkpoint"}), 2))
        ),
    ],
)
def test_a_row_that_cannot_be_read_is_named_and_left_behind(tmp_path, undisturbed, payload, which):
    """The newest or an older entry is damaged.

    The tick names a good one, and the rollback removes the damaged entry.
    """
    ids = laid_out(tmp_path, 3)
    good = ids[1] if which == 2 else ids[2]
    expected = at_cut(tmp_path, ids[1])
    rewrite_row(tmp_path, ids[which], payload)
    with pytest.raises(DamagedCheckpointError, match=f"tidemark rollback numbers {good} "):
        tick(tmp_path)
    done = roll_back(at(tmp_path), good)
    assert 1 == len(done.plan.damaged)
    if which == 2:
        assert expected == read_cut(tmp_path) == contents(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_if_nothing_is_whole_that_is_said(tmp_path):
    """The message offers no checkpoint to which the job could not go back."""
    only, *_ = laid_out(tmp_path, 1)
    spoil_missing(state_file(tmp_path, only))
    with pytest.raises(DamagedCheckpointError, match="No other retained checkpoint is whole"):
        tick(tmp_path)


def test_the_command_line_says_it_in_one_sentence(tmp_path, capsys):
    """An exit code of 1 and the way out, no traceback."""
    _, second, third = laid_out(tmp_path, 3)
    spoil_missing(state_file(tmp_path, third))
    pipeline = "tests.scenarios.runtime.sequence_job:as_pipeline"
    assert 1 == execute(["run", pipeline, "--warehouse", str(tmp_path)])
    assert f"tidemark rollback {pipeline} {second}" in capsys.readouterr().err
