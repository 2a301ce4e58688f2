"""Formats numbers for people: rows, bytes, durations, times."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from checkpointing.coordinator.failure_policy import NEVER_TOLERATED
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, VertexId
from checkpointing.metadata.record import CheckpointRecord
from jobs.state.worker_copy import CopyUses
from jobs.tick.listener import (
    ColumnsRenamed,
    InputLooked,
    MicroBatchHeldBack,
    MicroBatchSlow,
    NoticeFailed,
    Progress,
    Restarting,
)
from jobs.user_code import own_lines, sentence_of

_STEP: Final = 1024
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def count(number: int) -> str:
    """Return a number with commas: `336,776`."""
    return f"{number:,}"


def size(number_bytes: int) -> str:
    """Return bytes in the largest unit that leaves at least 1: `4.2 MiB`."""
    amount, unit = float(number_bytes), 0
    while amount >= _STEP and unit < len(_UNITS) - 1:
        amount, unit = amount / _STEP, unit + 1
    return f"{number_bytes} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def seconds(milliseconds: int) -> str:
    """Return a duration as in `0.45 s`, from a minute on as in `2 min 05 s`, and from an hour on as in `1 h 02 min`."""
    whole = milliseconds // 1000
    if whole >= _HOUR_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02} min"
    if whole >= _MINUTE_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02} s"
    return f"{milliseconds / 1000:.2f} s"


def moment(at_ms: int) -> str:
    """Return a moment given in ms since the epoch, in UTC: `2026-03-01 12:00:05`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def counted(number: int, estimated: int) -> str:
    """Return a number of rows, `12,000`, or `about 12,000` if some of them are an estimate."""
    return f"about {count(number)}" if estimated else count(number)


def plural(number: int, word: str, more: str | None = None) -> str:
    """Return `1 file` or `2 files`; `more` is an irregular plural."""
    return f"{count(number)} {word if number == 1 else more or f'{word}s'}"


# ------------------------------------------------------------------
# Adds up the events of a running tick, and puts the events that a user should read into words.


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """One completed checkpoint as the summary shows it.

    `took_ms` is the duration of its epoch in this tick. The epoch begins at the end of the epoch before, or when the
    tick begins to read, and ends when its tables are published. None for a checkpoint that this tick only published.
    """

    checkpoint: CheckpointId
    rows: int
    took_ms: int | None
    alignment_ms: int
    bytes_held: int
    bytes_out: int
    rows_estimated: int = 0

    @property
    def shown_rows(self) -> str:
        """The number of rows, marked if it is an estimate."""
        return f"{counted(self.rows, self.rows_estimated)} {'row' if self.rows == 1 else 'rows'}"


def checkpoint_line(record: CheckpointRecord, took_ms: int | None) -> CheckpointLine:
    """Return a completed checkpoint's line."""
    life = record.statistics
    return CheckpointLine(
        checkpoint=record.checkpoint,
        rows=life.rows,
        took_ms=took_ms,
        alignment_ms=max((vertex.alignment_ms for vertex in life.vertices), default=0),
        bytes_held=sum(vertex.bytes_held for vertex in life.vertices),
        bytes_out=sum(vertex.bytes_out for vertex in life.vertices),
        rows_estimated=life.rows_estimated,
    )


@dataclass(slots=True)
class Tally:
    """The numbers of a tick so far. `rows_ahead` is how many rows the sources had when the tick began, or None."""

    rows_ahead: int | None = None
    ahead_estimated: bool = False
    rows_read: int = 0
    rows_committed: int = 0
    rows_estimated: int = 0
    """How many of the committed rows are estimates of a source."""
    lines: list[CheckpointLine] = field(default_factory=list)
    never_found: list[VertexId] = field(default_factory=list)
    """Sources that have never found a file, in this tick or before."""

    @property
    def rows_open(self) -> int:
        """Rows that were read and that no completed checkpoint covers: the present epoch so far."""
        return max(self.rows_read - self.rows_committed, 0)

    @property
    def so_far(self) -> str:
        """The number of committed rows, and of all rows that the sources had, if that is known.

        An estimate is marked.
        """
        ahead, estimated = self.rows_ahead, self.rows_estimated
        whole = "" if ahead is None else f" of {counted(ahead, estimated or self.ahead_estimated)}"
        return counted(self.rows_committed, estimated) + whole

    def read(self, rows: int) -> None:
        """Add rows that a source sent.

        If more rows come than the sources had, raise `rows_ahead`, since new rows have arrived.
        """
        self.rows_read += rows
        if self.rows_ahead is not None:
            self.rows_ahead = max(self.rows_ahead, self.rows_read)

    def completed(self, line: CheckpointLine) -> None:
        """Add a completed checkpoint."""
        self.lines.append(line)
        self.rows_committed += line.rows
        self.rows_estimated += line.rows_estimated

    def restarted(self) -> None:
        """Subtract the rows that no completed checkpoint covers, since the next attempt reads them again."""
        self.rows_read = min(self.rows_read, self.rows_committed)

    def rolled_forward(self, line: CheckpointLine) -> None:
        """Add a checkpoint that an older tick had committed. This tick reads none of its rows."""
        self.lines.append(line)


def warnings(event: Progress) -> tuple[str, ...]:
    """Return the lines that a user should read about an event between checkpoints. A normal event has no lines."""
    match event:
        case Restarting():
            why = event.message or (event.reason.message if event.reason else "it failed")
            again = f"restart {event.restart} in {seconds(event.delay_ms)}, from the newest checkpoint"
            return f"failed: {sentence_of(why)}", again
        case NoticeFailed():
            raised = f"{event.told} raised {sentence_of(event.error)}"
            return f"checkpoint {event.checkpoint} stays as it is, but {raised}", *own_lines(event.error)
        case MicroBatchSlow():
            work = f"vertex {event.vertex} has been at work on micro-batch {event.micro_batch}"
            way_out = "it has much to do, or waits for something. You can end the tick; what is committed stays"
            return (f"{work} for {seconds(event.for_ms)}: {way_out}",)
        case MicroBatchHeldBack():
            return (f"{sentence_of(event.error)}. Vertex {event.vertex} tries again at the next barrier",)
        case InputLooked():
            return tuple(event.seen.sentences())
        case _:
            return ()


def state_line(uses: CopyUses) -> str:
    """Return the line about where tasks found the state of their ranges. A task without a copy reads files."""
    found, loads = uses.hits + uses.behind, uses.hits + uses.behind + uses.misses
    behind = f", {count(uses.behind)} of them without the newest files" if uses.behind else ""
    return f"state: {count(found)} of {plural(loads, 'load')} found a copy in the worker's memory{behind}"


def renaming_line(event: ColumnsRenamed) -> str:
    """Return the line about a table whose files are rewritten with new names of columns."""
    share = f"{size(event.done)} of {size(event.total)}"
    return f"{event.table}: {share} are written again under the new names of its columns"


def failure_line(checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str, *, ends_tick: bool) -> str:
    """Return the line about a checkpoint that failed.

    If the job fails because of it, this line gives no reason, since the tick's error does. No restart follows a failure
    that is never tolerated.
    """
    if ends_tick:
        return f"checkpoint {checkpoint} failed, and the {'tick ends' if reason in NEVER_TOLERATED else 'job with it'}"
    why = sentence_of(message or reason.message).rstrip(":")
    return f"checkpoint {checkpoint} failed: {why}; its rows belong to the next one"
