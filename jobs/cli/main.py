"""The entry point: registers all commands and turns errors into messages. Each command imports what it needs.

`--debug` can stand anywhere. It shows an error with its traceback.
"""

import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from jobs.cli import commands
from jobs.cli.errors import CommandError, ExitCode, code_of, own_code_of, sentence_of, story_of
from jobs.cli.options import printable, standard_streams
from jobs.credentials import without_credentials
from jobs.engine_paths import typed
from jobs.suggestions import nearest
from jobs.tick.interrupts import Deadline

# ------------------------------------------------------------------
# `tidemark init`: writes a new project and says what to type next.


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
    """Return the argument by which `make` uses this process's environment, or an empty text if it needs no argument."""
    own = Path(sys.prefix).resolve()
    active = os.environ.get("VIRTUAL_ENV")
    is_own = sys.prefix != sys.base_prefix and find_spec("dagster") is not None
    return f" ENV={typed(own)}" if is_own and (active is None or Path(active).resolve() != own) else ""


DEBUG: Final = "--debug"
_COMMANDS: Final[tuple[Callable[..., ExitCode | None], ...]] = (
    init,
    commands.run,
    commands.package,
    commands.savepoint,
    commands.stop,
    commands.cancel,
    commands.approve,
    commands.reject,
    commands.cleanup,
    commands.doctor,
    commands.rollback,
    commands.reset,
    commands.forget,
    commands.explain,
    commands.cut,
    commands.state,
)
_NAMES: Final = (*(command.__name__ for command in _COMMANDS), "checkpoints list", "checkpoints show")
_POSSIBLE: Final = re.compile(r"(?P<typed>-\S+) \(Possible options: (?P<options>[^)]*)\)")
_HELP: Final = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=_HELP)
checkpoints_app = typer.Typer(rich_markup_mode=None, help="List the retained checkpoints, or show the life of one.")
app.add_typer(checkpoints_app, name="checkpoints")
checkpoints_app.command("list")(commands.list_checkpoints)
checkpoints_app.command("show")(commands.show_checkpoint)
for _command in _COMMANDS:
    app.command()(_command)


def _version(asked: bool) -> None:
    if asked:
        from jobs.distribution import DISTRIBUTION, installed_version  # noqa: PLC0415 - not needed for a command

        typer.echo(f"tidemark {installed_version() or 'of a checkout'} ({DISTRIBUTION})")
        raise typer.Exit


@app.callback()
def tidemark(
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Run pipelines on Spark and Delta, one consistent cut at a time.

    Exit codes: 0 done; 1 failed; 2 wrong command, argument or setting, nothing was started; 3 another tick holds the
    job; 4 the pipeline, checkpoint, table, operator, source or job does not exist.
    """
    del debug, version


def main() -> None:
    """Run the command line of this process and exit. A closed stdout changes nothing."""
    out, _ = standard_streams()
    deadline = Deadline(_say)
    code = execute(sys.argv[1:])
    out.flush()
    if code is ExitCode.DONE and out.error is not None and not isinstance(out.error, BrokenPipeError):
        _say(
            f"stdout could not be written ({out.error.strerror}), so a part of the report is lost; what was "
            "committed stays"
        )
        code = ExitCode.FAILED
    deadline.done(code)
    sys.exit(code)


def execute(arguments: Sequence[str]) -> ExitCode:
    """Run one command line. An error becomes a sentence on stderr and an exit code."""
    typed = [word for word in arguments if word != DEBUG]
    try:
        return _execute(typed or ["--help"])
    except KeyboardInterrupt:
        _say("interrupted; what was committed stays, and the next tick goes on from there")
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - the last resort before a user
        _complain(error, debug=DEBUG in arguments)
        return code_of(error)


def _execute(typed: Sequence[str]) -> ExitCode:
    try:
        result = typer.main.get_command(app).main(args=list(typed), prog_name="tidemark", standalone_mode=False)
    except typer.TyperException as error:
        raise CommandError(_usage(error.format_message(), typed), ExitCode.USAGE) from error
    return result if isinstance(result, ExitCode) else ExitCode.DONE


def _usage(message: str, typed: Sequence[str]) -> str:
    """Return the message for a wrong command line, with what to type instead."""
    said = message.strip().rstrip(".?")
    said = said[0].lower() + said[1:].replace(". Did you mean", ": did you mean")
    said = _POSSIBLE.sub(_nearest_option, said)
    if said.startswith("no such command") and "did you mean" not in said:
        return f"{said}: there are {', '.join(_NAMES)}"
    if "did you mean" in said:
        return f"{said}?"
    words = [word for word in typed if word in " ".join(_NAMES).split()]
    return f"{said}: 'tidemark {' '.join([*words, '--help'])}' shows what can be given"


def _nearest_option(found: re.Match[str]) -> str:
    """Return the option that looks most like the typed one, compared without dashes."""
    proposed = {option.lstrip("-"): option for option in found["options"].split(", ")}
    near = nearest(found["typed"].lstrip("-"), proposed)
    return found["typed"] if near is None else f"{found['typed']}: did you mean {proposed[near]}"


def _complain(error: Exception, *, debug: bool) -> None:
    if debug:
        import traceback  # noqa: PLC0415 - only here

        typer.echo(printable(without_credentials("".join(traceback.format_exception(error)))), err=True)
        typer.echo(printable(without_credentials(story_of(error))), err=True)
        _say(sentence_of(error))
        return
    _say(sentence_of(error))
    for line in own_code_of(error):
        typer.echo(printable(line), err=True)


def _say(sentence: str) -> None:
    typer.echo(printable(f"tidemark: {without_credentials(sentence)}"), err=True)
