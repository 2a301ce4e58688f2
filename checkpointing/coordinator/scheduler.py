"""Computes the times of the periodic trigger from the present time and a seed.

It has no timer and no clock (A1, A2).
"""

from dataclasses import dataclass

_MASK = 0xFFFF_FFFF_FFFF_FFFF


def initial_delay_ms(seed: int, min_pause_ms: int, interval_ms: int) -> int:
    """Return a delay in [min_pause_ms, interval_ms] that `seed` decides (Flink: `getRandomInitDelay`).

    The delay comes from SplitMix64's final mix. So neighbouring seeds give very different delays, the same on each
    machine.
    """
    mixed = (seed + 0x9E37_79B9_7F4A_7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    mixed ^= mixed >> 31
    return min_pause_ms + mixed % (interval_ms - min_pause_ms + 1)


@dataclass(slots=True)
class PeriodicScheduler:
    """When the next periodic trigger is due. `next_ms` is None without a timer.

    If `interval_ms` is None, there never is a timer, though the scheduler may be running.
    """

    interval_ms: int | None
    min_pause_ms: int
    running: bool = False
    next_ms: int | None = None

    def start(self, now_ms: int, seed: int) -> None:
        """Start. The first trigger comes after a random delay (A2)."""
        self.running = True
        if self.interval_ms is not None:
            self.next_ms = now_ms + initial_delay_ms(seed, self.min_pause_ms, self.interval_ms)

    def stop(self) -> None:
        """Stop, and drop the timer."""
        self.running = False
        self.next_ms = None

    def fire(self, now_ms: int) -> bool:
        """Take one firing of the timer. Return whether there was a timer.

        The rate is fixed: the next time is a whole number of intervals after the due one. If a late clock missed
        several firings, they count as one. A firing before it was due starts a new interval.
        """
        if self.next_ms is None or self.interval_ms is None:
            return False
        if now_ms < self.next_ms:
            self.next_ms = now_ms + self.interval_ms
        else:
            self.next_ms += ((now_ms - self.next_ms) // self.interval_ms + 1) * self.interval_ms
        return True

    def postpone_to(self, at_ms: int) -> None:
        """Move the timer to the end of the minimum pause. The fixed rate starts again there (A3)."""
        if self.running and self.interval_ms is not None:
            self.next_ms = at_ms
