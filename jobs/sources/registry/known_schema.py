"""A schema of a registry, with all that is needed to read a record without the registry."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from jobs.sources.port import SourceError

MAGIC: Final = 0
HEAD_BYTES: Final = 5
"""The length of a record's head in Confluent's wire format: a zero byte, and four bytes with the schema's number."""

_PRIMITIVE: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_COMPLEX: Final = frozenset({"record", "enum", "fixed", "array", "map", "error"})


class KnownSchema(BaseModel):
    """A schema and its number in a registry. The number identifies the same schema for ever.

    `kind` is `AVRO`, `JSON` or `PROTOBUF`. `references` has the names and texts of all schemas that this schema uses,
    directly or not. A schema comes after the schemas that it uses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()

    def avro(self) -> Any:  # noqa: ANN401
        """Return an Avro schema as JSON. A type from a referenced schema is written out where it is first used."""
        used = (_named_types(_json(self.number, text), "") for _, text in self.references)
        others = {name: schema for each in used for name, schema in each}
        return _Inlined(others).of(_json(self.number, self.text), "")

    def json_schema(self) -> tuple[Any, Mapping[str, Any]]:
        """Return a JSON Schema, and a dict from names to the schemas to which it refers."""
        others = {name: _json(self.number, text) for name, text in self.references}
        return _json(self.number, self.text), others


def number_of(record: bytes | None) -> int | None:
    """Return the number of a record's schema, or None for a record without value or in another format."""
    if record is None or len(record) < HEAD_BYTES or record[0] != MAGIC:
        return None
    return int.from_bytes(record[1:HEAD_BYTES])


def head_of(number: int) -> bytes:
    """Return the bytes with which a record with this schema number begins."""
    return bytes([MAGIC]) + number.to_bytes(HEAD_BYTES - 1)


def _json(number: int, text: str) -> Any:  # noqa: ANN401
    """Return a schema's text as JSON. A registry can return an Avro schema of one word without quotes."""
    if text in _PRIMITIVE:
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise SourceError(f"schema {number} of the registry is no JSON ({error}): register it anew") from error


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _space_of(schema: Mapping[str, Any], space: str) -> str:
    """Return the namespace of the types inside a named type."""
    name = str(schema.get("name", ""))
    return name.rpartition(".")[0] if "." in name else str(schema.get("namespace", space))


def _named_types(schema: Any, space: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield the full name of each named type, and the type's schema with its namespace."""
    match schema:
        case [*parts]:
            for part in parts:
                yield from _named_types(part, space)
        case {"name": str(name), "type": ("record" | "enum" | "fixed" | "error")}:
            inner = _space_of(schema, space)
            yield _full(name, inner), {**schema, "namespace": inner} if inner else schema
            for field in schema.get("fields", ()):
                yield from _named_types(field["type"], inner)
        case {"type": "array", "items": inside} | {"type": "map", "values": inside}:
            yield from _named_types(inside, space)
        case {"type": inside} if not isinstance(inside, str):
            yield from _named_types(inside, space)
        case _:
            pass


class _Inlined:
    """Replaces names of types from other schemas by the types, where a schema first uses these names."""

    def __init__(self, others: Mapping[str, Any]) -> None:
        self._others = others
        self._defined: set[str] = set()

    def of(self, schema: Any, space: str) -> Any:  # noqa: ANN401
        """Return the schema, in which each type of another schema is written out at its first use."""
        match schema:
            case [*parts]:
                return [self.of(part, space) for part in parts]
            case {"name": str(name), "type": ("record" | "enum" | "fixed" | "error")}:
                inner = _space_of(schema, space)
                self._defined.add(_full(name, inner))
                fields = [{**each, "type": self.of(each["type"], inner)} for each in schema.get("fields", ())]
                return {**schema, "fields": fields} if "fields" in schema else schema
            case {"type": "array", "items": inside}:
                return {**schema, "items": self.of(inside, space)}
            case {"type": "map", "values": inside}:
                return {**schema, "values": self.of(inside, space)}
            case {"type": inside} if inside not in _COMPLEX and inside not in _PRIMITIVE:
                return {**schema, "type": self.of(inside, space)}
            case str() if schema not in _PRIMITIVE:
                return self._named(schema, space)
            case _:
                return schema

    def _named(self, name: str, space: str) -> Any:  # noqa: ANN401
        full = _full(name, space)
        if full in self._defined:
            return full
        other = self._others.get(full) or self._others.get(name)
        return name if other is None else self.of(other, "")
