"""`tidemark run --from`: finds the entry, shows the plan, and imports another warehouse's entry."""

from dataclasses import dataclass
from typing import assert_never

from rich.console import Console

from checkpointing.evolution import Change, first_refused
from checkpointing.job.renaming import rename_changes
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, RowKind
from jobs.at_rest.importing import Import, import_row, restorable, sinks_after
from jobs.at_rest.restore_origin import ForeignRow, OwnRow, find_origin
from jobs.cli.errors import CommandError, ExitCode
from jobs.cli.savepoints import copies
from jobs.doctor.findings import command
from jobs.engine_paths import typed
from jobs.holding.job_state import newest_restorable
from jobs.launch import Launch
from jobs.planner import JobPlan
from jobs.recovery.fitting import fitting
from jobs.recovery.renaming import renaming_in
from jobs.recovery.state_migration import all_changes, find_migrations, migrated
from jobs.showing.quantities import plural
from jobs.showing.restore import left_behind, render_changes, render_restore
from jobs.storage.address import Root
from jobs.stores.cuts import CutStore
from jobs.stores.savepoint_copy import named_files
from jobs.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Restoring:
    """Where the user wants to begin: `origin` is `N`, `DIR` or `DIR@N`; `claim` is None if it was not given."""

    origin: str | None = None
    claim: bool | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        """Refuse options that need `--from`."""
        if self.claim is not None and self.origin is None:
            flag = "--claim" if self.claim else "--no-claim"
            raise CommandError(f"{flag}: name the savepoint too, with --from DIR or --from DIR@N", ExitCode.USAGE)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The plan, the entry under the plan's names, and the differences between both."""

    plan: JobPlan
    record: CheckpointRecord
    changes: tuple[Change, ...]


def restore(started: Launch, asked: Restoring, out: Console, progress: Console) -> bool:
    """Restore before the tick; return whether the tick is to run, which it is not after a dry run.

    Raises CommandError for what does not fit, and what finding and importing the entry raise.
    """
    root, job = started.settings.warehouse, started.plan.job
    if asked.origin is None:
        if asked.dry_run:
            _show_own(started, newest_restorable(started.warehouse), out)
        return not asked.dry_run
    origin = find_origin(asked.origin, root, job)
    match origin:
        case OwnRow():
            _own(started, origin, asked, out)
        case ForeignRow():
            _foreign(started, origin, asked, out, progress)
        case _ as unreachable:
            assert_never(unreachable)
    return not asked.dry_run


def _own(started: Launch, origin: OwnRow, asked: Restoring, out: Console) -> None:
    record, root, job = origin.record, started.settings.warehouse, started.plan.job
    if asked.claim:
        raise CommandError(
            f"--claim: {record.checkpoint} is {job}'s own in {root} already; leave --claim out", ExitCode.USAGE
        )
    if not origin.is_newest:
        kind = "savepoint" if record.kind is RowKind.SAVEPOINT else "checkpoint"
        newest = newest_restorable(started.warehouse)
        at = f"at checkpoint {newest.checkpoint}" if newest else "at the start"
        back = command("rollback", Warehouse(root, ProtocolPaths(job)), str(record.checkpoint))
        itself = typed(f"{root}@{record.checkpoint}")
        raise CommandError(
            f"{root} stands {at}, and a tick begins only from there: '{back}' "
            f"takes the tables back to {kind} {record.checkpoint} in place (--dry-run shows how), 'tidemark run {job} "
            f"--from {itself} --warehouse EMPTY_FOLDER' begins from it elsewhere, and without --from the tick goes on "
            "from where the tables stand"
        )
    if asked.dry_run:
        _show_own(started, record, out)
    else:
        out.print(f"checkpoint {record.checkpoint} is the newest of {job} in {root}: going on from it, as always")


def _show_own(started: Launch, record: CheckpointRecord | None, out: Console) -> None:
    root, job = started.settings.warehouse, started.plan.job
    if record is None:
        out.print(
            f"{job} has no checkpoint in {root}: a tick begins from the start; nothing was changed", soft_wrap=True
        )
        return
    fitting = _fitting(started, record, root, out)
    versions = CutStore(started.warehouse).all().get(record.checkpoint)
    first = ", which is published first" if versions is None else ""
    what = f"checkpoint {record.checkpoint}, the newest in {root}{first}; nothing was changed"
    out.print(render_restore(what, fitting.plan, fitting.record, versions, fitting.changes), soft_wrap=True)


def _foreign(started: Launch, origin: ForeignRow, asked: Restoring, out: Console, progress: Console) -> None:
    root = started.settings.warehouse
    fitting = _fitting(started, origin.record, origin.warehouse.root, out)
    plan = fitting.plan
    allowed = started.settings.allow_non_restored_state
    wanted = Import(origin=origin, root=root, plan=plan, claim=bool(asked.claim), allow_non_restored_state=allowed)
    files = len(named_files(restorable(wanted).record or origin.record))
    source = f"{origin.record.kind.value} {origin.record.checkpoint} of {origin.warehouse.root}"
    how = "moved out of there" if asked.claim else "copied"
    sinks = sinks_after(wanted)
    if asked.dry_run:
        what = f"{source} into {root}, {plural(files, 'file')} {how}; nothing was changed"
        out.print(render_restore(what, plan, fitting.record, changes=fitting.changes), soft_wrap=True)
        for said in sinks:
            out.print(said, soft_wrap=True, markup=False)
        return
    for said in sinks:
        out.print(said, soft_wrap=True, markup=False)
    for left in left_behind(plan.graph, fitting.record):
        out.print(f"left behind: {left}, which the pipeline no longer has", style="yellow")
    with progress.status(f"restoring {source}") as status:
        imported = import_row(wanted, told=lambda copied: status.update(copies(copied)))
    said = f"restored {source} into {root} as checkpoint {imported.checkpoint}: {plural(files, 'file')} {how}"
    out.print(said, soft_wrap=True)


def _fitting(started: Launch, record: CheckpointRecord, root: Root, out: Console) -> _Fitting:
    """Return the plan that the entry restores into; its files lie below `root`. If a change is refused, show all."""
    allowed = started.settings.allow_non_restored_state
    try:
        renaming = renaming_in(Warehouse(root, ProtocolPaths(started.plan.job)), started.plan.graph, record)
        record = renaming.record or record
        plan = fitting(started.plan, renaming, allow_non_restored_state=allowed)
        migrations = find_migrations(plan, record, root)
        changes = (*rename_changes(renaming.due), *all_changes(plan, record, migrations))
        if first_refused(changes) is not None:
            out.print(render_changes(changes), soft_wrap=True)
        return _Fitting(migrated(plan, record, migrations, root), record, changes)
    except CutDoesNotFitError as error:
        raise CommandError(f"{error}; nothing was changed") from error
