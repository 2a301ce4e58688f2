"""Decodes Debezium's change events: what happened to which row of which table, where, and in which transaction.

The contract for every source that receives such events:

- `json_event` takes the texts of a record's value and key, as Debezium's JsonConverter writes them, with `schema` or
  without. `event_of` takes the same envelope as dicts, as a decoder of Avro returns it. Both return a `ChangeEvent`.
  Both return None for a record without a row: a tombstone, a heartbeat, or a message of `pg_logical_emit_message`. Both
  raise NoEventError for anything else that is no event.
- `change_rows` yields the rows of an event: one, or two for an update if the event has the row before. A row has the
  values of `jobs.sources.change_rows.HEAD`, and then the table's values, as `columns.RowColumns` reads them. The rows
  have the same meaning as the rows of `PostgresChanges`, so `apply_changes` and `newest_rows` accept them. A source
  must give the two rows of an update adjoining `_position`s.
- `connect_types.spark_columns` returns the columns of the table, if the event contains its types (`ChangeEvent.types`).
- `boundary_of` decodes an event of the topic of transactions (`provide.transaction.metadata`).

| Debezium's `op`            | rows                                                                                  |
|----------------------------|---------------------------------------------------------------------------------------|
| `r`, a read of a snapshot  | `snapshot`. `_xid` and `_committed_at` are null                                       |
| `c`                        | `insert`                                                                              |
| `u`                        | `update_before`, only if the event contains the old row, then `update_after`          |
| `d`                        | `delete` with the row before, or else with the columns of the record's key            |
| `t`                        | `truncate`, without values                                                            |
| `m`, a message             | none                                                                                  |

Debezium sends an update of a primary key as a delete, a tombstone and an insert.

| database       | `_table`          | `_lsn`                                             | `_xid`                |
|----------------|-------------------|----------------------------------------------------|-----------------------|
| PostgreSQL     | schema.table      | `lsn`, of the change itself                        | `txId`                |
| MySQL, MariaDB | database.table    | the number of the log file * 2^32 + the place in it| null                  |
| MongoDB        | database.collection | the second of the change * 2^32 + `ord`          | null                  |
| SQL Server and others | database.schema.table, or what of them is there | null, as it has more than 64 bits | null  |

A MongoDB event has its rows as texts of extended JSON. The table of a collection has two columns, `id` and `document`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pyspark.sql.types import StringType, StructType

from jobs.sources.change_rows import AFTER, BEFORE, DELETE, INSERT, SNAPSHOT, TRUNCATE
from jobs.sources.debezium.columns import RowColumns
from jobs.sources.debezium.connect_types import ConnectType, NoEventError, Values, of_json_block

ID, DOCUMENT = "id", "document"
DOCUMENTS: Final = StructType().add(ID, StringType()).add(DOCUMENT, StringType())
"""The columns of a MongoDB collection: the document's `_id` and the whole document, both in extended JSON."""

_KINDS: Final = {"r": SNAPSHOT, "c": INSERT, "u": AFTER, "d": DELETE, "t": TRUNCATE}
_MESSAGE: Final = "m"
_MONGODB: Final = "mongodb"
_LOG_FILE: Final = re.compile(r".*\.(\d+)")
_LSN_MAX: Final = 2**63 - 1
_SCHEMA_FIRST: Final = '{"schema":'
_DECODER: Final = json.JSONDecoder()


class SourceTransaction(NamedTuple):
    """The transaction of the database that a change belongs to, and the change's place in it, from 1 on."""

    id: str
    total_order: int


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """One change of one row, or of a whole table.

    `kind` is a word of `change_rows`. `before` and `after` have the row's values as Debezium sent them, and `key` has
    the values of the record's key. `types` has Debezium's types of the columns, if the event contains them. `lsn`,
    `xid` and `committed_us` (microseconds since 1970) become the columns of `HEAD`. `place` names the change in the
    database's log, for messages. `last_of_snapshot` is True for the last row of a snapshot.
    """

    kind: str
    table: str
    before: Values | None
    after: Values | None
    key: Values | None
    types: ConnectType | None
    lsn: int | None
    xid: int | None
    committed_us: int | None
    place: str
    last_of_snapshot: bool = False


class ChangedRow(NamedTuple):
    """A row of a change: the kind, and the values as Debezium sent them. A truncate has None as values."""

    kind: str
    values: Values | None


class Boundary(NamedTuple):
    """The begin or the end of a database transaction. At the end, `events` has its number of events in each table."""

    id: str
    is_end: bool
    events: Mapping[str, int]


def json_event(value: bytes | str | None, key: bytes | str | None = None) -> ChangeEvent | None:
    """Return the event in a record's value and key, or None if the record has no row. Raises NoEventError."""
    if value is None:
        return None
    payload, types = _parsed(value, "value")
    if payload is None:
        return None
    return event_of(payload, None if key is None else _parsed(key, "key")[0], types)


def event_of(payload: Any, key: Any = None, types: ConnectType | None = None) -> ChangeEvent | None:  # noqa: ANN401
    """Return the event of a decoded envelope, or None if the envelope has no row. Raises NoEventError.

    `types` is the type of the envelope, or None if it is not known.
    """
    if not isinstance(payload, Mapping):
        raise NoEventError(f"it is a {type(payload).__name__}, and a change event is an object")
    source, op = payload.get("source"), payload.get("op")
    if op is None and "ts_ms" in payload and not {"before", "after", "status"} & payload.keys():
        return None  # a heartbeat
    if not isinstance(source, Mapping) or not isinstance(op, str):
        raise NoEventError(
            "it lacks 'op' and 'source', which each change event of Debezium has. If its connector flattens events "
            "(ExtractNewRecordState), take that transform out, or read the topic with format='json' or 'avro'"
        )
    if op == _MESSAGE:
        return None
    if op not in _KINDS:
        raise NoEventError(f"it has the op {op!r}, and a change event has one of {', '.join(_KINDS)}")
    return _event(payload, source, key if isinstance(key, Mapping) else None, types)


def change_rows(event: ChangeEvent, columns: RowColumns) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of an event: the values of `HEAD`, then the columns' values. A moment is in microseconds.

    Raises NoEventError if the event lacks its row, or if a value does not fit its column.
    """
    for kind, row in rows_of(event):
        values, unsent = columns.values(row, event.types)
        yield (kind, event.table, event.lsn, event.xid, event.committed_us, unsent or None, *values)


def rows_of(event: ChangeEvent) -> Iterator[ChangedRow]:
    """Yield the rows of an event. For an update, the row before comes first.

    Raises NoEventError if the event lacks its row.
    """
    if event.kind == TRUNCATE:
        yield ChangedRow(TRUNCATE, None)
    elif event.kind == DELETE:
        yield ChangedRow(DELETE, _required(event, event.before or event.key))
    else:
        after = _required(event, event.after)
        if event.kind == AFTER and event.before is not None:
            yield ChangedRow(BEFORE, event.before)
        yield ChangedRow(event.kind, after)


def transaction_of(value: bytes | str | None) -> SourceTransaction | None:
    """Return the transaction of the event in a record's value, or None for a snapshot's read and for no event."""
    try:
        payload = None if value is None else _parsed(value, "value")[0]
    except NoEventError:
        return None
    return _transaction(payload.get("transaction")) if isinstance(payload, Mapping) else None


def boundary_of(value: bytes | str | Values | None) -> Boundary | None:
    """Return the boundary in an event of the topic of transactions, or None for a tombstone. Raises NoEventError."""
    if value is None:
        return None
    said = value if isinstance(value, Mapping) else _parsed(value, "value")[0]
    match said:
        case {"status": ("BEGIN" | "END") as status, "id": str(number)}:
            listed = said.get("data_collections") or ()
            try:
                events = {str(each["data_collection"]): int(each["event_count"]) for each in listed}
            except (TypeError, KeyError, ValueError) as error:
                raise NoEventError(f"transaction {number} has no count of events for each table") from error
            return Boundary(number, status == "END", events)
        case _:
            pass
    raise NoEventError("it is no begin and no end of a transaction: name the topic that ends in '.transaction'")


def _parsed(text: bytes | str, part: str) -> tuple[Any, ConnectType | None]:
    """Return the payload of a JSON text, and its type if the text has a schema."""
    try:
        read = text.decode() if isinstance(text, bytes) else text
        if read.startswith(_SCHEMA_FIRST):
            found = _after_schema(read)
            if found is not None:
                return found
        said = _DECODER.decode(read)
    except (ValueError, RecursionError) as error:
        raise NoEventError(f"its {part} is no JSON ({error})") from error
    if isinstance(said, dict) and said.keys() == {"schema", "payload"}:
        return said["payload"], None if said["schema"] is None else _types(json.dumps(said["schema"]))
    return said, None


def _after_schema(text: str) -> tuple[Any, ConnectType | None] | None:
    """Return payload and type of a text that begins with its schema, as JsonConverter writes it; else None.

    All records of a table begin with the same schema text, so the text is parsed once.
    """
    end = text.find(',"payload":')
    while end >= 0:
        schema = text[len(_SCHEMA_FIRST) : end]
        types = _types(schema)
        if types is not None or schema == "null":
            payload, stop = _DECODER.raw_decode(text, end + len(',"payload":'))
            return (payload, types) if text[stop:].strip() == "}" else None
        end = text.find(',"payload":', end + 1)
    return None


@lru_cache(maxsize=1_024)
def _types(schema: str) -> ConnectType | None:
    """Return the type that a schema block describes, or None if this text is not a whole block."""
    try:
        return of_json_block(json.loads(schema))
    except ValueError:
        return None


def _event(payload: Values, source: Values, key: Values | None, types: ConnectType | None) -> ChangeEvent:
    kind, connector = _KINDS[payload["op"]], source.get("connector")
    before, after = payload.get("before"), payload.get("after")
    row = None if types is None else types.field("after") or types.field("before")
    if connector == _MONGODB:
        before, after, key, row = *(_document(each, key) for each in (before, after)), _id(key), None
    for part in (before, after):
        if part is not None and not isinstance(part, Mapping):
            raise NoEventError(f"a row in it is a {type(part).__name__}, and a row is an object")
    is_snapshot = kind == SNAPSHOT
    return ChangeEvent(
        kind=kind,
        table=_table(source),
        before=before,
        after=after,
        key=key,
        types=row,
        lsn=_lsn(source),
        xid=None if is_snapshot else _whole(source.get("txId")),
        committed_us=None if is_snapshot else _committed_us(source),
        place=_place(source),
        last_of_snapshot=source.get("snapshot") == "last",
    )


def _required(event: ChangeEvent, values: Values | None) -> Values:
    if values is None:
        how = (
            "set capture.mode=change_streams_update_full in the connector"
            if event.place.startswith(_MONGODB)
            else "look at the transforms of the connector"
        )
        raise NoEventError(f"the {event.kind} of {event.table} at {event.place} lacks the row: {how}")
    return values


def _document(text: Any, key: Values | None) -> Values | None:  # noqa: ANN401
    """Return a MongoDB document as a row. If the record has no key, the id is taken from the document."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise NoEventError("its document is no text, and MongoDB's events have extended JSON there")
    own = _id(key)
    if own is None:
        try:
            own = {ID: json.dumps(json.loads(text)["_id"])}
        except (ValueError, LookupError, TypeError) as error:
            raise NoEventError("its document has no _id") from error
    return {**own, DOCUMENT: text}


def _id(key: Values | None) -> Values | None:
    return None if key is None or key.get("id") is None else {ID: key["id"]}


def _table(source: Values) -> str:
    names = [source.get("db"), source.get("schema"), source.get("table") or source.get("collection")]
    if source.get("connector") == "postgresql":
        names = names[1:]
    found = [str(name) for name in names if name]
    if not names[-1]:
        raise NoEventError("its 'source' names no table")
    return ".".join(found)


def _lsn(source: Values) -> int | None:
    match source:
        case {"connector": "postgresql"}:
            found = _whole(source.get("lsn"))
        case {"connector": "mysql" | "mariadb", "file": str(file), "pos": int(pos)}:
            number = _LOG_FILE.fullmatch(file)
            found = None if number is None else (int(number[1]) << 32) + pos
        case {"connector": "mongodb", "ts_ms": int(ms)}:
            found = (ms // 1000 << 32) + (_whole(source.get("ord")) or 0)
        case _:
            found = None
    return found if found is not None and 0 <= found <= _LSN_MAX else None


def _place(source: Values) -> str:
    """Return the place of a change in words, such as `mysql mysql-bin.000003:154`."""
    connector = str(source.get("connector"))
    match source:
        case {"file": str(file), "pos": int(pos)}:
            return f"{connector} {file}:{pos}"
        case {"lsn": int(lsn)}:
            return f"{connector} {lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
        case {"commit_lsn": str(lsn)} | {"change_lsn": str(lsn)}:
            return f"{connector} {lsn}"
        case _:
            return f"{connector} ts_ms={source.get('ts_ms')}"


def _committed_us(source: Values) -> int | None:
    micros, millis = _whole(source.get("ts_us")), _whole(source.get("ts_ms"))
    return micros if micros is not None else None if millis is None else millis * 1000


def _transaction(said: Any) -> SourceTransaction | None:  # noqa: ANN401
    match said:
        case {"id": str(number), "total_order": int(total)}:
            return SourceTransaction(number, total)
        case _:
            return None


def _whole(value: Any) -> int | None:  # noqa: ANN401
    return value if isinstance(value, int) and not isinstance(value, bool) else None
