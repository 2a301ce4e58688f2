"""Splits that cannot be read, on any run: a tick asks them again, and ends by name once they have failed too often.

Before it ends, it commits what it has read of the others, and asks that split no more. Of a tick that has a limit, that
holds its checkpoint, or that was asked to stop, less is said. The same is true of a tick that reads another job's cuts:
no barrier is sent while one of its tables cannot be read up to a cut (A10).

`not-too-early` says when they are asked again, `credit` that the others are read meanwhile.
"""

from checkpointing.channel_items import SourceSlice
from checkpointing.messages import (
    Effect,
    EndTick,
    Fact,
    NotifyComplete,
    PollFailed,
    PollSource,
    SliceOffered,
    TickOutcome,
)
from spec.steps import Begun
from spec.watching import DoorJudge, Split, Watched


class FailingSplits(DoorJudge):
    """Judges how a tick ends in which polls have failed."""

    def __init__(self, door: Watched) -> None:
        """Begin with splits that can be read."""
        super().__init__(door)
        self._tolerated: set[str] = set()
        """The errors of polls that did not fail too often."""
        self._beyond: set[str] = set()
        """The errors of polls that did."""
        self._given_up: set[Split] = set()
        self._sent: dict[Split, str] = {}
        """The positions up to which splits have sent rows that no completed checkpoint shows."""

    def told(self, fact: Begun | Fact) -> None:
        """Note what was sent, and the error of a poll. The door has counted it already."""
        if isinstance(fact, SliceOffered) and isinstance(fact.slice, SourceSlice):
            self._sent[fact.slice.source, fact.slice.split] = fact.slice.end
        if isinstance(fact, PollFailed):
            failed = self.door.failed[fact.source, fact.split]
            beyond = failed > self.door.setup.config.tolerable_poll_failures
            (self._beyond if beyond else self._tolerated).add(fact.error)
            if beyond:
                self._given_up.add((fact.source, fact.split))

    def asked(self, effect: Effect) -> None:
        """Judge the end of the tick."""
        if isinstance(effect, NotifyComplete):
            shown = {(source, split): position for source, split, position in effect.positions}
            self._sent = {split: end for split, end in self._sent.items() if shown.get(split) != end}
        given_up = isinstance(effect, PollSource) and (effect.source, effect.split) in self._given_up
        if isinstance(effect, PollSource) and given_up and not (self._is_limited or self.door.setup.cut_groups):
            self.wrong(f"split {effect.split} of {effect.source} is asked again, and it failed too often")
        if not isinstance(effect, EndTick):
            return
        setup, limited = self.door.setup, self._is_limited
        if effect.message in self._beyond and self._sent and not (limited or setup.cut_groups):
            self.wrong(f"the tick ends because of {effect.message!r}, and has not committed {sorted(self._sent)}")
        if effect.outcome is TickOutcome.CAUGHT_UP and self.door.failed:
            self.wrong(f"the tick has caught up, and {sorted(self.door.failed)} could not be read")
        if effect.outcome is TickOutcome.FAILED and effect.message in self._tolerated - self._beyond:
            self.wrong(f"the tick ends because of {effect.message!r}, which it is to tolerate")
        if effect.outcome is not TickOutcome.FAILED and self._beyond and not limited:
            self.wrong(f"the tick ends in order, although polls failed too often: {sorted(self._beyond)}")

    @property
    def _is_limited(self) -> bool:
        limits = self.door.setup.limits
        return limits.hold or limits.checkpoints is not None or limits.duration_ms is not None or self.door.is_stopping
