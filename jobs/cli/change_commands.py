"""`tidemark approve` and `tidemark reject`: settle the cut that waits for a person."""

from dataclasses import replace
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.identifiers import CheckpointId, JobName
from checkpointing.messages import SavepointKind
from checkpointing.metadata.record import CheckpointRecord
from jobs.cli.errors import CommandError, ExitCode, naming_pipeline, needing_rest
from jobs.cli.explain import prepared
from jobs.cli.naming import position_words, sinks_of, warehouse_of
from jobs.engine_paths import typed
from jobs.launch import Launch, spark_config
from jobs.settings import Layer, resolve
from jobs.showing.plans import named, render_forget, render_rollback, rows_again, said_of_rows, splits_grid
from jobs.showing.quantities import count, plural, size
from jobs.sources.delta.upstream_job import newest_that_stands, taken_back
from jobs.sources.port import closing
from jobs.sources.position_words import PositionWords
from jobs.spark.programs import must_start_spark
from jobs.spark.session import is_local, stopped_at_end
from jobs.storage.address import InvalidAddressError, Root, parsed
from jobs.tick.at_rest.cancellation import Deleted, delete_checkpoints
from jobs.tick.at_rest.forget import ErasureAsked, forget, preview_forget
from jobs.tick.at_rest.held_cut import approve, reject
from jobs.tick.at_rest.request_client import Ended, Taken, Waiting, end_now, stop, take_savepoint
from jobs.tick.at_rest.roll_back import RolledBack, preview_rollback, roll_back
from jobs.tick.at_rest.source_reset import Reset, ResetPlan, preview_reset, reset
from jobs.tick.at_rest.take_savepoint import dispose
from jobs.tick.rollback_plan import records_of
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.job_stores import JobStores, must_have_run
from jobs.warehouse.refusals import JobHeldError
from jobs.warehouse.savepoint_copy import Copied, copy_savepoint, must_be_free, named_files
from jobs.warehouse.warehouse import Warehouse


def approve_cut(pipeline: str, given: Layer, out: Console) -> ExitCode:
    """Publish the cut of a job that waits for approval."""
    warehouse = warehouse_of(pipeline, given)
    with naming_pipeline(pipeline, warehouse.paths.job), needing_rest("an approval", pipeline):
        done = approve(warehouse, sinks=sinks_of(pipeline, given))
    job, record = (str(warehouse.paths.job), "bold"), done.record
    said = f": cut {done.held.checkpoint} is approved, as checkpoint {record.checkpoint}"
    out.print(Text.assemble(job, f"{said}; {plural(len(record.tables), 'table')} published"), soft_wrap=True)
    for note in done.published.notes:
        out.print(note, soft_wrap=True)
    out.print(f"go on with: tidemark run {pipeline}", soft_wrap=True)
    return ExitCode.DONE


def reject_cut(pipeline: str, given: Layer, out: Console) -> ExitCode:
    """Discard the cut of a job that waits for approval."""
    warehouse = warehouse_of(pipeline, given)
    with naming_pipeline(pipeline, warehouse.paths.job), needing_rest("a rejection", pipeline):
        held = reject(warehouse)
    said = f": cut {held.checkpoint} is rejected. No table shows anything of it, and the next tick reads its rows again"
    out.print(Text.assemble((str(warehouse.paths.job), "bold"), said), soft_wrap=True)
    return ExitCode.DONE


# ------------------------------------------------------------------
# `tidemark reset`: moves the position of one source while no tick runs, or shows what that would do.


_TWICE: Final = "tables and state stay as they are, so a row that is read again counts twice"


def reset_source(pipeline: str, asked: Reset, given: Layer, out: Console, *, dry_run: bool) -> ExitCode:
    """Move a source, or show what that would do. Print which rows will be read again and which will be skipped."""
    started = prepared(pipeline, given)
    warehouse, job, sources = started.warehouse, started.plan.job, started.plan.sources
    words = PositionWords(sources)
    with naming_pipeline(pipeline, job), closing(sources):
        if dry_run:
            plan = preview_reset(warehouse, sources, asked)
            heading = f": source {asked.source}, which stands at {named(plan.newest)}; nothing was changed"
            said = Text.assemble(("reset plan ", "bold"), (str(job), "bold"), heading)
        else:
            with needing_rest("a reset", pipeline):
                plan, row = reset(warehouse, sources, asked)
            said = Text.assemble((str(job), "bold"), f" goes on from {named(row)}: {asked.source} is at {asked.words}")
    out.print(said, soft_wrap=True)
    out.print(splits_grid(plan.splits, words))
    for line in consequences(plan, words, pipeline):
        out.print(line, soft_wrap=True)
    return ExitCode.DONE


def consequences(plan: ResetPlan, words: PositionWords, pipeline: str) -> tuple[Text, ...]:
    """Return lines on how many rows will be read again and how many skipped. Both can happen, in different splits."""
    if not plan.splits:
        return (Text("every split stands there already"),)
    known = [rows for rows in rows_again(plan.splits, words) if rows is not None]
    again, left_out = sum(rows for rows in known if rows > 0), -sum(rows for rows in known if rows < 0)
    lines = []
    if again:
        lines.append(f"{count(again)} rows will be read AGAIN: {_TWICE}")
    if len(known) < len(plan.splits):
        lines.append(f"it is not known how many rows will be read AGAIN or SKIPPED: {_TWICE}")
    if left_out:
        lines.append(f"{count(left_out)} rows will be SKIPPED: no table will ever show them")
    lines.append(f"to take the tables back too: tidemark rollback {pipeline} N")
    return tuple(Text(line, style="yellow") for line in lines)


# ------------------------------------------------------------------
# `tidemark forget`: erases rows from tables, state and history while no tick runs, or shows what that would do.


def forget_rows(pipeline: str, asked: ErasureAsked, given: Layer, out: Console, *, dry_run: bool) -> ExitCode:
    """Erase rows, or show what that would do. Print what was erased, and which files still hold the rows."""
    warehouse, settings = warehouse_of(pipeline, given), resolve({}, given)
    config = replace(spark_config(settings), connect_url=None)
    must_have_run(warehouse)
    must_start_spark(workers_here=is_local(config))
    with naming_pipeline(pipeline, warehouse.paths.job), stopped_at_end(config) as session:
        if dry_run:
            plan = preview_forget(warehouse, asked, session)
            out.print(render_forget(plan, settings.reader_grace_ms, done=None), soft_wrap=True)
            return ExitCode.DONE
        with needing_rest("forgetting rows", pipeline):
            done = forget(warehouse, asked, session)
    out.print(render_forget(done.plan, settings.reader_grace_ms, done=done.record), soft_wrap=True)
    for note in done.notes:
        out.print(note, soft_wrap=True)
    return ExitCode.DONE


# ------------------------------------------------------------------
# `tidemark rollback`: takes a job back to an older cut, tables included, or shows what that would do.


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
    """Return the newest checkpoint whose upstream cuts all still exist (A10).

    Raises CommandError if the user names a checkpoint too, if no upstream job was rolled back behind a cut that this
    job has read, or if no retained checkpoint rests on cuts that still exist.
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


# ------------------------------------------------------------------
# `tidemark savepoint` and `tidemark stop`: take, copy and dispose of savepoints, and stop a tick with one.


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
            *([Text(taken.closed_windows)] if taken.closed_windows else []),
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
    """Return a line with the progress of a copy."""
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
    """Return a line that names the holder of the job that was asked, and how long ago."""
    return f"asked {waiting.holder} {waiting.seconds:.0f} s ago; Ctrl-C withdraws the request"


def withdrawn(what: str) -> CommandError:
    """Return the error for a user who interrupts the wait for a request."""
    return CommandError(
        f"interrupted: the request for the {what} is withdrawn. If the tick has begun it, it may still complete: "
        "'tidemark checkpoints list' shows it"
    )


# ------------------------------------------------------------------
# `tidemark cancel`: ends the running tick at once, and keeps or deletes the checkpoints, as configured.


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
