"""`tidemark run`: runs one tick, shows it while it runs, and prints a summary."""

import logging
import sys
from typing import assert_never

import structlog
from rich.console import Console

from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import TickOutcome
from jobs.cli.display import display_for
from jobs.cli.errors import CommandError, ExitCode, naming_pipeline, with_pipeline, with_story
from jobs.cli.explain import prepared
from jobs.cli.restore import Restoring, restore
from jobs.holding.job_state import newest_restorable
from jobs.launch import Launch
from jobs.runtime.discovery import rows_ahead
from jobs.runtime.report import TickReport
from jobs.runtime.tick import run_tick
from jobs.settings import Layer
from jobs.showing.progress import Tally
from jobs.showing.reports import reported
from jobs.showing.summary import (
    render_caught_up,
    render_done,
    render_finished,
    render_lines,
    render_places,
    suite_lines,
)
from jobs.sources.closing import closing
from jobs.stores.cuts import CutStore


def run(reference: str, given: Layer, out: Console, progress: Console, restoring: Restoring | None = None) -> ExitCode:
    """Run one tick of the pipeline. Reports go to `out`, progress to `progress`.

    Raises what `prepared`, `restore` and `run_tick` raise, and CommandError for a failed tick.
    """
    _quiet_logs()
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
    """Show what the tick did. For a failed tick show only its checkpoints; the error says the rest."""
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
    reason = report.reason.message if report.reason else "the tick failed"
    said = report.message or f"see the trace {report.trace}"
    told = f"{started.plan.job}: {reason}: {said}"
    raise CommandError(told) if report.reason is CheckpointFailureReason.QUALITY else with_story(told)


def _quiet_logs() -> None:
    """Let only warnings through, on stderr, and no traces of py4j. The display shows the rest."""
    logging.getLogger().addHandler(logging.NullHandler())
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
