"""The arguments and options of the commands. Imports nothing heavy: each command imports what it needs."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.cli.errors import CommandError, ExitCode
from jobs.cli.naming import (
    chosen,
    pipeline_and_moment,
    pipeline_and_number,
    pipeline_and_operator,
    pipeline_and_source,
    pipeline_and_table,
)
from jobs.cli.options import (
    Data,
    DryRun,
    Moment,
    Number,
    OtherSettings,
    Parallelism,
    Pipeline,
    Warehouse,
    console,
    layer,
    pairs,
)

UntilCaughtUp = Annotated[
    bool | None, typer.Option("--until-caught-up/--keep-waiting", help="End when caught up, or wait for more.")
]
FromRow = Annotated[
    str | None,
    typer.Option("--from", metavar="N|DIR|DIR@N", help="Begin from a checkpoint, a savepoint's copy, a warehouse."),
]
Claim = Annotated[
    bool | None, typer.Option("--claim/--no-claim", help="Move the copy's files, which uses it up, or copy them.")
]
LeaveState = Annotated[
    bool | None, typer.Option("--allow-non-restored-state", help="Leave behind state and tables of removed steps.")
]
SparkMaster = Annotated[str | None, typer.Option(help="local[2] or spark://host:port.")]
SparkConnect = Annotated[str | None, typer.Option(help="A running Connect server: sc://host:port.")]
Target = Annotated[str | None, typer.Argument(metavar="N", help="A checkpoint or savepoint id.")]
To = Annotated[str, typer.Option(metavar="POSITION", help="start, end, FILE:ROWS, or a number.")]


def run(  # noqa: PLR0913 - an option each
    pipeline: Pipeline = None,
    *,
    checkpoints: Annotated[int | None, typer.Option(help="End after this many checkpoints.")] = None,
    duration: Annotated[str | None, typer.Option("--for", help="End after this time: 30s, 5m, 2h.")] = None,
    until_caught_up: UntilCaughtUp = None,
    hold: Annotated[
        bool | None, typer.Option("--hold/--no-hold", help="Hold the checkpoint until somebody approves it.")
    ] = None,
    every_rows: Annotated[int | None, typer.Option(help="A checkpoint every so many rows.")] = None,
    interval: Annotated[str | None, typer.Option(help="A checkpoint every so often: 10s.")] = None,
    mode: Annotated[str | None, typer.Option(help="exactly_once or at_least_once.")] = None,
    unaligned: Annotated[bool | None, typer.Option(help="Let barriers overtake rows.")] = None,
    retained: Annotated[int | None, typer.Option(help="Completed checkpoints to keep.")] = None,
    take_over: Annotated[
        bool | None, typer.Option("--take-over", help="Take the job from the process that holds it.")
    ] = None,
    from_: FromRow = None,
    claim: Claim = None,
    allow_non_restored_state: LeaveState = None,
    dry_run: DryRun = False,
    warehouse: Warehouse = None,
    data: Data = None,
    parallelism: Parallelism = None,
    spark_master: SparkMaster = None,
    spark_cores: Annotated[int | None, typer.Option(help="Cores of a local Spark.")] = None,
    spark_memory: Annotated[str | None, typer.Option(help="Heap of a Spark that is started: 2g.")] = None,
    spark_connect: SparkConnect = None,
    spark_archive: Annotated[Path | None, typer.Option(help="What 'tidemark package' built, for workers.")] = None,
    settings: OtherSettings = None,
) -> ExitCode:
    """Run one tick of a pipeline."""
    flags: dict[str, object] = {
        "checkpoints": checkpoints,
        "duration_ms": duration,
        "until_caught_up": until_caught_up,
        "hold": hold,
        "every_rows": every_rows,
        "interval_ms": interval,
        "mode": mode,
        "unaligned": unaligned,
        "retained": retained,
        "take_over": take_over,
        "allow_non_restored_state": allow_non_restored_state,
        "warehouse": warehouse,
        "data": data,
        "parallelism": parallelism,
        "spark_master": spark_master,
        "spark_cores": spark_cores,
        "spark_memory": spark_memory,
        "spark_connect_url": spark_connect,
        "spark_archive": spark_archive,
    }
    given = layer(pairs(settings or []) | {name: value for name, value in flags.items() if value is not None})
    from jobs.cli.run import Restoring  # noqa: PLC0415 - imports Spark's types
    from jobs.cli.run import run as run_tick  # noqa: PLC0415 - imports Spark

    return run_tick(chosen(pipeline), given, console(), console(stderr=True), Restoring(from_, claim, dry_run))


def package(
    pipeline: Pipeline = None,
    *,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The archive.  [default: PIPELINE-workers.tar.gz]")
    ] = None,
    data: Data = None,
) -> None:
    """Pack this environment into an archive for the workers of a cluster."""
    from jobs.cli.read_commands import package as packed  # noqa: PLC0415 - imports Spark's types

    packed(chosen(pipeline), to, layer({"data": data}), console())


def savepoint(
    pipeline: Pipeline = None,
    *,
    to: Annotated[str | None, typer.Option(metavar="DIR|URL", help="Make a self-contained copy of it there.")] = None,
    dispose: Annotated[int | None, typer.Option(metavar="N", help="Delete savepoint N instead.")] = None,
    warehouse: Warehouse = None,
) -> None:
    """Take a savepoint of the running tick, or of the newest checkpoint if no tick runs."""
    from jobs.cli import change_commands  # noqa: PLC0415 - imports delta-rs

    given = layer({"warehouse": warehouse})
    if dispose is None:
        change_commands.savepoint(chosen(pipeline), to, given, console(), console(stderr=True))
    elif to is None:
        change_commands.dispose_savepoint(chosen(pipeline), dispose, given, console())
    else:
        raise CommandError("--dispose deletes a savepoint, --to copies a new one: give one of them", ExitCode.USAGE)


def stop(
    pipeline: Pipeline = None,
    *,
    drain: Annotated[bool, typer.Option("--drain", help="End the sources, and emit all that waits.")] = False,
    suspend: Annotated[bool, typer.Option("--suspend", help="Keep the waiting rows in the state.")] = False,
    warehouse: Warehouse = None,
) -> None:
    """Stop the running tick with a savepoint."""
    name = chosen(pipeline)
    if drain == suspend:
        raise CommandError(
            f"say how to stop: 'tidemark stop {name} --suspend' keeps the waiting rows in the state, "
            f"'tidemark stop {name} --drain' emits them first",
            ExitCode.USAGE,
        )
    from checkpointing.messages import SavepointKind  # noqa: PLC0415 - imports pydantic
    from jobs.cli.change_commands import stop_job  # noqa: PLC0415 - imports delta-rs

    kind = SavepointKind.DRAIN if drain else SavepointKind.SUSPEND
    stop_job(name, kind, layer({"warehouse": warehouse}), console(), console(stderr=True))


def cancel(
    pipeline: Pipeline = None,
    *,
    warehouse: Warehouse = None,
    data: Data = None,
    settings: OtherSettings = None,
) -> None:
    """End the running tick at once. Its checkpoints stay, unless retain_on_cancellation is false."""
    from jobs.cli.change_commands import cancel as cancel_job  # noqa: PLC0415 - imports Spark's types

    given = layer(pairs(settings or []) | {"warehouse": warehouse, "data": data})
    cancel_job(chosen(pipeline), given, console(), console(stderr=True))


def rollback(
    pipeline: Pipeline = None,
    number: Target = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", help="To where the upstream job was rolled back.")] = False,
    leave_outside: Annotated[bool, typer.Option("--leave-outside", help="Outside sinks keep later rows.")] = False,
    dry_run: DryRun = False,
    warehouse: Warehouse = None,
    data: Data = None,
) -> ExitCode:
    """Take all tables, state and positions back to a checkpoint, in one commit."""
    from jobs.cli.change_commands import checkpoint_to_follow  # noqa: PLC0415 - imports delta-rs
    from jobs.cli.change_commands import rollback as go_back  # noqa: PLC0415 - imports delta-rs

    name, checkpoint = pipeline_and_number(pipeline, number)
    given = layer({"warehouse": warehouse, "data": data})
    if follow:
        checkpoint = checkpoint_to_follow(name, checkpoint, given)
    return go_back(name, checkpoint, given, console(), dry_run=dry_run, leave_outside=leave_outside)


def reset(
    pipeline: Pipeline = None,
    source: Annotated[str | None, typer.Argument(metavar="SOURCE", help="Which source.")] = None,
    *,
    to: To,
    split: Annotated[str | None, typer.Option(help="Only this split of the source.")] = None,
    dry_run: DryRun = False,
    warehouse: Warehouse = None,
    data: Data = None,
) -> ExitCode:
    """Move the position of one source; tables and state stay as they are."""
    name, which = pipeline_and_source(pipeline, source)
    from jobs.cli.change_commands import reset_source  # noqa: PLC0415 - imports Spark's types
    from jobs.tick.at_rest.source_reset import Reset  # noqa: PLC0415 - imports delta-rs

    given = layer({"warehouse": warehouse, "data": data})
    return reset_source(name, Reset(which, to, split), given, console(), dry_run=dry_run)


def forget(
    pipeline: Pipeline = None,
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A table with all columns of the condition.")
    ] = None,
    *,
    where: Annotated[str, typer.Option(metavar="CONDITION", help="Which rows, in Spark SQL: \"customer = 'c7'\".")],
    besides: Annotated[
        list[str] | None, typer.Option("--except", metavar="TABLE", help="Leave this table alone, repeatable.")
    ] = None,
    dry_run: DryRun = False,
    warehouse: Warehouse = None,
    spark_master: SparkMaster = None,
) -> ExitCode:
    """Erase rows from all tables, state, kept cuts and savepoints that have the columns of the condition."""
    name, which = pipeline_and_table(pipeline, table)
    from jobs.cli.change_commands import forget_rows  # noqa: PLC0415 - imports Spark
    from jobs.tick.at_rest.forget import ErasureAsked  # noqa: PLC0415 - the same

    given = layer({"warehouse": warehouse, "spark_master": spark_master})
    return forget_rows(name, ErasureAsked(which, where, tuple(besides or ())), given, console(), dry_run=dry_run)


def approve(pipeline: Pipeline = None, *, warehouse: Warehouse = None) -> ExitCode:
    """Publish the cut that waits for approval."""
    from jobs.cli.change_commands import approve_cut  # noqa: PLC0415 - imports delta-rs

    return approve_cut(chosen(pipeline), layer({"warehouse": warehouse}), console())


def reject(pipeline: Pipeline = None, *, warehouse: Warehouse = None) -> ExitCode:
    """Discard the cut that waits for approval; the next tick reads its rows again."""
    from jobs.cli.change_commands import reject_cut  # noqa: PLC0415 - imports delta-rs

    return reject_cut(chosen(pipeline), layer({"warehouse": warehouse}), console())


def cleanup(
    pipeline: Pipeline = None,
    *,
    dry_run: DryRun = False,
    reader_grace: Annotated[str | None, typer.Option(help="How long unneeded files stay for readers: 24h.")] = None,
    warehouse: Warehouse = None,
) -> ExitCode:
    """Delete files that no checkpoint, savepoint or reader needs any more."""
    from jobs.cli.read_commands import cleanup as clean_up  # noqa: PLC0415 - imports delta-rs

    given = layer({"warehouse": warehouse, "reader_grace_ms": reader_grace})
    return clean_up(chosen(pipeline), given, console(), dry_run=dry_run)


def doctor(
    pipeline: Pipeline = None,
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file: compare checksums, look for double keys.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    warehouse: Warehouse = None,
    data: Data = None,
    spark_master: SparkMaster = None,
    spark_connect: SparkConnect = None,
) -> ExitCode:
    """Check a job, and print the command that repairs each finding."""
    from jobs.cli.read_commands import doctor as examine  # noqa: PLC0415 - imports delta-rs

    given = layer(
        {"warehouse": warehouse, "data": data, "spark_master": spark_master, "spark_connect_url": spark_connect}
    )
    return examine(chosen(pipeline), given, console(), verify=verify, as_json=as_json)


def explain(pipeline: Pipeline = None, data: Data = None, parallelism: Parallelism = None) -> None:
    """Show a pipeline as vertices, channels and tables."""
    from jobs.cli.explain import explain as show  # noqa: PLC0415 - imports Spark's types

    show(chosen(pipeline), layer({"data": data, "parallelism": parallelism}), console())


def list_checkpoints(
    pipeline: Pipeline = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    warehouse: Warehouse = None,
) -> None:
    """List the retained and the failed checkpoints, and who holds the job."""
    from jobs.cli.read_commands import list_checkpoints as show  # noqa: PLC0415 - imports delta-rs

    show(chosen(pipeline), layer({"warehouse": warehouse}), console(), as_json=as_json)


def show_checkpoint(
    pipeline: Pipeline = None,
    number: Number = None,
    *,
    subtasks: Annotated[bool, typer.Option("--subtasks", help="All subtasks, not only the slowest.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, for programs.")] = False,
    warehouse: Warehouse = None,
) -> None:
    """Show the life of an epoch as a timeline, and the numbers of its subtasks."""
    from jobs.cli.read_commands import show_checkpoint as show  # noqa: PLC0415 - imports delta-rs

    name, checkpoint = pipeline_and_number(pipeline, number)
    show(name, checkpoint, layer({"warehouse": warehouse}), console(), every_subtask=subtasks, as_json=as_json)


def cut(
    pipeline: Pipeline = None,
    moment: Moment = None,
    *,
    sql: Annotated[str | None, typer.Option(metavar="spark|duckdb", help="Print statements that make views.")] = None,
    schema: Annotated[str | None, typer.Option(help="The schema of the views; by default JOB_cut.")] = None,
    dbt: Annotated[bool, typer.Option("--dbt", help="Print dbt's sources for dbt-duckdb.")] = False,
    warehouse: Warehouse = None,
) -> None:
    """Show each table's version at a cut, and how to read them all."""
    from jobs.cli.read_commands import CutQuestion, show_cut  # noqa: PLC0415 - imports delta-rs

    name, which = pipeline_and_moment(pipeline, moment)
    asked = CutQuestion(pipeline=name, moment=which, sql=sql, schema=schema, dbt=dbt)
    show_cut(asked, layer({"warehouse": warehouse}), console())


def state(
    pipeline: Pipeline = None,
    operator: Annotated[
        str | None, typer.Argument(metavar="OPERATOR", help="Without it, the operators with state are listed.")
    ] = None,
    *,
    at: Annotated[str, typer.Option(metavar="N|latest|TIMESTAMP", help="Which cut.")] = "latest",
    key: Annotated[list[str] | None, typer.Option(metavar="[COLUMN=]VALUE", help="Only this key, repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    sql: Annotated[str | None, typer.Option(metavar="spark|duckdb", help="Print a query instead of the rows.")] = None,
    warehouse: Warehouse = None,
) -> None:
    """Show an operator's state at a cut, one row per key."""
    from jobs.cli.read_commands import StateQuestion, show_state  # noqa: PLC0415 - imports delta-rs

    given = layer({"warehouse": warehouse})
    name, whose = pipeline_and_operator(pipeline, operator, given)
    asked = StateQuestion(operator=whose, pipeline=name, at=at, keys=tuple(key or ()), limit=limit, sql=sql)
    show_state(asked, given, console())
