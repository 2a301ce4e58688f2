"""A schema of a Hive metastore, which is reached through its Thrift interface."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from pymetastore.hive_metastore import ThriftHiveMetastore
from pymetastore.hive_metastore.ttypes import (
    Database,
    FieldSchema,
    NoSuchObjectException,
    SerDeInfo,
    StorageDescriptor,
    Table,
)
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from jobs.catalogs.hive_tables import (
    EXTERNAL,
    INPUT_FORMAT,
    OUTPUT_FORMAT,
    PATH,
    SERDE,
    hive_entry,
    hive_location,
)
from jobs.catalogs.port import CatalogEntry, CatalogTable, UnusableCatalogError

_TIMEOUT_MS: Final = 30_000
_PORT: Final = 9083
_AT_ONCE: Final = 100


class HiveCatalog:
    """A schema of a metastore at `thrift://host:9083`. It connects at the first call, and again after an error."""

    def __init__(self, url: str | None, schema: str) -> None:
        """Open no connection yet. Raises UnusableCatalogError for a malformed address."""
        parts = urlsplit(url or "")
        if parts.scheme != "thrift" or not parts.hostname or parts.username or parts.path.strip("/"):
            raise UnusableCatalogError("catalog_url: write the metastore's address as thrift://host:9083")
        self._host, self._port, self._schema = parts.hostname, parts.port or _PORT, schema
        self._transport: TBufferedTransport | None = None

    def entry(self, table: CatalogTable) -> CatalogEntry:
        """Return the entry of a table in the metastore."""
        return hive_entry(table, hive_location(table))

    def entries(self) -> Iterator[tuple[str, CatalogEntry]]:
        """Yield all entries of the schema."""
        names = self._call().get_all_tables(self._schema)
        for at in range(0, len(names), _AT_ONCE):
            for table in self._call().get_table_objects_by_name(self._schema, names[at : at + _AT_ONCE]):
                yield table.tableName, _entry(table)

    def create(self, table: CatalogTable, entry: CatalogEntry) -> None:
        """Create an external table, and first the schema if it does not exist."""
        try:
            self._call().get_database(self._schema)
        except NoSuchObjectException:
            self._call().create_database(Database(name=self._schema, description="tables of Tidemark", parameters={}))
        self._call().create_table(self._table(table.name, entry))

    def replace(self, name: str, table: CatalogTable, entry: CatalogEntry) -> None:
        """Replace an entry. Parameters that others have added to the entry stay."""
        before = self._call().get_table(self._schema, name)
        after = self._table(table.name, entry)
        after.owner, after.createTime = before.owner, before.createTime
        schema = {key for key in before.parameters if key.startswith("spark.sql.sources.schema")}
        stays = {key: value for key, value in before.parameters.items() if key not in schema}
        after.parameters = {**stays, **entry.properties}
        self._call().alter_table(self._schema, name, after)

    def drop(self, name: str) -> None:
        """Remove an entry. The table's data stays."""
        self._call().drop_table(self._schema, name, False)  # noqa: FBT003 - Thrift's call has no keywords

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _table(self, name: str, entry: CatalogEntry) -> Table:
        serde = SerDeInfo(serializationLib=SERDE, parameters={"serialization.format": "1", PATH: entry.location})
        return Table(
            dbName=self._schema,
            tableName=name,
            owner="tidemark",
            tableType=EXTERNAL,
            sd=StorageDescriptor(
                cols=[FieldSchema(name=each, type=kind, comment=said or None) for each, kind, said in entry.columns],
                location=entry.location,
                inputFormat=INPUT_FORMAT,
                outputFormat=OUTPUT_FORMAT,
                numBuckets=-1,
                serdeInfo=serde,
                bucketCols=[],
                sortCols=[],
                parameters={},
            ),
            partitionKeys=[],
            parameters=dict(entry.properties),
        )

    def _call(self) -> ThriftHiveMetastore.Client:
        if self._transport is None or not self._transport.isOpen():
            socket = TSocket(self._host, self._port)
            socket.setTimeout(_TIMEOUT_MS)
            self._transport = TBufferedTransport(socket)
            self._transport.open()
        return ThriftHiveMetastore.Client(TBinaryProtocol(self._transport))


def _entry(table: Table) -> CatalogEntry:
    columns = tuple((each.name, each.type, each.comment or "") for each in table.sd.cols)
    return CatalogEntry(table.sd.serdeInfo.parameters.get(PATH, table.sd.location), columns, table.parameters)
