"""Loads `fastavro`, and parses schemas with it."""

import json
from importlib.util import find_spec
from io import BytesIO

from jobs.distribution import DISTRIBUTION
from jobs.sources.avro.types import Avro
from jobs.sources.port import SourceError


def must_be_installed() -> None:
    """Raise SourceError if the library of the extra `avro` is not installed."""
    if find_spec("fastavro") is None:
        raise SourceError(f"fastavro is not installed: pip install '{DISTRIBUTION}[avro]'")


def as_json(schema: Avro, what: str) -> Avro:
    """Return a schema from its text or its JSON value. Raise SourceError for a text that is not JSON."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except ValueError as error:
        raise SourceError(f"{what} is no JSON ({error}): pass the text of an .avsc file") from error


def written_out(schema: Avro, what: str) -> Avro:
    """Return a schema in which every named type is written out where it is used.

    Raise SourceError for an invalid one.
    """
    must_be_installed()
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema  # noqa: PLC0415 - an extra

    try:
        return parse_schema(as_json(schema, what), expand=True, _write_hint=False)
    except (SchemaParseException, UnknownType, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(f"{what} is no Avro schema ({type(error).__name__}: {error}): correct it") from error


def schema_of_file(beginning: bytes, shown: str) -> Avro:
    """Return the schema in the header of an Avro file, with every named type written out; `shown` is the file's name.

    Raises OSError, EOFError or ValueError for a file that is not an Avro file or cannot be read.
    """
    must_be_installed()
    from fastavro import reader  # noqa: PLC0415 - an extra

    return written_out(reader(BytesIO(beginning)).writer_schema, shown)
