"""Shows a tick while it runs: a live bar on a terminal, plain lines elsewhere.

Both are listeners of the tick. They only show what has happened, and control nothing.
"""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, assert_never

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, Claim
from jobs.runtime.listener import (
    InputLooked,
    MicroBatchRan,
    MicroBatchSlow,
    NoticeFailed,
    Recovery,
    Restarting,
    RowsRead,
    SparkStarted,
    SparkStarting,
)
from jobs.runtime.listener import Progress as Work
from jobs.showing.progress import CheckpointLine, Tally, checkpoint_line
from jobs.showing.quantities import count, plural, seconds, size
from jobs.user_code import own_lines, sentence_of

Clock = Callable[[], float]
"""Returns seconds since a fixed time."""


class PlainDisplay:
    """Prints a line for each event, for a pipe, a log or a terminal that cannot redraw."""

    def __init__(self, console: Console, tally: Tally, clock: Clock = time.monotonic) -> None:
        """Add up events in `tally`, which the summary reads; `clock` returns seconds."""
        self._console = console
        self._clock = clock
        self._epoch_since: float | None = None
        self._first_id: CheckpointId | None = None
        self.tally = tally

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; there is nothing to remove from the screen."""

    def claimed(self, claim: Claim, why: str) -> None:
        """Say which generation this tick is."""
        self._first_id = claim.first_id
        self.say(f"generation {claim.generation}: {why}")

    def recovered(self, recovery: Recovery) -> None:
        """Say where the tick begins, and what an older tick left unfinished."""
        self._epoch_since = self._clock()
        for each in recovery.mended:
            self.say(each)
        if recovery.rolled_forward is not None:
            self.say(f"checkpoint {recovery.rolled_forward} was committed and not yet published: published now")
        if recovery.leftovers:
            self.say(f"{plural(recovery.leftovers, 'file')} of unfinished epochs removed: nothing refers to them")
        where = "at the start" if recovery.restored is None else f"after checkpoint {recovery.restored}"
        self.say(f"begins {where}{self._ahead()}")
        if recovery.restored is not None and self._first_id is not None and self._first_id > recovery.restored + 1:
            self.say(
                f"the next checkpoint is {self._first_id}: the ids up to {self._first_id - 1} were given to an older "
                "tick or a savepoint, and no id is used twice"
            )

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Say what the checkpoint covers. A checkpoint of an older tick was only rolled forward."""
        if self._epoch_since is None:
            self.tally.rolled_forward(checkpoint_line(record, notes, versions, None))
        else:
            now = self._clock()
            line = checkpoint_line(record, notes, versions, round((now - self._epoch_since) * 1000))
            self._epoch_since = now
            self.tally.completed(line)
            self.checkpoint(line)
        for note in notes:
            self.say(f"  {note}")

    def checkpoint(self, line: CheckpointLine) -> None:
        """Say that a checkpoint is complete."""
        self.say(f"checkpoint {line.checkpoint}: {plural(line.rows, 'row')} in {_took(line)}{self._done()}")

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str) -> None:
        """Say that a checkpoint failed, and why."""
        why = sentence_of(message or reason.message)
        self.say(f"checkpoint {checkpoint} failed: {why}; its rows belong to the next one", style="yellow")

    def progress(self, progress: Work) -> None:
        """Add up rows; say when Spark starts, since that takes seconds."""
        match progress:
            case SparkStarting():
                self.say("Spark is starting")
            case SparkStarted():
                self._spark_started()
                self.say(f"Spark started in {seconds(progress.duration_ms)}")
            case RowsRead():
                self.tally.read(progress.rows)
            case MicroBatchRan():
                self.tally.micro_batches += 1
            case MicroBatchSlow():
                self.slow(progress)
            case Restarting():
                self.restarting(progress)
            case NoticeFailed():
                self.notice_failed(progress)
            case InputLooked():
                self.input_looked(progress)
            case _ as unreachable:
                assert_never(unreachable)

    def restarting(self, restart: Restarting) -> None:
        """Say that the job failed and goes on, and forget the rows that are read again."""
        self.tally.restarted()
        why = restart.message or (restart.reason.message if restart.reason else "it failed")
        self.say(f"failed: {sentence_of(why)}", style="yellow")
        self.say(
            f"restart {restart.restart} in {seconds(restart.delay_ms)}, from the newest checkpoint", style="yellow"
        )

    def notice_failed(self, notice: NoticeFailed) -> None:
        """Say that a listener or a source raised; the checkpoint stays as it is."""
        error = sentence_of(notice.error)
        self.say(f"checkpoint {notice.checkpoint} stays as it is, but {notice.told} raised {error}", style="yellow")
        for line in own_lines(notice.error):
            self.say(line)

    def slow(self, slow: MicroBatchSlow) -> None:
        """Name a vertex that has been running for long, since its function may hang."""
        self.say(
            f"vertex {slow.vertex} has been at work on micro-batch {slow.micro_batch} for {seconds(slow.for_ms)}: "
            "if its function hangs, end the tick with Ctrl-C and correct the function; what is committed stays",
            style="yellow",
        )

    def input_looked(self, looked: InputLooked) -> None:
        """Say what a source passes over, and which one has never found a file."""
        if looked.seen.never_found:
            self.tally.never_found.append(looked.seen.source)
        for sentence in looked.seen.sentences():
            self.say(sentence, style="yellow")

    def say(self, text: str, style: str = "") -> None:
        """Print a line as it is, without wrapping or markup."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _spark_started(self) -> None:
        """Start the time of the first epoch again: so far its rows only waited for Spark."""
        if self._epoch_since is not None:
            self._epoch_since = self._clock()

    def _ahead(self) -> str:
        ahead = self.tally.rows_ahead
        return "" if ahead is None else f", {plural(ahead - self.tally.rows_committed, 'row')} to read"

    def _done(self) -> str:
        ahead = self.tally.rows_ahead
        if not ahead:
            return f", {count(self.tally.rows_committed)} so far"
        share = 100 * self.tally.rows_committed // ahead
        return f", {count(self.tally.rows_committed)} of {count(ahead)} ({share} %)"


class LiveDisplay(PlainDisplay):
    """Redraws one line: checkpoint, epoch, rows, seconds, and a bar if the total is known."""

    def __init__(self, console: Console, tally: Tally, clock: Clock = time.monotonic) -> None:
        """Draw on this console, inside the context."""
        super().__init__(console, tally, clock)
        self._last = ""
        self._doing = "starting"
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[rows]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[doing]}"),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task("", total=tally.rows_ahead, rows="", doing=self._doing)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar off the screen."""
        self._bar.stop()

    def checkpoint(self, line: CheckpointLine) -> None:
        """Show the newest checkpoint in the line; the summary lists them all."""
        self._last = f"checkpoint {line.checkpoint} · "
        self._doing = f"{size(line.bytes_out)} in {_took(line)}"
        self._draw()

    def progress(self, progress: Work) -> None:
        """Add up and redraw."""
        match progress:
            case SparkStarting():
                self._doing = "Spark is starting"
            case SparkStarted():
                self._spark_started()
                self._doing = f"Spark started in {seconds(progress.duration_ms)}"
            case RowsRead():
                self.tally.read(progress.rows)
            case MicroBatchRan():
                self.tally.micro_batches += 1
                self._doing = f"{progress.vertex}: {plural(progress.rows, 'row')} in {seconds(progress.duration_ms)}"
            case MicroBatchSlow():
                self.slow(progress)
            case Restarting():
                self._doing = f"restart {progress.restart}"
                self.restarting(progress)
            case NoticeFailed():
                self.notice_failed(progress)
            case InputLooked():
                self.input_looked(progress)
            case _ as unreachable:
                assert_never(unreachable)
        self._draw()

    def _draw(self) -> None:
        tally = self.tally
        total = "" if tally.rows_ahead is None else f" of {count(tally.rows_ahead)}"
        self._bar.update(
            self._task,
            description=f"{self._last}epoch {plural(tally.rows_open, 'row')}",
            total=tally.rows_ahead,
            completed=tally.rows_committed,
            rows=f"{count(tally.rows_committed)}{total} committed",
            doing=self._doing,
        )


def _took(line: CheckpointLine) -> str:
    """Return how long an epoch of this tick took."""
    return seconds(line.took_ms or 0)


def display_for(console: Console, tally: Tally) -> PlainDisplay:
    """Return a live bar on a terminal, plain lines elsewhere."""
    return (
        LiveDisplay(console, tally)
        if console.is_terminal and not console.is_dumb_terminal
        else PlainDisplay(console, tally)
    )
