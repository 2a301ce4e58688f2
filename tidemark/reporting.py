"""The events that a reporter of your own receives, and the interface that it implements.

docs/guides/observe.md shows such a reporter.
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
