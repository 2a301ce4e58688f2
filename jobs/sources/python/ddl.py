"""Reads a schema from its text, as in `id BIGINT, name STRING`, without Spark.

PySpark needs a JVM to do this. A source must know its columns before a tick has started a JVM.
"""

import re
from collections import deque
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from jobs.sources.port import SourceError

_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")
_SIMPLE: Final = {
    "boolean": BooleanType(),
    "byte": ByteType(),
    "tinyint": ByteType(),
    "short": ShortType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "long": LongType(),
    "bigint": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "string": StringType(),
    "binary": BinaryType(),
}
_TEXTS: Final = ("varchar", "char")
_DECIMALS: Final = ("decimal", "dec", "numeric")
_SPARKS_DECIMAL: Final = (10, 0)


def schema_of_text(text: str) -> StructType:
    """Return the schema. Raise SourceError for a text that this module cannot parse."""
    tokens = _Tokens(text)
    found = tokens.columns()
    if tokens.next:
        raise tokens.error()
    return found


class _Tokens:
    """The words and signs of a schema's text that are not parsed yet."""

    def __init__(self, text: str) -> None:
        """Split the text into words and signs."""
        self._text = text
        self._left: deque[str] = deque()
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise self.error()
            place = found.end()
            self._left.append(found[1])

    @property
    def next(self) -> str:
        """The next token in lower case, or an empty text at the end."""
        return self._left[0].lower() if self._left else ""

    def error(self) -> SourceError:
        """Return the error to raise for this text."""
        return SourceError(f"the schema {self._text!r} cannot be read: give schema= as a StructType")

    def columns(self) -> StructType:
        """Parse columns up to the end, or up to the sign that closes a struct."""
        fields = [self._column()]
        while self._takes(","):
            fields.append(self._column())
        return StructType(fields)

    def _column(self) -> StructField:
        name = self._taken()
        self._takes(":")
        type_ = self._type()
        nullable = not self._takes("not")
        if not nullable and not self._takes("null"):
            raise self.error()
        if self._takes("comment"):
            self._taken()
        quoted = name.startswith("`")
        return StructField(name[1:-1].replace("``", "`") if quoted else name, type_, nullable)

    def _type(self) -> DataType:
        word = self._taken().lower()
        match word:
            case "array":
                (element,) = self._types(1)
                return ArrayType(element)
            case "map":
                key, value = self._types(2)
                return MapType(key, value)
            case "struct":
                self._must("<")
                found = self.columns()
                self._must(">")
                return found
            case _ if word in _TEXTS:
                self._numbers()
                return StringType()
            case _ if word in _DECIMALS:
                given = self._numbers()
                precision, scale = (*given, *_SPARKS_DECIMAL[len(given) :])
                return DecimalType(precision, scale)
            case _ if word in _SIMPLE:
                return _SIMPLE[word]
            case _:
                raise self.error()

    def _types(self, count: int) -> list[DataType]:
        found = []
        for sign in ("<", ",")[:count]:
            self._must(sign)
            found.append(self._type())
        self._must(">")
        return found

    def _numbers(self) -> list[int]:
        found: list[int] = []
        while self._takes("," if found else "("):
            word = self._taken()
            if not word.isdecimal() or len(found) == len(_SPARKS_DECIMAL):
                raise self.error()
            found.append(int(word))
        if found:
            self._must(")")
        return found

    def _takes(self, token: str) -> bool:
        if self.next != token:
            return False
        self._left.popleft()
        return True

    def _must(self, token: str) -> None:
        if not self._takes(token):
            raise self.error()

    def _taken(self) -> str:
        if not self._left or not (self.next[0] in "`'" or self.next.isidentifier() or self.next.isdecimal()):
            raise self.error()
        return self._left.popleft()
