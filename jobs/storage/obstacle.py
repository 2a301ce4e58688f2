"""Describes a reason why a process cannot use a warehouse."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason why a tick cannot use the warehouse, and the way out."""

    what: str
    way_out: str

    def __str__(self) -> str:
        """Return both as a sentence."""
        return f"{self.what}: {self.way_out}"
