"""The clock of a simulated process: ahead of the world's or behind it, and it may jump."""

from dataclasses import dataclass

from spec.at_the_door import Eyes
from spec.world import World


@dataclass(frozen=True, slots=True)
class Jump:
    """A clock jumps so long after the start, by so much."""

    after_ms: int
    by_ms: int


@dataclass(slots=True)
class Clock:
    """What an attempt is told of the time: nothing earlier than before, as by the product's driver."""

    world: World
    eyes: Eyes
    _shown_ms: int = 0

    def now_ms(self) -> int:
        """Return the time."""
        self._shown_ms = max(self._shown_ms, self.eyes.at(self.world.now_ms))
        return self._shown_ms

    def jump(self, jump: Jump) -> str:
        """Show another time from now on; say so."""
        self.eyes.skew_ms += jump.by_ms
        return f"its clock jumps by {jump.by_ms} ms"
