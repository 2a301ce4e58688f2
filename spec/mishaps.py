"""Power cuts and lost log entries in a simulated warehouse, in addition to the faults of its ticks.

They are drawn from a seed of their own, so that all other runs stay as they were.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from spec.neighbours import optimize
from spec.world import World

SURVIVES: Final = 0.5
"""The probability that an entry or file that nobody synced is still there after a power cut."""
LOST_MAX: Final = 3
"""The most entries that a table loses at a time."""


@dataclass(frozen=True, slots=True)
class Mishaps:
    """How often the power may fail in a tick, and how often tables may lose entries after a tick."""

    power_cuts_max: int = 0
    losses_max: int = 0


NO_MISHAPS: Final = Mishaps()


class Chance:
    """Decides when a mishap strikes, and what it takes."""

    def __init__(self, seed: int, mishaps: Mishaps) -> None:
        """Use random numbers that nothing else uses."""
        self._random = Random(f"mishaps of {seed}")  # noqa: S311 - a run must be repeatable
        self._mishaps = mishaps

    def power_cut_ms(self) -> int | None:
        """Return when the power fails in the tick that begins now, or None if it does not."""
        if not self._mishaps.power_cuts_max or self._random.random() < SURVIVES:
            return None
        return self._random.choice([100, 500, 2_000]) * self._random.randint(1, 4)

    def survives(self) -> bool:
        """Return whether something that nobody synced is still there."""
        return self._random.random() < SURVIVES

    def lose(self, world: World) -> list[str]:
        """Remove the newest entries from some tables' logs, and let a neighbour write into the gap.

        Return which tables.
        """
        told = []
        for _ in range(self._random.randint(0, self._mishaps.losses_max)):
            name = self._random.choice(sorted(world.tables) or [None])
            entries = self._random.randint(1, LOST_MAX)
            if name is None or not world.lose(name, entries):
                continue
            if self._random.random() < SURVIVES:
                optimize(world, name)
            told.append(f"{name} lost its newest {entries} entries")
        return told
