"""What a reporter of your own hears: the events, and the port.

docs/guides/observe.md shows one.
"""

from tidemark._packages import must_be_ours

must_be_ours()

from jobs.tick.reporters.events import (
    CheckpointFailed,
    CheckpointPublished,
    Event,
    ReportedTable,
    ReportedVertex,
    TickEnded,
)
from jobs.tick.reporters.port import Reporter

__all__ = [
    "CheckpointFailed",
    "CheckpointPublished",
    "Event",
    "ReportedTable",
    "ReportedVertex",
    "Reporter",
    "TickEnded",
]
