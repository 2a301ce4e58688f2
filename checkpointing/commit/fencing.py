"""Decides who may claim the job: one coordinator at a time (G5).

Safety comes from the compare-and-swap on `checkpoints`. A claim takes the next version, so every entry that an older
generation still tries to append is refused. The decision in this module is only about politeness. A live holder is left
alone, and named. A holder that is dead, or whose lease has run out, is taken over. If a holder has no lease, and its
machine cannot be seen from here, it gets the time of one lease, which begins when it is first seen.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, Release, Row, RowKind

IDS_PER_CLAIM = 1_000
"""Checkpoint ids that one claim reserves. After a crash, the counter goes on after these ids (A6)."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The advisory lease of a generation's holder; `expires_ms` is on the clock of `now_ms`."""

    generation: Generation
    expires_ms: int


@dataclass(frozen=True, slots=True)
class HolderObserved:
    """What is known of the newest claim's holder. `alive` is None if this process cannot tell."""

    alive: bool | None
    lease: Lease | None


@dataclass(frozen=True, slots=True)
class MayClaim:
    """This generation may claim the job and use ids from `first_id` on. `why` says which holder it replaces."""

    generation: Generation
    first_id: CheckpointId
    why: str

    def claim(self, holder: Holder, at_ms: int, nonce: str, ids: int = IDS_PER_CLAIM) -> Claim:
        """Return the claim to append. It reserves this many ids, which no other generation uses."""
        last = CheckpointId(self.first_id + ids - 1)
        return Claim(
            generation=self.generation,
            holder=holder,
            first_id=self.first_id,
            last_id=last,
            at_ms=at_ms,
            nonce=nonce,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """Another process holds the job, and nothing was changed.

    `give_lease_ms`: write a lease of this length in the holder's name, so that the next start sees when the lease ends.
    A holder that lives renews it. None: write no lease.
    """

    holder: Holder
    generation: Generation
    why: str
    give_lease_ms: int | None = None


def decide_claim(rows: tuple[Row, ...], seen: HolderObserved, now_ms: int, *, take_over: bool) -> MayClaim | Refused:
    """Decide whether a new tick may claim the job. `rows` are the entries of `checkpoints`, in any order.

    A released job is free. A holder that is dead is taken over at once, and so is one whose lease has run out. With
    `take_over`, any holder is taken over. A holder without a lease of its own generation can live where this process
    cannot see it. So the new tick is refused once, and the holder is given a lease that it can renew.
    """
    newest = newest_claim(rows)
    if newest is None:
        return MayClaim(Generation(1), CheckpointId(NO_CHECKPOINT + 1), "nobody has held the job before")
    generation = Generation(newest.generation + 1)
    release = release_of(rows, newest.generation)
    if release is not None:
        return MayClaim(generation, release.next_id, release.why_free)
    return _after_silence(newest, generation, seen, now_ms, take_over=take_over)


def _after_silence(
    held: Claim, generation: Generation, seen: HolderObserved, now_ms: int, *, take_over: bool
) -> MayClaim | Refused:
    free = MayClaim(generation, CheckpointId(held.last_id + 1), "")
    if seen.alive is False:
        return MayClaim(free.generation, free.first_id, f"{held.holder} has died")
    if take_over:
        return MayClaim(free.generation, free.first_id, f"taken over from {held.holder}")
    lease = seen.lease if seen.lease is not None and seen.lease.generation == held.generation else None
    if lease is None or lease.expires_ms <= now_ms:
        return _without_lease(held, free, seen, now_ms, lease)
    left_s = (lease.expires_ms - now_ms + 999) // 1000
    return Refused(held.holder, held.generation, f"its lease runs for another {left_s} s")


def _without_lease(
    held: Claim, free: MayClaim, seen: HolderObserved, now_ms: int, lease: Lease | None
) -> MayClaim | Refused:
    """Decide about a holder whose lease has run out, or that has written no lease (`lease` is None).

    A live process of this host may have just claimed the job, and may write its lease soon. Until then, the lease of an
    earlier holder may still be stored. The caller passes None in its place.
    """
    if seen.alive is None and lease is None:
        seconds = LEASE_OF_THE_UNSEEN_MS // 1000
        why = (
            f"this host cannot see whether it lives, and it has no lease; if it renews none within {seconds} s from "
            "now, the next start takes the job over"
        )
        return Refused(held.holder, held.generation, why, give_lease_ms=LEASE_OF_THE_UNSEEN_MS)
    just_claimed = seen.alive is True and lease is None and now_ms - held.at_ms < GRACE_BEFORE_LEASE_MS
    if just_claimed:
        return Refused(held.holder, held.generation, "it claimed the job a moment ago")
    return MayClaim(free.generation, free.first_id, f"the lease of {held.holder} has run out")


GRACE_BEFORE_LEASE_MS = 10_000
LEASE_OF_THE_UNSEEN_MS = 30_000
"""A holder that cannot be seen from here has this long to show that it lives, from the moment when it is first seen."""


def newest_claim(rows: tuple[Row, ...]) -> Claim | None:
    """Return the claim of the highest generation with its newest block of ids, or None."""
    claims = [row for row in rows if isinstance(row, Claim)]
    return max(claims, key=lambda claim: (claim.generation, claim.last_id), default=None)


def rival_of(rows: tuple[Row, ...], generation: Generation) -> Claim | None:
    """Return the newest claim if it is later than this generation's.

    The process of that claim has taken the job over.
    """
    newest = newest_claim(rows)
    return newest if newest is not None and newest.generation > generation else None


def release_of(rows: tuple[Row, ...], generation: Generation) -> Release | None:
    """Return the release with which this generation ended normally, or None."""
    return next((row for row in rows if isinstance(row, Release) and row.generation == generation), None)


def newest_checkpoint(rows: tuple[Row, ...]) -> CheckpointRecord | None:
    """Return the newest committed entry. Every restore begins from it (G1). It is never a plain savepoint.

    It may be a rollback. The newest entry is the last in order of the entries. The fence separates the generations, and
    the entries of one generation are in order of id.
    """
    records = [row for row in rows if isinstance(row, CheckpointRecord) and row.commits and not row.abandoned]
    return max(records, key=lambda record: (record.generation, record.checkpoint), default=None)


# ------------------------------------------------------------------
# The line of entries: the cuts that a job has passed through, and the cuts that a rollback abandons (K2).
#
# Every committed entry names its parent, so the entries form a line that ends in the newest one. The parent of a
# rollback's entry is an older entry. The entries in between are then no longer on the line. The rollback's own commit
# drops those that are not pinned. A pinned entry stays, marked as abandoned, until its owner disposes of it. A rollback
# to an abandoned entry puts that entry on the line again.
#
# A plain savepoint publishes nothing: its tables are those of the cut after which it was taken. So the entry of that
# cut stays as long as the savepoint's entry, even if it is subsumed or abandoned. Only that entry records the
# operators' state at the cut.


@dataclass(frozen=True, slots=True)
class Turn:
    """What a rollback does to the other entries. Each group of entries is in order of id."""

    dropped: tuple[CheckpointId, ...]
    """The entries that the same commit drops."""
    abandoned: tuple[CheckpointId, ...]
    """The entries that leave the line but stay, because they are pinned or a plain savepoint was taken after them."""
    adopted: tuple[CheckpointId, ...]
    """The entries that were off the line and are on it again."""

    @property
    def marks(self) -> Mapping[CheckpointId, bool]:
        """The entries whose mark "abandoned" changes, and the new value of each."""
        return dict.fromkeys(self.abandoned, True) | dict.fromkeys(self.adopted, False)


def stood_upon(rows: Iterable[CheckpointRecord]) -> frozenset[CheckpointId]:
    """Return the checkpoints after which an existing plain savepoint was taken, or whose held successor exists."""
    return frozenset(row.parent for row in rows if not row.commits)


def disposed_with(gone: CheckpointRecord, rows: Iterable[CheckpointRecord]) -> tuple[CheckpointId, ...]:
    """Return the entries to drop when a user disposes of a savepoint: itself, and an abandoned one that only it kept.

    If such a checkpoint is still on the line, a later commit drops it by subsuming it.
    """
    others = [row for row in rows if row.checkpoint != gone.checkpoint]
    kept = stood_upon(others)
    alone = (row for row in others if row.checkpoint == gone.parent and not gone.commits)
    left = (row.checkpoint for row in alone if row.abandoned and not row.is_savepoint and row.checkpoint not in kept)
    return (gone.checkpoint, *left)


def turn_back(rows: Iterable[CheckpointRecord], to: CheckpointRecord) -> Turn:
    """Return what happens to these entries when the job rolls back to one. `rows` must have all existing entries.

    Only committed entries are on the line. A plain savepoint belongs to the cut after which it was taken.
    """
    known = {row.checkpoint: row for row in rows}
    stays = stood_upon(known.values())
    chain = tuple(_off_the_line(known, to))
    base = chain[-1].parent if chain else to.checkpoint
    kept = {row.checkpoint for row in chain}
    left = [row for row in known.values() if not row.abandoned and _after(row, base, kept)]
    on_again = [row for row in known.values() if row.abandoned and (row in chain or _stands_on(row) in {*kept, base})]
    return Turn(
        dropped=tuple(sorted(row.checkpoint for row in left if not (row.is_savepoint or row.checkpoint in stays))),
        abandoned=tuple(sorted(row.checkpoint for row in left if row.is_savepoint or row.checkpoint in stays)),
        adopted=tuple(sorted(row.checkpoint for row in on_again)),
    )


def _off_the_line(known: Mapping[CheckpointId, CheckpointRecord], to: CheckpointRecord) -> Iterator[CheckpointRecord]:
    """Yield the entry and its ancestors down to the present line. The parent of the last one is on that line."""
    at: CheckpointRecord | None = to
    while at is not None and (at.abandoned or not at.commits):
        yield at
        at = known.get(at.parent)


def _after(row: CheckpointRecord, base: CheckpointId, kept: Collection[CheckpointId]) -> bool:
    """Return whether an entry comes after the entry at which the new line leaves the old line."""
    return _stands_on(row) > base and _stands_on(row) not in kept


def _stands_on(row: CheckpointRecord) -> CheckpointId:
    """Return the entry itself if it is committed, or the committed entry after which the plain savepoint was taken."""
    return row.checkpoint if row.commits else row.parent


def restorable(rows: Iterable[CheckpointRecord]) -> tuple[CheckpointRecord, ...]:
    """Return the entries to which a user may roll back, newest first. Abandoned entries and held cuts are left out."""
    there = (row for row in rows if not row.abandoned and row.kind is not RowKind.HELD)
    return tuple(sorted(there, key=lambda row: -row.checkpoint))
