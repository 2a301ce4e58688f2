"""Decides who may claim the job (G5), as a pure function. It only decides who waits.

The compare-and-swap gives safety.
"""

import pytest

from checkpointing.commit.fencing import (
    GRACE_BEFORE_LEASE_MS,
    IDS_PER_CLAIM,
    LEASE_OF_THE_UNSEEN_MS,
    HolderObserved,
    Lease,
    MayClaim,
    Refused,
    decide_claim,
)
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.record import Claim, Holder, Release

HOLDER = Holder(host="here", pid=7, started="then", dagster_run="r1")
CLAIM = Claim(generation=3, holder=HOLDER, first_id=2_001, last_id=3_000, at_ms=1_000, nonce="a")
SILENT = HolderObserved(alive=None, lease=None)
NOW_MS = 100_000
LIVE_LEASE = Lease(Generation(3), NOW_MS + 5_500)


def decide(rows, seen, *, take_over=False, now_ms=NOW_MS):
    """Decide as a tick would."""
    return decide_claim(rows, seen, now_ms, take_over=take_over)


def test_a_new_job_is_free_and_its_first_id_is_one():
    """Nobody has held the job: generation 1, ids from 1."""
    decision = decide((), SILENT)
    assert isinstance(decision, MayClaim)
    assert (1, 1) == (decision.generation, decision.first_id)


def test_an_orderly_end_frees_the_job_and_wastes_no_ids():
    """After a release, the counter continues exactly where the last tick stopped, whatever the lease says (A6)."""
    release = Release(generation=3, next_id=2_017, at_ms=2_000, nonce="b")
    decision = decide((CLAIM, release), HolderObserved(alive=True, lease=LIVE_LEASE))
    assert isinstance(decision, MayClaim)
    assert (4, 2_017) == (decision.generation, decision.first_id)


def test_after_a_crash_the_whole_reserved_block_is_skipped():
    """Ids that the dead tick may have handed out to failed checkpoints are never used again (A6)."""
    decision = decide((CLAIM,), HolderObserved(alive=False, lease=LIVE_LEASE))
    assert isinstance(decision, MayClaim)
    assert 3_001 == decision.first_id


def test_a_release_of_an_older_generation_frees_nothing():
    """Only the release of the newest claim counts."""
    old = Release(generation=2, next_id=5, at_ms=500, nonce="b")
    assert isinstance(decide((CLAIM, old), HolderObserved(alive=True, lease=LIVE_LEASE)), Refused)


def test_a_refusal_names_the_live_holder_and_the_time_left_on_its_lease():
    """The refusal says who holds the job and for how long (G5)."""
    decision = decide((CLAIM,), HolderObserved(alive=True, lease=LIVE_LEASE))
    assert isinstance(decision, Refused)
    assert HOLDER == decision.holder
    assert "6 s" in decision.why


@pytest.mark.parametrize("alive", [None, True])
def test_a_lease_that_has_run_out_is_taken_over(alive):
    """From the millisecond of its end on, a lease keeps nobody away."""
    seen = HolderObserved(alive=alive, lease=Lease(Generation(3), NOW_MS))
    assert isinstance(decide((CLAIM,), seen), MayClaim)


def test_the_lease_of_an_older_generation_does_not_count():
    """A fenced-out holder may have renewed the lease last. It protects nobody, and is not the present holder's."""
    old = Lease(Generation(2), NOW_MS + 99_000)
    seen = HolderObserved(alive=True, lease=old)
    assert isinstance(decide((CLAIM,), seen), MayClaim)
    assert decide((CLAIM,), SILENT) == decide((CLAIM,), HolderObserved(alive=None, lease=old))


def test_a_holder_elsewhere_without_a_lease_is_given_one():
    """This process cannot see the holder's.

    However old its claim is, the holder has the time of a lease from now on.
    """
    for now_ms in (CLAIM.at_ms, NOW_MS, NOW_MS * 1_000):
        decision = decide((CLAIM,), SILENT, now_ms=now_ms)
        assert isinstance(decision, Refused)
        assert (HOLDER, 3, LEASE_OF_THE_UNSEEN_MS) == (decision.holder, decision.generation, decision.give_lease_ms)
        assert "30 s from now" in decision.why
    given = Lease(Generation(3), NOW_MS + LEASE_OF_THE_UNSEEN_MS)
    seen = HolderObserved(alive=None, lease=given)
    refused = decide((CLAIM,), seen, now_ms=given.expires_ms - 1)
    assert isinstance(refused, Refused)
    assert refused.give_lease_ms is None
    assert isinstance(decide((CLAIM,), seen, now_ms=given.expires_ms), MayClaim)


def test_take_over_works_on_a_holder_elsewhere_without_a_lease():
    """The user's word counts at once."""
    assert isinstance(decide((CLAIM,), SILENT, take_over=True), MayClaim)


def test_a_process_that_has_only_just_claimed_may_lack_its_lease():
    """Between claim and first lease, a live process is left alone for a while."""
    seen = HolderObserved(alive=True, lease=None)
    assert isinstance(decide((CLAIM,), seen, now_ms=1_000 + GRACE_BEFORE_LEASE_MS - 1), Refused)
    assert isinstance(decide((CLAIM,), seen, now_ms=1_000 + GRACE_BEFORE_LEASE_MS), MayClaim)


def test_take_over_wins_over_a_live_lease():
    """--take-over is the user's word. The compare-and-swap keeps it safe."""
    decision = decide((CLAIM,), HolderObserved(alive=True, lease=LIVE_LEASE), take_over=True)
    assert isinstance(decision, MayClaim)
    assert "taken over" in decision.why


def test_a_further_block_of_the_same_generation_counts_for_the_ids():
    """A long tick reserves a second block. The next tick skips the ids of that block."""
    further = CLAIM.model_copy(update={"first_id": 3_001, "last_id": 4_000})
    decision = decide((further, CLAIM), HolderObserved(alive=False, lease=None))
    assert isinstance(decision, MayClaim)
    assert 4_001 == decision.first_id


def test_a_claim_reserves_a_block_after_all_earlier_ids():
    """The entry to append has exactly the reserved block."""
    claim = MayClaim(Generation(4), CheckpointId(11), "").claim(HOLDER, 5, "n")
    assert (11, 10 + IDS_PER_CLAIM) == (claim.first_id, claim.last_id)
