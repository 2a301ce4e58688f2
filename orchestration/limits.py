"""The limits of the health checks: the age of a table, and how long a row may wait in an operator's state."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The two limits, in ms."""

    fresh_within_ms: int = 24 * 3_600_000
    waiting_within_ms: int = 24 * 3_600_000
