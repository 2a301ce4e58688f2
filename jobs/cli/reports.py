"""`tidemark checkpoints list` and `tidemark checkpoints show`. They read entries and change nothing."""

from rich.console import Console

from jobs.cli.naming import warehouse_of
from jobs.cli.observation import History, observe_history
from jobs.settings import Layer
from jobs.showing.checkpoints import render_checkpoints
from jobs.showing.timeline import render_timeline


def list_checkpoints(pipeline: str, given: Layer, out: Console) -> None:
    """Show the retained checkpoints of a job and who holds it."""
    history = _history(pipeline, given)
    out.print(render_checkpoints(history.job, history.records, history.cuts, history.holder))


def show_checkpoint(
    pipeline: str, checkpoint: int | None, given: Layer, out: Console, *, every_subtask: bool = False
) -> None:
    """Show the life of one epoch (None: the newest), and each vertex's slowest subtasks or all of them."""
    history = _history(pipeline, given)
    record = history.record(checkpoint)
    published = history.cuts.get(record.checkpoint)
    at_ms, versions = (None, {}) if published is None else (published.at_ms, published.versions)
    out.print(render_timeline(record, at_ms, versions, every_subtask=every_subtask))


def _history(pipeline: str, given: Layer) -> History:
    warehouse = warehouse_of(pipeline, given)
    return observe_history(warehouse.root, warehouse.paths.job)
