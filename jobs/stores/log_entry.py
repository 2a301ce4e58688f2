"""Writes a log entry that changes a table's columns, as Delta's protocol describes it: delta-rs cannot.

Tried with delta-rs 1.6.6: its write transaction ignores the schema of an append. An overwrite takes the schema and
removes every active file, and the protocol forbids adding one of them again in the same commit. ADD COLUMN is a
commit of its own, and nothing drops a column. So this module writes the commit that changes columns: the protocol
(only if a type needs a feature), the metadata, the transaction, removes and adds. It is a compare-and-swap like
delta-rs's own: the whole, durable entry is written if no other entry has its number.
"""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from deltalake import DeltaTable, Schema, Transaction
from deltalake.transaction import AddAction, RemoveAction

from jobs.storage.place import StoragePlace
from jobs.stores.log_entries import entry_place

_READER, _WRITER = 3, 7
_IMPLIED: Final = {2: ("appendOnly", "invariants"), 3: ("checkConstraints",), 4: ("changeDataFeed", "generatedColumns")}
"""The features that a table without named ones has by its writer version."""
_NTZ: Final = "timestampNtz"


class EntryTakenError(Exception):
    """Another commit has this version of the table."""


def write_entry(
    folder: StoragePlace,
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    *,
    schema: Schema,
    says: dict[str, Any],
    transaction: Transaction | None,
) -> None:
    """Commit `actions` and the columns of `schema` as the version after the one `table` is loaded at.

    Raises EntryTakenError if that version is there already, and OSError.
    """
    entry, at_ms = entry_place(folder, table.version() + 1), _now_ms(transaction)
    lines = [_commit_info(says, at_ms), *_protocol(table, schema), _metadata(table, schema)]
    if transaction is not None:
        lines.append({"txn": {"appId": transaction.app_id, "version": transaction.version, "lastUpdated": at_ms}})
    lines.extend(_file_action(action) for action in actions)
    try:
        entry.write("".join(f"{json.dumps(line)}\n" for line in lines).encode())
    except FileExistsError as error:
        raise EntryTakenError(f"version {table.version() + 1} of {folder} was committed by another") from error


def _now_ms(transaction: Transaction | None) -> int:
    """Return the time of the commit: the transaction's, whose clock is the warehouse's, or the machine's."""
    said = transaction.last_updated if transaction is not None else None
    return said if said is not None else time.time_ns() // 1_000_000


def _commit_info(says: dict[str, Any], at_ms: int) -> dict[str, Any]:
    parameters = {"mode": "Append", "partitionBy": "[]"}
    return {"commitInfo": {"timestamp": at_ms, "operation": "WRITE", "operationParameters": parameters, **says}}


def _metadata(table: DeltaTable, schema: Schema) -> dict[str, Any]:
    known = table.metadata()
    return {
        "metaData": {
            "id": str(known.id),
            "name": known.name,
            "description": known.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema.to_json(),
            "partitionColumns": list(known.partition_columns),
            "configuration": dict(known.configuration),
            "createdTime": known.created_time,
        }
    }


def _protocol(table: DeltaTable, schema: Schema) -> Iterator[dict[str, Any]]:
    """Yield the protocol with the one feature that a column of ours may need, unless the table has it."""
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


def _file_action(action: AddAction | RemoveAction) -> dict[str, Any]:
    if isinstance(action, AddAction):
        return {
            "add": {
                "path": action.path,
                "partitionValues": dict(action.partition_values),
                "size": action.size,
                "modificationTime": action.modification_time,
                "dataChange": action.data_change,
                "stats": action.stats,
            }
        }
    return {
        "remove": {
            "path": action.path,
            "deletionTimestamp": action.deletion_timestamp,
            "dataChange": action.data_change,
        }
    }
