"""The clock of a simulated process. It may be ahead of the world's or behind it, and it may jump."""

from dataclasses import dataclass

from spec.at_the_door import Eyes
from spec.world import World


@dataclass(frozen=True, slots=True)
class Jump:
    """A jump of a clock: how long after the start, and by how much."""

    after_ms: int
    by_ms: int


@dataclass(slots=True)
class Clock:
    """The time that an attempt sees. As with the product's driver, it never goes back."""

    world: World
    eyes: Eyes
    _shown_ms: int = 0

    def now_ms(self) -> int:
        """Return the time."""
        self._shown_ms = max(self._shown_ms, self.eyes.at(self.world.now_ms))
        return self._shown_ms

    def jump(self, jump: Jump) -> str:
        """Change the time from now on, and tell it."""
        self.eyes.skew_ms += jump.by_ms
        return f"its clock jumps by {jump.by_ms} ms"
