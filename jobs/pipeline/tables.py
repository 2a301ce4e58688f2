"""What a pipeline says of the table that a stream writes: its keys, comments and properties."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import StructType

from jobs.pipeline.columns import require_columns, require_keys
from jobs.pipeline.declarations import KeyedVertex, OutputTable, former_names_of_columns, keys_of_rows
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.former_names import require_no_key
from jobs.sinks.description import Description

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_PROPERTY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_OWNED: Final = ("delta.", "tidemark.")
"""Delta gives properties with the first prefix a meaning, and Tidemark those with the second."""


def upsert_keys(table: str, vertex: KeyedVertex, rows: StructType, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of an upsert table: `keys`, or those of its vertex.

    Raises InvalidPipelineError for a key that the rows lack or that is renamed, and if a key of the vertex is missing.
    """
    own = vertex.inputs[0].keys
    by = tuple(keys) or keys_of_rows(vertex)
    require_keys(f"table {table}", rows, by)
    lacking = [key for key in own if key not in by]
    if lacking:
        raise InvalidPipelineError(
            f"table {table}: the keys {list(by)} lack {lacking[0]!r}, a key of vertex {vertex.id}; "
            "rows of one table key must meet in one subtask"
        )
    for new, old in former_names_of_columns(vertex).items():
        require_no_key(f"table {table}: column {new} is renamed from {old!r}", by, new)
    return by


def description_of(
    table: OutputTable, rows: StructType, comment: str, columns: Mapping[str, str], properties: Mapping[str, str]
) -> Description:
    """Return the description of a table with these rows.

    Raises InvalidPipelineError for a column that the table lacks, a text that is none, or a property that Tidemark
    does not set.
    """
    where = f"description of table {table.name}"
    require_columns(where, rows, list(columns))
    texts = {"the comment": comment, **{f"column {name}": text for name, text in columns.items()}}
    texts |= {f"property {name}": text for name, text in properties.items()}
    for what, text in texts.items():
        if not isinstance(text, str):
            raise InvalidPipelineError(f"{where}: {what} must be a text, and is {text!r}")
    for name in properties:
        if name.startswith(_OWNED):
            raise InvalidPipelineError(
                f"{where}: Tidemark sets no property {name!r}, because names that begin with {_OWNED[0]!r} or "
                f"{_OWNED[1]!r} change how tables are written; set it with ALTER TABLE, and Tidemark keeps it"
            )
        if not _PROPERTY.fullmatch(name):
            raise InvalidPipelineError(f"{where}: {name!r} is no name of a property, as team or quality.level is")
    return Description(comment, dict(columns), dict(properties))
