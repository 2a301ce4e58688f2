"""The types of PostgreSQL for the columns of a table."""

from typing import Final

import pyarrow as pa
from pyarrow import types

from jobs.sinks.port import SinkError

_PLAIN: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
}
_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "smallint": ("integer", "bigint"),
    "integer": ("bigint",),
    "real": ("double precision",),
}
"""Types of a target that hold every value of a column with this type."""


def postgres_type(name: str, of: pa.DataType) -> str:
    """Return a column's type in PostgreSQL. Raise SinkError for a type that it has not, such as a struct."""
    if types.is_decimal(of):
        return f"numeric({of.precision},{of.scale})"
    if types.is_timestamp(of):
        return f"timestamp {'with' if of.tz else 'without'} time zone"
    if types.is_list(of) and not types.is_nested(of.value_type):
        return f"{postgres_type(name, of.value_type)}[]"
    if of not in _PLAIN:
        raise SinkError(f"column {name} has type {of}, and PostgreSQL has no such type: leave it out, or cast it")
    return _PLAIN[of]


def is_fit(target: str, wanted: str) -> bool:
    """Return whether a column of the type `target` holds every value of a column of the type `wanted`."""
    if wanted == "text":
        return target in ("text", "character varying")
    return target in (wanted, *_WIDER.get(wanted, ())) or (wanted.startswith("numeric(") and target == "numeric")
