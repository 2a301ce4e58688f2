"""A sink shows an upsert table at each cut, whatever dies, and is rolled back with it. The target is a SQLite file."""

import re
import sqlite3

import pytest

from jobs.tick.at_rest.roll_back import preview_rollback, roll_back
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.outside_publishing import SinkRefusedError
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.sequence_job import GOLD, LocalEngine, at, at_cut, newest, read_cut, tick
from tests.scenarios.runtime.sqlite_mirror import SqliteMirror, mirrored
from tidemark import SinkAwayError


@pytest.fixture
def mirror(tmp_path):
    """Return a sink into a file that does not exist yet."""
    return SqliteMirror(tmp_path / "mirror.db")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "warehouse"


def assert_shown(root, mirror, checkpoint=None):
    rows = read_cut(root)[GOLD]
    assert (newest(root).checkpoint if checkpoint is None else checkpoint, rows) == mirror.shown()


def dies(root, plan, boundary, occurrence=1):
    try:
        take_over(root, plan, Mortal(boundary, occurrence))
    except Dead:
        return True
    return False


def take_over(root, plan, boundary=cross_freely):
    settings = RuntimeSettings(warehouse=root, take_over=True)
    run_tick(plan, settings, engine=LocalEngine(), boundary=boundary)


def test_each_checkpoint_gives_the_sink_its_changes(root, mirror):
    """Only the first checkpoint writes all rows. A later tick knows which checkpoint the target has."""
    for _ in range(2):
        tick(root, 1, plan=mirrored(mirror))
        assert_shown(root, mirror)
    assert [False, True] == [only_changes for _, only_changes in mirror.how]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            "check",
            r"could not be asked about checkpoint \d, .*no reply\. Start again when the server answers: no row is",
        ),
        (
            "apply",
            r"checkpoint \d yet, which is committed: no reply\. The next tick publishes it when the server answers",
        ),
    ],
)
def test_a_server_that_is_away_blames_no_row(root, mirror, monkeypatch, method, said):
    def away(*args):
        raise SinkAwayError("no reply")

    tick(root, 1, plan=mirrored(mirror))
    with monkeypatch.context() as patch:
        patch.setattr(SqliteMirror, method, away)
        assert re.search(said, tick(root, 1, plan=mirrored(mirror)).message)
    tick(root, plan=mirrored(mirror))
    assert_shown(root, mirror)


@pytest.mark.dear
def test_a_job_that_retains_one_checkpoint_gives_its_sink_changes_too(root, mirror):
    """The older entry stays until the next one is committed. So a tick that recovers also knows what has changed."""
    plan = mirrored(mirror, retained=1)
    assert dies(root, plan, f"before:PublishOutside:{GOLD}", 2)
    assert [False] == [only_changes for _, only_changes in mirror.how]
    take_over(root, plan)
    assert_shown(root, mirror)
    assert [False, True, True] == [only_changes for _, only_changes in mirror.how]


@pytest.mark.dear
def test_a_sink_that_comes_later_gets_the_whole_table(root, mirror):
    """The job has run without the sink. A sink that was removed for a while gets the whole table too."""
    tick(root, 1)
    tick(root, 1, plan=mirrored(mirror))
    assert_shown(root, mirror)
    tick(root)
    behind = mirror.shown()
    roll_back(at(root), behind[0])
    tick(root, plan=mirrored(mirror))
    assert_shown(root, mirror)
    assert {False} == {only_changes for _, only_changes in mirror.how[:2]}


@pytest.mark.dear
def test_a_target_that_comes_from_a_backup_gets_the_whole_table(root, mirror):
    """The target has an older checkpoint than the last one. The job does not know what has changed since then."""
    tick(root, 1, plan=mirrored(mirror))
    backup = mirror.file.read_bytes()
    tick(root, 1, plan=mirrored(mirror))
    mirror.file.write_bytes(backup)
    tick(root, 1, plan=mirrored(mirror))
    assert_shown(root, mirror)
    assert [False, True, False] == [only_changes for _, only_changes in mirror.how]


BOUNDARIES = [
    (f"{side}:{step}", occurrence)
    for side in ("before", "after")
    for step in ("AppendRow", f"PublishTable:{GOLD}", f"PublishOutside:{GOLD}", "RecordCut")
    for occurrence in (1, 2)
]


@pytest.mark.kill
@pytest.mark.dear
@pytest.mark.parametrize(("boundary", "occurrence"), BOUNDARIES)
def test_a_death_at_a_boundary_is_made_up_for(root, mirror, boundary, occurrence):
    """If there is a checkpoint to roll forward, a second tick dies too. After a third tick, the target is exact."""
    plan = mirrored(mirror)
    assert dies(root, plan, boundary, occurrence)
    dies(root, plan, f"after:RollForwardOutside:{GOLD}")
    take_over(root, plan)
    assert_shown(root, mirror)


def test_a_rollback_takes_the_sink_back(root, mirror):
    """The target shows the rollback's table, without keys that came later. The next tick goes on from there."""
    sink = mirrored(mirror)
    tick(root, 1, plan=sink)
    first = newest(root).checkpoint
    expected = at_cut(root, first)[GOLD]
    tick(root, plan=sink)
    with sqlite3.connect(mirror.file) as database:
        database.execute("INSERT INTO mirror VALUES (99, 1, 1)")  # stands for a key that came later
    assert expected != mirror.shown()[1]
    assert (GOLD,) == preview_rollback(at(root), first).following
    done = roll_back(at(root), first, sinks=sink.sinks)
    assert (done.record.checkpoint, expected) == mirror.shown()
    tick(root, plan=sink)
    assert_shown(root, mirror)


@pytest.mark.dear
def test_a_rollback_without_the_pipeline_is_refused_or_leaves_the_sink(root, mirror):
    """The message says how to name the pipeline. A sink that was left alone shows the table at the next checkpoint."""
    sink = mirrored(mirror)
    tick(root, 1, plan=sink)
    first = newest(root).checkpoint
    tick(root, 1, plan=sink)
    before, entry = mirror.shown(), newest(root)
    with pytest.raises(SinkRefusedError, match=f"sink of table {GOLD} goes back too, and no pipeline of numbers"):
        roll_back(at(root), first)
    assert entry == newest(root)
    roll_back(at(root), first, leave_outside=True)
    assert before == mirror.shown()
    tick(root, 1, plan=sink)
    assert_shown(root, mirror)
    assert not mirror.how[-1][1]


@pytest.mark.kill
@pytest.mark.dear
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("step", ["AppendRow", f"RollForward:{GOLD}", f"RollForwardOutside:{GOLD}", "RollForwardCut"])
def test_a_rollback_that_dies_is_finished_by_the_next_tick(root, mirror, side, step):
    sink = mirrored(mirror)
    tick(root, 1, plan=sink)
    first = newest(root).checkpoint
    tick(root, 1, plan=sink)
    with pytest.raises(Dead):
        roll_back(at(root), first, sinks=sink.sinks, boundary=Mortal(f"{side}:{step}"))
    take_over(root, sink)
    assert_shown(root, mirror)


@pytest.mark.dear
def test_a_target_that_is_ahead_is_refused_before_a_rollback(root, mirror):
    """Another warehouse has published into the target, which would ignore the rollback's lower number."""
    sink = mirrored(mirror)
    tick(root, 1, plan=sink)
    first = newest(root).checkpoint
    tick(root, 1, plan=sink)
    entry = newest(root)
    with sqlite3.connect(mirror.file) as database:
        database.execute("UPDATE shown SET checkpoint = 99999")
    with pytest.raises(SinkRefusedError, match="another warehouse has published into it"):
        roll_back(at(root), first, sinks=sink.sinks)
    assert entry == newest(root)


@pytest.mark.dear
def test_the_command_takes_the_sink_back(typed, root, mirror, monkeypatch):
    """The command finds the sink if the pipeline is given as module:attribute. The job's name is not enough."""
    monkeypatch.setenv("MIRROR", str(mirror.file))
    pipeline = "tests.orchestration.numbers:mirrored"
    for _ in range(2):
        code, _, said = typed("run", pipeline, "--warehouse", root, "--checkpoints", 1)
        assert 0 == code, said
    before, first = mirror.shown(), newest(root).parent
    expected = at_cut(root, first)[GOLD]
    code, _, said = typed("rollback", "numbers", first, "--warehouse", root)
    assert (1, before) == (code, mirror.shown())
    assert "Name the pipeline as module:attribute, or leave the sink as it is with --leave-outside" in " ".join(
        said.split()
    )
    code, _, said = typed("rollback", pipeline, first, "--warehouse", root)
    assert (0, expected) == (code, mirror.shown()[1]), said
