"""The invariant of claims by processes that see only the lease of the holder before them (G5).

Safety does not depend on it. But a holder that lives and renews its lease must be left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkpointing.commit.fencing import Lease
from checkpointing.identifiers import Generation
from checkpointing.metadata.record import Holder

if TYPE_CHECKING:
    from spec.history import History


@dataclass(frozen=True, slots=True)
class UnseenLeft:
    """A process claimed a job whose holder it could not see, at this time by its clock.

    `before` is the generation of that holder, which had not released the job. `lease` is the lease that was there.
    """

    generation: Generation
    holder: Holder
    before: Generation
    holder_before: Holder
    lease: Lease | None
    now_ms: int


def impolite(history: "History") -> Iterator[str]:
    """Yield every claim before the lease of the unseen holder had run out, and every claim without such a lease.

    A process may claim the job after itself, which a restart does.
    """
    for event in history.events:
        if isinstance(event, UnseenLeft) and event.holder != event.holder_before:
            lease, who = event.lease, f"generation {event.generation} took the job of generation {event.before}"
            if lease is None or lease.generation != event.before:
                yield f"{who}, which had no lease and was given none"
            elif event.now_ms < lease.expires_ms:
                yield f"{who} at {event.now_ms}, whose lease runs until {lease.expires_ms}"
