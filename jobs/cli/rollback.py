"""`tidemark rollback`: takes a job back to an older cut, tables included, or shows what that would do."""

from rich.console import Console
from rich.text import Text

from checkpointing.commit.fencing import newest_checkpoint
from jobs.at_rest.rollback import RolledBack, preview_rollback, roll_back
from jobs.cli.errors import CommandError, ExitCode, naming_pipeline, needing_rest
from jobs.cli.naming import position_words, sinks_of, warehouse_of
from jobs.holding.boundaries import cross_freely
from jobs.holding.job_state import must_have_run
from jobs.holding.job_stores import JobStores
from jobs.recovery.rollback_plan import records_of
from jobs.settings import Layer
from jobs.showing.quantities import plural
from jobs.showing.rollback import render_rollback, said_of_rows
from jobs.sources.position_words import PositionWords
from jobs.sources.upstream_job import newest_that_stands, taken_back


def rollback(
    pipeline: str, checkpoint: int | None, given: Layer, out: Console, *, dry_run: bool, leave_outside: bool = False
) -> ExitCode:
    """Take a job back to a checkpoint or savepoint, or show what that would do."""
    warehouse = warehouse_of(pipeline, given)
    if checkpoint is None:
        raise CommandError(
            f"say how far back: 'tidemark rollback {pipeline} N'; 'tidemark checkpoints list {pipeline}' shows where "
            "it can go",
            ExitCode.USAGE,
        )
    with naming_pipeline(pipeline, warehouse.paths.job):
        if dry_run:
            plan = preview_rollback(warehouse, checkpoint, leave_outside=leave_outside)
            out.print(render_rollback(plan, position_words(pipeline, given), pipeline), soft_wrap=True)
            return ExitCode.DONE
    with naming_pipeline(pipeline, warehouse.paths.job), needing_rest("a rollback", pipeline):
        done = roll_back(warehouse, checkpoint, sinks=sinks_of(pipeline, given), leave_outside=leave_outside)
    out.print(_done(done, position_words(pipeline, given)), soft_wrap=True)
    for note in done.notes:
        out.print(note, soft_wrap=True)
    out.print(f"go on with: tidemark run {pipeline}", soft_wrap=True)
    return ExitCode.DONE


def checkpoint_to_follow(pipeline: str, checkpoint: int | None, given: Layer) -> int:
    """Return the newest checkpoint that rests on upstream cuts that still exist (A10).

    Raises CommandError if a checkpoint is named too, or if there is nothing to follow or nowhere to go.
    """
    if checkpoint is not None:
        raise CommandError("--follow finds the checkpoint itself: leave the number out", ExitCode.USAGE)
    warehouse = warehouse_of(pipeline, given)
    must_have_run(warehouse)
    records = records_of(JobStores(warehouse, cross_freely).observe())
    newest = newest_checkpoint(records)
    if newest is None or not taken_back(newest):
        raise CommandError(
            f"{pipeline} has no upstream job to follow: none was rolled back behind a cut that it has read",
            ExitCode.FAILED,
        )
    found = newest_that_stands(records)
    if found is None:
        raise CommandError(
            f"no checkpoint of {pipeline} that is retained rests on cuts that still exist: begin in an empty warehouse",
            ExitCode.FAILED,
        )
    return found.checkpoint


def _done(done: RolledBack, words: PositionWords) -> Text:
    plan, row = done.plan, done.record
    said = Text.assemble(
        (str(plan.job), "bold"),
        f" is back at {plan.target.kind.value} {plan.target.checkpoint}, as {row.kind.value} {row.checkpoint}: ",
        f"{plural(len(row.tables), 'table')}, {said_of_rows(plan, words)}",
    )
    if plan.turn.dropped:
        said.append(f"; abandoned: {', '.join(str(each) for each in plan.turn.dropped)}")
    return said
