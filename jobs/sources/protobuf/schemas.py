"""Compiles Protobuf schemas, and maps each Protobuf type to a Spark type.

| Protobuf                                       | Spark                                                |
|------------------------------------------------|------------------------------------------------------|
| int32, sint32, sfixed32; uint32, fixed32       | int; bigint                                          |
| int64, sint64, sfixed64; uint64, fixed64       | bigint; decimal(20,0)                                |
| float, double, bool, string, bytes             | float, double, boolean, string, binary               |
| an enum                                        | string: the name, or the digits of an unknown number |
| google.protobuf.Timestamp, google.type.Date    | timestamp, date                                      |
| google.protobuf.StringValue and its like       | as the value                                         |
| another message, a repeated field, a map       | struct, array, map with keys of text                 |
| each field of a oneof                          | a column, which is null unless it was set            |
| a message that lies inside itself              | none: the error names it                                |
"""

import base64
import importlib
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
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

from jobs.distribution import DISTRIBUTION
from jobs.sources.port import SourceError
from jobs.sources.registry.known_schema import KnownSchema

Descriptor = Any
"""A descriptor in Protobuf's library of a message or of a field."""

TIMESTAMP, DATE = "google.protobuf.Timestamp", "google.type.Date"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_PLAIN: Final[Mapping[int, DataType]] = {
    1: DoubleType(),
    2: FloatType(),
    3: LongType(),
    4: DecimalType(20, 0),
    5: IntegerType(),
    6: DecimalType(20, 0),
    7: LongType(),
    8: BooleanType(),
    9: StringType(),
    12: BinaryType(),
    13: LongType(),
    14: StringType(),
    15: IntegerType(),
    16: LongType(),
    17: IntegerType(),
    18: LongType(),
}
"""Spark types by the number of a field's type in `descriptor.proto`."""
_MAIN: Final = "tidemark_schema.proto"


def protobuf_columns(known: KnownSchema, record: str | None) -> tuple[str, StructType]:
    """Return full name and columns of a schema's message: the message named `record`, or else the first.

    Raises SourceError for a schema that protoc does not accept, and for a message without columns.
    """
    what = f"schema {known.number} of the registry"
    file = file_of(compiled(known), what)
    messages = list(file.message_types_by_name.values())
    found = next((each for each in messages if each.full_name == record), messages[0] if messages else None)
    if found is None or not found.fields:
        raise SourceError(f"{what} has no message with fields, so it has no columns: read the bytes with format='raw'")
    return str(found.full_name), StructType([StructField(each.name, _type(each, what, ())) for each in found.fields])


@lru_cache(maxsize=1_024)
def compiled(known: KnownSchema) -> bytes:
    """Return the descriptors of a schema and of all schemas that it imports, with its own last. Raises SourceError.

    A registry has the text of a .proto file, or the file's descriptor in base64.
    """
    found = _described(known)
    if found is not None:
        return found
    if find_spec("grpc_tools") is None:
        raise SourceError(f"Protobuf's compiler is not installed: pip install '{DISTRIBUTION}[protobuf]'")
    import grpc_tools  # noqa: PLC0415
    from grpc_tools import _protoc_compiler  # noqa: PLC0415 - an extra

    what = f"schema {known.number} of the registry"
    with tempfile.TemporaryDirectory(prefix="tidemark-proto-") as made:
        folder = Path(made)
        for name, text in (*known.references, (_MAIN, known.text)):
            path = (folder / name).resolve()
            if not path.is_relative_to(folder.resolve()):
                raise SourceError(f"{what} imports {name!r}, which is no name of a file: correct the reference")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        out = folder / ".descriptors"
        own = str(Path(grpc_tools.__file__).parent / "_proto")
        words = ["protoc", f"-I{folder}", f"-I{own}", "--include_imports", f"--descriptor_set_out={out}", _MAIN]
        if _protoc_compiler.run_main([word.encode() for word in words]):
            raise SourceError(f"{what} is none that Protobuf's compiler takes: register it anew")
        return out.read_bytes()


def _described(known: KnownSchema) -> bytes | None:
    """Return the descriptors of a schema, or None if the registry stores the schema as the text of a .proto file."""
    from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - pyspark[connect] brings it
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    made = descriptor_pb2.FileDescriptorSet()
    for name, text in (*known.references, (_MAIN, known.text)):
        try:
            made.file.add().MergeFromString(base64.b64decode(text, validate=True))
        except (ValueError, DecodeError):
            return None
        made.file[-1].name = name
    there = {each.name for each in made.file}
    imported = descriptor_pb2.FileDescriptorSet()
    for name in dict.fromkeys(each for file in made.file for each in file.dependency if each not in there):
        importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        descriptor_pool.Default().FindFileByName(name).CopyToProto(imported.file.add())
    return bytes(imported.SerializeToString() + made.SerializeToString())


@lru_cache(maxsize=256)
def file_of(descriptors: bytes, what: str) -> Descriptor:
    """Return the descriptor of the last file of a set. Raises SourceError if the set is inconsistent."""
    from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - an extra

    pool = descriptor_pool.DescriptorPool()
    found = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
    try:
        for each in found.file:
            pool.Add(each)
        return pool.FindFileByName(found.file[-1].name)
    except (TypeError, KeyError) as error:
        raise SourceError(f"{what} contradicts itself: {error}") from error


def _type(field: Descriptor, what: str, inside: tuple[str, ...]) -> DataType:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        return MapType(StringType(), _single(value, what, inside))
    single = _single(field, what, inside)
    return ArrayType(single) if is_repeated(field) else single


def is_repeated(field: Descriptor) -> bool:
    """Return whether a field is repeated."""
    return bool(field.is_repeated)


def _single(field: Descriptor, what: str, inside: tuple[str, ...]) -> DataType:
    message = field.message_type
    if message is None:
        return _PLAIN[field.type]
    if message.full_name == TIMESTAMP:
        return TimestampType()
    if message.full_name == DATE:
        return DateType()
    if message.full_name in WRAPPERS:
        return _PLAIN[message.fields_by_name["value"].type]
    if message.full_name in inside or not message.fields:
        how = "lies inside itself" if message.fields else "has no fields"
        raise SourceError(f"{what}: message {message.full_name} {how}, and Spark has no such type")
    own = (*inside, message.full_name)
    return StructType([StructField(each.name, _type(each, what, own)) for each in message.fields])
