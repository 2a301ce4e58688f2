"""A tick on a cluster says at its end where its tasks found their state."""

import io

import pytest
from rich.console import Console

from jobs.cli.run import PlainDisplay
from jobs.showing.quantities import Tally
from jobs.spark.session import SparkConfig
from jobs.state.worker_copy import CopyUses
from jobs.tick.engine import SparkEngine
from jobs.tick.listener import StateLoaded

USES = CopyUses(hits=30, behind=4, misses=1_200)


@pytest.fixture
def told():
    """Return a display and a function that returns its lines."""
    out = io.StringIO()
    return PlainDisplay(Console(file=out, width=40), Tally(rows_ahead=0)), lambda: out.getvalue().splitlines()


@pytest.mark.parametrize("config", [SparkConfig(master="spark://h:1"), SparkConfig(connect_url="sc://h:1")])
def test_a_tick_on_a_cluster_says_it_once(told, config):
    """A miss reads all files of a range from the store. The engine may be closed twice."""
    display, lines = told
    engine = SparkEngine(config, display)
    engine.copies += USES
    engine.close()
    engine.close()
    assert [
        "state: 34 of 1,234 loads found a copy in the worker's memory, 4 of them without the newest files"
    ] == lines()


def test_a_local_tick_and_one_without_state_say_nothing(told):
    """Local workers are few, and their misses cost little."""
    display, lines = told
    for config, uses in ((SparkConfig(), USES), (SparkConfig(master="spark://h:1"), CopyUses())):
        engine = SparkEngine(config, display)
        engine.copies += uses
        engine.close()
    assert [] == lines()


def test_the_line_of_few_loads(told):
    """One load, which found all."""
    display, lines = told
    display.progress(StateLoaded(CopyUses(hits=1)))
    assert ["state: 1 of 1 load found a copy in the worker's memory"] == lines()
