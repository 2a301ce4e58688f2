"""`tidemark run`: one tick from the command line, shown while it works, summed up when it is over."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, assert_never

import structlog
from rich.console import Console

from checkpointing.identifiers import TableName
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointRecord
from jobs.cli.display import display_for
from jobs.cli.errors import CommandError, ExitCode, with_story
from jobs.cli.explain import prepared
from jobs.cli.flights_report import accounting, worst_routes
from jobs.cli.observation import observe_history
from jobs.cli.render_flights import render_accounting, render_routes
from jobs.cli.restore import Restoring, restore
from jobs.cli.rows_ahead import rows_ahead
from jobs.holding.failures import JobHeldError
from jobs.holding.job_state import newest_restorable
from jobs.launch import Launch
from jobs.runtime.tick import TickReport, run_tick
from jobs.settings import Layer
from jobs.showing.progress import Tally
from jobs.showing.summary import render_caught_up, render_done, render_lines, render_places

DEMO: Final = "flights"


def run(reference: str, given: Layer, out: Console, progress: Console, restoring: Restoring | None = None) -> ExitCode:
    """Run one tick of the pipeline; reports go to `out`, what happens meanwhile to `progress`.

    Raises CommandError with the exit code that fits: wrong settings, a job held by another, a failed tick.
    """
    _quiet_logs()
    started = prepared(reference, given)
    _check_input(started)
    if not restore(started, restoring or Restoring(), out, progress):
        return ExitCode.DONE
    tally = Tally(rows_ahead(started.plan.sources, newest_restorable(started.settings.warehouse, started.plan.job)))
    with display_for(progress, tally) as display:
        try:
            report = run_tick(started.plan, started.runtime(), display)
        except JobHeldError as held:
            raise CommandError(str(held), ExitCode.HELD) from held
    _summary(started, report, tally, out)
    return _ended(started, report)


def _summary(started: Launch, report: TickReport, tally: Tally, out: Console) -> None:
    """Show what the tick did. One that failed shows its checkpoints alone: what it says besides is in the error."""
    job = started.plan.job
    failed = report.outcome is TickOutcome.FAILED
    if tally.lines:
        out.print(render_lines(tally.lines))
    if not failed:
        history = observe_history(started.settings.warehouse, job)
        newest = history.newest_published()
        if report.outcome is TickOutcome.CAUGHT_UP and not tally.lines:
            out.print(render_caught_up(job, newest.checkpoint if newest else None, tally.never_found))
        if job == DEMO and newest is not None:
            _flights(started.settings.warehouse, newest, history.cut(newest.checkpoint).versions, out)
    if tally.lines:
        took_ms = round(report.seconds * 1000)
        out.print(render_done(job, _said(report.outcome), tally.lines, took_ms, failed=failed))
    if not failed:
        out.print(render_places(job, started.settings.warehouse, started.plan.graph), soft_wrap=True)


def _flights(root: Path, record: CheckpointRecord, cut: Mapping[TableName, int], out: Console) -> None:
    out.print(render_routes(worst_routes(root, cut)))
    out.print(render_accounting(accounting(root, record, cut)))


def _said(outcome: TickOutcome) -> str:
    match outcome:
        case TickOutcome.CAUGHT_UP:
            return "is caught up"
        case TickOutcome.STOPPED:
            return "was stopped"
        case TickOutcome.FAILED:
            return "failed; what is committed stays"
        case _ as unreachable:
            assert_never(unreachable)


def _ended(started: Launch, report: TickReport) -> ExitCode:
    if report.outcome is not TickOutcome.FAILED:
        return ExitCode.DONE
    reason = report.reason.message if report.reason else "the tick failed"
    said = report.message or f"see the trace {report.trace}"
    raise with_story(f"{started.plan.job}: {reason}: {said}")


def _check_input(started: Launch) -> None:
    """Say of the demo how its input is made; other pipelines' sources speak for themselves."""
    data = started.settings.data
    if started.plan.job == DEMO and not (data / DEMO).is_dir():
        raise CommandError(
            f"the input of {DEMO} is not in {data.absolute()}: write it with 'make data', or name it with --data"
        )


def _quiet_logs() -> None:
    """Let only warnings through, on stderr: the display tells the rest, and py4j's traces are nobody's."""
    logging.getLogger().addHandler(logging.NullHandler())
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
