"""Names a pipeline's assets, groups, jobs and sensors in a Dagster project."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from string import Formatter
from typing import Final, TypeVar

import dagster as dg

from checkpointing.graph import Table, TableMode
from checkpointing.identifiers import JobName, TableName, VertexId
from checkpointing.metadata.paths import ProtocolPaths

GROUPS: Final = "{pipeline}_{layer}"
"""A group for each layer of each pipeline, such as `shop_bronze`."""

SOURCES: Final = "sources"
STATE: Final = "state"
CUTS: Final = "cuts"
_FIELDS: Final = frozenset({"pipeline", "layer"})
_NAME_LENGTH_MAX: Final = 100
_PART: Final = re.compile(r"[A-Za-z0-9_]+")


Named = TypeVar("Named")


class InvalidNamingError(ValueError):
    """Dagster cannot use a key prefix or a group name. The message names it and says how to write it."""


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of one pipeline in one Dagster project.

    `prefix` comes before every asset key, and before the names of jobs, ops, schedules, sensors and resources. With a
    prefix, pipelines with equal table names, or one pipeline in two warehouses, can be in one project. `groups` may
    hold `{pipeline}` and `{layer}`. Raises InvalidNamingError.
    """

    job: JobName
    prefix: tuple[str, ...] = ()
    groups: str = GROUPS
    states: bool = True
    """Whether operators' states are assets."""
    upstream: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The prefixes of other pipelines whose cuts this one reads. A pipeline that is not named has this one's prefix."""

    def __post_init__(self) -> None:
        """Refuse names that Dagster would refuse later, without naming the argument."""
        for part in (*self.prefix, *chain.from_iterable(self.upstream.values())):
            if not _PART.fullmatch(part):
                raise InvalidNamingError(
                    f"key_prefix: {part!r} may hold only letters, digits and underscores; "
                    "write several parts as a list, like ['lake', 'eu']"
                )
        unknown = _fields(self.groups) - _FIELDS
        if unknown or not _PART.fullmatch(self.group(SOURCES)):
            raise InvalidNamingError(
                f"group_name: {self.groups!r} must come to letters, digits and underscores; it may hold "
                "{pipeline} and {layer}, as in " + repr(GROUPS)
            )

    @property
    def name(self) -> str:
        """The prefix of the names of jobs, ops, schedules and sensors. The pipeline's name comes in it only once.

        So for pipeline `sales` with key prefix `sales` it is `sales`, and not `sales_sales`.
        """
        before = "_".join(self.prefix)
        return before if f"_{before}".endswith(f"_{self.job}") else "_".join((*self.prefix, self.job))

    @property
    def cut_key(self) -> str:
        """The name of the resource that reads the pipeline's tables at one cut, such as `shop_cut`."""
        return f"{self.name}_cut"

    @property
    def tables_key(self) -> str:
        """The name of the IO manager that loads the pipeline's tables for downstream assets, such as `shop_tables`."""
        return f"{self.name}_tables"

    def group(self, layer: str) -> str:
        """Return the group of a layer: `sources`, `state`, `cuts`, or the schema of an output table."""
        return self.groups.replace("{pipeline}", self.job).replace("{layer}", layer)

    def group_of(self, table: Table) -> str:
        """Return the group of a table."""
        return self.group(STATE if table.mode is TableMode.STATE else table.name.split("/")[0])

    def table_key(self, table: TableName) -> dg.AssetKey:
        """Return a table's asset key: the prefix, then the parts of its path under the warehouse."""
        return dg.AssetKey([*self.prefix, *table.split("/")])

    def upstream_key(self, job: JobName, table: TableName) -> dg.AssetKey:
        """Return the asset key of a table of another pipeline."""
        return dg.AssetKey([*self.upstream.get(job, self.prefix), *table.split("/")])

    def cuts_key(self) -> dg.AssetKey:
        """Return the asset key of the table `cuts`, which holds each table's Delta version at a checkpoint."""
        return dg.AssetKey([*self.prefix, *ProtocolPaths(self.job).cuts.split("/")])

    def shows(self, table: Table) -> bool:
        """Return whether a table is an asset."""
        return self.states or table.mode is not TableMode.STATE

    def source_key(self, source: VertexId) -> dg.AssetKey:
        """Return a source's asset key. It names the pipeline, since sources of two pipelines may have the same id."""
        return dg.AssetKey([*self.prefix, SOURCES, self.job, source])


def prefix_parts(key_prefix: str | Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a key prefix, which may be given as one text or as several."""
    return ((key_prefix,) if key_prefix else ()) if isinstance(key_prefix, str) else tuple(key_prefix)


def check_names(called: Iterable[tuple[Named, str]]) -> dict[Named, str]:
    """Return for each thing a name that Dagster allows, with a number if an earlier thing has the same name."""
    seen: Counter[str] = Counter()
    names: dict[Named, str] = {}
    for thing, text in called:
        name = re.sub(r"[^A-Za-z0-9_]", "_", text)[:_NAME_LENGTH_MAX]
        seen[name] += 1
        names[thing] = name if seen[name] == 1 else f"{name}_{seen[name]}"
    return names


def _fields(groups: str) -> set[str]:
    """Return the fields in braces. For a text that is not a template, return one empty field."""
    try:
        return {field for _, field, _, _ in Formatter().parse(groups) if field is not None}
    except ValueError:
        return {""}
