"""The fixtures of the stores' tests: a warehouse, entries, staged files, and views of other processes."""

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId, job_name, table_name
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import CheckpointRecord, Claim, Holder, RowKind, Statistics
from jobs.warehouse.output_tables import OutputTables
from jobs.warehouse.publisher import Publisher
from jobs.warehouse.tables import TableLogs
from jobs.warehouse.warehouse import Warehouse

SCHEMA = pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64())])


class Rows:
    """Makes entries as a coordinator would append them."""

    @staticmethod
    def claim(generation: int, host: str = "alpha") -> Claim:
        return Claim(
            generation=Generation(generation),
            holder=Holder(host=host, pid=1, started="s"),
            first_id=CheckpointId(1),
            last_id=CheckpointId(1000),
            at_ms=1,
            nonce=f"claim-{generation}-{host}",
        )

    @staticmethod
    def checkpoint(number: int, generation: int = 1, kind: RowKind = RowKind.CHECKPOINT, **fields) -> CheckpointRecord:
        plain = {"vertices": (), "tables": ()}
        return CheckpointRecord(
            job="flights",
            kind=kind,
            checkpoint=CheckpointId(number),
            parent=CheckpointId(number - 1),
            generation=Generation(generation),
            nonce=f"{generation}/{number}",
            max_parallelism=8,
            statistics=Statistics(triggered_ms=1, committed_ms=2, rows=3),
            **(plain | fields),
        )


class Tables:
    """One process's view of the output tables."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.warehouse = warehouse
        self.logs = TableLogs(warehouse)
        self.output = OutputTables(warehouse, self.logs)
        self.publisher = Publisher(warehouse, self.logs)
        self._micro_batch = 0

    def stage(self, table: TableName, rows: dict[str, int]) -> FileHandle:
        self._micro_batch += 1
        name = StagedName(VertexId("join"), self._micro_batch, str(uuid4()))
        path = self.warehouse.paths.staged_file(table, Generation(1), name)
        real = self.warehouse.path(path)
        real.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"k": list(rows), "v": list(rows.values())}, schema=SCHEMA), real)
        stats = json.dumps({"numRecords": len(rows)})
        return FileHandle(path, len(rows), real.stat().st_size, 0, stats)


@pytest.fixture
def rows() -> type[Rows]:
    return Rows


@pytest.fixture
def schema() -> pa.Schema:
    return SCHEMA


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path, ProtocolPaths(job_name("flights")), writer="tidemark 0.1.0")


@pytest.fixture
def tables(warehouse: Warehouse) -> Tables:
    return Tables(warehouse)


@pytest.fixture
def another(warehouse: Warehouse) -> Callable[[], Tables]:
    """Return a function that makes further views, as other processes have them."""
    return lambda: Tables(warehouse)


@pytest.fixture
def silver() -> TableName:
    return table_name("silver/flights")
