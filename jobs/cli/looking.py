"""The arguments and options of the commands that look at a job, and of `cleanup`. Imports nothing heavy."""

from typing import Annotated

import typer

from jobs.cli.errors import ExitCode
from jobs.cli.naming import chosen, pipeline_and_moment, pipeline_and_number, pipeline_and_operator
from jobs.cli.options import Data, Moment, Number, Parallelism, Pipeline, Warehouse, console, layer


def cleanup(
    pipeline: Pipeline = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    reader_grace: Annotated[str | None, typer.Option(help="How long unneeded files stay for readers: 24h.")] = None,
    warehouse: Warehouse = None,
) -> ExitCode:
    """Delete files that no checkpoint, savepoint or reader needs any more."""
    from jobs.cli.cleanup import cleanup as clean_up  # noqa: PLC0415 - imports delta-rs

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
) -> ExitCode:
    """Check a job, and print the command that repairs each finding."""
    from jobs.cli.doctor import doctor as examine  # noqa: PLC0415 - imports delta-rs

    given = layer({"warehouse": warehouse, "data": data})
    return examine(chosen(pipeline), given, console(), verify=verify, as_json=as_json)


def explain(pipeline: Pipeline = None, data: Data = None, parallelism: Parallelism = None) -> None:
    """Show a pipeline as vertices, channels and tables."""
    from jobs.cli.explain import explain as show  # noqa: PLC0415 - imports Spark's types

    show(chosen(pipeline), layer({"data": data, "parallelism": parallelism}), console())


def list_checkpoints(pipeline: Pipeline = None, warehouse: Warehouse = None) -> None:
    """List the retained checkpoints, and who holds the job."""
    from jobs.cli.reports import list_checkpoints as show  # noqa: PLC0415 - imports delta-rs

    show(chosen(pipeline), layer({"warehouse": warehouse}), console())


def show_checkpoint(
    pipeline: Pipeline = None,
    number: Number = None,
    *,
    subtasks: Annotated[bool, typer.Option("--subtasks", help="All subtasks, not only the slowest.")] = False,
    warehouse: Warehouse = None,
) -> None:
    """Show the life of an epoch as a timeline, and the numbers of its subtasks."""
    from jobs.cli.reports import show_checkpoint as show  # noqa: PLC0415 - imports delta-rs

    name, checkpoint = pipeline_and_number(pipeline, number)
    show(name, checkpoint, layer({"warehouse": warehouse}), console(), every_subtask=subtasks)


def cut(pipeline: Pipeline = None, moment: Moment = None, warehouse: Warehouse = None) -> None:
    """Show each table's version at a cut, and how to read them all."""
    from jobs.cli.cut import show_cut as show  # noqa: PLC0415 - imports delta-rs

    show(*pipeline_and_moment(pipeline, moment), layer({"warehouse": warehouse}), console())


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
    from jobs.cli.state import StateQuestion, show_state  # noqa: PLC0415 - imports delta-rs

    given = layer({"warehouse": warehouse})
    name, whose = pipeline_and_operator(pipeline, operator, given)
    asked = StateQuestion(operator=whose, pipeline=name, at=at, keys=tuple(key or ()), limit=limit, sql=sql)
    show_state(asked, given, console())
