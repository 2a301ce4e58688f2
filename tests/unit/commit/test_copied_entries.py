"""The entries of a savepoint's copy. The copy is a separate job, whose files have their own names."""

from checkpointing.commit.at_rest import Stamp, copied
from checkpointing.commit.fencing import HolderObserved, MayClaim, decide_claim
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Release
from tests.unit.full_entry import plain_entry

PERSON = Holder(host="here", pid=1, started="")


def stored(checkpoint, generation):
    return plain_entry(
        checkpoint=checkpoint, parent=checkpoint - 1, generation=generation, job="job", nonce=f"n{checkpoint}"
    )


def claim(generation, first_id):
    ids = {"first_id": first_id, "last_id": first_id + 999}
    return Claim(generation=generation, holder=PERSON, at_ms=0, nonce=f"c{generation}", **ids)


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
