"""The port of a catalog, and what it is told of a table."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from checkpointing.columns import TableColumn
from jobs.suggestions import WrongInputError

JOB: Final = "tidemark.job"
TABLE: Final = "tidemark.table"
WAREHOUSE: Final = "tidemark.warehouse"
SCHEMA_CHECKPOINT: Final = "tidemark.schema_checkpoint"
"""The property with the checkpoint at which the columns were found to have changed last."""
OWNER: Final = (JOB, WAREHOUSE)
"""The properties by which an entry is known to be of this job in this warehouse. Any other entry is left alone."""


class UnusableCatalogError(WrongInputError):
    """A catalog cannot be used: it is unknown, its library is missing, or it does not know where to report to."""


class CatalogError(Exception):
    """A catalog refused a call. The message names the table, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """The catalog that a job's tables are entered into, its address, and the schema there. Empty: the job's name."""

    name: str
    url: str | None = None
    schema: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A table as a catalog is to show it. `columns` have the types of a Delta log, `comments` are theirs by name.

    `schema` is that of the Delta log as JSON, and of Spark. `location` is the folder, as a URL or an absolute path.
    """

    name: str
    location: str
    columns: tuple[TableColumn, ...]
    schema: str
    partitioned_by: tuple[str, ...] = ()
    comment: str = ""
    comments: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table as a catalog holds it: `columns` are name, type and comment in the catalog's own words."""

    location: str
    columns: tuple[tuple[str, str, str], ...]
    properties: Mapping[str, str]

    def differs(self, wanted: "CatalogEntry") -> str:
        """Return in what this entry differs from the wanted one. Properties beside those do not count."""
        properties = [name for name, value in wanted.properties.items() if self.properties.get(name) != value]
        found = {
            "location": self.location != wanted.location,
            "columns": self.columns != wanted.columns,
            f"property {', '.join(sorted(properties))}": bool(properties),
        }
        return ", ".join(name for name, differs in found.items() if differs)


class Catalog(Protocol):
    """A schema of a catalog. Each call may raise what its library raises. One thread at a time calls it."""

    def entry(self, table: CatalogTable) -> CatalogEntry:
        """Return how this catalog writes a table down. It asks no server."""
        ...

    def entries(self) -> Iterator[tuple[str, CatalogEntry]]:
        """Yield all entries of the schema with their names. There is none if the schema is not there."""
        ...

    def create(self, table: CatalogTable, entry: CatalogEntry) -> None:
        """Add an external table, and before that the schema if it is not there."""
        ...

    def replace(self, name: str, table: CatalogTable, entry: CatalogEntry) -> None:
        """Replace the entry `name`, under the name of the table. Rows are not touched."""
        ...

    def drop(self, name: str) -> None:
        """Remove an entry. Rows are not touched."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...
