"""Reads topics whose records have their schemas in a registry.

The driver looks at the records of each slice before it hands the slice out, and asks the registry for each schema that
it does not know. The slice holds the schemas. So no task asks the registry, and no replay needs it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import structlog
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jobs.sources.arrow_types import ColumnType
from jobs.sources.avro.schemas import AvroTypeError, column_types, written_out
from jobs.sources.kafka.position import OffsetRange, TopicPartition
from jobs.sources.kafka.readers import VALUE
from jobs.sources.kafka.records import UNDECODED_COLUMN, Decoder, RecordForm, avro_form, checked, require_metadata
from jobs.sources.port import SourceError
from jobs.sources.registry.client import NotInRegistryError, SchemaRegistry
from jobs.sources.registry.known_schema import HEAD_BYTES, KnownSchema, number_of
from jobs.sources.registry.registered_columns import Described, OnOther, RegisteredColumns, SchemaVerdict, Subjects

if TYPE_CHECKING:
    from confluent_kafka import Message

_log = structlog.get_logger(__name__)

REGISTERED: Final = ("avro",)
"""The formats whose schemas may be in a registry."""
_ON_OTHER: Final = ("fail", "ignore", "evolve")
_KINDS: Final = {"avro": "AVRO"}


class RegisteredForm:
    """Says how the records of topics become rows, once it has asked the registry for the columns."""

    def __init__(
        self,
        form: Any,  # noqa: ANN401 - a Format
        schema: Any,  # noqa: ANN401 - an AvroSchema
        metadata: tuple[str, ...],
        registry: SchemaRegistry,
        subjects: Subjects,
        on_other: OnOther | None,
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
        self._metadata, self._schema, self._format = metadata, schema, form
        declared, self._decoder = self._declared()
        self.columns = RegisteredColumns(registry, self._described, subjects, chosen, declared)
        self._described_once = lru_cache(maxsize=1_024)(_avro_described)
        self._made: RecordForm | None = None
        self.known: dict[int, KnownSchema] = {}
        """The schemas of the records that were looked at."""

    def made(self, topics: Callable[[], Sequence[str]]) -> RecordForm:
        """Return the form. The first call asks the registry, unless the columns are declared or kept."""
        if self._made is None:
            value = self.columns.find(topics())
            form, decoder = self._format, self._decoder or self._decoder_of(value)
            self._made = checked(
                RecordForm(format=form, value=value, metadata=self._metadata, decoder=decoder, registered=self.columns)
            )
        return self._made

    def restore(self, schemas: Sequence[KnownSchema]) -> None:
        """Take the schemas that a checkpoint has."""
        self.known |= {each.number: each for each in schemas}
        self.columns.registry.remember(self.known)

    def looked_at(self, place: TopicPartition, first: OffsetRange, records: "Iterator[list[Message]]") -> OffsetRange:
        """Return the range with the schemas of its records, up to the first record that waits for the next tick.

        Raises RegistryAwayError if a schema is not known yet, and SourceError.
        """
        verdicts: dict[bytes, SchemaVerdict | None] = {}
        for batch in records:
            for record in batch:
                head = (record.value() or b"")[:HEAD_BYTES]
                if head not in verdicts:
                    verdicts[head] = self._verdict(head, place, record.offset())
                    if verdicts[head] is SchemaVerdict.WAITS:
                        _log.info("waits for the next tick, which has its columns", record=f"{place}:{record.offset()}")
                        return self._range(first.model_copy(update={"end": record.offset()}), verdicts)
        return self._range(first, verdicts)

    def _verdict(self, head: bytes, place: TopicPartition, offset: int) -> SchemaVerdict | None:
        number = number_of(head)
        if number is None:
            return None
        where = f"partition {place}, offset {offset:,}"
        try:
            known = self.columns.registry.schema(number)
        except NotInRegistryError as error:
            raise NotInRegistryError(
                f"{error}, which {where} has: correct the url of the SchemaRegistry, or put the schema back under this "
                f"number. To go on behind the record: tidemark reset PIPELINE SOURCE --split {place} --to {offset + 1}"
            ) from None
        self.known[number] = known
        return self.columns.verdict(known, where)

    def _range(self, asked: OffsetRange, verdicts: Mapping[bytes, SchemaVerdict | None]) -> OffsetRange:
        numbers = {number_of(head): verdict for head, verdict in verdicts.items()}
        read = sorted(number for number, said in numbers.items() if number is not None and said is SchemaVerdict.READ)
        passed = sorted(
            number for number, said in numbers.items() if number is not None and said is SchemaVerdict.PASSED_OVER
        )
        return asked.model_copy(update={"schemas": tuple(map(self.known.__getitem__, read)), "passed": tuple(passed)})

    def _described(self, known: KnownSchema) -> Described:
        wanted = _KINDS[self._format]
        if known.kind != wanted:
            raise SourceError(
                f"schema {known.number} of the registry is {known.kind}, and the source reads {self._format}: write "
                "another format="
            )
        return self._described_once(known)

    def _declared(self) -> tuple[Mapping[str, ColumnType] | None, Decoder | None]:
        """Return the columns that the user's schema has, and its decoder."""
        if self._schema is None:
            return None, None
        _, decoder = avro_form(self._schema, {}, UNDECODED_COLUMN)
        return _sound(self._schema, "the schema of a KafkaSource").fields, decoder

    def _decoder_of(self, value: StructType) -> Decoder:
        from jobs.sources.avro.decoding import AvroDecoding  # noqa: PLC0415 - an extra

        return AvroDecoding(
            value=VALUE,
            undecoded=UNDECODED_COLUMN,
            reader=None,
            writers={},
            stored=pa.struct([pa.field(name, each.stored) for name, each in self.columns.types.items()]),
            columns=to_arrow_schema(value, timezone="UTC"),
        )


def _avro_described(known: KnownSchema) -> Described:
    return _sound(known.avro(), f"schema {known.number} of the registry")


def _sound(schema: Any, what: str) -> Described:  # noqa: ANN401
    """Return what an Avro schema says. Raise SourceError if a field has no column."""
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
