"""The port of a catalog, and the description of a table that a catalog gets."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from checkpointing.columns import TableColumn
from jobs.suggestions import WrongInputError

JOB: Final = "tidemark.job"
TABLE: Final = "tidemark.table"
WAREHOUSE: Final = "tidemark.warehouse"
SCHEMA_CHECKPOINT: Final = "tidemark.schema_checkpoint"
"""The property that names the checkpoint at which a change of the columns was last found."""
OWNER: Final = (JOB, WAREHOUSE)
"""The properties that mark an entry as one of this job in this warehouse. Any other entry is left alone."""


class UnusableCatalogError(WrongInputError):
    """A catalog cannot be used: its name is unknown, its library is missing, or its address or schema is wrong."""


class CatalogError(Exception):
    """A catalog refused a call. The message names the call and the server's answer, or the entry and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogSettings:
    """The catalog that gets a job's tables, its address, and the schema there. An empty schema means the job's name."""

    name: str
    url: str | None = None
    schema: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """A table as a catalog is to show it.

    `columns` have the types of a Delta log. `comments` is a dict from names of columns to their comments. `schema` is
    the schema in the Delta log as JSON, which Spark reads too. `location` is the folder, as a URL or an absolute path.
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
    """A table as a catalog holds it: `columns` are name, type and comment, with the catalog's own names of types."""

    location: str
    columns: tuple[tuple[str, str, str], ...]
    properties: Mapping[str, str]

    def differs(self, wanted: "CatalogEntry") -> str:
        """Return in what this entry differs from the wanted one. Properties that only this entry has are ignored."""
        properties = [name for name, value in wanted.properties.items() if self.properties.get(name) != value]
        found = {
            "location": self.location != wanted.location,
            "columns": self.columns != wanted.columns,
            f"property {', '.join(sorted(properties))}": bool(properties),
        }
        return ", ".join(name for name, differs in found.items() if differs)


class Catalog(Protocol):
    """A schema of a catalog. Each call can raise what the catalog's library raises. Only one thread calls at a time."""

    def entry(self, table: CatalogTable) -> CatalogEntry:
        """Return the entry of a table in this catalog's form. Sends no request."""
        ...

    def entries(self) -> Iterator[tuple[str, CatalogEntry]]:
        """Yield all entries of the schema with their names, and none if the schema does not exist."""
        ...

    def create(self, table: CatalogTable, entry: CatalogEntry) -> None:
        """Create an external table, and first the schema if it does not exist."""
        ...

    def replace(self, name: str, table: CatalogTable, entry: CatalogEntry) -> None:
        """Replace the entry `name`. The new entry has the name of the table. Rows are not touched."""
        ...

    def drop(self, name: str) -> None:
        """Remove an entry. Rows are not touched."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
