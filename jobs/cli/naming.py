"""Finds the pipeline that a command is about, in the same way for all commands.

The pipeline is the first argument of each command: a registered name, or `module:attribute`. Without this argument, the
project's default is used. Nothing heavy is imported until a module must be loaded.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from jobs.cli.errors import CommandError, ExitCode
from jobs.project import OWN, here, known_pipelines, unknown_pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkpointing.identifiers import TableName, VertexId
    from jobs.settings import Layer
    from jobs.sinks.port import TableSink
    from jobs.sources.port import Source
    from jobs.sources.position_words import PositionWords
    from jobs.storage.address import Root
    from jobs.warehouse.warehouse import Warehouse as StoredWarehouse


def chosen(typed: str | None) -> str:
    """Return the typed pipeline, else the project's default.

    Raises CommandError if there is no default; the message says how to name one.
    """
    if typed is not None:
        return typed
    project = here()
    if project is None:
        raise CommandError(
            "say which pipeline: no pyproject.toml here or above names a default one. The demo is "
            f"{next(iter(OWN))!r}; your own is its registered name, or module:attribute",
            ExitCode.USAGE,
        )
    if project.default is not None:
        return project.default
    if not project.pipelines:
        raise CommandError(
            f"say which pipeline: {project.file} registers none. Write it as module:attribute, or register it: "
            '[tool.tidemark.pipelines] shop = "shop.pipeline:build"',
            ExitCode.USAGE,
        )
    raise CommandError(
        f"say which pipeline: {project.file} registers {', '.join(project.pipelines)}, and none as the default "
        f'([tool.tidemark] default = "{next(iter(project.pipelines))}")',
        ExitCode.USAGE,
    )


def pipeline_and_number(first: str | None, second: str | None) -> tuple[str, int | None]:
    """Parse `[PIPELINE] [N]`. A single word that is a number is N."""
    pipeline, number = (None, first) if second is None and first is not None and first.isdigit() else (first, second)
    if number is not None and not number.isdigit():
        raise CommandError(f"checkpoint {number!r} is not a number: write a checkpoint id, like 7", ExitCode.USAGE)
    return chosen(pipeline), None if number is None else int(number)


def pipeline_and_operator(first: str | None, second: str | None, given: "Layer") -> tuple[str, str | None]:
    """Parse `[PIPELINE] [OPERATOR]`. A single word is a pipeline if one has that name, else an operator."""
    if second is not None or first is None:
        return chosen(first), second
    if ":" in first or first in known_pipelines(here()) or first in ran_in(warehouse_folder(given)):
        return first, None
    return chosen(None), first


def pipeline_and_moment(first: str | None, second: str | None) -> tuple[str, str]:
    """Parse `[PIPELINE] [N|latest|pending|TIMESTAMP]`. A single word that can only name a cut names a cut."""
    from jobs.reading.moments import LATEST, is_moment  # noqa: PLC0415 - imports delta-rs

    if second is None and first is not None and is_moment(first):
        return chosen(None), first
    return chosen(first), second or LATEST


def pipeline_and_source(first: str | None, second: str | None) -> tuple[str, str]:
    """Parse `[PIPELINE] SOURCE`. A single word is a source of the default pipeline."""
    if first is None:
        raise CommandError(
            "say which source, as in 'tidemark reset SOURCE --to POSITION'; 'tidemark explain' shows them",
            ExitCode.USAGE,
        )
    return (chosen(None), first) if second is None else (first, second)


def pipeline_and_table(first: str | None, second: str | None) -> tuple[str, str]:
    """Parse `[PIPELINE] TABLE`. A single word is a table of the default pipeline."""
    if first is None:
        raise CommandError(
            "say which table: 'tidemark forget TABLE --where CONDITION'; 'tidemark cut' shows the tables",
            ExitCode.USAGE,
        )
    return (chosen(None), first) if second is None else (first, second)


def warehouse_of(typed: str, given: "Layer") -> "StoredWarehouse":
    """Return the warehouse of a pipeline's job, for a command that needs no plan; nothing is created.

    A module is imported only for `module:attribute`. Raises CommandError for an invalid name, and for a name that is
    neither registered nor known to the warehouse.
    """
    from checkpointing.identifiers import InvalidNameError, job_name  # noqa: PLC0415 - imports pydantic
    from checkpointing.metadata.paths import ProtocolPaths  # noqa: PLC0415 - the same
    from jobs.warehouse.warehouse import Warehouse as StoredWarehouse  # noqa: PLC0415 - the same

    if ":" in typed:
        from jobs.cli.explain import prepared  # noqa: PLC0415 - imports Spark's types

        started = prepared(typed, given)
        return StoredWarehouse(started.settings.warehouse, ProtocolPaths(started.plan.job))
    try:
        name = job_name(typed)
    except InvalidNameError as error:
        raise CommandError(
            f"{error}; write the name of a pipeline, such as {next(iter(OWN))}", ExitCode.USAGE
        ) from error
    project, root = here(), warehouse_folder(given)
    there = ran_in(root)
    if name not in known_pipelines(project) and name not in OWN and name not in there:
        raise CommandError(unknown_pipeline(name, project, there), ExitCode.NOT_THERE)
    return StoredWarehouse(root, ProtocolPaths(name))


def sources_of(typed: str, given: "Layer") -> "Mapping[VertexId, Source]":
    """Return the sources of a pipeline; none if its code cannot be found, since a job can outlive its code.

    Raises what a user's code raises.
    """
    from jobs.launch import launch  # noqa: PLC0415 - imports Spark's types
    from jobs.pipelines.registry import UnknownPipelineError  # noqa: PLC0415 - the same

    try:
        return launch(typed, given).plan.sources
    except UnknownPipelineError:
        return {}


def sinks_of(typed: str, given: "Layer") -> "Mapping[TableName, TableSink]":
    """Return the outside sinks of a pipeline; none if its code cannot be loaded, since a job can outlive its code."""
    from jobs.launch import launch  # noqa: PLC0415 - imports Spark's types

    try:
        return launch(typed, given).plan.sinks
    except Exception:  # noqa: BLE001 - a user's code; a rollback that needs a sink says that it is missing
        return {}


def position_words(typed: str, given: "Layer") -> "PositionWords":
    """Return what puts a pipeline's positions into words.

    Without the pipeline's code, positions are shown as stored.
    """
    from jobs.sources.position_words import PositionWords  # noqa: PLC0415 - imports Spark's types

    try:
        return PositionWords(sources_of(typed, given))
    except Exception:  # noqa: BLE001 - a user's code, without which the command can be carried out
        return PositionWords({})


def warehouse_folder(given: "Layer") -> "Root":
    """Return the warehouse of a command; raise WrongInputError for an environment variable that is not a setting."""
    from jobs.settings import folder  # noqa: PLC0415 - imports pydantic

    return folder("warehouse", given)


def ran_in(root: "Root") -> tuple[str, ...]:
    """Return the names of the jobs that a warehouse holds."""
    from checkpointing.metadata.paths import ROOT  # noqa: PLC0415 - imports pydantic
    from jobs.storage.place import place_in  # noqa: PLC0415 - the same

    return tuple(each.last for each in place_in(root, ROOT).folders())


def completed(incomplete: str) -> list[str]:
    """Return the pipelines that begin with these letters, for completion, or none if the project cannot be read."""
    with suppress(Exception):
        from jobs.settings import flags_layer  # noqa: PLC0415 - imports pydantic

        names = [*known_pipelines(here()), *ran_in(warehouse_folder(flags_layer({})))]
        return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
    return []
