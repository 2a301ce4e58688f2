"""Something that keeps a process from using a warehouse."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something in the way of a tick, and how to remove it."""

    what: str
    way_out: str

    def __str__(self) -> str:
        """Return both as a sentence."""
        return f"{self.what}: {self.way_out}"
