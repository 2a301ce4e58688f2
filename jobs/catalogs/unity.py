"""A schema of a Unity Catalog, by the REST interface of the open source server and of Databricks."""

import json
import os
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from pyspark.sql.types import StructType

from jobs.catalogs.port import CatalogEntry, CatalogError, CatalogTable, UnusableCatalogError

TOKEN: Final = "UNITY_CATALOG_TOKEN"  # noqa: S105 - the name of a variable
_INTERFACE: Final = "/api/2.1/unity-catalog"
_TIMEOUT_S: Final = 30
_SAID_MAX: Final = 300
_NAMES: Final = {"integer": "INT", "void": "NULL"}
"""The catalog's names of types that are not the Delta log's names in upper case."""


class UnityCatalog:
    """A schema at `https://host`. The token, if one is needed, is in the variable UNITY_CATALOG_TOKEN."""

    def __init__(self, url: str | None, schema: str) -> None:
        """Send no request yet. Raises UnusableCatalogError for a malformed address."""
        parts = urlsplit(url or "")
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
            raise UnusableCatalogError(
                f"catalog_url: write the server's address as https://host, and its token into {TOKEN}"
            )
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}{_INTERFACE}"
        self._catalog, self._schema = schema.split(".")

    def entry(self, table: CatalogTable) -> CatalogEntry:
        """Return the entry of a table. The table's comment is one of the properties, so that it is compared too."""
        fields = StructType.fromJson(json.loads(table.schema)).fields
        columns = tuple((each.name, each.dataType.simpleString(), table.comments.get(each.name, "")) for each in fields)
        location = table.location if "://" in table.location else f"file://{table.location}"
        return CatalogEntry(
            location, columns, {**table.properties, **({"comment": table.comment} if table.comment else {})}
        )

    def entries(self) -> Iterator[tuple[str, CatalogEntry]]:
        """Yield all entries of the schema."""
        token = ""
        while True:
            asked = {"catalog_name": self._catalog, "schema_name": self._schema}
            page = self._ask("GET", f"/tables?{urlencode(asked | ({'page_token': token} if token else {}))}")
            if page is None:
                return
            yield from ((table["name"], _entry(table)) for table in page.get("tables") or ())
            token = page.get("next_page_token") or ""
            if not token:
                return

    def create(self, table: CatalogTable, entry: CatalogEntry) -> None:
        """Create an external table, and first the schema if it does not exist."""
        if self._ask("GET", f"/schemas/{quote(f'{self._catalog}.{self._schema}')}") is None:
            self._ask("POST", "/schemas", {"name": self._schema, "catalog_name": self._catalog})
        self._ask("POST", "/tables", self._table(table, entry))

    def replace(self, name: str, table: CatalogTable, entry: CatalogEntry) -> None:
        """Replace an entry. The interface cannot change a table, so the entry is removed and created again."""
        self.drop(name)
        self._ask("POST", "/tables", self._table(table, entry))

    def drop(self, name: str) -> None:
        """Remove an entry. The data stays, since the table is an external one."""
        self._ask("DELETE", f"/tables/{quote(f'{self._catalog}.{self._schema}.{name}')}")

    def close(self) -> None:
        """Do nothing: each call has a connection of its own."""

    def _table(self, table: CatalogTable, entry: CatalogEntry) -> dict[str, object]:
        fields = json.loads(table.schema)["fields"]
        by = {name: number for number, name in enumerate(table.partitioned_by)}
        return {
            "name": table.name,
            "catalog_name": self._catalog,
            "schema_name": self._schema,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "storage_location": entry.location,
            "comment": table.comment,
            "properties": dict(entry.properties),
            "columns": [
                {
                    "name": name,
                    "type_text": text,
                    "type_json": json.dumps(field),
                    "position": position,
                    "nullable": True,
                    **_type(field["type"]),
                    **({"comment": said} if said else {}),
                    **({"partition_index": by[name]} if name in by else {}),
                }
                for position, (field, (name, text, said)) in enumerate(zip(fields, entry.columns, strict=True))
            ],
        }

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:  # noqa: ANN401 - JSON
        """Return the server's answer, or None if the object does not exist. Raises CatalogError, and OSError."""
        headers = {"Content-Type": "application/json"}
        if os.environ.get(TOKEN):
            headers["Authorization"] = f"Bearer {os.environ[TOKEN]}"
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}{path}", data, headers, method=method)  # noqa: S310 - http or https
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the same
                return json.loads(answer.read() or b"{}")
        except HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND and method != "POST":
                return None
            said = error.read().decode(errors="replace")[:_SAID_MAX]
            raise CatalogError(f"{method} {path.partition('?')[0]}: {error.code} {said}") from None


def _type(kind: Any) -> dict[str, object]:  # noqa: ANN401 - JSON
    """Return the name of a type, and the precision and scale of a decimal."""
    if not isinstance(kind, str):
        return {"type_name": str(kind["type"]).upper()}
    if kind.startswith("decimal"):
        precision, scale = kind.removeprefix("decimal(").rstrip(")").split(",")
        return {"type_name": "DECIMAL", "type_precision": int(precision), "type_scale": int(scale)}
    return {"type_name": _NAMES.get(kind, kind.upper())}


def _entry(table: Mapping[str, Any]) -> CatalogEntry:
    columns = sorted(table.get("columns") or (), key=lambda each: each.get("position", 0))
    said = tuple((each["name"], each.get("type_text", ""), each.get("comment") or "") for each in columns)
    return CatalogEntry(table.get("storage_location") or "", said, table.get("properties") or {})
