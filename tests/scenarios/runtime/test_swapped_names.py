"""Two vertices and their tables that swap their names, both declared, keep what is theirs (G2)."""

import pytest

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import job_name
from checkpointing.job.restoring import CutDoesNotFitError
from jobs.pipeline import InvalidPipelineError, Pipeline, count
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from tests.scenarios.faults.orders_job import KEYS, LocalEngine
from tests.scenarios.runtime.evolving_job import JOB, at, newest, shown

CONFIG = CheckpointConfig(slice_rows_max=50, micro_batch_rows_max=100, retained=9)
HALF = 35


def build(rows, *, one="one", two="two", swapped=False, one_was=None, two_was=None):
    """Return a job that counts by key and by number; `one` names the vertex and the tables of the counts by key."""
    before = {one: two, two: one} if swapped else {}
    former = {one: one_was or before.get(one), two: two_was or before.get(two)}
    pipeline = Pipeline(job_name(JOB), config=CONFIG, parallelism=2)
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


def tick(root, rows, **names):
    """Run one tick without Spark."""
    report = run_tick(build(rows, **names), RuntimeSettings(warehouse=root), engine=LocalEngine())
    assert report.message == ""


def must_be_exact(root, rows, one="one", two="two"):
    """Judge both golds and both bronzes."""
    assert [(key, rows // 7 + (key < rows % 7)) for key in range(7)] == shown(root, f"gold/{one}")
    assert [(number, 1) for number in range(rows)] == sorted(shown(root, f"gold/{two}"))
    for name in (one, two):
        assert list(range(rows)) == sorted(row[1] for row in shown(root, f"bronze/{name}"))


def test_two_swap_their_names_once(tmp_path):
    """A declaration stays in the code: the tick after the swap swaps nothing back."""
    tick(tmp_path, HALF)
    swapped = {"one": "two", "two": "one", "swapped": True}
    for rows in (HALF, HALF + 1, HALF + 2):
        tick(tmp_path, rows, **swapped)
    must_be_exact(tmp_path, HALF + 2, one="two", two="one")
    tick(tmp_path, HALF + 3, one="two", two="one")
    tick(tmp_path, HALF + 4, swapped=True)
    must_be_exact(tmp_path, HALF + 4)


def test_a_rollback_across_a_swap(tmp_path):
    """Each cut has the names of its own pipeline, whichever version goes on after the rollback."""
    tick(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    swapped = {"one": "two", "two": "one", "swapped": True}
    tick(tmp_path, HALF + 1, **swapped)
    roll_back(at(tmp_path), first)
    must_be_exact(tmp_path, HALF)
    tick(tmp_path, HALF + 2, **swapped)
    must_be_exact(tmp_path, HALF + 2, one="two", two="one")
    roll_back(at(tmp_path), first)
    tick(tmp_path, HALF + 3)
    must_be_exact(tmp_path, HALF + 3)


def test_one_takes_the_name_that_another_leaves(tmp_path):
    """Two things use three names: two becomes three, and one becomes two."""
    tick(tmp_path, HALF)
    for rows in (HALF + 1, HALF + 2):
        tick(tmp_path, rows, one="two", two="three", one_was="one", two_was="two")
    must_be_exact(tmp_path, HALF + 2, one="two", two="three")


def test_a_name_that_the_checkpoint_has_already_is_refused(tmp_path):
    """`one` shall become `two`, and the old `two` is gone. It is not clear whose state `two` is, so nothing changes."""
    tick(tmp_path, HALF)
    before = newest(tmp_path)
    with pytest.raises(CutDoesNotFitError, match="has a vertex two_rows and a vertex one_rows"):
        tick(tmp_path, HALF + 1, one="two", two="fresh", one_was="one")
    assert before == newest(tmp_path)


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
    """If a call gives no id, it cannot declare an older one. No column may be renamed so either."""
    numbers = Pipeline("p").source("n", SequenceSource({"a": 5}, keys=KEYS)).key_by("key")
    with pytest.raises(InvalidPipelineError, match="id_renamed_from='x' belongs to id="):
        numbers.aggregate("a", n=count()).table("gold/a", id_renamed_from="x")
    with pytest.raises(InvalidPipelineError, match="no column may be called 'renamed_from'"):
        numbers.aggregate("b", renamed_from=count())
