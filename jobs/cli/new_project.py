"""`tidemark init`: writes a new project and says what to type next."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from jobs.engine_paths import typed


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that does not exist yet, or is empty.")],
    *,
    name: Annotated[str | None, typer.Option(help="The project's name.  [default: the folder's]")] = None,
    tidemark: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|REQUIREMENT",
            help="What the project depends on: a checkout, a wheel, or a requirement.  [default: where this "
            "Tidemark was installed from]",
        ),
    ] = None,
) -> None:
    """Write a small new project: a pipeline, its Dagster definitions and its tests."""
    from rich.console import Console, Group  # noqa: PLC0415 - not needed for --help
    from rich.text import Text  # noqa: PLC0415 - the same

    from jobs.init.project import create_project  # noqa: PLC0415 - imports pydantic

    made = create_project(folder, name, tidemark)
    Console(file=sys.stdout, highlight=False).print(
        Group(
            Text.assemble(
                ("project ", "bold"), (made.name, "bold"), f" in {made.folder}: it depends on {made.tidemark}"
            ),
            *(Text(f"  {file}") for file in made.files),
            Text(f"go on with: cd {typed(folder)} && make run"),
            Text("and then:   make test"),
        ),
        soft_wrap=True,
    )
