"""Decides who may claim the job (G5), as a pure function. It only decides who waits.

The compare-and-swap gives safety.
"""

import pytest

from checkpointing.commit.at_rest import Stamp, copied
from checkpointing.commit.fencing import (
    GRACE_BEFORE_LEASE_MS,
    IDS_PER_CLAIM,
    LEASE_OF_THE_UNSEEN_MS,
    HolderObserved,
    Lease,
    MayClaim,
    Refused,
    Turn,
    decide_claim,
    disposed_with,
    newest_checkpoint,
    restorable,
    turn_back,
)
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Release, RowKind, Statistics

HOLDER = Holder(host="here", pid=7, started="then", dagster_run="r1")
CLAIM = Claim(generation=3, holder=HOLDER, first_id=2_001, last_id=3_000, at_ms=1_000, nonce="a")
SILENT = HolderObserved(alive=None, lease=None)
NOW_MS = 100_000
LIVE_LEASE = Lease(Generation(3), NOW_MS + 5_500)


def decide(rows, seen, *, take_over=False, now_ms=NOW_MS):
    return decide_claim(rows, seen, now_ms, take_over=take_over)


def test_a_new_job_is_free_and_its_first_id_is_one():
    """Nobody has held the job: generation 1, ids from 1."""
    decision = decide((), SILENT)
    assert isinstance(decision, MayClaim)
    assert (1, 1) == (decision.generation, decision.first_id)


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


def test_a_claim_reserves_a_block_after_all_earlier_ids():
    """The entry to append has exactly the reserved block."""
    claim = MayClaim(Generation(4), CheckpointId(11), "").claim(HOLDER, 5, "n")
    assert (11, 10 + IDS_PER_CLAIM) == (claim.first_id, claim.last_id)


# ------------------------------------------------------------------
# Decides which entries a rollback drops, abandons, or brings back to the line. The functions are pure.


def row(checkpoint, parent, *, generation=1, **fields):
    """Return an entry without vertices and tables."""
    return CheckpointRecord(
        job="job",
        checkpoint=CheckpointId(checkpoint),
        parent=CheckpointId(parent),
        generation=Generation(generation),
        nonce=f"n{checkpoint}",
        max_parallelism=4,
        vertices=(),
        tables=(),
        statistics=Statistics(triggered_ms=1, committed_ms=2, rows=3),
        **fields,
    )


STRAIGHT = (row(1, 0), row(2, 1), row(4, 2), row(5, 4))
PLAIN = {"kind": RowKind.SAVEPOINT, "pinned": True}


def test_later_entries_are_dropped():
    turn = turn_back(STRAIGHT, STRAIGHT[1])
    assert ((4, 5), (), ()) == (turn.dropped, turn.abandoned, turn.adopted)
    assert Turn((), (), ()) == turn_back(STRAIGHT, STRAIGHT[-1])


def test_a_cut_without_its_savepoint_goes():
    """Disposal drops an abandoned checkpoint on which no other savepoint stands, and none that is on the line."""
    left, plain = row(5, 4, abandoned=True), row(6, 5, abandoned=True, **PLAIN)
    other = row(7, 5, abandoned=True, **PLAIN)
    rollback = row(8, 2, kind=RowKind.ROLLBACK)
    assert (6, 5) == disposed_with(plain, (left, plain, rollback))
    assert (6,) == disposed_with(plain, (left, plain, other, rollback))
    assert (6,) == disposed_with(row(6, 2, **PLAIN), (STRAIGHT[1], row(6, 2, **PLAIN), rollback))
    assert (6,) == disposed_with(plain, (left.model_copy(update={"pinned": True}), plain, rollback))


def test_a_plain_savepoint_is_brought_back_with_its_cut():
    """It was abandoned with the pinned entry whose cut it has, and with another one that stays abandoned."""
    stop, later = row(4, 2, pinned=True, abandoned=True), row(6, 4, pinned=True, abandoned=True)
    plain = (row(5, 4, abandoned=True, **PLAIN), row(7, 6, abandoned=True, **PLAIN))
    rows = (row(1, 0), row(2, 1), stop, later, *plain, row(8, 2, kind=RowKind.ROLLBACK))
    assert (4, 5) == turn_back(rows, stop).adopted
    assert (4, 5, 6, 7) == turn_back(rows, later).adopted


def test_the_last_known_parent_says_where_the_lines_part():
    """The entries between were dropped long ago."""
    left = row(9, 8, pinned=True, abandoned=True)
    rows = (row(2, 1), left, row(20, 2, kind=RowKind.ROLLBACK), row(21, 20))
    assert ((20, 21), (9,)) == (turn_back(rows, left).dropped, turn_back(rows, left).adopted)


def test_the_order_of_the_entries_says_which_is_newest():
    """A rollback counts. An abandoned entry and a plain savepoint do not, whatever their ids."""
    rollback = row(8, 2, generation=3, kind=RowKind.ROLLBACK)
    rows = (row(9, 8, generation=4, **PLAIN), rollback, row(2, 1), row(7, 2, generation=2, pinned=True, abandoned=True))
    assert rollback == newest_checkpoint(rows) == newest_checkpoint(rows[::-1])
    assert [9, 8, 2] == [each.checkpoint for each in restorable(rows)]


# ------------------------------------------------------------------
# The entries of a savepoint's copy. The copy is a job of its own, with names of its own.


PERSON = Holder(host="here", pid=1, started="")


def stored(checkpoint, generation):
    nothing = Statistics(triggered_ms=0, committed_ms=0, rows=0)
    return CheckpointRecord(
        checkpoint=checkpoint,
        parent=checkpoint - 1,
        generation=generation,
        job="job",
        nonce=f"n{checkpoint}",
        max_parallelism=8,
        vertices=(),
        tables=(),
        statistics=nothing,
    )


def claim(generation, first_id):
    return Claim(
        generation=generation,
        holder=PERSON,
        first_id=first_id,
        last_id=first_id + 999,
        at_ms=0,
        nonce=f"c{generation}",
    )


def test_a_job_that_continues_a_copy_reuses_no_id_and_no_generation():
    """The savepoint is checkpoint 5. The original continued to checkpoint 7, and reserved ids up to 41."""
    rows = (
        claim(1, 1),
        stored(5, 1),
        claim(2, 6),
        stored(7, 2),
        Release(generation=2, next_id=42, at_ms=0, nonce="r"),
    )
    entries = copied(rows[1], rows, PERSON, Stamp(3, "n"))
    assert [Claim, CheckpointRecord, Release] == [type(entry) for entry in entries]
    assert rows[1] == entries[1]
    assert 2 == len({entries[0].nonce, entries[2].nonce})
    free = decide_claim(entries, HolderObserved(None, None), 4, take_over=False)
    assert isinstance(free, MayClaim)
    assert (Generation(3), CheckpointId(42)) == (free.generation, free.first_id)


def test_going_back_to_a_plain_savepoint_drops_checkpoints_after_its_parent():
    """A checkpoint with a lower id may have committed after the savepoint."""
    savepoint = row(4, 1, **PLAIN)
    rows = (row(1, 0), savepoint, row(3, 1), row(5, 3))
    assert ((3, 5), ()) == (turn_back(rows, savepoint).dropped, turn_back(rows, savepoint).adopted)
