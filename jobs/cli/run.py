"""`tidemark run`: runs one tick, shows it while it runs, and prints a summary."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import assert_never

import structlog
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.job.renaming import rename_changes
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Claim, RowKind
from checkpointing.state_evolution import Change, first_refused
from jobs.cli.change_commands import copies
from jobs.cli.errors import CommandError, ExitCode, naming_pipeline, with_pipeline, with_story
from jobs.cli.explain import prepared
from jobs.doctor.findings import command
from jobs.engine_paths import typed
from jobs.launch import Launch
from jobs.pipeline.job_plan import JobPlan
from jobs.settings import Layer
from jobs.showing.plans import left_behind, render_changes, render_restore
from jobs.showing.quantities import (
    CheckpointLine,
    Tally,
    checkpoint_line,
    counted,
    failure_line,
    plural,
    renaming_line,
    seconds,
    size,
    state_line,
    warnings,
)
from jobs.showing.summary import (
    render_caught_up,
    render_done,
    render_finished,
    render_lines,
    render_places,
    reported,
    suite_lines,
)
from jobs.sources.port import closing
from jobs.storage.address import Root
from jobs.tick.at_rest.import_entry import ForeignRow, Import, OwnRow, find_origin, import_row, restorable, sinks_after
from jobs.tick.discovery import rows_ahead
from jobs.tick.listener import (
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
from jobs.tick.listener import Progress as Work
from jobs.tick.renaming import find_renaming
from jobs.tick.start_checks import fitting
from jobs.tick.state_migration import all_changes, find_migrations, migrated
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import TickReport
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import newest_restorable
from jobs.warehouse.savepoint_copy import named_files
from jobs.warehouse.warehouse import Warehouse

# ------------------------------------------------------------------
# `tidemark run --from`: finds the entry, shows the plan, and imports the entry if it is in another warehouse.


@dataclass(frozen=True, slots=True)
class Restoring:
    """Where the user wants to begin: `origin` is `N`, `DIR` or `DIR@N`; `claim` is None if it was not given."""

    origin: str | None = None
    claim: bool | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        """Refuse options that need `--from`."""
        if self.claim is not None and self.origin is None:
            flag = "--claim" if self.claim else "--no-claim"
            raise CommandError(f"{flag}: name the savepoint too, with --from DIR or --from DIR@N", ExitCode.USAGE)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The plan, the entry with the plan's names, and the differences between the two."""

    plan: JobPlan
    record: CheckpointRecord
    changes: tuple[Change, ...]


def restore(started: Launch, asked: Restoring, out: Console, progress: Console) -> bool:
    """Restore before the tick. Return whether the tick is to run, which is false after a dry run.

    Raises CommandError for an entry or options that do not fit, and what finding and importing the entry raise.
    """
    root, job = started.settings.warehouse, started.plan.job
    if asked.origin is None:
        if asked.dry_run:
            _show_own(started, newest_restorable(started.warehouse), out)
        return not asked.dry_run
    origin = find_origin(asked.origin, root, job)
    match origin:
        case OwnRow():
            _own(started, origin, asked, out)
        case ForeignRow():
            _foreign(started, origin, asked, out, progress)
        case _ as unreachable:
            assert_never(unreachable)
    return not asked.dry_run


def _own(started: Launch, origin: OwnRow, asked: Restoring, out: Console) -> None:
    record, root, job = origin.record, started.settings.warehouse, started.plan.job
    if asked.claim:
        raise CommandError(
            f"--claim: {record.checkpoint} is {job}'s own in {root} already; leave --claim out", ExitCode.USAGE
        )
    if not origin.is_newest:
        kind = "savepoint" if record.kind is RowKind.SAVEPOINT else "checkpoint"
        newest = newest_restorable(started.warehouse)
        at = f"at checkpoint {newest.checkpoint}" if newest else "at the start"
        back = command("rollback", Warehouse(root, ProtocolPaths(job)), str(record.checkpoint))
        itself = typed(f"{root}@{record.checkpoint}")
        raise CommandError(
            f"{root} stands {at}, and a tick begins only from there: '{back}' "
            f"takes the tables back to {kind} {record.checkpoint} in place (--dry-run shows how), 'tidemark run {job} "
            f"--from {itself} --warehouse EMPTY_FOLDER' begins from it elsewhere, and without --from the tick goes on "
            "from where the tables stand"
        )
    if asked.dry_run:
        _show_own(started, record, out)
    else:
        out.print(f"checkpoint {record.checkpoint} is the newest of {job} in {root}: going on from it, as always")


def _show_own(started: Launch, record: CheckpointRecord | None, out: Console) -> None:
    root, job = started.settings.warehouse, started.plan.job
    if record is None:
        out.print(
            f"{job} has no checkpoint in {root}: a tick begins from the start; nothing was changed", soft_wrap=True
        )
        return
    fitting = _fitting(started, record, root, out)
    versions = CutStore(started.warehouse).all().get(record.checkpoint)
    first = ", which is published first" if versions is None else ""
    what = f"checkpoint {record.checkpoint}, the newest in {root}{first}; nothing was changed"
    out.print(render_restore(what, fitting.plan, fitting.record, versions, fitting.changes), soft_wrap=True)


def _foreign(started: Launch, origin: ForeignRow, asked: Restoring, out: Console, progress: Console) -> None:
    root = started.settings.warehouse
    fitting = _fitting(started, origin.record, origin.warehouse.root, out)
    plan = fitting.plan
    allowed = started.settings.allow_non_restored_state
    wanted = Import(origin=origin, root=root, plan=plan, claim=bool(asked.claim), allow_non_restored_state=allowed)
    files = len(named_files(restorable(wanted).record or origin.record))
    source = f"{origin.record.kind.value} {origin.record.checkpoint} of {origin.warehouse.root}"
    how = "moved out of there" if asked.claim else "copied"
    sinks = sinks_after(wanted)
    if asked.dry_run:
        what = f"{source} into {root}, {plural(files, 'file')} {how}; nothing was changed"
        out.print(render_restore(what, plan, fitting.record, changes=fitting.changes), soft_wrap=True)
        for said in sinks:
            out.print(said, soft_wrap=True, markup=False)
        return
    for said in sinks:
        out.print(said, soft_wrap=True, markup=False)
    for left in left_behind(plan.graph, fitting.record):
        out.print(f"left behind: {left}, which the pipeline no longer has", style="yellow")
    with progress.status(f"restoring {source}") as status:
        imported = import_row(wanted, told=lambda copied: status.update(copies(copied)))
    said = f"restored {source} into {root} as checkpoint {imported.checkpoint}: {plural(files, 'file')} {how}"
    out.print(said, soft_wrap=True)


def _fitting(started: Launch, record: CheckpointRecord, root: Root, out: Console) -> _Fitting:
    """Return the plan that restores the entry. Its files lie below `root`. If a change is refused, show all changes."""
    allowed = started.settings.allow_non_restored_state
    try:
        renaming = find_renaming(started.plan.graph, record)
        record = renaming.record or record
        plan = fitting(started.plan, renaming, allow_non_restored_state=allowed)
        migrations = find_migrations(plan, record, root)
        changes = (*rename_changes(renaming.due), *all_changes(plan, record, migrations))
        if first_refused(changes) is not None:
            out.print(render_changes(changes), soft_wrap=True)
        return _Fitting(migrated(plan, record, migrations, root), record, changes)
    except CutDoesNotFitError as error:
        raise CommandError(f"{error}; nothing was changed") from error


# ------------------------------------------------------------------
# Shows a tick while it runs: a live bar on a terminal, plain lines elsewhere.
#
# Both are listeners of the tick. They only show what has happened, and control nothing.


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
        """Print the generation of this tick."""
        self._first_id = claim.first_id
        self.say(f"generation {claim.generation}: {why}")

    def recovered(self, recovery: Recovery) -> None:
        """Print where the tick begins, and what an older tick left unfinished."""
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
        """Print what the checkpoint covers. If an older tick took it, this tick only rolled it forward."""
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
        """Print that a checkpoint is complete."""
        self.say(f"checkpoint {line.checkpoint}: {line.shown_rows} in {_took(line)}{self._done()}")

    def failed(
        self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str, *, ends_tick: bool
    ) -> None:
        """Print that a checkpoint failed, and why."""
        self.say(failure_line(checkpoint, reason, message, ends_tick=ends_tick), style="yellow")

    def progress(self, progress: Work) -> None:
        """Add up rows. Print warnings, and that Spark starts, since the start takes seconds."""
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
        """Print what the tick is doing."""
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
        """Show the newest checkpoint in the line. The summary lists all checkpoints."""
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


def run(reference: str, given: Layer, out: Console, progress: Console, restoring: Restoring | None = None) -> ExitCode:
    """Run one tick of the pipeline. Reports go to `out`, progress to `progress`.

    Raises what `prepared`, `restore` and `run_tick` raise, and CommandError for a failed tick.
    """
    _quiet_logs()
    if "retain_on_cancellation" in given.values:
        way = f"type 'tidemark cancel {reference} --set retain_on_cancellation=…', or set it in the pipeline"
        raise CommandError(f"a tick does not use retain_on_cancellation: {way}", ExitCode.USAGE)
    started = prepared(reference, given)
    with naming_pipeline(reference, started.plan.job):
        with closing(started.plan.sources):
            if not restore(started, restoring or Restoring(), out, progress):
                return ExitCode.DONE
            ahead = rows_ahead(started.plan.sources, newest_restorable(started.warehouse))
            tally = Tally(ahead.rows, ahead_estimated=ahead.estimated)
            with display_for(progress, tally) as display:
                report = run_tick(started.plan, started.runtime(), display)
        _summary(started, reference, report, tally, out)
        return _ended(started, report)


def _summary(started: Launch, reference: str, report: TickReport, tally: Tally, out: Console) -> None:
    """Show what the tick did. For a failed tick show only its checkpoints, since the error has the rest."""
    job = started.plan.job
    failed = report.outcome is TickOutcome.FAILED
    if tally.lines:
        out.print(render_lines(tally.lines))
    if report.outcome is TickOutcome.HELD:
        out.print(with_pipeline(report.message, reference, job), soft_wrap=True)
        return
    if not failed:
        if report.outcome is TickOutcome.FINISHED and not tally.lines:
            out.print(render_finished(job, newest_restorable(started.warehouse), reference), soft_wrap=True)
            return
        if report.outcome is TickOutcome.CAUGHT_UP and not tally.lines:
            cuts = CutStore(started.warehouse).entries()
            out.print(render_caught_up(job, max(cuts, default=None), tally.never_found))
        for shown in reported(started.plan, started.settings.warehouse):
            out.print(shown)
    if tally.lines:
        took_ms = round(report.seconds * 1000)
        failures = report.counts.failed
        done = render_done(job, _said(report.outcome), tally.lines, took_ms, failed=failed, failed_checkpoints=failures)
        out.print(done)
    elif report.outcome is TickOutcome.STOPPED:
        out.print(f"{job} was stopped before a checkpoint completed: the next tick reads the same rows", soft_wrap=True)
    for line in suite_lines(report.completed, tuple(started.plan.suites.values())):
        out.print(line, soft_wrap=True)
    if not failed:
        out.print(render_places(reference, started.settings.warehouse, started.plan.graph), soft_wrap=True)


def _said(outcome: TickOutcome) -> str:
    match outcome:
        case TickOutcome.CAUGHT_UP:
            return "is caught up"
        case TickOutcome.FINISHED:
            return "is finished"
        case TickOutcome.STOPPED:
            return "was stopped"
        case TickOutcome.HELD:
            return "holds a cut"
        case TickOutcome.FAILED:
            return "failed; what is committed stays"
        case _ as unreachable:
            assert_never(unreachable)


def _ended(started: Launch, report: TickReport) -> ExitCode:
    if report.outcome is not TickOutcome.FAILED:
        return ExitCode.DONE
    told = f"{started.plan.job}: {report.why}"
    raise CommandError(told) if report.reason is CheckpointFailureReason.QUALITY else with_story(told)


def _quiet_logs() -> None:
    """Log only warnings, to stderr, and silence Python's own logging (py4j). The display shows what the tick does."""
    logging.getLogger().addHandler(logging.NullHandler())
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
