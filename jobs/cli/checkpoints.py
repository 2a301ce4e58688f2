"""`tidemark checkpoints list` and `tidemark checkpoints show`. They read entries and change nothing."""

from rich.console import Console

from checkpointing.identifiers import JobName
from checkpointing.metadata.record import CheckpointRecord, Release, Row
from jobs.cli.errors import CommandError, ExitCode
from jobs.cli.naming import position_words, warehouse_of
from jobs.holding.job_state import Activity, JobState, must_have_run, state_of
from jobs.settings import Layer
from jobs.showing.checkpoints import render_checkpoints
from jobs.showing.timeline import render_timeline
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.cuts import CutStore
from jobs.stores.warehouse import Warehouse


def list_checkpoints(pipeline: str, given: Layer, out: Console) -> None:
    """Show the retained checkpoints of a job, newest first, and who holds it; raise NeverRunError."""
    warehouse = warehouse_of(pipeline, given)
    rows, cuts = _rows(warehouse), CutStore(warehouse).entries()
    holder = _holder(state_of(warehouse, rows))
    releases = [row for row in rows if isinstance(row, Release)]
    out.print(render_checkpoints(warehouse.paths.job, _newest_first(rows), cuts, holder, releases))


def show_checkpoint(
    pipeline: str, checkpoint: int | None, given: Layer, out: Console, *, every_subtask: bool = False
) -> None:
    """Show the life of one epoch (None: the newest), and each vertex's slowest subtasks or all of them.

    Raises NeverRunError, and CommandError for a checkpoint that is not retained.
    """
    warehouse = warehouse_of(pipeline, given)
    record = _chosen(warehouse.paths.job, _newest_first(_rows(warehouse)), checkpoint)
    published = CutStore(warehouse).entries().get(record.checkpoint)
    at_ms, versions = (None, {}) if published is None else (published.published_at_ms, published.versions)
    words = position_words(pipeline, given)
    out.print(render_timeline(record, at_ms, versions, words, every_subtask=every_subtask))


def _rows(warehouse: Warehouse) -> tuple[Row, ...]:
    must_have_run(warehouse)
    return CheckpointStore(warehouse).observe()[1]


def _newest_first(rows: tuple[Row, ...]) -> list[CheckpointRecord]:
    records = (row for row in rows if isinstance(row, CheckpointRecord))
    return sorted(records, key=lambda record: record.checkpoint, reverse=True)


def _chosen(job: JobName, records: list[CheckpointRecord], checkpoint: int | None) -> CheckpointRecord:
    """Return that checkpoint or savepoint, the newest checkpoint for None; raise CommandError if it is missing."""
    if not records:
        said = f"{job} has completed no checkpoint yet: run 'tidemark run {job}' until it has one"
        raise CommandError(said, ExitCode.NOT_THERE)
    if checkpoint is None:
        return next((record for record in records if record.commits and not record.abandoned), records[0])
    found = next((record for record in records if record.checkpoint == checkpoint), None)
    if found is None:
        raise CommandError(
            f"checkpoint {checkpoint} of {job} is not retained: there are "
            f"{', '.join(str(record.checkpoint) for record in records)}; the setting 'retained' says how many are kept",
            ExitCode.NOT_THERE,
        )
    return found


def _holder(state: JobState) -> str:
    if state.activity is not Activity.AT_REST:
        return f"held by {state.holder}, generation {state.generation}"
    if state.holder is None:
        return f"nobody holds the job: {state.why}"
    return f"{state.holder} held the job as generation {state.generation} and has died: the next tick takes over"
