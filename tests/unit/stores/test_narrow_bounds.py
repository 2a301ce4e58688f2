"""The doctor finds too narrow bounds, as Tidemark 0.1.0 wrote them for decimals, and as others may write them."""

import json
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
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
    """Bounds that Tidemark now writes are right, and so are all bounds that enclose the values."""
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
    assert ([(add["path"], f"{add['path']} ('amount')")] if narrow else []) == found


MOMENT = datetime(2026, 1, 1, 12, 0, 0, 123_456)  # noqa: DTZ001 - a time without a zone
OF_OTHERS = {
    "long": (pa.array([-5, None, 7], pa.int64()), (-5, 7), (-4, 7)),
    "double": (pa.array([0.1, -0.0, 0.3], pa.float64()), (0.0, 0.3), (0.0, 0.2)),
    "float": (pa.array([0.1, 0.3], pa.float32()), (0.1, 0.3), (0.1, 0.2)),
    "text": (pa.array(["a", "z" * 40]), ("a", "z" * 32 + "\U0010ffff"), ("a", "z" * 32)),
    "date": (pa.array([MOMENT.date()]), ("2026-01-01", "2026-01-01"), ("2026-01-02", "2026-01-02")),
    "moment": (
        pa.array([MOMENT], pa.timestamp("us")),
        ("2026-01-01T12:00:00.123", "2026-01-01T12:00:00.123"),  # Spark rounds both down
        ("2026-01-01T12:00:00.123", "2026-01-01T12:00:00.122"),
    ),
}


@pytest.mark.parametrize("kind", OF_OTHERS)
def test_bounds_that_another_writer_made_too_narrow_are_found(tmp_path, kind):
    """The file is where the other writer put it. Bounds as Spark writes them are no finding."""
    values, right, wrong = OF_OTHERS[kind]
    warehouse = Warehouse(tmp_path, ProtocolPaths(JobName("many")))
    write_deltalake(tmp_path / TABLE, pa.table({"v": values}))
    log = tmp_path / TABLE / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    add = next(line["add"] for line in lines if "add" in line)
    for (low, high), narrow in ((right, False), (wrong, True)):
        said = {"numRecords": len(values), "minValues": {"v": low}, "maxValues": {"v": high}, "nullCount": {"v": 0}}
        add["stats"] = json.dumps(said)
        log.write_text("\n".join(map(json.dumps, lines)))
        found = [name for name, _ in files_with_narrow_bounds(warehouse, TABLE, 0)]
        assert ([add["path"]] if narrow else []) == found


def test_the_footer_of_a_file_has_no_bounds_of_doubles(tmp_path):
    """Arrow leaves NaN out of such bounds.

    Then Spark would find no row for `k = NaN`, and DuckDB would read NaN as 0.0.
    """
    staged = StagedFiles(str(tmp_path), JobName("shop"), Generation(1), VertexId("rows"), 0)
    rows = pa.table({"n": [1, 2], "k": [0.0, float("nan")], "v": [{"k": 0.0}, {"k": float("nan")}]})
    footer = pq.ParquetFile(tmp_path / staged.write(TableName("bronze/rows"), rows).path).metadata.row_group(0)
    bounded = {footer.column(place).path_in_schema: footer.column(place).is_stats_set for place in range(3)}
    assert {"n": True, "k": False, "v.k": False} == bounded
