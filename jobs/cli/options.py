"""The arguments and options that several commands share, and how a command reads them.

Every command imports this module, so it imports nothing heavy.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO, cast

import typer

from jobs.cli.errors import CommandError, ExitCode
from jobs.cli.naming import completed
from jobs.cli.streams import LastingStream, printable

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.settings import Layer

_LOG_WIDTH: Final = 120
"""The width of the output if it is not a terminal."""
_PIPELINE: Final = "A registered name, or module:attribute.  [default: the project's]"


def named_place(text: str) -> str:
    """Return an address, a path or a URL; refuse an empty one. The settings judge a URL."""
    if not text.strip():
        raise typer.BadParameter("'' names no folder; '.' is the current one")
    return text if "://" in text else str(Path(text))


Pipeline = Annotated[str | None, typer.Argument(metavar="PIPELINE", help=_PIPELINE, autocompletion=completed)]
Moment = Annotated[
    str | None, typer.Argument(metavar="N|latest|pending|TIMESTAMP", help="Which cut; default: the newest.")
]
Number = Annotated[str | None, typer.Argument(metavar="N", help="A checkpoint id; without it the newest.")]
Warehouse = Annotated[
    str | None,
    typer.Option(
        parser=named_place, metavar="PATH|URL", help="The folder or s3:// of the tables.  [default: the project's]"
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        parser=named_place, metavar="PATH|URL", help="The folder or s3:// of the input.  [default: the project's]"
    ),
]
OtherSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, repeatable.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and change nothing.")]
Parallelism = Annotated[int | None, typer.Option(help="Subtasks of each keyed vertex.")]


def pairs(settings: Sequence[str]) -> dict[str, object]:
    """Return NAME=VALUE texts as a dictionary; raise CommandError for one without an equals sign."""
    for text in settings:
        if "=" not in text:
            raise CommandError(f"--set {text}: write it as NAME=VALUE, like --set retained=5", ExitCode.USAGE)
    return {name: value for name, _, value in (text.partition("=") for text in settings)}


def layer(values: dict[str, object]) -> "Layer":
    """Return what the command line sets; None means that an option was not given."""
    from jobs.settings import flags_layer  # noqa: PLC0415 - imports pydantic

    return flags_layer(values)


def console(*, stderr: bool = False) -> "Console":
    """Return a console on stdout or stderr. While the JVM starts, it still writes to the user's stderr.

    It prints names as they are: no markup counts in them, and no control character reaches the terminal.
    """
    from rich.console import Console, ConsoleOptions, RenderableType  # noqa: PLC0415 - not needed for --help
    from rich.segment import Segment  # noqa: PLC0415 - the same

    class Plain(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for text, style, control in super().render(renderable, options):
                yield Segment(text if control else printable(text), style, control)

    found = Plain(file=_lasting_stderr() if stderr else sys.stdout, highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = _LOG_WIDTH
    return found


def _lasting_stderr() -> TextIO:
    """Return stderr with a new descriptor, since descriptor 2 leads to Spark's log while the JVM starts."""
    try:
        return cast("TextIO", LastingStream(os.fdopen(os.dup(sys.stderr.fileno()), "w")))
    except io.UnsupportedOperation:
        return sys.stderr
