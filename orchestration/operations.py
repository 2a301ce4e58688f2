"""The Dagster jobs besides the tick: savepoint, stop, cancellation, rollback, erasure, approval, rejection, clean-up.

Their runs have another tag than ticks, so that a stop does not wait in Dagster's queue for the tick that it stops. A
job that may not run beside a tick is refused, and the message names the holder.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import dagster as dg
from rich.console import RenderableType

from checkpointing.messages import SavepointKind
from jobs.launch import spark_config
from jobs.operators.scan.matching import PredicateError
from jobs.pipeline.job_plan import JobPlan
from jobs.settings import InvalidSettingsError, TickSettings
from jobs.showing.plans import render_cleanup, render_forget, render_rollback
from jobs.showing.quantities import plural, size
from jobs.sources.position_words import PositionWords
from jobs.spark.programs import must_start_spark
from jobs.spark.session import is_local, stopped_at_end
from jobs.storage.address import parsed
from jobs.tick.at_rest.cancellation import delete_checkpoints
from jobs.tick.at_rest.erased_files import NotErasableError
from jobs.tick.at_rest.forget import ErasureAsked, ForgetRefusedError, forget, preview_forget
from jobs.tick.at_rest.request_client import Taken, Waiting, end_now, stop, take_savepoint
from jobs.tick.at_rest.roll_back import preview_rollback, roll_back
from jobs.tick.cleaning import clean_up, plan_cleanup
from jobs.tick.interrupts import ending_in_time
from jobs.tick.rollback_plan import RollbackRefusedError
from jobs.warehouse.cuts_table import CutsNotRecordedError
from jobs.warehouse.job_stores import must_have_run
from jobs.warehouse.log_rewriting import LogNotRewrittenError
from jobs.warehouse.output_tables import TableMismatchError, TableNotCopyableError
from jobs.warehouse.refusals import NotCancelledError, RollForwardError, SavepointRefusedError, TickRefusedError
from jobs.warehouse.rollback_tables import TableNotRolledBackError
from jobs.warehouse.savepoint_copy import (
    FileNotCopiedError,
    SavepointNotCopiedError,
    copy_savepoint,
    must_be_free,
    named_files,
)
from jobs.warehouse.warehouse import Warehouse
from orchestration.approval import approved, rejected
from orchestration.deployment import Deployment
from orchestration.launchpad import OF_CANCEL, given_settings, setting_fields
from orchestration.pictures import as_text, block
from orchestration.tags import ABOUT_TAG
from orchestration.tick import ended_by_force

_TOLD_EVERY_S: Final = 10.0
_REFUSALS: Final = (
    SavepointRefusedError,
    NotCancelledError,
    TableMismatchError,
    SavepointNotCopiedError,
    TableNotCopyableError,
    FileNotCopiedError,
    RollbackRefusedError,
    ForgetRefusedError,
    PredicateError,
    NotErasableError,
    LogNotRewrittenError,
    RollForwardError,
    TableNotRolledBackError,
    CutsNotRecordedError,
    TickRefusedError,
    InvalidSettingsError,
)

DRY_RUN: Final = "dry_run"
LEAVE_OUTSIDE: Final = "leave_outside"
_SETTINGS: Final = ("warehouse", "reader_grace_ms", "spark_master", OF_CANCEL)


@dataclass(frozen=True, slots=True)
class Asked:
    """The job's warehouse and settings, the words for its sources' positions, and its planned pipeline."""

    warehouse: Warehouse
    settings: TickSettings
    words: PositionWords
    plan: JobPlan


Operation = Callable[[dg.OpExecutionContext, Asked], Mapping[str, Any]]
"""Runs a job and returns its metadata. The context's `op_config` has the job's own fields."""


def operation_jobs(deployment: Deployment) -> tuple[dg.JobDefinition, ...]:
    """Return a pipeline's jobs besides the tick."""
    job = deployment.plan.job
    return (
        _operation_job(
            deployment,
            "savepoint",
            _savepoint,
            {"to": dg.Field(dg.String, is_required=False, description="Make a self-contained copy of it there.")},
            f"Take a savepoint of the running tick of {job}, or of the newest checkpoint if no tick runs.",
        ),
        _operation_job(
            deployment,
            "stop",
            _stop,
            {
                "kind": dg.Field(
                    dg.Enum(
                        "Stop",
                        [
                            dg.EnumValue("suspend", description="Waiting rows stay in the state."),
                            dg.EnumValue("drain", description="The sources end, and waiting rows are emitted."),
                        ],
                    ),
                    description="suspend keeps waiting rows in the state, drain emits them first.",
                )
            },
            f"Stop the running tick of {job} with a savepoint.",
        ),
        _operation_job(
            deployment,
            "cancel",
            _cancel,
            setting_fields(OF_CANCEL),
            f"End the running tick of {job} at once. Its checkpoints stay, unless retain_on_cancellation is false.",
        ),
        _operation_job(
            deployment,
            "rollback",
            _rollback,
            {
                "checkpoint": dg.Field(dg.Int, description="The checkpoint or savepoint to go back to."),
                LEAVE_OUTSIDE: dg.Field(
                    dg.Bool, is_required=False, default_value=False, description="Outside sinks keep later rows."
                ),
                DRY_RUN: _dry_run(),
            },
            f"Take tables, state and positions of {job} back to an older checkpoint, in one commit. No tick may run.",
        ),
        _erasing_job(deployment),
        *_settling_jobs(deployment),
        _operation_job(
            deployment,
            "cleanup",
            _cleanup,
            {DRY_RUN: _dry_run(), **setting_fields("reader_grace_ms")},
            f"Delete files that no retained checkpoint, savepoint or reader of {job} needs any more.",
        ),
    )


def _erasing_job(deployment: Deployment) -> dg.JobDefinition:
    besides = dg.Field([dg.String], is_required=False, default_value=[], description="Leave these tables alone.")
    return _operation_job(
        deployment,
        "forget",
        _forget,
        {
            "table": dg.Field(dg.String, description="A table with all columns of the condition."),
            "where": dg.Field(dg.String, description="Which rows, in Spark SQL: customer = 'c7'."),
            "except": besides,
            DRY_RUN: _dry_run(),
            **setting_fields("spark_master", "reader_grace_ms"),
        },
        f"Erase rows from all tables, state, kept cuts and savepoints of {deployment.plan.job} that have the columns "
        "of the condition. No tick may run.",
    )


def _settling_jobs(deployment: Deployment) -> tuple[dg.JobDefinition, ...]:
    """Return the jobs that settle the cut that waits for approval."""
    job = deployment.plan.job
    about = f"the cut of {job} that waits for approval. No tick may run."
    again = f"Discard {about} The next tick reads its rows again."
    return (
        _operation_job(
            deployment,
            "approve",
            lambda run, asked: approved(run, asked.warehouse, asked.plan.sinks),
            {},
            f"Publish {about}",
        ),
        _operation_job(deployment, "reject", lambda run, asked: rejected(run, asked.warehouse), {}, again),
    )


def _dry_run() -> dg.Field:
    return dg.Field(dg.Bool, is_required=False, default_value=False, description="Show what would be done; do nothing.")


def _operation_job(
    deployment: Deployment, verb: str, operation: Operation, fields: Mapping[str, dg.Field], description: str
) -> dg.JobDefinition:
    name = deployment.naming.name

    @dg.op(
        name=f"{verb}_{name}",
        config_schema={**fields, **setting_fields("warehouse")},
        description=description,
        out=dg.Out(dg.Nothing),
    )
    def operate(context: dg.OpExecutionContext) -> None:
        config = context.op_config
        with ending_in_time(partial(ended_by_force, context)), _refusals():
            given = given_settings({name: config[name] for name in _SETTINGS if name in config})
            settings = deployment.resolved(given)
            warehouse = deployment.warehouse(settings)
            words = PositionWords(deployment.plan.sources)
            context.add_output_metadata(operation(context, Asked(warehouse, settings, words, deployment.plan)))

    @dg.job(
        name=f"{name}_{verb}",
        description=description,
        tags={ABOUT_TAG: name},
        executor_def=dg.in_process_executor,
    )
    def operated() -> None:
        operate()

    return operated


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn refusals into a Dagster failure with their message, without Tidemark's stack trace."""
    try:
        yield
    except _REFUSALS as refused:
        raise dg.Failure(str(refused), allow_retries=False) from refused


def _savepoint(context: dg.OpExecutionContext, asked: Asked) -> Mapping[str, Any]:
    warehouse, config = asked.warehouse, context.op_config
    to = parsed(config["to"]) if "to" in config else None
    if to is not None:
        must_be_free(warehouse, to)
    taken = take_savepoint(warehouse, _teller(context))
    record = taken.record
    context.log.info("savepoint %d of %s: %s", record.checkpoint, warehouse.paths.job, taken.how)
    told = _told(taken)
    if to is None:
        return told
    made = copy_savepoint(warehouse, record.checkpoint, to, lambda _copied: None)
    amount = f"{plural(made.files, 'file')}, {size(made.bytes)}"
    context.log.info("copied whole to %s: %s", to, amount)
    return {**told, "copy": dg.MetadataValue.path(str(to)), "copied": amount}


def _stop(context: dg.OpExecutionContext, asked: Asked) -> Mapping[str, Any]:
    warehouse, config = asked.warehouse, context.op_config
    kind = SavepointKind.DRAIN if config["kind"] == "drain" else SavepointKind.SUSPEND
    taken = stop(warehouse, kind, _teller(context))
    savepoint = taken.record.checkpoint
    context.log.info("%s is stopped at savepoint %d; %s ended", warehouse.paths.job, savepoint, taken.by)
    if taken.closed_windows:
        context.log.warning(taken.closed_windows)
    return {**_told(taken), "kind": config["kind"]}


def _cancel(context: dg.OpExecutionContext, asked: Asked) -> Mapping[str, Any]:
    warehouse, job = asked.warehouse, asked.plan.job
    ended = end_now(warehouse, _teller(context))
    by = ended.by or f"nobody: {ended.why}"
    if asked.settings.retain_on_cancellation:
        context.log.info("%s is cancelled; its checkpoints stay. Ended: %s", job, by)
        return {"ended": str(by)}
    deleted = delete_checkpoints(warehouse, asked.plan)
    gone, kept = list(map(int, deleted.checkpoints)), [int(record.checkpoint) for record in deleted.kept]
    context.log.info("%s is cancelled, and its checkpoints %s are deleted. Ended: %s", job, gone, by)
    return {
        "ended": str(by),
        "deleted_checkpoints": dg.MetadataValue.json(gone),
        "deleted_files": deleted.files,
        "kept_savepoints": dg.MetadataValue.json(kept),
    }


def _rollback(context: dg.OpExecutionContext, asked: Asked) -> Mapping[str, Any]:
    checkpoint, warehouse = context.op_config["checkpoint"], asked.warehouse
    leaves = bool(context.op_config[LEAVE_OUTSIDE])
    if context.op_config[DRY_RUN]:
        plan = preview_rollback(warehouse, checkpoint, leave_outside=leaves)
        return {"plan": _shown(context, render_rollback(plan, asked.words, str(plan.job)))}
    done = roll_back(warehouse, checkpoint, sinks=asked.plan.sinks, leave_outside=leaves)
    said = f"{warehouse.paths.job} is back at {done.plan.target.checkpoint}, as {done.record.checkpoint}"
    context.log.info("%s; the next tick reads again what came after it", said)
    for note in done.notes:
        context.log.warning(note)
    versions = {str(table): int(version) for table, version in done.versions.items()}
    return {
        "back_at": int(done.plan.target.checkpoint),
        "checkpoint": int(done.record.checkpoint),
        "delta_versions": dg.MetadataValue.json(versions),
    }


def _forget(context: dg.OpExecutionContext, asked: Asked) -> Mapping[str, Any]:
    config, warehouse = context.op_config, asked.warehouse
    spark = replace(spark_config(asked.settings), connect_url=None)
    grace_ms, rows = (
        asked.settings.reader_grace_ms,
        ErasureAsked(config["table"], config["where"], (*config["except"],)),
    )
    must_have_run(warehouse)
    must_start_spark(workers_here=is_local(spark))
    with stopped_at_end(spark) as session:
        if config[DRY_RUN]:
            plan = preview_forget(warehouse, rows, session)
            return {"plan": _shown(context, render_forget(plan, grace_ms, done=None))}
        done = forget(warehouse, rows, session)
    for note in done.notes:
        context.log.warning(note)
    plan = done.plan
    return {
        "erased_rows": plan.rows,
        "rows_by_table": dg.MetadataValue.json({str(each.table): each.rows for each in plan.matched}),
        **({} if done.record is None else {"checkpoint": int(done.record.checkpoint)}),
        "not_searched": dg.MetadataValue.json({str(each.table): each.why for each in plan.left}),
        "report": _shown(context, render_forget(plan, grace_ms, done=done.record)),
    }


def _cleanup(context: dg.OpExecutionContext, asked: Asked) -> Mapping[str, Any]:
    grace_ms, dry_run = asked.settings.reader_grace_ms, bool(context.op_config[DRY_RUN])
    done = plan_cleanup(asked.warehouse, grace_ms) if dry_run else clean_up(asked.warehouse, grace_ms)
    files = done.decision.delete if dry_run else done.deleted.files
    return {
        "would_delete_files" if dry_run else "deleted_files": len(files),
        "bytes": sum(each.file.bytes for each in files),
        **({} if done.free_bytes is None else {"free_bytes": done.free_bytes}),
        "report": _shown(context, render_cleanup(asked.warehouse.paths.job, done, grace_ms, dry_run=dry_run)),
    }


def _shown(context: dg.OpExecutionContext, rendered: RenderableType) -> dg.MarkdownMetadataValue:
    """Log a text as the command line would show it, and return it as Markdown."""
    text = as_text(rendered)
    context.log.info("%s", text)
    return dg.MetadataValue.md(block(text))


def _told(taken: Taken) -> dict[str, Any]:
    record, files = taken.record, named_files(taken.record).values()
    return {
        "savepoint": int(record.checkpoint),
        "taken_by": str(taken.by or "nobody: no tick was running"),
        "files": len(files),
        "bytes": sum(file.bytes for file in files),
        "restore_with": f"tidemark run {record.job} --from {record.checkpoint}",
    }


def _teller(context: dg.OpExecutionContext) -> Callable[[Waiting], None]:
    """Return a function that logs, at intervals, which process the job waits for."""
    last = -_TOLD_EVERY_S

    def told(waiting: Waiting) -> None:
        nonlocal last
        if waiting.seconds - last >= _TOLD_EVERY_S:
            last = waiting.seconds
            context.log.info("asked %s %.0f s ago", waiting.holder, waiting.seconds)

    return told
