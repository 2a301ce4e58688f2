"""`checkpoints` and `cuts` lose files, or others write there: rebuilt, passed over, or refused in a sentence."""

import re
import shlex
import subprocess
import sys

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from jobs.cli.main import execute
from jobs.reading import Cuts
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.warehouse.cut_check import TableLogDamagedError
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.internal_tables import OwnTableChangedError
from jobs.warehouse.refusals import TablesBehindError
from tests.scenarios.runtime.rollback_job import KEEPS_ALL, at_cut, laid_out, tick
from tests.scenarios.runtime.savepoint_job import at, records
from tests.scenarios.runtime.sequence_job import BRONZE, JOB, read_cut
from tests.scenarios.runtime.test_cancelling import contents
from tests.scenarios.runtime.test_tables_behind import of_job

OWN = ("checkpoints", "cuts")


def own(root, name):
    """Return the folder of one of the job's own tables."""
    return root / f"_tidemark/{JOB}/{name}"


def row_files(root, name):
    """Return its files, oldest first."""
    return sorted((own(root, name) / "_rows").glob("*.parquet"))


@pytest.mark.parametrize("which", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_lost_files_of_cuts_are_rebuilt(tmp_path, undisturbed, which):
    """Whichever went: the next tick records the same cuts, each with its versions, and goes on exactly."""
    laid_out(tmp_path, 3)
    before = CutStore(at(tmp_path)).all()
    for path in [row_files(tmp_path, "cuts")[place] for place in which]:
        path.unlink()
    assert len(CutStore(at(tmp_path)).all()) == len(before) - len(which)
    assert [] != of_job(tmp_path)
    tick(tmp_path, 0)
    assert [] == of_job(tmp_path)
    assert before == CutStore(at(tmp_path)).all()
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def test_a_savepoint_at_rest_tells_a_lost_cut_again_first(tmp_path):
    """Every cut is recorded again once its entry is in."""
    laid_out(tmp_path, 2)
    before = CutStore(at(tmp_path)).all()
    row_files(tmp_path, "cuts")[0].unlink()
    savepoint_at_rest(at(tmp_path))
    assert before == CutStore(at(tmp_path)).all()


def test_a_cut_that_nothing_proves_is_refused_by_name(tmp_path, capsys):
    """All files of `cuts` are gone, and bronze lost the newest checkpoint's rows. Tidemark guesses no version."""
    laid_out(tmp_path, 3)
    for path in row_files(tmp_path, "cuts"):
        path.unlink()
    max((tmp_path / BRONZE / "_delta_log").glob("*.json")).unlink()
    with pytest.raises(
        TablesBehindError, match=rf"newest cut of {JOB} .* is lost: .*which version of table {BRONZE} belonged"
    ):
        tick(tmp_path)
    pipeline = "tests.scenarios.runtime.sequence_job:as_pipeline"
    assert execute(["run", pipeline, "--warehouse", str(tmp_path)])
    assert f"restore the folder {own(tmp_path, 'cuts')} from a backup" in capsys.readouterr().err


def strange(root, name, mode):
    """Write a row into one of the job's own tables, as another writer."""
    table = DeltaTable(str(own(root, name)))
    schema = pa.schema(table.schema())
    row = pa.Table.from_pylist([dict.fromkeys(schema.names)], schema=schema)
    write_deltalake(table, row, mode=mode)


@pytest.mark.parametrize("name", OWN)
def test_what_others_append_is_passed_over(tmp_path, undisturbed, name):
    """A row of nulls is never read, and Tidemark's next commit removes it."""
    laid_out(tmp_path, 2)
    strange(tmp_path, name, "append")
    ((what, _),) = of_job(tmp_path)
    assert f"{name} holds 1 files that others wrote" in what
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)
    paths = pa.table(DeltaTable(str(own(tmp_path, name))).get_add_actions()).column("path").to_pylist()
    assert [] == [path for path in paths if not path.startswith("_rows/")]


@pytest.mark.parametrize("name", OWN)
def test_what_others_overwrite_is_refused_and_the_command_takes_it_back(tmp_path, undisturbed, name):
    """Our rows are gone from the table. No tick begins, and the command in the message repairs it."""
    laid_out(tmp_path, 2)
    strange(tmp_path, name, "overwrite")
    with pytest.raises(OwnTableChangedError, match=rf"removed \d+ of Tidemark's own files from .*{name}") as refused:
        tick(tmp_path)
    assert [(refused.value.what, refused.value.way_out)] == of_job(tmp_path)
    with pytest.raises(OwnTableChangedError):
        Cuts(tmp_path, JOB).latest()
    (command,) = re.findall(r"with (python -c .*), and start again", str(refused.value))
    python, *words = shlex.split(command)
    assert "python" == python
    subprocess.run([sys.executable, *words], check=True)
    tick(tmp_path)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


@pytest.mark.parametrize("name", OWN)
def test_a_log_of_our_own_that_cannot_be_loaded_is_named(tmp_path, capsys, name):
    """An entry in the middle is missing: one sentence with the entry and the way out, no traceback."""
    laid_out(tmp_path, 2)
    (own(tmp_path, name) / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(TableLogDamagedError, match=rf"{name}: entry {1:020d}.json is missing.*from a backup"):
        tick(tmp_path)
    assert execute(["run", "tests.scenarios.runtime.sequence_job:as_pipeline", "--warehouse", str(tmp_path)])
    assert "Traceback" not in capsys.readouterr().err


def test_a_lost_file_of_checkpoints_is_refused_and_the_rollback_that_is_offered_goes_through(tmp_path, undisturbed):
    """The newest checkpoint's entry is gone. The message names an older checkpoint, and the rollback to it works."""
    first, second = laid_out(tmp_path, 2)
    lost = next(path for path in row_files(tmp_path, "checkpoints") if holds(path, second))
    expected = at_cut(tmp_path, first)
    lost.unlink()
    with pytest.raises(Exception, match=f"tidemark rollback {JOB} {first} ") as refused:
        tick(tmp_path)
    assert lost.name in str(refused.value)
    roll_back(at(tmp_path), first)
    assert expected == read_cut(tmp_path) == contents(tmp_path)
    assert second not in records(tmp_path)
    tick(tmp_path, plan=KEEPS_ALL)
    assert undisturbed == read_cut(tmp_path) == contents(tmp_path)


def holds(path, checkpoint):
    """Return whether a file of `checkpoints` holds the row of that checkpoint."""
    import pyarrow.parquet as pq

    return checkpoint in pq.read_table(path, columns=["checkpoint"]).column(0).to_pylist()
