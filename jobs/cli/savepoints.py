"""`tidemark savepoint` and `tidemark stop`: take, copy and dispose of savepoints, and stop a tick with one."""

from rich.console import Console, Group, RenderableType
from rich.text import Text

from checkpointing.identifiers import JobName
from checkpointing.messages import SavepointKind
from checkpointing.metadata.record import CheckpointRecord
from jobs.at_rest.asking import Taken, Waiting, stop, take_savepoint
from jobs.at_rest.savepoints import dispose
from jobs.cli.errors import CommandError, ExitCode, needing_rest
from jobs.cli.naming import warehouse_of
from jobs.engine_paths import typed
from jobs.settings import Layer
from jobs.showing.quantities import count, plural, size
from jobs.storage.address import InvalidAddressError, Root, parsed
from jobs.stores.file_copies import Copied
from jobs.stores.savepoint_copy import copy_savepoint, must_be_free, named_files
from jobs.stores.warehouse import Warehouse


def savepoint(pipeline: str, named: str | None, given: Layer, out: Console, progress: Console) -> None:
    """Take a savepoint of a job, and with `to` make a self-contained copy of it there."""
    warehouse, to = warehouse_of(pipeline, given), None if named is None else _target(named)
    if to is not None:
        must_be_free(warehouse, to)
    with progress.status(f"savepoint of {warehouse.paths.job}") as status:
        try:
            taken = take_savepoint(warehouse, lambda waiting: status.update(asked_since(waiting)))
        except KeyboardInterrupt:
            raise withdrawn("savepoint") from None
    out.print(_taken(warehouse.paths.job, taken, pipeline), soft_wrap=True)
    if to is not None:
        _copied(warehouse, taken.record, to, pipeline, out, progress)


def stop_job(pipeline: str, kind: SavepointKind, given: Layer, out: Console, progress: Console) -> None:
    """Stop the running tick of a job with a savepoint; return when it has released the job."""
    warehouse = warehouse_of(pipeline, given)
    job = warehouse.paths.job
    with progress.status(f"stop of {job}") as status:
        try:
            taken = stop(warehouse, kind, lambda waiting: status.update(asked_since(waiting)))
        except KeyboardInterrupt:
            raise withdrawn("stop") from None
    record = taken.record
    did = "drained" if kind is SavepointKind.DRAIN else "suspended"
    waits = "waiting rows were emitted" if kind is SavepointKind.DRAIN else "waiting rows stay in the state"
    out.print(
        Group(
            Text.assemble(
                (str(job), "bold"), f" is {did} at savepoint {record.checkpoint}: {waits}, and {taken.by} ended"
            ),
            Text(f"the savepoint names {_amount(record)}; its tables are published"),
            Text(f"go on with: tidemark run {pipeline}"),
        ),
        soft_wrap=True,
    )


def dispose_savepoint(pipeline: str, checkpoint: int, given: Layer, out: Console) -> None:
    """Delete a savepoint of a job that no tick holds."""
    warehouse = warehouse_of(pipeline, given)
    with needing_rest(f"disposing of savepoint {checkpoint}", warehouse.paths.job):
        files = dispose(warehouse, checkpoint)
    with_it = f", and with it {plural(files, 'file')} that nothing else names" if files else ""
    out.print(f"savepoint {checkpoint} of {warehouse.paths.job} is gone{with_it}", soft_wrap=True)


def _target(named: str) -> Root:
    try:
        return parsed(named)
    except InvalidAddressError as error:
        raise CommandError(f"--to {named}: {error}", ExitCode.USAGE) from error


def _copied(
    warehouse: Warehouse, record: CheckpointRecord, to: Root, pipeline: str, out: Console, progress: Console
) -> None:
    with progress.status(f"copying to {to}") as status:
        try:
            made = copy_savepoint(warehouse, record.checkpoint, to, lambda copied: status.update(copies(copied)))
        except KeyboardInterrupt:
            restores = f"tidemark run {pipeline} --from {typed(f'{warehouse.root}@{record.checkpoint}')}"
            raise CommandError(
                f"interrupted: {to} was not made. Savepoint {record.checkpoint} stays in {warehouse.root}; "
                f"'{restores}' restores it from there"
            ) from None
    again = f"tidemark run {pipeline} --from {typed(to)} --warehouse EMPTY_FOLDER"
    amount = f"{plural(made.files, 'file')}, {size(made.bytes)}"
    out.print(
        Group(
            Text(f"copied whole to {to}: {amount}; its tables can be read there by any engine"),
            Text(f"restore it with: {again}"),
        ),
        soft_wrap=True,
    )


def copies(copied: Copied) -> str:
    """Return the progress of a copy, as a line."""
    return (
        f"copying: {count(copied.files)} of {plural(copied.files_all, 'file')}, "
        f"{size(copied.bytes)} of {size(copied.bytes_all)}"
    )


def _taken(job: JobName, taken: Taken, pipeline: str) -> RenderableType:
    record = taken.record
    return Group(
        Text.assemble(("savepoint ", "bold"), (str(record.checkpoint), "bold"), f" of {job}: {taken.how}"),
        Text(
            f"it names {_amount(record)}, which stay until 'tidemark savepoint {pipeline} --dispose "
            f"{record.checkpoint}'"
        ),
    )


def _amount(record: CheckpointRecord) -> str:
    files = named_files(record).values()
    return f"{plural(len(files), 'file')}, {size(sum(file.bytes for file in files))}"


def asked_since(waiting: Waiting) -> str:
    """Return who was asked and how long ago, as a line."""
    return f"asked {waiting.holder} {waiting.seconds:.0f} s ago; Ctrl-C withdraws the request"


def withdrawn(what: str) -> CommandError:
    """Return the error for a user who stops waiting."""
    return CommandError(
        f"interrupted: the request for the {what} is withdrawn. If the tick has begun it, it may still complete: "
        "'tidemark checkpoints list' shows it"
    )
