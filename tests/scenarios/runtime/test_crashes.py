"""A tick that dies at each of its boundaries, in process and without Spark; the next one makes up for it.

Dying is played: from that boundary on nothing that the tick tries reaches the outside. What other
threads have begun still ends, as another machine's would.
"""

from collections import Counter
from contextlib import suppress

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkpointing.identifiers import Generation
from jobs.tick.tick_settings import TickReport
from jobs.warehouse.boundaries import boundary_names
from tests.scenarios.runtime.conftest import FIRST_TICKS_BOUNDARIES, ONCE, RARE, Dead, Mortal
from tests.scenarios.runtime.sequence_job import BRONZE, build, read_cut

NAMES = boundary_names(build().graph)


def bronze_files(root) -> set[str]:
    """Return the files that lie in the append table's folder for staged ones."""
    return {str(path.relative_to(root / BRONZE)) for path in (root / BRONZE / "_data").rglob("*.parquet")}


def bronze_active(root) -> set[str]:
    """Return the files that the append table's log names."""
    return {str(path) for path in pa.table(DeltaTable(str(root / BRONZE)).get_add_actions()).column("path").to_pylist()}


def dies(tick, name: str, occurrence: int = 1) -> bool:
    """Run a tick that dies at the boundary; return whether it got there."""
    boundary = Mortal(name, occurrence)
    with suppress(Dead):
        tick(boundary=boundary)
    return boundary.dead


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "occurrence"), FIRST_TICKS_BOUNDARIES)
def test_a_crash_anywhere_changes_nothing_in_the_end(tick, tmp_path, undisturbed, name, occurrence):
    """Whatever boundary a first tick dies at, the next one ends with an undisturbed run's tables and no leftover."""
    assert dies(tick, name, occurrence)
    report: TickReport = tick(take_over=True)
    assert "" == report.message
    assert undisturbed == read_cut(tmp_path)
    assert bronze_active(tmp_path) == bronze_files(tmp_path)


@pytest.mark.parametrize("name", [name for name in NAMES if "RollForward" in name or "Leftovers" in name])
def test_a_crash_during_recovery_is_met_by_the_next_recovery(tick, tmp_path, undisturbed, name):
    """A tick recovers from a crash and dies meanwhile. The third tick finishes the work."""
    assert dies(tick, "after:AppendRow", 2)
    recovering = Mortal(name)
    with pytest.raises(Dead):
        tick(take_over=True, boundary=recovering)
    assert recovering.dead
    tick(take_over=True)
    assert undisturbed == read_cut(tmp_path)


def test_every_boundary_is_crossed(tick):
    """The names that a kill may be asked for are exactly those that ticks cross."""
    crossed: Counter[str] = Counter()

    def count(name: str) -> None:
        crossed[name] += 1

    tick(boundary=count)
    assert not {name for name in crossed if name not in NAMES}
    assert RARE >= {name.split(":")[1] for name in NAMES if name not in crossed}
    assert ONCE == {name.split(":")[1] for name, times in crossed.items() if times == 1} - RARE


def test_a_committed_row_is_published_by_the_next_tick(tick):
    """The tick died right after the commit point. Its checkpoint is the next tick's first one.

    It is not lost or repeated.
    """
    assert dies(tick, "after:AppendRow", 2)
    report = tick(take_over=True)
    first = report.completed[0]
    assert (2, Generation(1)) == (first.checkpoint, first.generation)
    assert Generation(2) == report.generation
