"""When a table counts as stale, and when a row in an operator's state has waited too long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The two bounds, in ms."""

    fresh_within_ms: int = 24 * 3_600_000
    waiting_within_ms: int = 24 * 3_600_000
