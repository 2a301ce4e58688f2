"""Shows a tick while it runs: a live bar on a terminal, plain lines elsewhere.

Both are listeners of the tick. They only show what has happened, and control nothing.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.metadata.record import CheckpointRecord, Claim
from jobs.runtime.listener import (
    ColumnsRenamed,
    InputLooked,
    JarsFetching,
    MicroBatchRan,
    Recovery,
    Restarting,
    RowsRead,
    SparkStarted,
    SparkStarting,
    StateLoaded,
    TickListener,
)
from jobs.runtime.listener import Progress as Work
from jobs.showing.progress import (
    CheckpointLine,
    Tally,
    checkpoint_line,
    failure_line,
    renaming_line,
    state_line,
    warnings,
)
from jobs.showing.quantities import counted, plural, seconds, size

Clock = Callable[[], float]
"""Returns seconds since a fixed time."""


class PlainDisplay(TickListener):
    """Prints a line for each event, for a pipe, a log or a terminal that cannot redraw."""

    def __init__(self, console: Console, tally: Tally, clock: Clock = time.monotonic) -> None:
        """Add up events in `tally`, which the summary reads; `clock` returns seconds."""
        self._console = console
        self._clock = clock
        self._epoch_since: float | None = None
        self._first_id: CheckpointId | None = None
        self.tally = tally

    def claimed(self, claim: Claim, why: str) -> None:
        """Say which generation this tick is."""
        self._first_id = claim.first_id
        self.say(f"generation {claim.generation}: {why}")

    def recovered(self, recovery: Recovery) -> None:
        """Say where the tick begins, and what an older tick left unfinished."""
        self._epoch_since = self._clock()
        for each in recovery.repaired:
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
        del versions
        if self._epoch_since is None:
            self.tally.rolled_forward(checkpoint_line(record, None))
        else:
            now = self._clock()
            line = checkpoint_line(record, round((now - self._epoch_since) * 1000))
            self._epoch_since = now
            self.tally.completed(line)
            self.checkpoint(line)
        for note in notes:
            self.say(f"  {note}")

    def checkpoint(self, line: CheckpointLine) -> None:
        """Say that a checkpoint is complete."""
        self.say(f"checkpoint {line.checkpoint}: {line.shown_rows} in {_took(line)}{self._done()}")

    def failed(self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str) -> None:
        """Say that a checkpoint failed, and why."""
        self.say(failure_line(checkpoint, reason, message), style="yellow")

    def progress(self, progress: Work) -> None:
        """Add up rows; say when Spark starts, since that takes seconds, and what a user should know."""
        match progress:
            case JarsFetching():
                self.doing(f"the {progress.serves} jars are being fetched, once")
            case SparkStarting():
                self.doing("Spark is starting")
            case SparkStarted():
                if self._epoch_since is not None:
                    self._epoch_since = self._clock()  # so far the rows of the first epoch only waited for Spark
                self.doing(f"Spark started in {seconds(progress.duration_ms)}")
            case StateLoaded():
                self.say(state_line(progress.uses))
            case ColumnsRenamed():
                self.doing(renaming_line(progress))
            case RowsRead():
                self.tally.read(progress.rows)
            case Restarting():
                self.tally.restarted()
            case InputLooked() if progress.seen.never_found:
                self.tally.never_found.append(progress.seen.source)
            case _:
                pass
        for line in warnings(progress):
            self.say(line, style="yellow")

    def doing(self, text: str) -> None:
        """Say what the tick is doing."""
        self.say(text)

    def say(self, text: str, style: str = "") -> None:
        """Print a line as it is, without wrapping or markup."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def _ahead(self) -> str:
        ahead = self.tally.rows_ahead
        about = "about " if self.tally.ahead_estimated else ""
        return "" if ahead is None else f", {about}{plural(ahead - self.tally.rows_committed, 'row')} to read"

    def _done(self) -> str:
        ahead = self.tally.rows_ahead
        if not ahead:
            return f", {counted(self.tally.rows_committed, self.tally.rows_estimated)} so far"
        share = 100 * self.tally.rows_committed // ahead
        return f", {self.tally.so_far} ({share} %)"


class LiveDisplay(PlainDisplay):
    """Redraws one line: checkpoint, epoch, rows, seconds, and a bar if the total is known."""

    def __init__(self, console: Console, tally: Tally, clock: Clock = time.monotonic) -> None:
        """Draw on this console while `bar` is open."""
        super().__init__(console, tally, clock)
        self._last = ""
        self._doing = "starting"
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[rows]}"),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[doing]}"),
            console=console,
            transient=True,
        )
        self._task = self.bar.add_task("", total=tally.rows_ahead, rows="", doing=self._doing)

    def checkpoint(self, line: CheckpointLine) -> None:
        """Show the newest checkpoint in the line; the summary lists them all."""
        self._last = f"checkpoint {line.checkpoint} · "
        self._doing = f"{size(line.bytes_out)} in {_took(line)}"
        self._draw()

    def progress(self, progress: Work) -> None:
        """Add up and redraw."""
        if isinstance(progress, MicroBatchRan):
            self._doing = f"{progress.vertex}: {plural(progress.rows, 'row')} in {seconds(progress.duration_ms)}"
        elif isinstance(progress, Restarting):
            self._doing = f"restart {progress.restart}"
        super().progress(progress)
        self._draw()

    def doing(self, text: str) -> None:
        """Show at the end of the line what the tick is doing."""
        self._doing = text

    def _draw(self) -> None:
        tally = self.tally
        self.bar.update(
            self._task,
            description=f"{self._last}epoch {plural(tally.rows_open, 'row')}",
            total=tally.rows_ahead,
            completed=tally.rows_committed,
            rows=f"{tally.so_far} committed",
            doing=self._doing,
        )


def _took(line: CheckpointLine) -> str:
    """Return how long an epoch of this tick took."""
    return seconds(line.took_ms or 0)


@contextmanager
def display_for(console: Console, tally: Tally) -> Iterator[PlainDisplay]:
    """Show a live bar on a terminal, plain lines elsewhere, within this block."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield PlainDisplay(console, tally)
        return
    display = LiveDisplay(console, tally)
    with display.bar:
        yield display
