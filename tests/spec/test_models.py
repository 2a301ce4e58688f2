"""The model of partitioned tables holds for the functions of the product, and other programs merge files."""

import pytest

from checkpointing.identifiers import NO_CHECKPOINT, Generation, VertexId
from spec.models.layouts import files_keep_their_partition, layouts_stay, modes_stay, outputs_are_read_on
from spec.world.simulator import Simulation
from spec.world.stores import Written, optimize


@pytest.mark.parametrize("seed", range(30))
def test_files_keep_the_values_of_their_partition(seed):
    """Their folders say the values, also after a rename, and partitions lie apart (rule `partitions-are-kept`)."""
    assert files_keep_their_partition(seed)


def test_a_cut_of_another_layout_is_not_restored():
    """Staged files, ranges and an entry's own files are looked at (rule `layout-stays`)."""
    assert layouts_stay()


def test_a_cut_of_another_mode_is_not_restored():
    """The mode of a table stays, and the version column of an overwrite table (rule `mode-stays`)."""
    assert modes_stay()


# ------------------------------------------------------------------
# A cut with rows in flight is restored only into a pipeline whose inputs read the outputs that they read then.


def test_a_cut_is_refused_exactly_if_rows_in_flight_would_be_passed_over():
    """All pairs of outputs of two inputs, then and now, with rows in flight to each (rule `outputs-are-read-on`)."""
    assert outputs_are_read_on()


# ------------------------------------------------------------------
# Tests the other programs of the simulator, which merge files of the job's tables.


TABLE = "bronze/orders"


def holding(*paths):
    """Return a world whose table shows these files, each with one row."""
    world = Simulation(0).world
    for place, path in enumerate(paths):
        world.files[path] = Written(Generation(1), VertexId("orders"), 1, ((place, 1),))
    world.table(TABLE).commit(frozenset(paths), NO_CHECKPOINT, world.now_ms)
    return world


def test_a_merge_does_not_overwrite_a_file_that_is_there():
    """An imported file may have the very name that the merge would take first. Seed 3401627 met that."""
    first = f"{TABLE}/part-1-2"
    world = holding(first, "other")
    optimize(world, TABLE)
    (merged,) = world.table(TABLE).active
    assert merged not in (first, "other")
    assert ((0, 1),) == world.files[first].rows
    assert {(0, 1), (1, 1)} == {*world.files[merged].rows}
