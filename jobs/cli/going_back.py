"""The arguments and options of `tidemark rollback` and `tidemark reset`. Imports nothing heavy."""

from typing import Annotated

import typer

from jobs.cli.errors import ExitCode
from jobs.cli.naming import pipeline_and_number, pipeline_and_source
from jobs.cli.options import Data, DryRun, Pipeline, Warehouse, console, layer

Number = Annotated[str | None, typer.Argument(metavar="N", help="A checkpoint or savepoint id.")]
To = Annotated[str, typer.Option(metavar="POSITION", help="start, end, FILE:ROWS, or a number.")]


def rollback(
    pipeline: Pipeline = None,
    number: Number = None,
    *,
    dry_run: DryRun = False,
    warehouse: Warehouse = None,
) -> ExitCode:
    """Take all tables, state and positions back to a checkpoint, in one commit."""
    from jobs.cli.rollback import rollback as go_back  # noqa: PLC0415 - imports delta-rs

    name, checkpoint = pipeline_and_number(pipeline, number)
    return go_back(name, checkpoint, layer({"warehouse": warehouse}), console(), dry_run=dry_run)


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
    from jobs.cli.reset import ResetAsked, reset_source  # noqa: PLC0415 - imports Spark's types

    asked = ResetAsked(name, which, to, split, dry_run)
    return reset_source(asked, layer({"warehouse": warehouse, "data": data}), console())
