"""Appends a row, and tells the door what became of it."""

from collections.abc import Iterable, Mapping
from typing import assert_never

from checkpointing.identifiers import CheckpointId
from checkpointing.messages import RowAppended, RowRefused, RowUnknown
from checkpointing.metadata.record import Row
from jobs.holding.job_stores import JobStores
from jobs.stores.checkpoints import NO_MARKS, Appended, Refused, Unknown


def appended(
    stores: JobStores,
    row: Row,
    at_version: int,
    *,
    subsumed: Iterable[CheckpointId] = (),
    disposed: Iterable[CheckpointId] = (),
    marks: Mapping[CheckpointId, bool] = NO_MARKS,
) -> RowAppended | RowRefused | RowUnknown:
    """Append the row if `checkpoints` is at that version; see `CheckpointStore.append`. Raises nothing."""
    try:
        result = stores.append(row, at_version, subsumed, disposed, marks)
    except Exception as error:  # noqa: BLE001 - the outcome is open, whatever it was
        return RowUnknown(row.nonce, f"{type(error).__name__}: {error}")
    match result:
        case Appended():
            return RowAppended(row.nonce, result.version)
        case Refused():
            return RowRefused(row.nonce, result.holder)
        case Unknown():
            return RowUnknown(row.nonce, result.error)
        case _ as unreachable:
            assert_never(unreachable)
