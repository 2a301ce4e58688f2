"""The commands that only read: `explain`, `checkpoints list`, `checkpoints show`."""

from pathlib import Path

from rich.console import Console

from checkpointing.identifiers import InvalidNameError, JobName, job_name
from jobs.cli.errors import CommandError, ExitCode
from jobs.cli.observation import observe_history
from jobs.cli.render_checkpoints import render_checkpoints
from jobs.cli.render_timeline import render_timeline
from jobs.settings import InvalidSettingsError, Layer, folder


def list_checkpoints(pipeline: str, given: Layer, out: Console) -> None:
    """Show the retained checkpoints of a job and who holds it."""
    history = observe_history(warehouse_folder(given), job_named(pipeline))
    out.print(render_checkpoints(history.job, history.records, history.cuts, history.holder))


def show_checkpoint(pipeline: str, checkpoint: int | None, given: Layer, out: Console) -> None:
    """Show the life of one epoch, the newest for None."""
    history = observe_history(warehouse_folder(given), job_named(pipeline))
    record = history.record(checkpoint)
    published = history.cuts.get(record.checkpoint)
    if published is None:
        out.print(render_timeline(record, None, {}))
    else:
        out.print(render_timeline(record, published.at_ms, published.versions))


def job_named(pipeline: str) -> JobName:
    """Return a pipeline's job; raise CommandError for a name that no pipeline may have."""
    try:
        return job_name(pipeline)
    except InvalidNameError as error:
        raise CommandError(f"{error}; write the name of a pipeline, such as flights", ExitCode.USAGE) from error


def warehouse_folder(given: Layer) -> Path:
    """Return the warehouse of a command; raise CommandError for a variable of the environment that is no setting."""
    try:
        return folder("warehouse", given)
    except InvalidSettingsError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
