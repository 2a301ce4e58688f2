"""Maps each JSON Schema to a Spark type.

| JSON Schema                                                  | Spark                           |
|--------------------------------------------------------------|---------------------------------|
| boolean, integer, number, string                             | boolean, bigint, double, string |
| string with the format `date` or `date-time`                 | date, timestamp                 |
| integer or number with `connect.type` int8 to int32, float32 | int, float                      |
| array of one type                                            | array                           |
| object with properties                                       | struct                          |
| object with `additionalProperties` of one type alone         | map with keys of text           |
| a type and null; `oneOf` or `anyOf` of null and one other    | that type                       |
| `$ref` to a part of this schema, or of a referenced schema   | as that part                    |
| everything else                                              | string: the value's JSON        |
"""

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jobs.sources.port import SourceError
from jobs.sources.registry.known_schema import KnownSchema

_PLAIN: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "integer": LongType(),
    "number": DoubleType(),
    "string": StringType(),
}
_CONNECT: Final[Mapping[object, DataType]] = {
    "int8": IntegerType(),
    "int16": IntegerType(),
    "int32": IntegerType(),
    "float32": FloatType(),
}
_FORMATS: Final[Mapping[object, DataType]] = {"date": DateType(), "date-time": TimestampType()}
_DEEP: Final = 100


def json_columns(known: KnownSchema) -> tuple[str, StructType]:
    """Return title and columns of a schema. Raise SourceError if it does not describe an object with properties."""
    schema, others = known.json_schema()
    found = _Types(schema, others, f"schema {known.number} of the registry").of(schema, 0)
    if not isinstance(found, StructType):
        raise SourceError(
            f"schema {known.number} of the registry describes no object with properties, so it has no columns: read "
            "the bytes with format='raw'"
        )
    return str(schema.get("title", "")), found


class _Types:
    def __init__(self, root: Any, others: Mapping[str, Any], what: str) -> None:  # noqa: ANN401
        self._root, self._others, self._what = root, others, what

    def of(self, schema: Any, depth: int) -> DataType:  # noqa: ANN401
        """Return the Spark type of a schema. Raise SourceError for a schema that contains itself."""
        if depth > _DEEP:
            raise SourceError(f"{self._what} has a part that lies inside itself, and Spark has no such type")
        match schema:
            case {"$ref": str(place)}:
                return self._referred(place, depth)
            case {"oneOf": [*parts]} | {"anyOf": [*parts]}:
                others = [part for part in parts if part != {"type": "null"}]
                return self.of(others[0], depth + 1) if len(others) == 1 else StringType()
            case {"type": [*kinds]}:
                names = [kind for kind in kinds if kind != "null"]
                return self.of({**schema, "type": names[0]}, depth + 1) if len(names) == 1 else StringType()
            case _:
                return self._plain(schema, depth)

    def _plain(self, schema: Any, depth: int) -> DataType:  # noqa: ANN401
        match schema:
            case {"type": "object", "properties": {**fields}} if fields:
                return StructType([StructField(str(name), self.of(each, depth + 1)) for name, each in fields.items()])
            case {"type": "object", "additionalProperties": {**values}} if values:
                return MapType(StringType(), self.of(values, depth + 1))
            case {"type": "array", "items": {**items}}:
                return ArrayType(self.of(items, depth + 1))
            case {"type": "string"}:
                return _FORMATS.get(schema.get("format"), StringType())
            case {"type": ("integer" | "number") as kind}:
                return _CONNECT.get(schema.get("connect.type"), _PLAIN[kind])
            case {"type": "boolean"}:
                return BooleanType()
            case _:
                return StringType()

    def _referred(self, place: str, depth: int) -> DataType:
        file, _, path = place.partition("#")
        root = self._root if not file else self._others.get(file)
        if root is None:
            raise SourceError(f"{self._what} refers to {file!r}, which is none of its references in the registry")
        found = root
        for part in filter(None, path.split("/")):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise SourceError(f"{self._what} refers to {place!r}, which does not exist")
            found = found[name]
        return _Types(root, self._others, self._what).of(found, depth + 1)
