"""The entry point: commands and their options, nothing heavy; each command imports what it needs.

`--debug` may stand anywhere: then an error is shown with its traceback.
"""

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from jobs.cli import going_back
from jobs.cli.errors import CommandError, ExitCode, own_code_of, sentence_of, story_of
from jobs.cli.new_project import init

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.settings import Layer

DEBUG: Final = "--debug"
DEFAULT_PIPELINE: Final = "flights"
_COMMANDS: Final = (
    "init",
    "run",
    "savepoint",
    "stop",
    "cancel",
    "cleanup",
    "doctor",
    *going_back.NAMES,
    "explain",
    "checkpoints list",
    "checkpoints show",
    "cut",
    "state",
)
_LOG_WIDTH: Final = 120
"""Columns where no terminal says how many there are."""

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
checkpoints_app = typer.Typer(rich_markup_mode=None, help="The retained checkpoints of a pipeline.")
app.add_typer(checkpoints_app, name="checkpoints")
app.command()(init)

Pipeline = Annotated[str, typer.Argument(help="A pipeline's name, or module:attribute of your own.")]
PipelineOrNumber = Annotated[str, typer.Argument(metavar="[PIPELINE]", help="A pipeline's name.")]
Moment = Annotated[str | None, typer.Argument(metavar="[N|latest|TIMESTAMP]", help="Which cut; default: the newest.")]
Number = Annotated[str | None, typer.Argument(metavar="[N]", help="A checkpoint id; without it the newest.")]
Warehouse = Annotated[Path | None, typer.Option(help="The folder of the tables.  [default: warehouse]")]
Data = Annotated[Path | None, typer.Option(help="The folder of the input.  [default: data]")]
UntilCaughtUp = Annotated[
    bool | None, typer.Option("--until-caught-up/--keep-waiting", help="End when caught up, or wait for more.")
]
OtherSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, repeatable.")
]
FromRow = Annotated[
    str | None,
    typer.Option("--from", metavar="N|DIR|DIR@N", help="Begin from a checkpoint, a savepoint's folder, a warehouse."),
]
Claim = Annotated[
    bool | None, typer.Option("--claim/--no-claim", help="Use the savepoint's folder up, or copy its files.")
]
LeaveState = Annotated[
    bool | None, typer.Option("--allow-non-restored-state", help="Leave behind what the pipeline no longer has.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would do, and change nothing.")]
Parallelism = Annotated[int | None, typer.Option(help="Subtasks of each keyed vertex.")]


@app.callback()
def tidemark(
    debug: Annotated[bool, typer.Option(DEBUG, help="Show the traceback of an error.")] = False,
) -> None:
    """Run pipelines on Spark and Delta, one consistent cut at a time."""
    del debug


@app.command()
def run(  # noqa: PLR0913 - an option each
    pipeline: Pipeline = DEFAULT_PIPELINE,
    *,
    checkpoints: Annotated[int | None, typer.Option(help="End after this many checkpoints.")] = None,
    duration: Annotated[str | None, typer.Option("--for", help="End after this time: 30s, 5m, 2h.")] = None,
    until_caught_up: UntilCaughtUp = None,
    every_rows: Annotated[int | None, typer.Option(help="A checkpoint every so many rows.")] = None,
    interval: Annotated[str | None, typer.Option(help="A checkpoint every so often: 10s.")] = None,
    mode: Annotated[str | None, typer.Option(help="exactly_once or at_least_once.")] = None,
    unaligned: Annotated[bool | None, typer.Option(help="Let barriers overtake records.")] = None,
    retained: Annotated[int | None, typer.Option(help="Completed checkpoints to keep.")] = None,
    take_over: Annotated[bool | None, typer.Option("--take-over", help="Take the job from whoever holds it.")] = None,
    from_: FromRow = None,
    claim: Claim = None,
    allow_non_restored_state: LeaveState = None,
    dry_run: DryRun = False,
    warehouse: Warehouse = None,
    data: Data = None,
    parallelism: Parallelism = None,
    spark_master: Annotated[str | None, typer.Option(help="local[2] or spark://host:port.")] = None,
    spark_cores: Annotated[int | None, typer.Option(help="Cores of a local Spark.")] = None,
    spark_memory: Annotated[str | None, typer.Option(help="Heap of a Spark that is started: 2g.")] = None,
    spark_connect: Annotated[str | None, typer.Option(help="A running Connect server: sc://host:port.")] = None,
    settings: OtherSettings = None,
) -> ExitCode:
    """Run one tick of a pipeline."""
    flags: dict[str, object] = {
        "checkpoints": checkpoints,
        "duration_ms": duration,
        "until_caught_up": until_caught_up,
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
    }
    given = _layer(_pairs(settings or []) | {name: value for name, value in flags.items() if value is not None})
    from jobs.cli.restore import Restoring  # noqa: PLC0415 - imports Spark's types
    from jobs.cli.run import run as run_tick  # noqa: PLC0415 - imports Spark

    return run_tick(pipeline, given, _console(), _console(stderr=True), Restoring(from_, claim, dry_run))


@app.command()
def savepoint(
    pipeline: Pipeline = DEFAULT_PIPELINE,
    *,
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Make a self-contained copy of it there.")] = None,
    dispose: Annotated[int | None, typer.Option(metavar="N", help="Delete savepoint N instead.")] = None,
    warehouse: Warehouse = None,
) -> None:
    """Take a savepoint: a running tick is asked for it, a job at rest needs none."""
    from jobs.cli import savepoints  # noqa: PLC0415 - imports delta-rs

    given = _layer({"warehouse": warehouse})
    if dispose is None:
        savepoints.savepoint(pipeline, to, given, _console(), _console(stderr=True))
    elif to is None:
        savepoints.dispose_savepoint(pipeline, dispose, given, _console())
    else:
        raise CommandError("--dispose deletes a savepoint, --to copies a new one: give one of them", ExitCode.USAGE)


@app.command()
def stop(
    pipeline: Pipeline = DEFAULT_PIPELINE,
    *,
    drain: Annotated[bool, typer.Option("--drain", help="End the input first: what still waits is put out.")] = False,
    suspend: Annotated[bool, typer.Option("--suspend", help="Keep what waits in the state.")] = False,
    warehouse: Warehouse = None,
) -> None:
    """Stop the running tick with a savepoint."""
    if drain == suspend:
        raise CommandError(
            f"say how to stop: 'tidemark stop {pipeline} --suspend' keeps in the state what waits, "
            f"'tidemark stop {pipeline} --drain' puts it out first",
            ExitCode.USAGE,
        )
    from checkpointing.messages import SavepointKind  # noqa: PLC0415 - imports pydantic
    from jobs.cli.savepoints import stop_job  # noqa: PLC0415 - imports delta-rs

    kind = SavepointKind.DRAIN if drain else SavepointKind.SUSPEND
    stop_job(pipeline, kind, _layer({"warehouse": warehouse}), _console(), _console(stderr=True))


@app.command()
def cancel(
    pipeline: Pipeline = DEFAULT_PIPELINE,
    *,
    warehouse: Warehouse = None,
    data: Data = None,
    settings: OtherSettings = None,
) -> None:
    """End the running tick now; its checkpoints stay, or go if the pipeline says so."""
    from jobs.cli.cancel import cancel as cancel_job  # noqa: PLC0415 - imports Spark's types

    given = _layer(_pairs(settings or []) | {"warehouse": warehouse, "data": data})
    cancel_job(pipeline, given, _console(), _console(stderr=True))


@app.command()
def cleanup(
    pipeline: Pipeline = DEFAULT_PIPELINE,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    reader_grace: Annotated[str | None, typer.Option(help="How long unneeded files stay for readers: 24h.")] = None,
    warehouse: Warehouse = None,
) -> ExitCode:
    """Delete what no checkpoint, savepoint or reader needs any more."""
    from jobs.cli.cleanup import cleanup as clean_up  # noqa: PLC0415 - imports delta-rs

    given = _layer({"warehouse": warehouse, "reader_grace_ms": reader_grace})
    return clean_up(pipeline, given, _console(), dry_run=dry_run)


@app.command()
def doctor(
    pipeline: Pipeline = DEFAULT_PIPELINE,
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file: compare checksums, look for double keys.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of the page.")] = False,
    warehouse: Warehouse = None,
    data: Data = None,
) -> ExitCode:
    """Say whether a job is healthy, and what mends what is not."""
    from jobs.cli.doctor import doctor as examine  # noqa: PLC0415 - imports delta-rs

    given = _layer({"warehouse": warehouse, "data": data})
    return examine(pipeline, given, _console(), verify=verify, as_json=as_json)


@app.command()
def explain(pipeline: Pipeline = DEFAULT_PIPELINE, data: Data = None, parallelism: Parallelism = None) -> None:
    """Show a pipeline as vertices, channels and tables."""
    from jobs.cli.explain import explain as show  # noqa: PLC0415 - imports Spark's types

    show(pipeline, _layer({"data": data, "parallelism": parallelism}), _console())


@checkpoints_app.command("list")
def list_checkpoints(pipeline: Pipeline = DEFAULT_PIPELINE, warehouse: Warehouse = None) -> None:
    """List the retained checkpoints, and who holds the job."""
    from jobs.cli.reports import list_checkpoints as show  # noqa: PLC0415 - imports delta-rs

    show(pipeline, _layer({"warehouse": warehouse}), _console())


@checkpoints_app.command("show")
def show_checkpoint(
    pipeline: PipelineOrNumber = DEFAULT_PIPELINE, number: Number = None, warehouse: Warehouse = None
) -> None:
    """Show an epoch's life as a timeline."""
    from jobs.cli.reports import show_checkpoint as show  # noqa: PLC0415 - imports delta-rs

    name, checkpoint = _name_and_number(pipeline, number)
    show(name, checkpoint, _layer({"warehouse": warehouse}), _console())


@app.command()
def cut(pipeline: PipelineOrNumber = DEFAULT_PIPELINE, moment: Moment = None, warehouse: Warehouse = None) -> None:
    """Show each table's version at a cut, and how to read them all."""
    from jobs.cli.cut import show_cut as show  # noqa: PLC0415 - imports delta-rs

    show((pipeline, moment), DEFAULT_PIPELINE, _layer({"warehouse": warehouse}), _console())


@app.command()
def state(
    operator: Annotated[str | None, typer.Argument(help="Whose state; without it those that have one.")] = None,
    *,
    pipeline: Annotated[str, typer.Option(help="A pipeline's name.")] = DEFAULT_PIPELINE,
    at: Annotated[str, typer.Option(metavar="N|latest|TIMESTAMP", help="Which cut.")] = "latest",
    key: Annotated[list[str] | None, typer.Option(metavar="[COLUMN=]VALUE", help="Only this key, repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    sql: Annotated[str | None, typer.Option(metavar="spark|duckdb", help="Print the query instead.")] = None,
    warehouse: Warehouse = None,
) -> None:
    """Show an operator's state at a cut, one row per key."""
    from jobs.cli.state import StateQuestion, show_state  # noqa: PLC0415 - imports delta-rs

    asked = StateQuestion(operator=operator, pipeline=pipeline, at=at, keys=tuple(key or ()), limit=limit, sql=sql)
    show_state(asked, _layer({"warehouse": warehouse}), _console())


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> ExitCode:
    """Run one command line; whatever goes wrong becomes a sentence on stderr and an exit code."""
    typed = [word for word in arguments if word != DEBUG]
    try:
        return _execute(typed or ["--help"])
    except CommandError as error:
        _complain(error, debug=DEBUG in arguments)
        return error.code
    except KeyboardInterrupt:
        _say("interrupted; what was committed stays, and the next tick goes on from there")
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - the last resort before a user
        _complain(error, debug=DEBUG in arguments)
        return ExitCode.FAILED


def _execute(typed: Sequence[str]) -> ExitCode:
    try:
        result = typer.main.get_command(app).main(args=list(typed), prog_name="tidemark", standalone_mode=False)
    except typer.TyperException as error:
        raise CommandError(_usage(error.format_message(), typed), ExitCode.USAGE) from error
    return result if isinstance(result, ExitCode) else ExitCode.DONE


def _usage(message: str, typed: Sequence[str]) -> str:
    """Return what is wrong with the words typed, and what to type instead."""
    said = message.strip().rstrip(".?")
    said = said[0].lower() + said[1:].replace(". Did you mean", ": did you mean")
    if said.startswith("no such command") and "did you mean" not in said:
        return f"{said}: there are {', '.join(_COMMANDS)}"
    if "did you mean" in said:
        return f"{said}?"
    words = [word for word in typed if word in " ".join(_COMMANDS).split()]
    return f"{said}: 'tidemark {' '.join([*words, '--help'])}' shows what can be given"


def _name_and_number(first: str, second: str | None) -> tuple[str, int | None]:
    """Let the pipeline be left out: `show 7` is `show flights 7`."""
    if second is None and first.isdigit():
        return DEFAULT_PIPELINE, int(first)
    if second is not None and not second.isdigit():
        raise CommandError(f"checkpoint {second!r} is not a number: write a checkpoint id, like 7", ExitCode.USAGE)
    return first, None if second is None else int(second)


def _pairs(settings: Sequence[str]) -> dict[str, object]:
    for text in settings:
        if "=" not in text:
            raise CommandError(f"--set {text}: write it as NAME=VALUE, like --set retained=5", ExitCode.USAGE)
    return {name: value for name, _, value in (text.partition("=") for text in settings)}


def _layer(values: dict[str, object]) -> "Layer":
    from jobs.settings import flags_layer  # noqa: PLC0415 - imports pydantic

    return flags_layer(values)


def _console(*, stderr: bool = False) -> "Console":
    from rich.console import Console  # noqa: PLC0415 - not needed for --help

    file = _lasting_stderr() if stderr else sys.stdout
    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _LOG_WIDTH
    return console


def _lasting_stderr() -> TextIO:
    """Return stderr by a descriptor of its own: while the JVM starts, descriptor 2 leads to Spark's log."""
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w")
    except io.UnsupportedOperation:
        return sys.stderr


def _complain(error: Exception, *, debug: bool) -> None:
    if debug:
        import traceback  # noqa: PLC0415 - only here

        traceback.print_exception(error)
        typer.echo(story_of(error), err=True)
        _say(sentence_of(error))
        return
    _say(sentence_of(error))
    for line in own_code_of(error):
        typer.echo(line, err=True)


def _say(sentence: str) -> None:
    typer.echo(f"tidemark: {sentence}", err=True)


going_back.register(app, DEFAULT_PIPELINE, _layer, _console, _name_and_number)
