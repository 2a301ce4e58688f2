"""A pipeline's own reports: shown after a tick, made of the newest cut; one that raises harms nothing."""

import pytest

from jobs.pipeline import Pipeline
from jobs.reading import Cut
from tests.scenarios.runtime.sequence_job import GOLD, as_pipeline

HERE = "tests.scenarios.runtime.test_reports"


def with_reports(data) -> Pipeline:
    """Return the numbers with a report, and with one that raises."""
    return as_pipeline(data).report(total).report(broken)


def total(cut: Cut) -> str:
    """Return what gold adds up to at the cut."""
    return f"cut {cut.checkpoint}: {cut.polars(GOLD).collect()['rows'].sum()} rows [counted]"


def broken(_cut: Cut) -> str:
    """Raise as a report with a bug does."""
    raise KeyError("no such column")


@pytest.fixture
def run(typed, tmp_path):
    """Run a tick of the numbers with their reports; return exit code, stdout and stderr."""
    return lambda *words: typed("run", f"{HERE}:with_reports", "--warehouse", tmp_path / "warehouse", *words)


def test_each_tick_ends_with_the_reports_of_its_newest_cut(run):
    """A tick that stops early shows its own cut; one without news shows the newest again; brackets stay as they are."""
    code, out, _ = run("--checkpoints", "1")
    assert (0, True) == (code, "cut 1: 100 rows [counted]" in out)
    for _ in range(2):
        code, out, _ = run()
        assert (0, True) == (code, ": 300 rows [counted]" in out)


def test_a_report_that_raises_is_named_and_the_tick_is_well(run):
    """Its error is a sentence with file and line; the exit code is the tick's."""
    code, out, _ = run()
    assert 0 == code
    said = " ".join(out.split())
    assert "a report of numbers failed, and nothing else did: KeyError: 'no such column' (in broken, " in said
    assert "numbers is caught up: 300 rows" in out
