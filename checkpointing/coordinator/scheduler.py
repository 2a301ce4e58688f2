"""The periodic trigger as arithmetic on now: no timer, no clock, and a random delay from a seed (A1, A2)."""

from dataclasses import dataclass

_MASK = 0xFFFF_FFFF_FFFF_FFFF


def initial_delay_ms(seed: int, min_pause_ms: int, interval_ms: int) -> int:
    """Return the delay in [min_pause_ms, interval_ms] that `seed` draws (Flink: `getRandomInitDelay`).

    The draw is SplitMix64's final mix, so neighbouring seeds give unlike delays, the same everywhere.
    """
    mixed = (seed + 0x9E37_79B9_7F4A_7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    mixed ^= mixed >> 31
    return min_pause_ms + mixed % (interval_ms - min_pause_ms + 1)


@dataclass(slots=True)
class PeriodicScheduler:
    """When the next periodic trigger is due; `next_ms` None: there is no timer.

    `interval_ms` None switches it off: it never has a timer, though it may be running.
    """

    interval_ms: int | None
    min_pause_ms: int
    running: bool = False
    next_ms: int | None = None

    def start(self, now_ms: int, seed: int) -> None:
        """Run from now on; the first trigger comes after a random delay (A2)."""
        self.running = True
        if self.interval_ms is not None:
            self.next_ms = now_ms + initial_delay_ms(seed, self.min_pause_ms, self.interval_ms)

    def stop(self) -> None:
        """Run no longer: the timer is gone."""
        self.running = False
        self.next_ms = None

    def fire(self, now_ms: int) -> bool:
        """Take one firing, due or not; return whether there was a timer.

        The rate is fixed: the next time is a whole number of intervals after the due one. Firings that
        a late clock missed count as one. A firing before it was due starts a new interval.
        """
        if self.next_ms is None or self.interval_ms is None:
            return False
        if now_ms < self.next_ms:
            self.next_ms = now_ms + self.interval_ms
        else:
            self.next_ms += ((now_ms - self.next_ms) // self.interval_ms + 1) * self.interval_ms
        return True

    def postpone_to(self, at_ms: int) -> None:
        """Move the timer to the end of the minimum pause; the fixed rate starts anew there (A3)."""
        if self.running and self.interval_ms is not None:
            self.next_ms = at_ms
