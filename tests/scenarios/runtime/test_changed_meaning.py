"""A pipeline whose aggregate computes something else meets the state that is there: refused before the claim (D6)."""

import pytest

from checkpointing.job.restoring import CutDoesNotFitError
from jobs.cli.errors import ExitCode
from jobs.pipeline import Pipeline, count, max_of, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from tests.scenarios.runtime.savepoint_job import at, records, run
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, GOLD, JOB, KEYS, ROWS

HERE = "tests.scenarios.runtime.test_changed_meaning"


def declared(**columns):
    """Return the numbers' pipeline with these aggregates instead."""
    pipeline = Pipeline(JOB, config=CONFIG, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    numbers.key_by("key").aggregate("by_key", **columns).upsert(GOLD)
    return pipeline


def counting(_data):
    """Return the pipeline in which a sum has become a count, and a count a maximum."""
    return declared(rows=max_of("value"), total=count())


@pytest.fixture
def root(tmp_path):
    """Return a warehouse with two checkpoints of a count and a sum by key, and rows still to read."""
    run(tmp_path / "warehouse", 2)
    return tmp_path / "warehouse"


@pytest.mark.parametrize(
    ("columns", "column", "was", "now"),
    [
        ({"rows": sum_of("value"), "total": sum_of("value")}, "rows", r"count\(\)", r"sum\(value bigint\)"),
        ({"rows": count(), "total": count()}, "total", r"sum\(value bigint\)", r"count\(\)"),
        ({"rows": count(), "total": sum_of("n")}, "total", r"sum\(value bigint\)", r"sum\(n bigint\)"),
        ({"rows": count("split"), "total": sum_of("value")}, "rows", r"count\(\)", r"count\(split string\)"),
    ],
)
def test_another_aggregate_under_an_old_name_is_refused_before_the_claim(root, columns, column, was, now):
    """A count of 50 and a sum of 49 would become a meaningless 99.

    The job is unchanged, and its own pipeline goes on.
    """
    before = JobStores(at(root), cross_freely).observe().rows
    says = rf"checkpoint 2: state of operator 'by_key': column {column} was {was} and is now {now}: .*another name"
    with pytest.raises(CutDoesNotFitError, match=says):
        run(root, plan=plan(declared(**columns)))
    assert before == JobStores(at(root), cross_freely).observe().rows
    run(root)


def test_every_checkpoint_records_what_its_state_means(root):
    """The entry alone says it, also in a copy."""
    (by_key,) = [vertex for vertex in records(root)[2].vertices if vertex.vertex == "by_key"]
    assert ["rows count()", "total sum(value bigint)"] == [f"{each.column} {each}" for each in by_key.meanings]


def test_a_dry_run_in_place_shows_every_change_and_fails(root, typed):
    """All changed columns in one table with both meanings; then the first that is refused, with the way out."""
    before = sorted(str(path) for path in root.rglob("*"))
    code, out, err = typed("run", f"{HERE}:counting", "--warehouse", root, "--dry-run")
    assert ExitCode.FAILED is code
    rows = [line.split("│")[1:-1] for line in out.splitlines() if "│" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    of = "state of operator 'by_key'"
    assert ["meaning of state", of, "rows", "count()", "max(value bigint)", "refused"] in cells
    assert ["meaning of state", of, "total", "sum(value bigint)", "count()", "refused"] in cells
    assert "column rows was count() and is now max(value bigint)" in err
    assert "give the new column another name" in err
    assert "nothing was changed" in err
    assert before == sorted(str(path) for path in root.rglob("*"))


def test_a_dry_run_of_a_fork_shows_it_too(root, typed, tmp_path):
    """A restore from another warehouse is compared with the entry in that warehouse."""
    code, out, err = typed("run", f"{HERE}:counting", "--from", root, "--warehouse", tmp_path / "fork", "--dry-run")
    assert ExitCode.FAILED is code
    assert "max(value bigint)" in out
    assert "column rows was count()" in err
    assert not (tmp_path / "fork").exists()


def more(_data):
    """Return the pipeline with one more aggregate, under a name of its own."""
    return declared(rows=count(), total=sum_of("value"), top=max_of("value"))


def test_a_dry_run_shows_what_may_change(root, typed):
    """A new column is no other meaning: the plan follows, and nothing is refused."""
    code, out, err = typed("run", f"{HERE}:more", "--warehouse", root, "--dry-run")
    assert (ExitCode.DONE, "") == (code, err)
    assert "columns of state" in out
    assert "null in old rows" in out
    assert "restore plan numbers" in out
