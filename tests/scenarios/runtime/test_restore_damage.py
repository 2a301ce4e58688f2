"""A damaged checkpoint is found before it is used. The error names the next whole one and the command for it."""

import json
import shutil
from contextlib import suppress

import pyarrow.parquet as pq
import pytest

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import job_name
from checkpointing.job.restoring import CutDoesNotFitError
from jobs.cli.main import execute
from jobs.pipeline import InvalidPipelineError, Pipeline, count
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.tick.at_rest.roll_back import preview_rollback, roll_back
from jobs.tick.rollback_plan import DamagedCheckpointError, RollbackRefusedError
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.checkpoints import SCHEMA
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import ClaimUnsettledError
from tests.scenarios.faults import orders_job
from tests.scenarios.faults.orders_job import KEYS
from tests.scenarios.processes import Dead, Mortal, killed
from tests.scenarios.runtime import evolving_job
from tests.scenarios.runtime.evolving_job import shown
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    GOLD,
    JOB,
    KEEPS_ALL,
    STATE,
    LocalEngine,
    at,
    at_cut,
    contents,
    dies_going_back,
    laid_out,
    newest,
    read_cut,
    records,
    tick,
)
from tests.scenarios.runtime.test_savepoints import spoil_bit, spoil_missing, spoil_short

SPOILED = [(spoil_missing, "is missing"), (spoil_short, "bytes instead of"), (spoil_bit, "its checksum is")]


def state_file(root, checkpoint):
    rows = records(root)
    older = {file for each, row in rows.items() if each < checkpoint for file in states(row)}
    return root / min(states(rows[checkpoint]) - older)


def states(row):
    return {keyed.file.path for vertex in row.vertices for subtask in vertex.subtasks for keyed in subtask.state}


def version(root):
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
    """The damaged file belongs to an append table. The cut shows the file, though an older checkpoint added it."""
    first, second, _ = laid_out(tmp_path, 3)
    adds = next(table.adds for table in records(tmp_path)[first].tables if table.table == BRONZE)
    spoil_bit(tmp_path / adds[0].path)
    with pytest.raises(RollbackRefusedError, match=rf"file {adds[0].path} is damaged"):
        roll_back(at(tmp_path), second)


def test_a_committed_checkpoint_that_cannot_be_published_is_left_behind(tmp_path, undisturbed, monkeypatch):
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
    """Damage the entry of a checkpoint: its text, or, with None, the file that holds it."""
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

    The tick names a good entry, and the rollback to it removes the damaged one.
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
    """The message offers no damaged checkpoint for a rollback."""
    only, *_ = laid_out(tmp_path, 1)
    spoil_missing(state_file(tmp_path, only))
    with pytest.raises(DamagedCheckpointError, match="No other retained checkpoint is whole"):
        tick(tmp_path)


def test_the_command_line_says_it_in_one_sentence(tmp_path, capsys):
    """The exit code is 1. The message has the way out, and no traceback."""
    _, second, third = laid_out(tmp_path, 3)
    spoil_missing(state_file(tmp_path, third))
    pipeline = "tests.scenarios.runtime.sequence_job:as_pipeline"
    assert 1 == execute(["run", pipeline, "--warehouse", str(tmp_path)])
    assert f"tidemark rollback {pipeline} {second}" in capsys.readouterr().err


# ------------------------------------------------------------------
# A rollback that dies at a boundary has no effect, or the next tick finishes it. Zombies change nothing.


STEPS = (
    "Claim",
    "Lease",
    f"RollForward:{BRONZE}",
    f"RollForward:{STATE}",
    f"RollForward:{GOLD}",
    "RollForwardCut",
    "DiscardLeftovers",
    "AppendRow",
    "LogCommit:checkpoints",
    "LogCommit:tables",
    "LogCommit:cuts",
    "Release",
)
EVERYWHERE = [(f"{side}:{step}", each) for step in STEPS for side in ("before", "after") for each in (1, 2)]
SHORT = [("after:LogCommit:checkpoints", 2), ("after:AppendRow", 1), (f"after:RollForward:{GOLD}", 2)]
"""The three cases: the entry is stored without a reply, nothing is published, and one table is published."""
WHERE_IT_MATTERS = [*SHORT, *(pytest.param(*each, marks=pytest.mark.dear) for each in EVERYWHERE if each not in SHORT)]
BOUNDARIES = [f"{side}:{step}" for step in STEPS for side in ("before", "after")]


@pytest.fixture
def pending(tmp_path, monkeypatch):
    """Return a warehouse whose last tick died after its commit point, and the checkpoint id for a rollback."""
    first, *_ = laid_out(tmp_path, 2)
    with suppress(Dead):
        settings = RuntimeSettings(warehouse=tmp_path)
        run_tick(KEEPS_ALL, settings, engine=LocalEngine(), boundary=Mortal("after:AppendRow"))
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    return tmp_path, first


@pytest.mark.kill
@pytest.mark.dear
@pytest.mark.parametrize("occurrence", [1, 2])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_death_at_a_boundary_is_made_up_for_by_the_next_rollback(pending, undisturbed, boundary, occurrence):
    """After a second rollback, every table shows the cut again. The next tick ends with exact tables."""
    root, first = pending
    expected = at_cut(root, first)
    with suppress(Dead):
        roll_back(at(root), first, boundary=Mortal(boundary, occurrence))
    if newest(root).parent != first or newest(root).checkpoint not in CutStore(at(root)).recorded():
        roll_back(at(root), first)
    assert expected == read_cut(root) == contents(root)
    tick(root)
    assert undisturbed == read_cut(root) == contents(root)


@pytest.mark.kill
@pytest.mark.parametrize(("boundary", "occurrence"), WHERE_IT_MATTERS)
def test_a_death_at_a_boundary_is_made_up_for_by_the_next_tick(pending, undisturbed, boundary, occurrence):
    """Before the entry, the rollback never happened. After it, the next tick finishes it. Both results are exact."""
    root, first = pending
    died = False
    try:
        roll_back(at(root), first, boundary=Mortal(boundary, occurrence))
    except Dead:
        died = True
    row = newest(root)
    report = tick(root)
    if row.parent == first and died:
        assert row.checkpoint in {report.completed[0].checkpoint, report.completed[0].parent}
    assert undisturbed == read_cut(root) == contents(root)
    assert set(records(root)) == set(CutStore(at(root)).recorded())


def test_a_kill_between_two_tables_leaves_neither_cut_mixed(tmp_path, undisturbed):
    """SIGKILL comes when bronze shows the new entry and gold does not. Readers by cut see a whole cut, old or new."""
    first, second = laid_out(tmp_path, 2)
    old, expected = at_cut(tmp_path, second), at_cut(tmp_path, first)
    killed(dies_going_back, tmp_path, first, f"after:RollForward:{BRONZE}")
    assert old != contents(tmp_path) != expected
    assert old == at_cut(tmp_path, second) == read_cut(tmp_path)
    copy = tmp_path.with_name(f"{tmp_path.name}-copy")
    shutil.copytree(tmp_path, copy)
    roll_back(at(copy), first)
    assert expected == read_cut(copy) == contents(copy)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_a_zombie_is_fenced_out(tmp_path, undisturbed, monkeypatch):
    """A tick claims the job while a rollback sleeps before its append.

    The append is refused, and the rollback changes nothing.
    """
    first, *_ = laid_out(tmp_path, 2)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)

    def asleep(name):
        if name == "before:AppendRow":
            tick(tmp_path)

    with pytest.raises(ClaimUnsettledError, match=r"taken over by process \d+"):
        roll_back(at(tmp_path), first, boundary=asleep)
    assert "rollback" not in {row.kind.value for row in records(tmp_path).values()}
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


@pytest.mark.parametrize("step", [f"before:RollForward:{BRONZE}", "before:RollForwardCut", "before:LogCommit:tables"])
def test_a_zombie_behind_its_row_publishes_nothing_twice(tmp_path, undisturbed, monkeypatch, step):
    """Another tick finishes the rollback and goes on. The zombie has nothing left to do, and undoes nothing."""
    first, *_ = laid_out(tmp_path, 2)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    slept = []

    def asleep(name):
        if name == step and not slept:
            slept.append(name)
            tick(tmp_path)

    roll_back(at(tmp_path), first, boundary=asleep)
    assert [step] == slept
    assert undisturbed == contents(tmp_path)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


# ------------------------------------------------------------------
# Two vertices and their tables swap their names. If both declare it, they keep their state and rows (G2).


CONFIG = CheckpointConfig(slice_rows_max=50, micro_batch_rows_max=100, retained=9)
HALF = 35


def build(rows, *, one="one", two="two", swapped=False, one_was=None, two_was=None):
    before = {one: two, two: one} if swapped else {}
    former = {one: one_was or before.get(one), two: two_was or before.get(two)}
    pipeline = Pipeline(job_name(evolving_job.JOB), config=CONFIG, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource({"a": rows}, keys=KEYS)).drop(SPLIT_COLUMN, POSITION_COLUMN)
    for name, key in ((one, "key"), (two, "n")):
        table = f"{{}}/{former[name]}" if former[name] else None
        kept = numbers.table(
            f"bronze/{name}",
            id=f"{name}_rows",
            renamed_from=table and table.format("bronze"),
            id_renamed_from=former[name] and f"{former[name]}_rows",
        )
        kept.key_by(key).aggregate(name, renamed_from=former[name], rows=count()).upsert(
            f"gold/{name}", renamed_from=table and table.format("gold")
        )
    return plan(pipeline)


def tick_of_swapped_names(root, rows, **names):
    report = run_tick(build(rows, **names), RuntimeSettings(warehouse=root), engine=orders_job.LocalEngine())
    assert report.message == ""


def must_be_exact(root, rows, one="one", two="two"):
    assert [(key, rows // 7 + (key < rows % 7)) for key in range(7)] == shown(root, f"gold/{one}")
    assert [(number, 1) for number in range(rows)] == sorted(shown(root, f"gold/{two}"))
    for name in (one, two):
        assert list(range(rows)) == sorted(row[1] for row in shown(root, f"bronze/{name}"))


def test_two_swap_their_names_once(tmp_path):
    """The declarations stay in the code, and later ticks do not swap the names back."""
    tick_of_swapped_names(tmp_path, HALF)
    swapped = {"one": "two", "two": "one", "swapped": True}
    for rows in (HALF, HALF + 1, HALF + 2):
        tick_of_swapped_names(tmp_path, rows, **swapped)
    must_be_exact(tmp_path, HALF + 2, one="two", two="one")
    tick_of_swapped_names(tmp_path, HALF + 3, one="two", two="one")
    tick_of_swapped_names(tmp_path, HALF + 4, swapped=True)
    must_be_exact(tmp_path, HALF + 4)


def test_a_rollback_across_a_swap(tmp_path):
    """Each cut has the names of its own pipeline. Either version can go on after the rollback."""
    tick_of_swapped_names(tmp_path, HALF)
    first = evolving_job.newest(tmp_path).checkpoint
    swapped = {"one": "two", "two": "one", "swapped": True}
    tick_of_swapped_names(tmp_path, HALF + 1, **swapped)
    roll_back(evolving_job.at(tmp_path), first)
    must_be_exact(tmp_path, HALF)
    tick_of_swapped_names(tmp_path, HALF + 2, **swapped)
    must_be_exact(tmp_path, HALF + 2, one="two", two="one")
    roll_back(evolving_job.at(tmp_path), first)
    tick_of_swapped_names(tmp_path, HALF + 3)
    must_be_exact(tmp_path, HALF + 3)


def test_one_takes_the_name_that_another_leaves(tmp_path):
    """`two` is renamed to `three`, and `one` to `two`."""
    tick_of_swapped_names(tmp_path, HALF)
    for rows in (HALF + 1, HALF + 2):
        tick_of_swapped_names(tmp_path, rows, one="two", two="three", one_was="one", two_was="two")
    must_be_exact(tmp_path, HALF + 2, one="two", two="three")


def test_a_name_that_the_checkpoint_has_already_is_refused(tmp_path):
    """`one` is renamed to `two`, but the checkpoint has another `two`, which the pipeline lacks.

    It is not clear whose state `two` is, so the tick is refused and nothing changes.
    """
    tick_of_swapped_names(tmp_path, HALF)
    before = evolving_job.newest(tmp_path)
    with pytest.raises(CutDoesNotFitError, match="has a vertex two_rows and a vertex one_rows"):
        tick_of_swapped_names(tmp_path, HALF + 1, one="two", two="fresh", one_was="one")
    assert before == evolving_job.newest(tmp_path)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"one_was": "one"}, r"vertex one_rows: renamed_from='one_rows' is its own name"),
        ({"one_was": "two"}, r"vertex one_rows is renamed_from='two_rows', and the pipeline still has a vertex two"),
        ({"one_was": "old", "two_was": "old"}, r"vertex one_rows and vertex two_rows are both renamed_from='old_rows'"),
    ],
)
def test_a_declaration_that_can_mean_nothing_is_refused_as_the_pipeline_is_planned(names, says):
    """The message has both names and the way out, whatever the warehouse holds."""
    with pytest.raises(InvalidPipelineError, match=says):
        build(HALF, **names)


def test_renamed_from_is_said_where_a_name_is_given():
    """A call without an id cannot declare an older id. No column may be called `renamed_from`."""
    numbers = Pipeline("p").source("n", SequenceSource({"a": 5}, keys=KEYS)).key_by("key")
    with pytest.raises(InvalidPipelineError, match="id_renamed_from='x' belongs to id="):
        numbers.aggregate("a", n=count()).table("gold/a", id_renamed_from="x")
    with pytest.raises(InvalidPipelineError, match="no column may be called 'renamed_from'"):
        numbers.aggregate("b", renamed_from=count())
