"""The doctor finds bounds of decimals that leave out values, as Tidemark 0.1.0 wrote them into the logs."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from checkpointing.identifiers import Generation, JobName, TableName, VertexId
from checkpointing.metadata.paths import ProtocolPaths
from jobs.doctor.table_health import files_with_narrow_bounds
from jobs.sinks.staged_files import StagedFiles
from jobs.warehouse.warehouse import Warehouse

TABLE = TableName("gold/amounts")
AMOUNTS = [Decimal("-12345678901234567890.000000000000000001"), None, Decimal("12345678901234567890.5")]
TOO_HIGH, TOO_LOW = -12345678901234567000, 12345678901234567000
RIGHT = (-12345678901234568000, 12345678901234568000)


@pytest.mark.parametrize(
    ("bounds", "narrow"), [(None, False), ((TOO_HIGH, RIGHT[1]), True), ((RIGHT[0], TOO_LOW), True), (RIGHT, False)]
)
def test_only_bounds_inside_of_the_values_are_found(tmp_path, bounds, narrow):
    """Bounds that Tidemark writes now are right, and so are all that lie outside of the values."""
    rows = pa.table({"amount": pa.array(AMOUNTS, pa.decimal128(38, 18)), "n": [1, 2, 3]})
    warehouse = Warehouse(tmp_path, ProtocolPaths(JobName("many")))
    staged = StagedFiles(str(tmp_path), warehouse.paths.job, Generation(1), VertexId("rows"), 0)
    file = staged.write(TABLE, rows)
    folder = tmp_path / TABLE
    write_deltalake(folder, rows.slice(0, 0))
    said = json.loads(file.stats, parse_float=str)
    if bounds is not None:
        said["minValues"]["amount"], said["maxValues"]["amount"] = bounds
    stats = json.dumps(said) if bounds is not None else file.stats
    add = {"path": file.path.removeprefix(f"{TABLE}/"), "size": file.bytes, "partitionValues": {}, "stats": stats}
    entry = {"add": add | {"modificationTime": 0, "dataChange": True}}
    (folder / "_delta_log" / f"{1:020}.json").write_text(json.dumps(entry))
    assert 1 == DeltaTable(folder).version()
    found = list(files_with_narrow_bounds(warehouse, TABLE, 1))
    assert ([f"{add['path']} ('amount')"] if narrow else []) == found
