"""Groups of splits that read another job's cuts: which one is polled, up to which cut, and when a barrier follows."""

import pytest

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import SplitId, VertexId
from checkpointing.job.polling import CutGroups, MixedCutsError

A, B, FREE = ((VertexId(name), SplitId("table")) for name in ("a", "b", "free"))
GROUPS = {VertexId("a"): "shop", VertexId("b"): "shop"}


def groups(**positions):
    known = {A: positions.get("a"), B: positions.get("b"), FREE: "7"}
    return CutGroups(GROUPS, known)


def piece(split, cut, *, at_cut=True, rows=1):
    return SourceSlice(*split, "0", "1", "", rows, rows, cut=cut, at_cut=at_cut)


def test_one_split_at_a_time_is_polled_for_any_cut():
    """Two splits might find different cuts."""
    cuts = groups(a="1", b="1")
    assert not cuts.seeks(A, [])
    assert not cuts.seeks(A, [FREE])
    assert cuts.seeks(A, [B])
    assert not cuts.seeks(FREE, [A])


def test_the_first_slice_decides_the_cut_for_all_splits():
    """A barrier waits until all splits have reached the cut.

    Then it is due, and no split reads on before it is sent.
    """
    cuts = groups(a="1", b="1")
    assert not cuts.hold_barrier
    assert {B} == cuts.offered(A, piece(A, "5", at_cut=False))
    assert ("5", "5", None) == (cuts.cut_for(A), cuts.cut_for(B), cuts.cut_for(FREE))
    assert cuts.hold_barrier
    assert (True, True, False) == (cuts.is_behind(A), cuts.is_behind(B), cuts.is_behind(FREE))
    assert set() == cuts.offered(A, piece(A, "5"))
    assert (cuts.waits_at_cut(A), cuts.is_behind(B), cuts.barrier_due) == (True, True, False)
    cuts.offered(B, piece(B, "5", rows=0))
    assert (cuts.hold_barrier, cuts.barrier_due, cuts.waits_at_cut(B)) == (False, True, True)
    cuts.barrier_sent()
    assert (cuts.hold_barrier, cuts.barrier_due, cuts.waits_at_cut(B), cuts.cut_for(A)) == (False, False, False, None)


def test_a_new_split_beside_an_old_one_holds_barriers_from_the_start():
    """The new split stands at no cut yet."""
    cuts = groups(a="1")
    assert cuts.hold_barrier
    cuts.offered(B, piece(B, "1"))
    assert cuts.hold_barrier
    cuts.offered(A, piece(A, "1", rows=0))
    assert not cuts.hold_barrier
    cuts.barrier_sent()
    assert not cuts.hold_barrier


@pytest.mark.parametrize("wrong", [piece(B, "6"), piece(B, None), piece(A, "5")])
def test_rows_of_another_cut_are_an_error_of_the_source(wrong):
    """The rows belong to no cut, to another cut, or come after the cut that was reached."""
    cuts = groups(a="1", b="1")
    cuts.offered(A, piece(A, "5"))
    with pytest.raises(MixedCutsError, match="offered rows of cut"):
        cuts.offered((wrong.source, wrong.split), wrong)
    assert cuts.is_behind(B)
