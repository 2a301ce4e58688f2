"""The arguments and options that several commands share, and how a command reads them.

Every command imports this module, so it imports nothing heavy.
"""

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO, cast

import typer

from jobs.cli.errors import CommandError, ExitCode
from jobs.cli.naming import completed

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.settings import Layer


# ------------------------------------------------------------------
# Lets a command finish even if stdout or stderr is closed or full.
#
# Output that can no longer be written is dropped.


_STANDARD: Final = (0, 1, 2)
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Return a text without control characters other than tabs and the ends of lines.

    Names of tables, columns and files come from data. A terminal would obey the control characters in them.
    """
    return _CONTROLS.sub("?", text)


class LastingStream:
    """A text stream that drops what it cannot write; `error` is the first failure. It delegates everything else."""

    def __init__(self, stream: TextIO) -> None:
        """Wrap this stream."""
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        if self.error is None:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._lost(error)
        return len(text)

    def flush(self) -> None:
        """Flush the buffer, or drop it."""
        if self.error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._lost(error)

    def __getattr__(self, name: str) -> object:
        """Return the stream's own attribute."""
        return getattr(self._stream, name)

    def _lost(self, error: OSError) -> None:
        """Redirect the stream to nothing, so that the last flush of the process succeeds."""
        self.error = error
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self._stream.fileno())
        os.close(nothing)


def standard_streams() -> tuple[LastingStream, LastingStream]:
    """Return stdout and stderr as lasting streams, and make them the process's.

    A closed descriptor is first opened on /dev/null, so that no file that the tick opens gets the number of that
    descriptor. The streams have descriptors of their own, because descriptors 1 and 2 lead to Spark's log while the JVM
    starts.
    """
    for descriptor in _STANDARD:
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    out, err = (LastingStream(_own(number, stream)) for number, stream in ((1, sys.stdout), (2, sys.stderr)))
    sys.stdout, sys.stderr = out, err
    return out, err


def _own(number: int, stream: TextIO | None) -> TextIO:
    """Return a stream that writes to the target of this descriptor, with the encoding of the given stream."""
    if stream is None:
        return os.fdopen(os.dup(number), "w")
    stream.flush()
    return os.fdopen(os.dup(number), "w", buffering=1, encoding=stream.encoding, errors=stream.errors)


_LOG_WIDTH: Final = 120
"""The width of the output if it is not a terminal."""
_PIPELINE: Final = "A registered name, or module:attribute.  [default: the project's]"


def named_place(text: str) -> str:
    """Return an address, which is a path or a URL. Refuse an empty one. The settings check a URL."""
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
        parser=named_place, metavar="PATH|URL", help="The folder or URL of the tables.  [default: the project's]"
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        parser=named_place, metavar="PATH|URL", help="The folder or URL of the input.  [default: the project's]"
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
    """Return the settings that the command line gives. A value of None means that the option was not given."""
    from jobs.settings import flags_layer  # noqa: PLC0415 - imports pydantic

    return flags_layer(values)


def console(*, stderr: bool = False) -> "Console":
    """Return a console on stdout or stderr. A console on stderr reaches the user even while the JVM starts.

    The console prints names as they are, without interpreting markup in them. It lets no control character through.
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
