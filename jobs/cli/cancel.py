"""`tidemark cancel`: ends the running tick at once, and keeps or deletes the checkpoints, as configured."""

from rich.console import Console
from rich.text import Text

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import CheckpointId, JobName
from checkpointing.metadata.record import CheckpointRecord
from jobs.at_rest.asking import Ended, end_now
from jobs.at_rest.cancelling import Deleted, delete_checkpoints
from jobs.cli.errors import CommandError, ExitCode
from jobs.cli.explain import prepared
from jobs.cli.savepoints import asked_since, withdrawn
from jobs.engine_paths import typed
from jobs.holding.failures import JobHeldError
from jobs.launch import Launch
from jobs.settings import Layer
from jobs.showing.quantities import plural
from jobs.stores.checkpoints import CheckpointStore
from jobs.stores.warehouse import Warehouse


def cancel(pipeline: str, given: Layer, out: Console, progress: Console) -> None:
    """End the running tick of a job, if there is one, and delete its checkpoints unless they are retained.

    Raises CommandError for wrong settings and for a job that another tick has claimed meanwhile.
    """
    started = prepared(pipeline, given)
    job = started.plan.job
    warehouse = started.warehouse
    with progress.status(f"cancelling {job}") as status:
        try:
            ended = end_now(warehouse, lambda waiting: status.update(asked_since(waiting)))
        except KeyboardInterrupt:
            raise withdrawn("cancellation") from None
    retained = started.settings.retain_on_cancellation
    out.print(_ended(job, ended, retained=retained), soft_wrap=True)
    if retained:
        lines = _retained(pipeline, warehouse)
    else:
        lines = _deleted(pipeline, warehouse, _delete(started, warehouse, progress))
    for line in lines:
        out.print(line, soft_wrap=True)


def _delete(started: Launch, warehouse: Warehouse, progress: Console) -> Deleted:
    with progress.status(f"deleting the checkpoints of {started.plan.job}"):
        try:
            return delete_checkpoints(warehouse, started.plan)
        except JobHeldError as held:
            raise CommandError(
                f"the checkpoints stay: {held.holder} has claimed {started.plan.job} since (generation "
                f"{held.generation}); cancel again",
                ExitCode.HELD,
            ) from held


def _ended(job: JobName, ended: Ended, *, retained: bool) -> Text:
    if ended.by is None:
        return Text.assemble((str(job), "bold"), f" is cancelled: no tick of it runs ({ended.why})")
    how = "died before it ended normally" if ended.died else "ended"
    again = "; the next tick reads again what it had not committed" if retained else ""
    return Text.assemble((str(job), "bold"), f" is cancelled: {ended.by} {how}{again}")


def _retained(pipeline: str, warehouse: Warehouse) -> tuple[str, ...]:
    _, rows = CheckpointStore(warehouse).observe()
    records = [row for row in rows if isinstance(row, CheckpointRecord)]
    if not records:
        return (f"nothing is retained: it has no checkpoint in {warehouse.root}",)
    savepoints = sum(record.is_savepoint for record in records)
    counted = [plural(len(records) - savepoints, "checkpoint")] if len(records) > savepoints else []
    counted += [plural(savepoints, "savepoint")] if savepoints else []
    what = f"retained: {' and '.join(counted)}"
    newest = newest_checkpoint(rows)
    if newest is None:
        return (what, _restoring(pipeline, warehouse, max(record.checkpoint for record in records)))
    return (f"{what}; the next tick begins after {newest.checkpoint}", f"go on with: tidemark run {pipeline}")


def _deleted(pipeline: str, warehouse: Warehouse, deleted: Deleted) -> tuple[str, ...]:
    gone = ", ".join(str(checkpoint) for checkpoint in deleted.checkpoints)
    what = f"{plural(len(deleted.checkpoints), 'checkpoint')} ({gone})" if gone else "no checkpoint"
    files = f", and {plural(deleted.files, 'file')} that no savepoint names" if deleted.files else ""
    said = f"deleted, since retain_on_cancellation is false: {what}{files}; the tables stay as they are"
    if not deleted.kept:
        return (said, f"start over in an empty warehouse: tidemark run {pipeline} --warehouse EMPTY_FOLDER")
    ids = ", ".join(str(record.checkpoint) for record in deleted.kept)
    kept = f"kept: {plural(len(deleted.kept), 'savepoint')} ({ids})"
    if deleted.resumes is not None:
        return (
            said,
            f"{kept}; the next tick begins after {deleted.resumes.checkpoint}",
            f"go on with: tidemark run {pipeline}",
        )
    return (said, kept, _restoring(pipeline, warehouse, deleted.kept[-1].checkpoint))


def _restoring(pipeline: str, warehouse: Warehouse, savepoint: CheckpointId) -> str:
    origin = typed(f"{warehouse.root}@{savepoint}")
    return f"go on with: tidemark run {pipeline} --from {origin} --warehouse EMPTY_FOLDER"
