"""Lists the kinds of changes, and the columns that every change of a table has, whatever the database."""

from typing import Final

from pyspark.sql.types import ArrayType, LongType, StringType, StructType, TimestampType

KIND, TABLE, LSN, XID, COMMITTED_AT, UNCHANGED = "_kind", "_table", "_lsn", "_xid", "_committed_at", "_unchanged"

SNAPSHOT, INSERT, DELETE, TRUNCATE = "snapshot", "insert", "delete", "truncate"
BEFORE, AFTER = "update_before", "update_after"

HEAD: Final = (
    StructType()
    .add(KIND, StringType())
    .add(TABLE, StringType())
    .add(LSN, LongType())
    .add(XID, LongType())
    .add(COMMITTED_AT, TimestampType())
    .add(UNCHANGED, ArrayType(StringType()))
)
"""`_lsn` is the place of the transaction's commit record, the same for all its rows.

`_unchanged` lists the columns whose values the server did not send, because the update did not change them.
"""
