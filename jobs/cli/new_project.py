"""`tidemark init`: writes a new project and says what to type next."""

import os
import sys
from importlib.util import find_spec
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
            help="What the project depends on: a checkout, a wheel, or a requirement.  [default: this Tidemark, as a "
            "wheel in the project]",
        ),
    ] = None,
) -> None:
    """Write a small new project: a pipeline, its Dagster definitions and its tests."""
    from rich.console import Console, Group  # noqa: PLC0415 - not needed for --help
    from rich.text import Text  # noqa: PLC0415 - the same

    from jobs.init.project import create_project  # noqa: PLC0415 - imports pydantic

    made = create_project(folder, name, tidemark)
    reused = _this_environment()
    Console(file=sys.stdout, highlight=False, markup=False, emoji=False).print(
        Group(
            Text.assemble(
                ("project ", "bold"), (made.name, "bold"), f" in {made.folder}: it depends on {made.tidemark}"
            ),
            *(Text(f"  {file}") for file in made.files),
            Text(f"go on with: cd {typed(folder)} && make run{reused}"),
            Text(f"and then:   make test{reused}"),
        ),
        soft_wrap=True,
    )


def _this_environment() -> str:
    """Return the word with which `make` uses the environment of this process; empty if it does so without."""
    own = Path(sys.prefix).resolve()
    active = os.environ.get("VIRTUAL_ENV")
    is_own = sys.prefix != sys.base_prefix and find_spec("dagster") is not None
    return f" ENV={typed(own)}" if is_own and (active is None or Path(active).resolve() != own) else ""
