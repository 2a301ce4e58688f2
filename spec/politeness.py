"""Judges claims by processes that cannot see the holder, only its lease (G5).

Safety does not depend on this. But if the holder lives and renews its lease, other processes must leave it alone.
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
    """A process claimed a job whose holder it could not see. `now_ms` is the time by this process's clock.

    `before` is the generation of that holder, which had not released the job. `lease` is the lease that the process
    found.
    """

    generation: Generation
    holder: Holder
    before: Generation
    holder_before: Holder
    lease: Lease | None
    now_ms: int


@dataclass(frozen=True, slots=True)
class UnseenRefused:
    """A process was refused, because it could not see the holder of this generation. `lease` is then in force."""

    before: Generation
    lease: Lease | None


def impolite(history: "History") -> Iterator[str]:
    """Yield every claim that came before the unseen holder's lease ran out, or while that holder had no lease.

    A process may claim a job from itself, as it does at a restart. Also yield every refused process that left the
    unseen holder without a lease, because then nobody could ever take over from a dead holder.
    """
    for event in history.without_flow:
        if isinstance(event, UnseenRefused) and (event.lease is None or event.lease.generation < event.before):
            yield f"a process was refused by generation {event.before}, and left it without a lease"
        if isinstance(event, UnseenLeft) and event.holder != event.holder_before:
            lease, who = event.lease, f"generation {event.generation} took the job of generation {event.before}"
            if lease is None or lease.generation != event.before:
                yield f"{who}, which had no lease and was given none"
            elif event.now_ms < lease.expires_ms:
                yield f"{who} at {event.now_ms}, whose lease runs until {lease.expires_ms}"
