"""One source goes to another position, tables and state stay: said clearly, refused by name, finished after a death."""

from contextlib import suppress
from uuid import uuid4

import polars as pl
import pytest

from checkpointing.metadata.record import RowKind
from jobs.showing.plans import rows_again
from jobs.sources.port import NoSuchPositionError
from jobs.sources.position_words import PositionWords
from jobs.tick.at_rest.source_reset import Reset, preview_reset, reset
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.refusals import JobHeldError, SavepointRefusedError
from tests.scenarios.runtime.conftest import Dead, Mortal
from tests.scenarios.runtime.rollback_job import KEEPS_ALL, laid_out, newest, tick
from tests.scenarios.runtime.savepoint_job import at, records
from tests.scenarios.runtime.sequence_job import BRONZE, read_cut
from tests.scenarios.runtime.test_cancelling import contents
from tests.scenarios.runtime.test_savepoints_at_rest import hold

SOURCES = KEEPS_ALL.sources
WORDS = PositionWords(SOURCES)


def positions(root):
    """Return where the splits of the newest row stand."""
    vertex = next(vertex for vertex in newest(root).vertices if vertex.splits)
    return dict(zip(vertex.splits, (subtask.position for subtask in vertex.subtasks), strict=True))


def test_a_source_is_read_again_from_its_start(tmp_path):
    """Tables stay as they are. The next tick appends every row again, as the command said."""
    laid_out(tmp_path, 2)
    before, shown = newest(tmp_path), contents(tmp_path)
    plan, row = reset(at(tmp_path), SOURCES, Reset("numbers", "start"))
    assert (RowKind.RESET, before.checkpoint, ()) == (row.kind, row.parent, row.tables)
    assert ({"a": None, "b": None}, shown) == (positions(tmp_path), contents(tmp_path))
    assert shown == read_cut(tmp_path)
    again = sum(rows_again(plan.splits, WORDS))
    tick(tmp_path)
    assert 300 + again == pl.read_delta(str(tmp_path / BRONZE)).height
    assert 300 + again == sum(row[1] for row in read_cut(tmp_path)["gold/by_key"])


def test_one_split_goes_to_its_end_and_the_other_stays(tmp_path):
    """Skipped rows are never counted."""
    laid_out(tmp_path, 1)
    stood = positions(tmp_path)
    plan, _ = reset(at(tmp_path), SOURCES, Reset("numbers", "end", "b"))
    assert {"a": stood["a"], "b": "150"} == positions(tmp_path)
    skipped = -sum(rows_again(plan.splits, WORDS))
    tick(tmp_path)
    assert 300 - skipped == pl.read_delta(str(tmp_path / BRONZE)).height


def test_a_dry_run_changes_nothing(tmp_path):
    """It shows the splits that move, and how many rows lie between."""
    laid_out(tmp_path, 1)
    before = JobStores(at(tmp_path), cross_freely).observe()
    stood = positions(tmp_path)
    plan = preview_reset(at(tmp_path), SOURCES, Reset("numbers", "7", "a"))
    assert [("a", stood["a"], "7")] == [(split.split, split.now, split.then) for split in plan.splits]
    assert [int(stood["a"]) - 7] == rows_again(plan.splits, WORDS)
    after = JobStores(at(tmp_path), cross_freely).observe()
    assert (before.version, before.rows) == (after.version, after.rows)


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        (Reset("nunbers", "start"), RollbackRefusedError, "reads no source 'nunbers': did you mean 'numbers'"),
        (Reset("numbers", "start", "c"), RollbackRefusedError, "has read no split 'c': there are a, b"),
        (Reset("numbers", "../x"), NoSuchPositionError, "'../x' is not a position in split a.*a number from 0 to 150"),
        (Reset("numbers", "151"), NoSuchPositionError, "'151' is not a position in split a.*a number from 0 to 150"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(tmp_path, asked, error, said):
    """The answer lists source, split or positions that exist. No entry is appended."""
    laid_out(tmp_path, 1)
    before = set(records(tmp_path))
    with pytest.raises(error, match=said):
        reset(at(tmp_path), SOURCES, asked)
    assert before == set(records(tmp_path))


def test_a_job_that_runs_or_has_nothing_yet_is_refused(tmp_path):
    """The message names the holder. Without a checkpoint there is nothing to move."""
    JobStores(at(tmp_path / "new"), cross_freely)
    with pytest.raises(SavepointRefusedError, match="completed no checkpoint yet"):
        reset(at(tmp_path / "new"), SOURCES, Reset("numbers", "start"))
    laid_out(tmp_path / "w", 1)
    hold(tmp_path / "w")
    with pytest.raises(JobHeldError):
        reset(at(tmp_path / "w"), SOURCES, Reset("numbers", "start"))


def test_what_a_dead_tick_has_left_goes_with_the_reset(tmp_path):
    """The reset's entry is of a newer generation. Afterwards such a file would look as if it had been used."""
    laid_out(tmp_path, 1)
    stood, shown = newest(tmp_path), contents(tmp_path)
    counter = next(vertex.micro_batch for vertex in stood.vertices if vertex.vertex == "bronze")
    left = tmp_path / BRONZE / "_data" / str(stood.generation) / f"bronze-{counter + 1}-{uuid4().hex}.parquet"
    left.write_bytes(b"left behind")
    reset(at(tmp_path), SOURCES, Reset("numbers", "start"))
    assert (False, shown) == (left.exists(), contents(tmp_path))


@pytest.mark.kill
@pytest.mark.parametrize(
    "boundary", ["after:Claim", "before:AppendRow", "after:AppendRow", "before:RollForwardCut", "before:Release"]
)
def test_a_death_on_the_way_is_made_up_for(tmp_path, monkeypatch, boundary):
    """Before the entry nothing has changed. After it, the next tick begins from it."""
    laid_out(tmp_path, 1)
    monkeypatch.setattr("jobs.warehouse.job_stores.is_alive", lambda *_: False)
    before = newest(tmp_path)
    with suppress(Dead):
        reset(at(tmp_path), SOURCES, Reset("numbers", "end"), boundary=Mortal(boundary))
    happened = newest(tmp_path) != before
    assert happened is (boundary not in ("after:Claim", "before:AppendRow"))
    rows = pl.read_delta(str(tmp_path / BRONZE)).height
    tick(tmp_path)
    assert (rows if happened else 300) == pl.read_delta(str(tmp_path / BRONZE)).height
