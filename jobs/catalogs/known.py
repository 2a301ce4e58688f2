"""Opens the catalog that the settings name. Each catalog is an extra of the package, and is imported only here."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from jobs.catalogs.port import Catalog, CatalogSettings, UnusableCatalogError
from jobs.distribution import DISTRIBUTION

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,127}")
_CATALOG_AND_SCHEMA: Final = re.compile(r"[A-Za-z0-9_-]{1,255}\.[a-z_][a-z0-9_]{0,127}")


def _hive(url: str | None, schema: str) -> Catalog:
    from jobs.catalogs.hive import HiveCatalog  # noqa: PLC0415 - an extra

    return HiveCatalog(url, schema)


def _glue(url: str | None, schema: str) -> Catalog:
    from jobs.catalogs.glue import GlueCatalog  # noqa: PLC0415 - an extra

    return GlueCatalog(url, schema)


def _unity(url: str | None, schema: str) -> Catalog:
    from jobs.catalogs.unity import UnityCatalog  # noqa: PLC0415 - like the others

    return UnityCatalog(url, schema)


_KNOWN: Final[Mapping[str, Callable[[str | None, str], Catalog]]] = {"glue": _glue, "hive": _hive, "unity": _unity}


def open_catalog(settings: CatalogSettings, job: str) -> Catalog:
    """Return a catalog's schema. No request is sent yet. Raises UnusableCatalogError."""
    schema = settings.schema or job
    pattern, form = (_CATALOG_AND_SCHEMA, "main.shop") if settings.name == "unity" else (_SCHEMA, "shop")
    if not pattern.fullmatch(schema):
        raise UnusableCatalogError(f"catalog_schema: {schema!r} names no schema; write one such as {form}")
    try:
        return _KNOWN[settings.name](settings.url, schema)
    except ModuleNotFoundError as error:
        raise UnusableCatalogError(
            f"the catalog {settings.name} needs {error.name}, which is not installed: "
            f"pip install '{DISTRIBUTION}[{settings.name}]'"
        ) from None
