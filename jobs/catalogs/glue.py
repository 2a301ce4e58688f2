"""A database of the AWS Glue Data Catalog, which Athena, EMR, Spark and Trino read."""

from collections.abc import Iterator
from typing import Any, Final

import boto3
from botocore.config import Config

from jobs.catalogs.hive_tables import EXTERNAL, INPUT_FORMAT, OUTPUT_FORMAT, PATH, SERDE, hive_entry, hive_location
from jobs.catalogs.port import CatalogEntry, CatalogTable, UnusableCatalogError

_CONFIG: Final = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 3})
_SCHEMA: Final = "spark.sql.sources.schema"


class GlueCatalog:
    """A database in Glue. boto3 finds region and keys where it always looks: the environment, a profile, a role."""

    def __init__(self, url: str | None, schema: str) -> None:
        """Send no request yet. Raises UnusableCatalogError for any address, since boto3 finds Glue's address itself."""
        if url is not None:
            raise UnusableCatalogError(
                "catalog_url: Glue is where AWS_REGION says, or AWS_ENDPOINT_URL_GLUE; leave catalog_url out"
            )
        self._schema = schema
        self._client: Any = None

    def entry(self, table: CatalogTable) -> CatalogEntry:
        """Return the entry of a table in Glue. Its location begins with `s3://`, since Athena cannot read `s3a://`."""
        return hive_entry(table, table.location if "://" in table.location else hive_location(table))

    def entries(self) -> Iterator[tuple[str, CatalogEntry]]:
        """Yield all entries of the database."""
        pages = self._call().get_paginator("get_tables").paginate(DatabaseName=self._schema)
        try:
            for page in pages:
                yield from ((table["Name"], _entry(table)) for table in page["TableList"])
        except self._call().exceptions.EntityNotFoundException:
            return

    def create(self, table: CatalogTable, entry: CatalogEntry) -> None:
        """Create an external table, and first the database if it does not exist."""
        try:
            self._call().get_database(Name=self._schema)
        except self._call().exceptions.EntityNotFoundException:
            self._call().create_database(DatabaseInput={"Name": self._schema, "Description": "tables of Tidemark"})
        self._call().create_table(DatabaseName=self._schema, TableInput=_input(table, entry))

    def replace(self, name: str, table: CatalogTable, entry: CatalogEntry) -> None:
        """Replace an entry.

        Glue renames no table: the entry of a renamed table is created anew, then the old entry is removed.

        Parameters that others have added to the entry stay.
        """
        before = self._call().get_table(DatabaseName=self._schema, Name=name)["Table"].get("Parameters", {})
        stays = {key: value for key, value in before.items() if not key.startswith(_SCHEMA)}
        told = CatalogEntry(entry.location, entry.columns, {**stays, **entry.properties})
        if name == table.name:
            self._call().update_table(DatabaseName=self._schema, TableInput=_input(table, told))
            return
        self._call().create_table(DatabaseName=self._schema, TableInput=_input(table, told))
        self.drop(name)

    def drop(self, name: str) -> None:
        """Remove an entry. The table's data stays."""
        self._call().delete_table(DatabaseName=self._schema, Name=name)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(self) -> Any:  # noqa: ANN401 - boto3 makes its clients at run time
        if self._client is None:
            self._client = boto3.client("glue", config=_CONFIG)
        return self._client


def _input(table: CatalogTable, entry: CatalogEntry) -> dict[str, object]:
    columns = [
        {"Name": name, "Type": kind, **({"Comment": said} if said else {})} for name, kind, said in entry.columns
    ]
    serde = {"SerializationLibrary": SERDE, "Parameters": {"serialization.format": "1", PATH: entry.location}}
    return {
        "Name": table.name,
        "Description": table.comment[:2048],
        "TableType": EXTERNAL,
        "Parameters": dict(entry.properties),
        "PartitionKeys": [],
        "StorageDescriptor": {
            "Columns": columns,
            "Location": entry.location,
            "InputFormat": INPUT_FORMAT,
            "OutputFormat": OUTPUT_FORMAT,
            "SerdeInfo": serde,
        },
    }


def _entry(table: dict[str, Any]) -> CatalogEntry:
    stored = table.get("StorageDescriptor", {})
    columns = tuple((each["Name"], each.get("Type", ""), each.get("Comment", "")) for each in stored.get("Columns", ()))
    return CatalogEntry(stored.get("Location", ""), columns, table.get("Parameters", {}))
