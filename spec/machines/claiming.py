"""Tests claims. Processes find claims, releases and leases in any combination, and ask for the job (G5).

Its reference is the table of cases in `_free`. The safety of commits never depends on these rules. They only decide how
long a holder is left alone.
"""

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from checkpointing.commit.fencing import (
    HolderObserved,
    Lease,
    MayClaim,
    Refused,
    decide_claim,
    newest_claim,
    release_of,
    rival_of,
)
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.record import Claim, Holder, Release, Row
from spec.machines.judging import expect

CLAIMS: Final = "claims-are-polite"
"""A process may claim the job after a release, after the holder's death, when its lease has run out, or with
`take_over`. After a release, the new ids follow the last used id. Otherwise they follow the last reserved id. A holder
that lives, or that may live, is left alone while its lease runs, or until it has had the time to write one."""

_NOW_MS: Final = 1_000_000
_SILENT_S: Final = 30
_GRACE_MS: Final = 10_000
_claimed_before = st.sampled_from([0, 1, _GRACE_MS - 1, _GRACE_MS, _GRACE_MS + 1, 500_000, -5])
_left_ms = st.sampled_from([-1, 0, 1, 999, 1_000, 1_001, 29_999])


class ClaimsMachine(RuleBasedStateMachine):
    """The claims and releases of one job."""

    def __init__(self) -> None:
        """Begin with a job that nobody has held."""
        super().__init__()
        self.claims: list[Claim] = []
        self.released: dict[Generation, CheckpointId] = {}
        self.last_id = 0

    @rule(ids=st.integers(1, 3), before_ms=_claimed_before)
    def claim(self, ids: int, before_ms: int) -> None:
        """Another generation claims the job, with the ids that it may use."""
        newest = self.claims[-1].generation if self.claims else Generation(0)
        first = self.released.get(newest, CheckpointId(self.last_id + 1))
        self._reserve(Generation(newest + 1), first, ids, before_ms)

    @rule(ids=st.integers(1, 3), before_ms=_claimed_before)
    def reserve_further_ids(self, ids: int, before_ms: int) -> None:
        """The newest generation reserves a further block."""
        if self.claims and self.claims[-1].generation not in self.released:
            self._reserve(self.claims[-1].generation, CheckpointId(self.last_id + 1), ids, before_ms)

    @rule(used=st.integers(0, 3))
    def release(self, used: int) -> None:
        """The newest generation ends in order. Some of its ids were not used."""
        if self.claims and self.claims[-1].generation not in self.released:
            newest = self.claims[-1]
            self.last_id = min(newest.first_id + used, newest.last_id)
            self.released[newest.generation] = CheckpointId(self.last_id + 1)

    @rule(
        alive=st.sampled_from([None, True, False]),
        left_ms=st.one_of(st.none(), _left_ms),
        older=st.sampled_from([0, 0, 0, 1]),
        take_over=st.sampled_from([False, False, True]),
        shuffled=st.booleans(),
    )
    def ask(self, *, alive: bool | None, left_ms: int | None, older: int, take_over: bool, shuffled: bool) -> None:
        """A process asks for the job. It may see whether the holder lives.

        It finds the holder's lease, an older one, or none.
        """
        rows = self._rows(shuffled=shuffled)
        held = self.claims[-1] if self.claims else None
        of = Generation((held.generation if held is not None else 1) - older)
        lease = None if left_ms is None else Lease(of, _NOW_MS + left_ms)
        made = decide_claim(rows, HolderObserved(alive, lease), _NOW_MS, take_over=take_over)
        own_ms = left_ms if not older else None
        if isinstance(made, MayClaim):
            first, why = self._free(held, alive=alive, left_ms=own_ms, take_over=take_over)
            expect(why != "", CLAIMS, f"{made} is allowed of {held}: {alive}, {lease}")
            said = (made.generation, made.first_id)
            due = (held.generation + 1 if held is not None else 1, first)
            expect(said == due and why in made.why, CLAIMS, f"{made}, due are {due}, because {why}")
            block = made.claim(Holder(host="h", pid=1, started="s"), 5, "n", 3)
            whole = (block.generation, block.first_id, block.last_id, block.at_ms, block.nonce)
            expect(whole == (*due, first + 2, 5, "n"), CLAIMS, f"{block} of {made}")
            return
        self._is_refused(made, held, own_ms, sees=alive is not None)
        free = self._free(held, alive=alive, left_ms=own_ms, take_over=take_over)[1]
        expect(not free, CLAIMS, f"{made}, and {free}: {alive}, {lease}")

    @rule(since=st.integers(0, 4), shuffled=st.booleans())
    def look_for_a_rival(self, since: int, shuffled: bool) -> None:  # noqa: FBT001
        """A process looks whether a later generation has claimed the job, and whether one has released it."""
        rows, own = self._rows(shuffled=shuffled), Generation(since)
        newest = self.claims[-1] if self.claims else None
        expect(newest_claim(rows) == newest, CLAIMS, f"{newest_claim(rows)} is the newest of {rows}")
        rival = newest if newest is not None and newest.generation > own else None
        expect(rival_of(rows, own) == rival, CLAIMS, f"{rival_of(rows, own)} came after {own}, due is {rival}")
        released = release_of(rows, own)
        next_id = released.next_id if released is not None else None
        expect(next_id == self.released.get(own), CLAIMS, f"{released} of {own} in {rows}")

    # -------------------------------------------------------------- the reference

    def _free(
        self, held: Claim | None, *, alive: bool | None, left_ms: int | None, take_over: bool
    ) -> tuple[CheckpointId, str]:
        """Return the first id of an allowed claim, and why it is allowed. The reason is "" if the claim is refused."""
        if held is None:
            return CheckpointId(1), "nobody has held the job before"
        if held.generation in self.released:
            return self.released[held.generation], "ended normally"
        first = CheckpointId(held.last_id + 1)
        if alive is False:
            return first, f"{held.holder} has died"
        if take_over:
            return first, f"taken over from {held.holder}"
        if left_ms is None:
            had_time = alive is True and _NOW_MS - held.at_ms >= _GRACE_MS
            return first, "has run out" if had_time else ""
        return first, "" if left_ms > 0 else "has run out"

    @staticmethod
    def _is_refused(made: Refused, held: Claim | None, left_ms: int | None, *, sees: bool) -> None:
        """Judge what a refusal says, and how much time it gives the holder."""
        if held is None:
            expect(holds=False, invariant=CLAIMS, what=f"{made} of a job that nobody has held")
            return
        expect((made.holder, made.generation) == (held.holder, held.generation), CLAIMS, f"{made} of {held}")
        gives = _SILENT_S * 1_000 if not sees and left_ms is None else None
        expect(made.give_lease_ms == gives, CLAIMS, f"{made} of {held}, due is {gives}")
        if left_ms is not None:
            said = f"another {-(-left_ms // 1_000)} s"
        else:
            said = f"within {_SILENT_S} s" if not sees else "a moment ago"
        expect(said in made.why, CLAIMS, f"{made.why}, due is {said}")

    def _reserve(self, generation: Generation, first: CheckpointId, ids: int, before_ms: int) -> None:
        self.last_id = first + ids - 1
        self.claims.append(
            Claim(
                generation=generation,
                holder=Holder(host="h", pid=generation, started="s"),
                first_id=first,
                last_id=CheckpointId(self.last_id),
                at_ms=_NOW_MS - before_ms,
                nonce=f"{generation}/{first}",
            )
        )

    def _rows(self, *, shuffled: bool) -> tuple[Row, ...]:
        released = [
            Release(generation=each, next_id=next_id, at_ms=1, nonce=f"r{each}")
            for each, next_id in self.released.items()
        ]
        rows: list[Row] = [*released, *self.claims]
        return tuple(reversed(rows)) if shuffled else tuple(rows)
