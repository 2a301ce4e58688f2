"""Writes a log entry by Delta's protocol, as one compare-and-swap and with one request to an object store.

The entry is written as a whole, unless another entry has its number. delta-rs could write the entry too, but it asks a
store for the log's newest version before, and reads the log afterwards. delta-rs also cannot change columns in such a
commit (tried with delta-rs 1.6.6). Its write transaction ignores the schema of an append. An overwrite applies the
schema, but removes every active file, and the protocol forbids adding such a file again in the same commit. ADD COLUMN
is a separate commit, and no operation drops a column.

An entry has the transaction, removes and adds. If columns, comments or properties change, the entry also has the
metadata. If a type needs a table feature, the entry also has the protocol.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote
from uuid import uuid4

from deltalake import DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from jobs.distribution import installed_version
from jobs.storage.place import StoragePlace
from jobs.warehouse.log_entries import entry_place
from jobs.warehouse.table_rules import HARMLESS, Metadata
from jobs.warehouse.table_snapshot import Action, KnownTable

_READER, _WRITER = 3, 7
_IMPLIED: Final = {2: ("appendOnly", "invariants"), 3: ("checkConstraints",), 4: ("changeDataFeed", "generatedColumns")}
"""The features that each writer version adds, in a table that does not list its features."""
_IN_URL: Final = "/=!$&'()*+,;:@~"
_NTZ: Final = "timestampNtz"
_ENGINE: Final = f"Tidemark/{installed_version() or 'unknown'}"
"""The writer of Tidemark's entries, as DESCRIBE HISTORY shows it."""


class EntryTakenError(Exception):
    """Another commit has taken this version of the table."""


def write_entry(
    folder: StoragePlace,
    table: KnownTable,
    actions: Sequence[Action],
    *,
    metadata: Metadata | None,
    says: dict[str, Any],
    transaction: Transaction | None,
) -> None:
    """Commit `actions` as the version after `table`. With `metadata`, the table gets this metadata.

    In a folder, the log entry is not durable yet. Raises CommitFailedError for a table that forbids the commit,
    EntryTakenError if that version exists already, and OSError.
    """
    _must_allow(table.loaded, actions)
    entry, at_ms = entry_place(folder, table.version() + 1), _now_ms(transaction)
    lines = [_commit_info(says, at_ms)]
    if metadata is not None:
        lines += [*_protocol(table.loaded, metadata.schema), _metadata(table.loaded, metadata)]
    if transaction is not None:
        lines.append({"txn": {"appId": transaction.app_id, "version": transaction.version, "lastUpdated": at_ms}})
    lines.extend(_file_action(action) for action in actions)
    try:
        entry.write(_text(lines), durable=False)
    except FileExistsError as error:
        raise EntryTakenError(f"version {table.version() + 1} of {folder} was committed by another") from error


def _text(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the text of a log entry. Characters are not escaped, as in the entries of Spark and delta-rs.

    delta-rs 1.6 reads a wrong character for a pair of escapes that stands for a character above U+100000. So it would
    wrongly skip a file with such a bound.
    """
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode()


def needs_own_first_entry(schema: Schema) -> bool:
    """Return whether delta-rs would create a table that it cannot read, since it ignores timestamp_ntz in maps."""
    return any(_has_ntz_in_map(field["type"]) for field in json.loads(schema.to_json())["fields"])


def write_first_entry(
    folder: StoragePlace, schema: Schema, configuration: Mapping[str, str], comment: str, partitioned_by: Sequence[str]
) -> None:
    """Create a table with the feature for timestamp_ntz. Another process can create it at the same time."""
    features = {"readerFeatures": [_NTZ], "writerFeatures": [_NTZ]}
    known = {
        "id": str(uuid4()),
        "name": None,
        "description": comment or None,
        "createdTime": time.time_ns() // 1_000_000,
    }
    metadata = {
        **known,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.to_json(),
        "partitionColumns": list(partitioned_by),
        "configuration": dict(configuration),
    }
    lines: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": _READER, "minWriterVersion": _WRITER, **features}},
        {"metaData": metadata},
    ]
    with suppress(FileExistsError):
        entry_place(folder, 0).write(_text(lines), durable=False)


def _has_ntz_in_map(kind: "str | dict[str, Any]", *, in_map: bool = False) -> bool:
    if isinstance(kind, str):
        return in_map and kind == "timestamp_ntz"
    parts = [field["type"] for field in kind.get("fields", ())]
    parts += [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return any(_has_ntz_in_map(part, in_map=in_map or kind["type"] == "map") for part in parts)


def _must_allow(table: DeltaTable, actions: Sequence[Action]) -> None:
    """Raise CommitFailedError for a table with a feature that Tidemark's log entries would break (`table_rules`)."""
    unknown = sorted(frozenset(table.protocol().writer_features or ()) - HARMLESS)
    if unknown:
        raise CommitFailedError(f"unsupported table features: {', '.join(unknown)}")
    takes_out = any(isinstance(action, RemoveAction) and action.data_change for action in actions)
    if takes_out and table.metadata().configuration.get("delta.appendOnly", "").lower() == "true":
        raise CommitFailedError("the table is append-only, and the commit removes files")


def _now_ms(transaction: Transaction | None) -> int:
    """Return the commit's time: the time in the transaction (the warehouse's clock), or else the machine's time."""
    said = transaction.last_updated if transaction is not None else None
    return said if said is not None else time.time_ns() // 1_000_000


def _commit_info(says: dict[str, Any], at_ms: int) -> dict[str, Any]:
    parameters = {"mode": "Append", "partitionBy": "[]"}
    known: dict[str, Any] = {"timestamp": at_ms, "operation": "WRITE", "operationParameters": parameters}
    return {"commitInfo": {**known, "engineInfo": _ENGINE, **says}}


def _metadata(table: DeltaTable, metadata: Metadata) -> dict[str, Any]:
    known = table.metadata()
    return {
        "metaData": {
            "id": str(known.id),
            "name": known.name,
            "description": metadata.comment,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": metadata.schema.to_json(),
            "partitionColumns": list(known.partition_columns),
            "configuration": dict(metadata.properties),
            "createdTime": known.created_time,
        }
    }


def _protocol(table: DeltaTable, schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield the protocol with the feature that one of Tidemark's columns needs, unless the table has it already."""
    there = table.protocol()
    if '"timestamp_ntz"' not in schema.to_json() or _NTZ in (there.writer_features or ()):
        return
    implied = [name for version, names in _IMPLIED.items() if version <= there.min_writer_version for name in names]
    writer = there.writer_features if there.min_writer_version >= _WRITER else implied
    yield {
        "protocol": {
            "minReaderVersion": _READER,
            "minWriterVersion": _WRITER,
            "readerFeatures": sorted({*(there.reader_features or ()), _NTZ}),
            "writerFeatures": sorted({*(writer or ()), _NTZ}),
        }
    }


def logged_path(path: str) -> str:
    """Return a path as a log has it, URL-encoded, since the folder of a partition may have percent signs."""
    return quote(path, safe=_IN_URL)


def _file_action(action: Action) -> dict[str, Any]:
    if isinstance(action, AddAction):
        return {
            "add": {
                "path": logged_path(action.path),
                "partitionValues": dict(action.partition_values),
                "size": action.size,
                "modificationTime": action.modification_time,
                "dataChange": action.data_change,
                "stats": action.stats,
            }
        }
    return {
        "remove": {
            "path": logged_path(action.path),
            "deletionTimestamp": action.deletion_timestamp,
            "dataChange": action.data_change,
        }
    }
