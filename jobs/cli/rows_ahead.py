"""Counts the unread rows of the sources before a tick begins, for the progress bar."""

from collections.abc import Mapping

from checkpointing.identifiers import VertexId
from checkpointing.metadata.record import CheckpointRecord
from jobs.runtime.discovery import ENDLESS, discover
from jobs.sources.port import Source, SourceError


def rows_ahead(sources: Mapping[VertexId, Source], restored: CheckpointRecord | None) -> int | None:
    """Return the rows after the restored positions; None for an endless or unreadable source."""
    try:
        total = sum(found.rows for found in discover(sources, restored).values())
    except SourceError:
        return None
    return None if total >= ENDLESS else total
