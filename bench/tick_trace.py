"""Reads from a tick's trace when each checkpoint's last micro-batch ended, and when its cut was recorded.

The trace has a line for every fact and effect, with the driver's time in milliseconds. So no measurement of the commit
path needs a clock of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from checkpointing.messages import (
    AppendRow,
    CheckTables,
    CutRecorded,
    MicroBatchFinished,
    RecordCut,
    RowAppended,
    RunMicroBatch,
    TablePublished,
)
from checkpointing.metadata.record import CheckpointRecord
from checkpointing.trace import TraceEntry, read


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTimes:
    """The moments of one checkpoint in their order, in ms since the epoch."""

    worked_ms: int
    """The last micro-batch for which the checkpoint waited has ended. The time after this is the checkpoint's own."""
    checked_ms: int
    """All subtasks have acknowledged. The tick checks the tables."""
    sent_ms: int
    """The append of the checkpoint's entry begins."""
    appended_ms: int
    """The append has ended: THE COMMIT POINT."""
    published_ms: int
    """The last of the checkpoint's tables is published."""
    recorded_ms: int
    """The checkpoint's cut is recorded."""

    @property
    def whole_ms(self) -> int:
        """The time from the last micro-batch to the recorded cut."""
        return self.recorded_ms - self.worked_ms


def commits(trace: Path) -> list[CommitTimes]:
    """Return the moments of every checkpoint that completed in the tick, oldest first.

    Raises UnreadableTraceError for a file that is no trace.
    """
    with trace.open("rb") as lines:
        return list(_commits(read(lines)))


def _commits(entries: Iterator[TraceEntry]) -> Iterator[CommitTimes]:
    """Yield the moments of each checkpoint.

    A checkpoint's own time begins at the end of its last micro-batch. If no micro-batch has ended since the cut of the
    checkpoint before, the time begins at that cut.
    """
    worked_ms, at = 0, dict[type, int]()
    for entry in entries:
        match entry.body:
            case MicroBatchFinished() if CheckTables not in at:
                worked_ms = entry.at_ms
            case AppendRow(row=row) if not isinstance(row, CheckpointRecord):
                continue
            case RecordCut():
                at.setdefault(TablePublished, entry.at_ms)
            case CutRecorded():
                yield _times(worked_ms, at, entry.at_ms)
                worked_ms, at = entry.at_ms, {}
            case CheckTables() | AppendRow() | RowAppended() | TablePublished() as body:
                at[type(body)] = entry.at_ms
            case _:
                continue


def _times(worked_ms: int, at: dict[type, int], recorded_ms: int) -> CommitTimes:
    return CommitTimes(
        worked_ms=worked_ms,
        checked_ms=at[CheckTables],
        sent_ms=at[AppendRow],
        appended_ms=at[RowAppended],
        published_ms=at[TablePublished],
        recorded_ms=recorded_ms,
    )


def first_micro_batch_ms(trace: Path) -> int:
    """Return when the tick's first micro-batch began, in ms since the epoch. Raise StopIteration if there was none."""
    with trace.open("rb") as lines:
        return next(entry.at_ms for entry in read(lines) if isinstance(entry.body, RunMicroBatch))
