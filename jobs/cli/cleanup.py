"""`tidemark cleanup`: deletes unneeded files, or shows them."""

from rich.console import Console

from jobs.cli.errors import ExitCode
from jobs.cli.naming import warehouse_of
from jobs.runtime.cleaning import clean_up, plan_cleanup
from jobs.settings import Layer, resolve
from jobs.showing.cleanup import render_cleanup


def cleanup(pipeline: str, given: Layer, out: Console, *, dry_run: bool) -> ExitCode:
    """Delete a job's unneeded files, or with `dry_run` show them; FAILED if a file could not be deleted."""
    grace_ms = resolve({}, given).reader_grace_ms
    warehouse = warehouse_of(pipeline, given)
    done = plan_cleanup(warehouse, grace_ms) if dry_run else clean_up(warehouse, grace_ms)
    out.print(render_cleanup(warehouse.paths.job, done, grace_ms, dry_run=dry_run), soft_wrap=True)
    return ExitCode.FAILED if done.notes else ExitCode.DONE
