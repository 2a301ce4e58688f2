"""The lines that read a cut work as they are printed, and the reports read what the stores wrote."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from checkpointing.identifiers import CheckpointId, Generation, JobName, TableName
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim, Holder, Release
from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.reading import Cuts
from jobs.showing.cut import recipes, variable
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import newest_restorable
from jobs.warehouse.warehouse import Warehouse

SILVER = TableName("silver/flights")
GOLD = TableName("gold/delays_by_route")
STATE = TableName("_tidemark/flights/state/joined")
JOB = JobName("flights")


@pytest.fixture
def tables(tmp_path):
    """Write two tables of three versions, each with one more row; return their warehouse."""
    for table in (SILVER, GOLD):
        for number in range(3):
            write_deltalake(str(tmp_path / table), pa.table({"number": [number]}), mode="append")
    return tmp_path


def cut_of(root):
    """Return a cut of both tables and a state, as the reports get it."""
    store = CutStore(Warehouse(root, ProtocolPaths(JOB)))
    store.record(CheckpointId(6), [(SILVER, 0), (GOLD, 2), (STATE, 5)])
    CheckpointStore(Warehouse(root, ProtocolPaths(JOB)))
    return Cuts(root, JOB).latest()


@pytest.fixture
def job(tmp_path, record):
    """A job with checkpoint 6, published, and 7, committed only; held by a process of another machine."""
    warehouse = Warehouse(tmp_path, ProtocolPaths(JOB), now_ms=lambda: 1_700_000_002_000)
    holder = Holder(host="elsewhere", pid=9, started="s")
    claim = Claim(
        generation=Generation(2),
        holder=holder,
        first_id=CheckpointId(1),
        last_id=CheckpointId(1000),
        at_ms=0,
        nonce="claim",
    )
    rows = (claim, record(6, 5).model_copy(update={"nonce": "six"}), record(7, 6))
    store = CheckpointStore(warehouse)
    for version, row in enumerate(rows):
        store.append(row, version)
    CutStore(warehouse).record(CheckpointId(6), [(SILVER, 4)])
    return warehouse


@pytest.mark.parametrize("engine", ["Polars", "DuckDB"])
def test_the_lines_read_each_table_at_its_version(tables, engine):
    """Version 0 has one row and version 2 has three, for each engine."""
    recipe = next(each for each in recipes(cut_of(tables)) if each.engine == engine)
    names: dict = {}
    exec("\n".join(recipe.lines), names)  # noqa: S102 - a user would paste them
    read = [names[variable(table)] for table in (SILVER, GOLD)]
    rows = [each.collect().height if engine == "Polars" else each.num_rows for each in read]
    assert [1, 3] == rows


@pytest.mark.spark
def test_sparks_lines_read_each_table_at_its_version(tables, spark):
    """The same lines for a session that has Delta."""
    recipe = next(each for each in recipes(cut_of(tables)) if each.engine == "Spark")
    names = {"spark": spark}
    exec("\n".join(recipe.lines), names)  # noqa: S102 - a user would paste them
    assert [1, 3] == [names[variable(table)].count() for table in (SILVER, GOLD)]


def test_the_list_is_what_the_stores_hold(job, capsys):
    """Newest first; an entry without a cut is committed, not published; the holder is named."""
    assert ExitCode.DONE == execute(["checkpoints", "list", "--warehouse", str(job.root)])
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│ checkpoint " in line]
    assert [("7", "not yet"), ("6", "published")] == [(row[0], row[-1]) for row in rows]
    assert "held by process 9 on elsewhere, generation 2" in shown
    assert 7 == newest_restorable(job).checkpoint
    assert ExitCode.NOT_THERE == execute(["checkpoints", "show", "9", "--warehouse", str(job.root)])
    assert "checkpoint 9 of flights is not retained: there are 7, 6" in capsys.readouterr().err


def test_a_released_job_is_free(job, capsys):
    """After an orderly end nobody holds it."""
    CheckpointStore(job).append(Release(generation=Generation(2), next_id=CheckpointId(8), at_ms=0, nonce="end"), 3)
    execute(["checkpoints", "list", "--warehouse", str(job.root)])
    assert "nobody holds the job: the last tick ended normally" in capsys.readouterr().out


def test_the_pipelines_name_may_be_left_out(job, capsys):
    """`show 6` and `cut 6` are about the demo."""
    for command in (["checkpoints", "show", "6"], ["cut", "6"], ["checkpoints", "list"]):
        assert ExitCode.DONE == execute([*command, "--warehouse", str(job.root)])
    shown = capsys.readouterr().out
    assert "checkpoint 6 of flights" in shown
    assert f"silver_flights = pl.scan_delta('{job.root}/silver/flights', version=4)" in shown
    assert "2 checkpoints retained" in shown


def test_a_cut_that_is_not_published_says_how_to_publish_it(job, capsys):
    """The newest checkpoint is committed only. The newest cut is the one before it, and its own is not recorded yet."""
    assert ExitCode.DONE == execute(["cut", "--warehouse", str(job.root)])
    assert "cut 6 of flights" in capsys.readouterr().out
    assert ExitCode.NOT_THERE == execute(["cut", "7", "--warehouse", str(job.root)])
    assert "'tidemark run flights' rolls it forward" in capsys.readouterr().err
