"""The one configuration of a tick: defaults, the pipeline's own, the environment, flags or launchpad, in that order.

Each later layer overrides single fields of the earlier ones. The result is validated once, so that rules over several
fields hold, whichever layers the values come from. An error names the field, the rule and the place that set the value.
Command line and launchpad fill the same model, as the last layer.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from checkpointing.config import CheckpointConfig, Count, Milliseconds
from checkpointing.job.setup import TickLimits
from checkpointing.key_groups import KEY_GROUPS_MAX
from jobs.project import FOLDERS, Project, here, working_directory
from jobs.storage.address import InvalidAddressError, Root, StoreUrl, parsed
from jobs.suggestions import WrongInputError

PREFIX: Final = "TIDEMARK_"
"""Every field can be set by this prefix and its name in capitals."""

_NOT_FIELDS: Final = frozenset({"TIDEMARK_JARS", "TIDEMARK_KILL_AT"})
"""Variables with this prefix that are not settings: the folder of the jars, and where a test kills the process."""
DEFAULT_READER_GRACE_MS: Final = 86_400_000
DEFAULT_TABLE_LOG_KEEP_MS: Final = 30 * 86_400_000
"""Thirty days, like the default of Delta's `delta.logRetentionDuration`."""
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")
_MEMORY: Final = re.compile(r"[1-9]\d*[kmgt]")


def duration_ms(text: str) -> int:
    """Return a duration like `500ms`, `30s`, `5m` or `2h` in milliseconds; raise ValueError saying how to write it."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"write a duration like 30s, 5m or 2h, not {text!r}")
    return round(float(found[1]) * _UNITS_MS[found[2]])


def _from_duration(value: object) -> object:
    """Turn text with a unit into milliseconds; plain numbers are milliseconds already."""
    if isinstance(value, str) and not value.strip().lstrip("-").isdigit():
        return duration_ms(value)
    return value


def _from_commas(value: object) -> object:
    return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value


def _named_folder(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("'' names no folder; '.' is the current one")
    return value


def _address(value: object) -> object:
    named = _named_folder(value)
    return parsed(named) if isinstance(named, str) else named


def _spark_memory(value: object) -> object:
    if isinstance(value, str) and not _MEMORY.fullmatch(value):
        raise ValueError(f"write it as Spark does, like 512m or 2g, not {value!r}")
    return value


class TickSettings(CheckpointConfig, BaseSettings):
    """The settings of one tick. `resolve` builds it from all layers; raises ValidationError as every model does.

    Every time (`..._ms`) is in ms, or text with a unit: `500ms`, `30s`, `5m`, `2h`.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=False, use_attribute_docstrings=True
    )

    rows_of: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_from_commas)] = ()
    """The sources whose rows `every_rows` counts, separated by commas. Empty: all sources."""

    warehouse: Annotated[Path | StoreUrl, NoDecode, BeforeValidator(_address)] = Path("warehouse")
    """The folder of the tables, or a URL like `s3://bucket/prefix`. All processes of the job must reach it. A relative
    path begins at the project."""
    data: Annotated[Path | StoreUrl, NoDecode, BeforeValidator(_address)] = Path("data")
    """The folder of the pipeline's input, or a URL like `s3://bucket/input`. A relative path begins at the project."""
    parallelism: Count | None = Field(default=None, ge=1, le=KEY_GROUPS_MAX)
    """The number of subtasks of each keyed vertex. None: what the pipeline says."""

    spark_master: str | None = Field(default=None, min_length=1)
    """A Spark master, `local[2]` or `spark://host:port`. None: a local Spark with `spark_cores`."""
    spark_cores: Count | None = Field(default=None, ge=1, le=4_096)
    """The cores of a local Spark. None: all that this process may use."""
    spark_memory: Annotated[str, BeforeValidator(_spark_memory)] = "2g"
    """The heap of a JVM that the tick starts, written as for Spark: `512m`, `2g`."""
    spark_connect_url: str | None = Field(default=None, pattern=r"^sc://.+")
    """A running Spark Connect server, `sc://host:port`. The tick then starts no Spark."""
    spark_archive: Path | None = None
    """The archive that `tidemark package` built. Spark brings it to a cluster's workers, which need only Python then. A
    relative path begins at the project."""

    hold: bool = False
    """Hold the first checkpoint, and end the tick. Nothing of it is visible until somebody approves it."""
    until_caught_up: bool = True
    """End when all rows that the sources have were read and committed. False: wait for more."""
    checkpoints: Count | None = Field(default=None, ge=1)
    """End after this many completed checkpoints."""
    duration_ms: Milliseconds | None = Field(default=None, ge=1)
    """End after this time, with a last checkpoint."""
    take_over: bool = False
    """Take the job from its holder, alive or not."""
    allow_non_restored_state: bool = False
    """Leave an operator or table of the checkpoint behind if the pipeline no longer has it. False: refuse."""

    reader_grace_ms: Milliseconds = Field(default=DEFAULT_READER_GRACE_MS, ge=0)
    """How long clean-up keeps an unneeded file, so that a reader that is still at work does not fail."""
    table_log_keep_ms: Milliseconds = Field(default=DEFAULT_TABLE_LOG_KEEP_MS, ge=0)
    """The shortest time that an entry of a table's log is kept after no retained checkpoint needs it."""
    clean_up: bool = True
    """Whether a tick that ends normally deletes unneeded files as its last act."""

    reporters: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_from_commas)] = ()
    """The reporters that get each checkpoint, separated by commas: `prometheus`, `otlp`, `openlineage`, or a class of
    your own as `module:attribute`. A reporter that fails or hangs never fails or delays a tick."""
    prometheus_folder: Path | None = None
    """The folder for the file of the reporter `prometheus`, `tidemark_JOB.prom`. A relative path begins at the
    project."""
    prometheus_push_url: str | None = None
    """The push gateway of the reporter `prometheus`, `http://host:9091`."""
    catalog: Literal["hive", "glue", "unity"] | None = None
    """The catalog into which output tables are entered: `hive`, `glue` or `unity`. A catalog that fails or hangs never
    fails or delays a tick."""
    catalog_url: str | None = None
    """Where the catalog is: `thrift://host:9083` of a Hive metastore, `https://host` of a Unity Catalog."""
    catalog_schema: str | None = None
    """The schema there, created if it is missing; for Unity Catalog `catalog.schema`. The default is the job's name."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic-settings' signature
        init_settings: PydanticBaseSettingsSource,
        *_unused: PydanticBaseSettingsSource,
        **_unused_too: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Turn off pydantic's own sources: `resolve` passes all layers, so that it can name the place of a value."""
        return (init_settings,)

    @field_validator("*", mode="before")
    @classmethod
    def _times_with_units(cls, value: object, info: ValidationInfo) -> object:
        return _from_duration(value) if (info.field_name or "").endswith("_ms") else value

    @model_validator(mode="after")
    def _one_spark(self) -> Self:
        if self.spark_connect_url is not None and self.spark_master is not None:
            raise ValueError("spark_master: can't go with spark_connect_url; name one place where Spark runs")
        here = self.spark_connect_url is None and (self.spark_master or "local").startswith("local")
        if self.spark_archive is not None and here:
            raise ValueError(
                "spark_archive: is for the workers of a cluster; name its spark_master or spark_connect_url"
            )
        return self

    def checkpoint_config(self) -> CheckpointConfig:
        """Return the settings that the protocol needs."""
        return CheckpointConfig(**{name: getattr(self, name) for name in CheckpointConfig.model_fields})

    def limits(self) -> TickLimits:
        """Return the limits at which the tick ends by itself."""
        return TickLimits(
            until_caught_up=self.until_caught_up,
            checkpoints=self.checkpoints,
            duration_ms=self.duration_ms,
            hold=self.hold,
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """One refused value: the field, the broken rule, and the place that set it."""

    field: str
    rule: str
    origin: str

    def __str__(self) -> str:
        """Return the problem as a user reads it."""
        return f"{self.field} ({self.origin}): {self.rule}" if self.origin else f"{self.field}: {self.rule}"


class InvalidSettingsError(WrongInputError):
    """A configuration that is refused; `problems` holds each refused field."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(str(problem) for problem in problems))


@dataclass(frozen=True, slots=True)
class Layer:
    """The fields that one place sets. `origin` is the name of that place in messages, where `{}` stands for the field.

    Relative paths begin at the project, or at the working directory if the place is a shell's command line.
    """

    origin: str
    values: Mapping[str, object]
    from_shell: bool = False

    def names(self, field: str) -> str:
        """Return the place that set a field, as a user would look for it."""
        shown = field.upper() if self.origin.startswith(PREFIX) else field
        return self.origin.replace("{}", shown)


def environment_layer() -> Layer:
    """Return what TIDEMARK_* variables set. Raise InvalidSettingsError for a variable that names no field."""
    known = {f"{PREFIX}{name}".upper() for name in TickSettings.model_fields} | _NOT_FIELDS
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable not in known:
            near = get_close_matches(variable, sorted(known), n=1)
            hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(sorted(known))}"
            raise InvalidSettingsError((Problem(variable, f"there is no such setting; {hint}", ""),))
    found = EnvSettingsSource(TickSettings, case_sensitive=False, env_ignore_empty=True)()
    return Layer(f"{PREFIX}{{}}", found)


def flags_layer(values: Mapping[str, object]) -> Layer:
    """Return what the command line's flags set. A value of None means that the flag was not given."""
    given = {name: value for name, value in values.items() if value is not None}
    return Layer("given on the command line", given, from_shell=True)


def launchpad_layer(values: Mapping[str, object]) -> Layer:
    """Return what a Dagster run's configuration sets. A value of None means that the field was not set."""
    return Layer("set in the launchpad", {name: value for name, value in values.items() if value is not None})


def folder(name: Literal["data", "warehouse"], *given: Layer, project: Project | None = None) -> Root:
    """Return a folder that is needed before the pipeline is loaded. The last layer of `given` that sets it decides.

    If no layer does, the environment decides, then the project (None: the project of the working directory), and then
    the default. Raises InvalidProjectError, InvalidSettingsError for an environment variable that names no setting.
    """
    project = project or here()
    for layer in (*reversed(given), environment_layer(), project_layer(project)):
        if name in layer.values:
            return _anchored(_named(name, layer), layer, project)
    return _anchored(Path(str(TickSettings.model_fields[name].default)), None, project)


def _named(name: Literal["data", "warehouse"], layer: Layer) -> Root:
    text = str(layer.values[name])
    try:
        return parsed(text)
    except InvalidAddressError as error:
        raise InvalidSettingsError((Problem(name, str(error), layer.names(name)),)) from None


def resolve(
    own: Mapping[str, object], *given: Layer, pipeline: str = "the pipeline", project: Project | None = None
) -> TickSettings:
    """Return the settings of one tick: defaults < `own` (the pipeline's) < project < environment < each of `given`.

    If `project` is None, it is the project of the working directory. Raises InvalidProjectError, and
    InvalidSettingsError, which names every refused field, its rule and the place that set it.
    """
    project = project or here()
    layers = (Layer(f"set by {pipeline}", own), project_layer(project), environment_layer(), *given)
    values = {name: value for layer in layers for name, value in layer.values.items()}
    try:
        settings = TickSettings(**values)  # type: ignore[arg-type]
    except ValidationError as error:
        raise InvalidSettingsError(_problems(error, layers)) from None
    origins = {name: layer for layer in layers for name in layer.values}
    named = (*FOLDERS, *(name for name in ("spark_archive", "prometheus_folder") if getattr(settings, name)))
    anchored = {name: _anchored(getattr(settings, name), origins.get(name), project) for name in named}
    archive = anchored.get("spark_archive")
    if isinstance(archive, Path) and not archive.is_file():
        rule = f"there is no file {archive}; 'tidemark package' builds one"
        raise InvalidSettingsError((Problem("spark_archive", rule, _origin("spark_archive", layers)),))
    return settings.model_copy(update=anchored)


def project_layer(project: Project | None) -> Layer:
    """Return what a project's pyproject.toml sets."""
    return Layer("", {}) if project is None else Layer(f"set in {project.file}", project.folders)


def _anchored(path: Root, layer: Layer | None, project: Project | None) -> Root:
    """Return a URL, or an absolute path: a relative path of a project begins at the project's folder."""
    if not isinstance(path, Path) or path.is_absolute() or project is None or (layer is not None and layer.from_shell):
        return path
    return path if project.root == working_directory() else project.root / path


def _problems(error: ValidationError, layers: tuple[Layer, ...]) -> tuple[Problem, ...]:
    return tuple(_problem(each["loc"], each["msg"], each["type"], layers) for each in error.errors())


def _problem(loc: tuple[int | str, ...], message: str, kind: str, layers: tuple[Layer, ...]) -> Problem:
    rule = message.removeprefix("Value error, ")
    field = str(loc[0]) if loc else rule.partition(":")[0]
    if not loc:
        rule = rule.partition(": ")[2]
    if kind == "extra_forbidden":
        near = get_close_matches(field, TickSettings.model_fields, n=1)
        rule = f"there is no such setting; did you mean {near[0]}?" if near else "there is no such setting"
    rule = rule.replace("Input should be", "must be", 1)
    return Problem(field, rule[:1].lower() + rule[1:], _origin(field, layers))


def _origin(field: str, layers: tuple[Layer, ...]) -> str:
    for layer in reversed(layers):
        if field in layer.values:
            return layer.names(field)
    return "default"


# ------------------------------------------------------------------
# Generates docs/SETTINGS.md from the settings model: every setting with its meaning, default and flag.
#
# `python -m jobs.settings > docs/SETTINGS.md` writes it. A test fails if the file is stale.


FLAGS: Final = {
    "spark_connect_url": "--spark-connect",
    "duration_ms": "--for",
    "interval_ms": "--interval",
    "until_caught_up": "--until-caught-up/--keep-waiting",
    "unaligned": "--unaligned/--no-unaligned",
    "hold": "--hold/--no-hold",
}
"""Flags with another name than their setting."""

_OWN: Final = (
    "checkpoints",
    "every_rows",
    "mode",
    "retained",
    "take_over",
    "allow_non_restored_state",
    "warehouse",
    "data",
    "parallelism",
    "spark_master",
    "spark_cores",
    "spark_memory",
    "spark_archive",
)
_FEATURE: Final = re.compile(r" \((?:[A-Z]\d+(?:, )?)+\)")
_HEAD: Final = """# Settings
You can set a value in several places. Each of these overrides the ones before it: the default, the pipeline,
`[tool.tidemark]` of the project (`warehouse` and `data` only), the environment variable, the arguments of
`build_definitions`, the command line or Dagster's launchpad. The variable of `retained` is `TIDEMARK_RETAINED`, and so
on. `tidemark run` takes every setting as `--set retained=5`. Some settings have a flag too. Times are milliseconds, or
text with a unit: `500ms`, `30s`, `5m`, `2h`.

| setting | meaning | default | flag |
|---|---|---|---|
"""


def settings_table() -> str:
    """Return the whole document."""
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def flag_of(name: str) -> str | None:
    """Return the flag of a setting, or None if only `--set` can set it."""
    return FLAGS.get(name) or (f"--{name.replace('_', '-')}" if name in _OWN else None)


def _rows() -> Iterator[tuple[str, ...]]:
    for name, info in TickSettings.model_fields.items():
        meaning = _FEATURE.sub("", info.description or "").replace("\n", " ").replace("|", "or")
        flag = flag_of(name)
        yield f"`{name}`", meaning, _shown(info.default), f"`{flag}`" if flag else ""


def _shown(default: object) -> str:
    if default is None or default == ():
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return f"`{default.value if isinstance(default, Enum) else default}`"


if __name__ == "__main__":
    sys.stdout.write(settings_table())
