"""Files of partitioned tables are published, replaced and removed, in a folder and in a real object store."""

from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation, VertexId
from checkpointing.messages import Publication, PublishFailed, TablePublished
from jobs.sinks.staged_files import StagedFiles
from jobs.storage.address import StoreUrl
from jobs.warehouse.output_tables import OutputTables, TableMismatchError
from jobs.warehouse.publisher import Publisher
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse

BY = ("city",)
CITIES = ["a/b", "100 % {x}", "größe=1", None, "it s %2F", "C:*?", "x"]


@pytest.fixture(params=["folder", "store"])
def place(request, warehouse):
    """Return a warehouse in a folder, and one in an object store."""
    if request.param == "folder":
        return warehouse
    server, patch = request.getfixturevalue("store_server"), request.getfixturevalue("monkeypatch")
    for name, value in server.environment.items():
        patch.setenv(name, value)
    return Warehouse(StoreUrl(f"s3://lake/{uuid4().hex}"), warehouse.paths, writer=warehouse.writer)


class Laid:
    """A partitioned table of (city, n), as a tick writes it."""

    schema = pa.schema([("city", pa.string()), ("n", pa.int64())])

    def __init__(self, warehouse, table, mode):
        """Create the table."""
        self.warehouse, self.table, self.mode, self.logs = warehouse, table, mode, TableLogs(warehouse)
        self.output = OutputTables(warehouse, self.logs)
        self.output.ensure(table, self.schema, mode, partitioned_by=BY)

    def stage(self, number, *, by=BY):
        """Stage a row for each city."""
        job = self.warehouse.paths.job
        writer = StagedFiles(str(self.warehouse.root), job, Generation(1), VertexId("rows"), number)
        rows = pa.table({"city": CITIES, "n": [number] * len(CITIES)}, schema=self.schema)
        return writer.write_partitions(self.table, rows, by)

    def publish(self, checkpoint, *files, removes=()):
        """Publish these files as a checkpoint, in a process of its own."""
        adds, whole = (files, ()) if self.mode is TableMode.APPEND else ((), files)
        publication = Publication(self.table, self.mode, adds=adds, files=whole, removes=removes)
        return Publisher(self.warehouse, TableLogs(self.warehouse)).publish(publication, CheckpointId(checkpoint))

    def rows(self):
        """Return what a reader of the newest version gets."""
        query = (
            QueryBuilder().register("t", DeltaTable(str(self.warehouse.place(self.table)))).execute("SELECT * FROM t")
        )
        return sorted(
            zip(
                *pa.RecordBatchReader.from_stream(query).read_all().select(["city", "n"]).to_pydict().values(),
                strict=True,
            ),
            key=str,
        )


def of(*numbers):
    """Return the rows of these micro-batches."""
    return sorted(((city, number) for number in numbers for city in CITIES), key=str)


@pytest.mark.parametrize("mode", [TableMode.APPEND, TableMode.UPSERT])
def test_files_of_all_partitions_are_published_replaced_and_removed(place, silver, mode):
    """Another process finds its files in the log, whatever their folders are called."""
    laid = Laid(place, silver, mode)
    first, second = laid.stage(1), laid.stage(2)
    assert len(CITIES) == len(first)
    assert isinstance(laid.publish(1, *first), TablePublished)
    assert of(1) == laid.rows()
    both = (*first, *second) if mode is TableMode.UPSERT else second
    version = laid.publish(2, *both).version
    assert (of(1, 2), version) == (laid.rows(), laid.publish(2, *both).version)
    if mode is TableMode.UPSERT:
        assert isinstance(laid.publish(3, *second), TablePublished)
    else:
        assert isinstance(laid.publish(3, removes=first), TablePublished)
    assert of(2) == laid.rows()
    assert BY == tuple(DeltaTable(str(place.place(silver))).metadata().partition_columns)


def test_another_layout_is_refused(place, silver):
    """A tick is refused at its start. A file of another layout is never published."""
    laid = Laid(place, silver, TableMode.APPEND)
    for by in ((), ("n",)):
        with pytest.raises(TableMismatchError, match="is laid out by city, and the pipeline says"):
            OutputTables(place, TableLogs(place)).ensure(silver, Laid.schema, TableMode.APPEND, partitioned_by=by)
        refused = laid.publish(1, *laid.stage(1, by=by))
        assert isinstance(refused, PublishFailed)
        assert "is laid out by city, and file" in refused.error
    assert [] == laid.rows()


def test_a_vacuum_keeps_files_of_partitions_that_are_not_published(warehouse, silver):
    """They lie below a folder that begins with an underscore."""
    laid = Laid(warehouse, silver, TableMode.APPEND)
    first, second = laid.stage(1), laid.stage(2)
    laid.publish(1, *first)
    table = DeltaTable(str(warehouse.place(silver)))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    laid.publish(2, *second)
    assert of(1, 2) == laid.rows()
