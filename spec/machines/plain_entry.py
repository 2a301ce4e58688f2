"""Makes entries of a small job for machines that look at few of their fields."""

from typing import Any

from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics


def plain_entry(kind: RowKind = RowKind.CHECKPOINT, **fields: Any) -> CheckpointRecord:  # noqa: ANN401 - fields of it
    """Return an entry without vertices and tables, but with these fields."""
    plain: dict[str, Any] = {
        "job": "small",
        "checkpoint": CheckpointId(7),
        "parent": CheckpointId(6),
        "generation": Generation(1),
        "nonce": "n",
        "max_parallelism": 8,
        "vertices": (),
        "tables": (),
        "statistics": Statistics(triggered_ms=1, committed_ms=1, rows=1),
    }
    return CheckpointRecord(kind=kind, **{**plain, **fields})
