"""The simulator's other programs merge files of the job's tables as real ones do."""

from checkpointing.identifiers import NO_CHECKPOINT, Generation, VertexId
from spec.world.simulator import Simulation
from spec.world.stores import Written, optimize

TABLE = "bronze/orders"


def holding(*paths):
    """Return a world whose table shows these files, each with one row."""
    world = Simulation(0).world
    for place, path in enumerate(paths):
        world.files[path] = Written(Generation(1), VertexId("orders"), 1, ((place, 1),))
    world.table(TABLE).commit(frozenset(paths), NO_CHECKPOINT, world.now_ms)
    return world


def test_a_merge_does_not_overwrite_a_file_that_is_there():
    """An imported file may have the very name that the merge would choose first, as in seed 3401627."""
    first = f"{TABLE}/part-1-2"
    world = holding(first, "other")
    optimize(world, TABLE)
    (merged,) = world.table(TABLE).active
    assert merged not in (first, "other")
    assert ((0, 1),) == world.files[first].rows
    assert {(0, 1), (1, 1)} == {*world.files[merged].rows}
