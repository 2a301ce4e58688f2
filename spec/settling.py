"""Settles a held cut in the simulator's stores, as `tidemark approve` and `tidemark reject` do, effect by effect.

The core decides the order of everything, which cut may be settled, and builds the entry.
"""

from collections.abc import Iterator

from checkpointing.commit.at_rest import Approved, held_cut, to_settle
from checkpointing.tick.attempts import APPROVAL, REJECTION
from checkpointing.tick.messages import RowChosen, TickFact, Work, Worked
from spec.at_the_door import SOMEONE, Visitor, at_rest
from spec.pipeline import JOB
from spec.world import World


def waits(world: World) -> bool:
    """Return whether a cut waits for a person."""
    return held_cut(world.rows()) is not None


def approving(world: World, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Approve the held cut, if there is one."""

    def chosen(work: Work) -> TickFact:
        held = to_settle(work.seen.rows, JOB, approve=True).held
        return Worked() if held is None else RowChosen(Approved(held))

    yield from at_rest(world, APPROVAL, chosen, visitor)


def rejecting(world: World, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Drop the held cut with the release, if there is one. The next tick deletes its files."""

    def dropped(work: Work) -> TickFact:
        held = to_settle(work.seen.rows, JOB, approve=False).held
        return Worked() if held is None else Worked((held.checkpoint,))

    yield from at_rest(world, REJECTION, dropped, visitor)
