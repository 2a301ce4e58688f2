"""Reads topics whose records have their schemas in a registry.

A poll looks at the records of each slice before it returns the slice, and asks the registry for each unknown schema.
The slice contains the schemas. So no task asks the registry, and no replay needs the registry.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import structlog
from pyspark.sql.types import StructType

from checkpointing.identifiers import VertexId
from jobs.sources.arrow_types import ColumnType
from jobs.sources.avro.schemas import AvroTypeError, column_types, written_out
from jobs.sources.change_rows import HEAD
from jobs.sources.debezium.columns import Encodings
from jobs.sources.debezium.connect_types import spark_columns
from jobs.sources.debezium.decoding import connect_type
from jobs.sources.debezium.envelope import DOCUMENTS
from jobs.sources.exact_values import KEYS_ARE_TEXTS, map_without_texts
from jobs.sources.kafka.position import OffsetRange, TopicPartition, split_of
from jobs.sources.kafka.readers import VALUE
from jobs.sources.kafka.records import (
    Decoder,
    RecordForm,
    avro_form,
    checked,
    debezium_decoding,
    require_metadata,
    table_declared,
)
from jobs.sources.port import UNDECODED_COLUMN, SourceError
from jobs.sources.protobuf.schemas import protobuf_columns
from jobs.sources.registry.client import NotInRegistryError, SchemaRegistry
from jobs.sources.registry.json_schema import json_columns
from jobs.sources.registry.known_schema import HEAD_BYTES, KnownSchema, number_of
from jobs.sources.registry.registered_columns import (
    Describe,
    Described,
    OnOther,
    RegisteredColumns,
    SchemaVerdict,
    Subjects,
)
from jobs.spark.versions import to_arrow

if TYPE_CHECKING:
    from confluent_kafka import Message

_DEBEZIUM: Final = "debezium-avro"
_log = structlog.get_logger(__name__)

REGISTERED: Final = ("avro", "json-schema", "protobuf", "debezium-avro")
"""The formats whose schemas may be in a registry."""
_ROOM: Final = 400_000
"""The most characters of schemas in a checkpoint. The state of all sources has room for a million."""
_ON_OTHER: Final = ("fail", "ignore", "evolve")
_KINDS: Final = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF", "debezium-avro": "AVRO"}


class RegisteredForm:
    """Makes the form in which records of topics become rows, with columns from the registry."""

    def __init__(
        self,
        form: Any,  # noqa: ANN401 - a Format
        schema: Any,  # noqa: ANN401 - an AvroSchema
        metadata: tuple[str, ...],
        registry: SchemaRegistry,
        *,
        subjects: Subjects,
        on_other: OnOther | None,
        encodings: Encodings | None,
    ) -> None:
        """Ask nothing yet. Raises SourceError for arguments that contradict each other."""
        if form not in REGISTERED:
            raise SourceError(
                f"a KafkaSource with format={form!r} has no registry: the formats that do are {', '.join(REGISTERED)}"
            )
        chosen: OnOther = on_other or ("evolve" if schema is None else "fail")
        if chosen not in _ON_OTHER:
            raise SourceError(f"columns={chosen!r}: write one of {', '.join(_ON_OTHER)}")
        if (chosen == "evolve") != (schema is None):
            raise SourceError(
                f"columns={chosen!r} {'needs' if schema is None else 'has no'} schema=: with a schema, its columns are "
                "fixed, so write 'fail' or 'ignore'; without one, each tick has the columns of the registry ('evolve')"
            )
        require_metadata(metadata)
        if encodings is not None and form != _DEBEZIUM:
            raise SourceError(f"a KafkaSource with format={form!r} has no encodings=: leave it out")
        self._metadata, self._schema, self._format = metadata, schema, form
        self._encodings, self._record = encodings, subjects.record
        declared, self._decoder = self._declared()
        self.columns = RegisteredColumns(registry, self._described, subjects, chosen, declared)
        self._described_once = lru_cache(maxsize=1_024)(self._describing())
        self._made: RecordForm | None = None
        self.known: dict[int, KnownSchema] = {}
        """The schemas of the records that were looked at."""

    def _describing(self) -> Describe:
        """Return the function that describes schemas of this format."""
        match self._format:
            case "protobuf":
                return partial(_message_described, self._record)
            case "json-schema":
                return _json_described
            case "debezium-avro":
                return _table_described
            case _:
                return _avro_described

    def made(self, topics: Callable[[], Sequence[str]]) -> RecordForm:
        """Return the form. The first call asks the registry, unless the columns are declared or stored in a folder."""
        if self._made is None:
            found = self.columns.find(topics())
            value = StructType([*HEAD, *found]) if self._format == _DEBEZIUM else found
            form, decoder = self._format, self._decoder or self._decoder_of(found)
            odd = map_without_texts(found)
            if odd is not None:
                raise SourceError(f"column {odd!r} of a KafkaSource has a map {KEYS_ARE_TEXTS}")
            self._made = checked(
                RecordForm(format=form, value=value, metadata=self._metadata, decoder=decoder, registered=self.columns)
            )
        return self._made

    def restore(self, schemas: Sequence[KnownSchema]) -> None:
        """Restore the schemas of a checkpoint."""
        self.known |= {each.number: each for each in schemas}
        self.columns.registry.remember(self.known)

    def for_checkpoint(self) -> tuple[KnownSchema, ...]:
        """Return the newest schemas that were looked at, as many as a checkpoint has room for."""
        found: list[KnownSchema] = []
        room = _ROOM
        for each in reversed(self.known.values()):
            room -= len(each.text) + sum(len(text) for _, text in each.references)
            if room < 0:
                break
            found.append(each)
        return tuple(reversed(found))

    def looked_at(
        self, source: VertexId, place: TopicPartition, first: OffsetRange, records: "Iterator[list[Message]]"
    ) -> OffsetRange:
        """Return the range with the schemas of its records, up to the first record that waits for the next tick.

        Raises RegistryAwayError if an unknown schema is needed and the registry does not answer, and SourceError if a
        schema is missing or does not fit.
        """
        verdicts: dict[bytes, SchemaVerdict | None] = {}
        keys = set[bytes]()
        for batch in records:
            heads = [(record.value() or b"")[:HEAD_BYTES] for record in batch]
            for at in sorted(map(heads.index, set(heads).difference(verdicts))):
                offset = batch[at].offset()
                verdicts[heads[at]] = self._verdict(heads[at], source, place, offset)
                if verdicts[heads[at]] is SchemaVerdict.WAITS:
                    _log.info("waits for the next tick, which has its columns", record=f"{place}:{offset}")
                    return self._range(first.model_copy(update={"end": offset}), verdicts, keys)
            if self._format == _DEBEZIUM:
                keys.update((record.key() or b"")[:HEAD_BYTES] for record in batch)
        return self._range(first, verdicts, keys)

    def _verdict(self, head: bytes, source: VertexId, place: TopicPartition, offset: int) -> SchemaVerdict | None:
        number = number_of(head)
        if number is None:
            return None
        where = f"partition {place}, offset {offset:,}"
        try:
            known = self.columns.registry.schema(number)
        except NotInRegistryError as error:
            raise NotInRegistryError(
                f"{error}, which {where} has: correct the url of the SchemaRegistry, or put the schema back under this "
                f"number. To go on behind the record: tidemark reset PIPELINE {source} --split {split_of(place)} --to "
                f"{offset + 1}"
            ) from None
        self.known[number] = known
        return self.columns.verdict(known, where)

    def _range(
        self, asked: OffsetRange, verdicts: Mapping[bytes, SchemaVerdict | None], keys: set[bytes]
    ) -> OffsetRange:
        found = {number_of(head): verdict for head, verdict in verdicts.items()}
        numbers = {
            said: sorted(n for n, each in found.items() if n is not None and each is said) for said in SchemaVerdict
        }
        of_keys = [number for number in map(number_of, sorted(keys)) if number is not None]
        self.known |= {number: self.columns.registry.schema(number) for number in of_keys}
        read = dict.fromkeys([*numbers[SchemaVerdict.READ], *of_keys])
        passed = tuple(numbers[SchemaVerdict.PASSED_OVER])
        return asked.model_copy(update={"schemas": tuple(map(self.known.__getitem__, read)), "passed": passed})

    def _described(self, known: KnownSchema) -> Described:
        wanted = _KINDS[self._format]
        if known.kind != wanted:
            raise SourceError(
                f"schema {known.number} of the registry is {known.kind}, and the source reads {self._format}: write "
                "another format="
            )
        return self._described_once(known)

    def _protobuf(self, value: StructType) -> Decoder:
        from jobs.sources.protobuf.decoding import ProtobufDecoding  # noqa: PLC0415 - an extra

        columns = to_arrow(value)
        return ProtobufDecoding(VALUE, UNDECODED_COLUMN, columns, self._record, {})

    def _declared(self) -> tuple[Mapping[str, ColumnType] | None, Decoder | None]:
        """Return the columns of the user's schema, and its decoder."""
        if self._schema is None:
            return None, None
        if self._format != "avro":
            table = table_declared(self._schema)
            return {each.name: ColumnType(each.dataType, pa.null()) for each in table}, None
        _, decoder = avro_form(self._schema, {}, UNDECODED_COLUMN)
        return _sound(self._schema, "the schema of a KafkaSource").fields, decoder

    def _decoder_of(self, value: StructType) -> Decoder | None:
        if self._format == "json-schema":
            return None
        if self._format == "protobuf":
            return self._protobuf(value)
        if self._format == _DEBEZIUM:
            return debezium_decoding(value, self._encodings, only_known=False, avro=True)
        from jobs.sources.avro.decoding import AvroDecoding  # noqa: PLC0415 - an extra

        return AvroDecoding(
            value=VALUE,
            undecoded=UNDECODED_COLUMN,
            reader=None,
            writers={},
            stored=pa.struct([pa.field(name, each.stored) for name, each in self.columns.types.items()]),
            columns=to_arrow(value),
        )


def _avro_described(known: KnownSchema) -> Described:
    return _sound(known.avro(), f"schema {known.number} of the registry")


def _table_described(known: KnownSchema) -> Described:
    """Return the columns of the table whose events have this schema."""
    envelope = connect_type(known.avro(), known.number)
    after = envelope.field("after")
    if after is None or envelope.field("op") is None:
        raise SourceError(
            f"schema {known.number} of the registry is none of Debezium's events, which have 'op' and 'after'. If its "
            "connector flattens events (ExtractNewRecordState), write format='avro'"
        )
    columns = spark_columns(after) if after.fields else DOCUMENTS
    return Described("", {each.name: ColumnType(each.dataType, pa.null()) for each in columns})


def _message_described(record: str | None, known: KnownSchema) -> Described:
    name, columns = protobuf_columns(known, record)
    return Described(name, {each.name: ColumnType(each.dataType, pa.null()) for each in columns})


def _json_described(known: KnownSchema) -> Described:
    title, columns = json_columns(known)
    return Described(title, {each.name: ColumnType(each.dataType, pa.null()) for each in columns})


def _sound(schema: Any, what: str) -> Described:  # noqa: ANN401
    """Return the description of an Avro schema. Raise SourceError if a field cannot be a column."""
    whole = written_out(schema, what)
    try:
        found = column_types(whole)
    except AvroTypeError as error:
        raise _unreadable(what, error) from error
    fields = {}
    for name, each in found.items():
        if isinstance(each, AvroTypeError):
            raise _unreadable(what, each)
        fields[name] = each
    return Described(str(whole["name"]), fields)


def _unreadable(what: str, error: AvroTypeError) -> SourceError:
    return SourceError(
        f"{what} cannot be read into columns: {error}. Change the schema, declare the columns that you want with "
        "schema=, or read the bytes with format='raw'"
    )
