"""The commands that take a job back: `tidemark rollback` and `tidemark reset`, as they are typed; nothing heavy."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from jobs.cli.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.settings import Layer

NAMES: Final = ("rollback", "reset")

Number = Annotated[str | None, typer.Argument(metavar="[N]", help="A checkpoint or savepoint id.")]
Warehouse = Annotated[Path | None, typer.Option(help="The folder of the tables.  [default: warehouse]")]
Data = Annotated[Path | None, typer.Option(help="The folder of the input.  [default: data]")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and change nothing.")]
To = Annotated[str, typer.Option(metavar="POSITION", help="start, end, FILE:ROWS, or a number.")]


def register(
    app: typer.Typer,
    default: str,
    layer: Callable[[dict[str, object]], "Layer"],
    console: Callable[[], "Console"],
    name_and_number: Callable[[str, str | None], tuple[str, int | None]],
) -> None:
    """Add the commands; `default` is the pipeline that needs no name, the rest is how every command reads its words."""

    @app.command()
    def rollback(
        pipeline: Annotated[str, typer.Argument(metavar="[PIPELINE]", help="A pipeline's name.")] = default,
        number: Number = None,
        *,
        dry_run: DryRun = False,
        warehouse: Warehouse = None,
    ) -> ExitCode:
        """Take all tables, state and positions back to a checkpoint, in one step."""
        from jobs.cli.rollback import rollback as go_back  # noqa: PLC0415 - imports delta-rs

        name, checkpoint = name_and_number(pipeline, number)
        return go_back(name, checkpoint, layer({"warehouse": warehouse}), console(), dry_run=dry_run)

    @app.command()
    def reset(
        source: Annotated[str, typer.Argument(help="Which source.")],
        *,
        to: To,
        split: Annotated[str | None, typer.Option(help="Only this split of it.")] = None,
        pipeline: Annotated[str, typer.Option(help="A pipeline's name.")] = default,
        dry_run: DryRun = False,
        warehouse: Warehouse = None,
        data: Data = None,
    ) -> ExitCode:
        """Read one source from another position on; tables and state stay."""
        from jobs.cli.reset import ResetAsked, reset_source  # noqa: PLC0415 - imports Spark's types

        asked = ResetAsked(pipeline, source, to, split, dry_run)
        return reset_source(asked, layer({"warehouse": warehouse, "data": data}), console())
