"""How often Python's garbage collector runs while a tick runs."""

import gc
from weakref import ref

import pytest

from jobs.tick.driver import NEW_OBJECTS, collecting_less_often


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(("before", "inside"), [(700, NEW_OBJECTS), (50_000, 50_000), (0, 0)])
def test_the_collector_runs_less_often_and_then_as_before(before, inside):
    """A process that runs the collector even less often, or never, keeps its setting.

    This holds after an error, too.
    """
    gc.set_threshold(before, 11, 12)
    seen = []

    def fail():
        with collecting_less_often():
            seen.append(gc.get_threshold())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [(inside, 11, 12)] == seen
    assert (before, 11, 12) == gc.get_threshold()


def test_a_ring_of_objects_is_still_collected():
    """So memory use stays bounded."""

    class Ring:
        def __init__(self):
            self.itself = self

    with collecting_less_often():
        rings = [ref(Ring()) for _ in range(10 * NEW_OBJECTS)]
    alive = sum(ring() is not None for ring in rings)
    assert alive < len(rings) / 2
