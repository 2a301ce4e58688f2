"""Tests that files and the folders with their names are synced before a commit names the files."""

import socket
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import Schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from checkpointing.channel_items import ChannelState, RangeFiles, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.columns import TableColumn, is_delta_type
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, job_name
from checkpointing.metadata.files import files_of, handles_to_restore
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import TableRecord, VertexRecord
from jobs.operators.spec import arrow_schema, delta_columns
from jobs.storage import place as synced_names
from jobs.storage.objects import DELTA_CLIENT
from jobs.storage.place import place_in
from jobs.warehouse import table_snapshot
from jobs.warehouse.delta_log import Durability
from jobs.warehouse.table_columns import columns_of_schema, declared_columns, field_of
from jobs.warehouse.table_rules import Column, TableShape, advice, problems_of, refused_for_good
from jobs.warehouse.table_snapshot import delta_table
from jobs.warehouse.warehouse import Warehouse
from tests.unit.full_entry import plain_entry


@pytest.mark.parametrize("relative", [False, True])
def test_every_folder_from_the_warehouse_down_to_the_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    synced: list[Path] = []
    monkeypatch.setattr(synced_names, "sync", synced.append)
    root = tmp_path / "warehouse"
    warehouse = Warehouse(Path("warehouse") if relative else root, ProtocolPaths(job_name("flights")))
    durability = Durability(warehouse)
    durability.sync_files(["silver/flights/a.parquet"])
    expected = {root / "silver/flights/a.parquet", root / "silver/flights", root / "silver", root}
    assert expected == set(synced)
    synced.clear()
    durability.sync_files(["silver/flights/b.parquet"])
    assert {root / "silver/flights/b.parquet", root / "silver/flights"} == set(synced)


# ------------------------------------------------------------------
# Which files an entry names: those that must stay with the entry, and those that a tick needs to begin from it.


def file(name):
    return FileHandle(name, 1, 1, 0)


def keyed(name):
    return KeyedFile(file(name), KeyedFileKind.BASE, 0, 3, Version(1, 1))


def row():
    """Return an entry with one file of each kind."""
    slice_ = SourceSlice("orders", "a", "0", "5", "", 5, 50)
    held = ChannelState(ChannelId(EdgeId("orders", "totals"), 0), (slice_, StagedSegment((file("in flight"),))))
    snapshot = SubtaskSnapshot(
        state=(keyed("state"),),
        ranges=(RangeFiles("gold/totals", (keyed("range"),)),),
        staged=(StagedFile("silver/rows", file("staged"), 0),),
        in_flight=(held,),
    )
    table = TableRecord(table="silver/rows", mode=TableMode.APPEND, parent_version=0, adds=(file("net"),), files=())
    return plain_entry(
        job="job",
        checkpoint=2,
        parent=1,
        max_parallelism=4,
        vertices=(VertexRecord(vertex="totals", micro_batch=1, subtasks=(snapshot,)),),
        tables=(table,),
    )


def test_an_entry_names_every_file_that_it_refers_to():
    """These are the files of state and of ranges, staged files, files in flight, and the net files of the tables."""
    assert {"state", "range", "staged", "in flight", "net"} == files_of(row())


def test_a_tick_needs_the_files_of_state_ranges_and_rows_in_flight():
    """A tick does not need files that a table already shows. A slice of a source is no file, and is read again."""
    assert ["in flight", "range", "state"] == sorted(handle.path for handle in handles_to_restore(row()))


# ------------------------------------------------------------------
# Columns declared in Spark and columns in a Delta log are described in the same way.


_INNER = StructType([StructField("x", IntegerType()), StructField("y", MapType(StringType(), DoubleType()))])
_PLAIN = [LongType(), DecimalType(10, 2), TimestampType(), TimestampNTZType(), DateType(), ByteType(), ShortType()]
_TYPES = [*_PLAIN, FloatType(), DoubleType(), BinaryType(), BooleanType(), StringType(), ArrayType(_INNER), _INNER]
EVERY = StructType([StructField(f"c{place}", kind) for place, kind in enumerate(_TYPES)])


def test_spark_and_delta_name_every_type_alike() -> None:
    assert delta_columns(arrow_schema(EVERY)) == declared_columns(arrow_schema(EVERY))


def test_a_column_survives_its_way_into_a_log() -> None:
    """Name and type of every kind of column are kept, nested ones too."""
    columns = declared_columns(arrow_schema(EVERY))
    assert columns == columns_of_schema(Schema([field_of(column) for column in columns]))


def test_a_column_that_came_late_says_so_in_its_comment() -> None:
    """Every engine shows the comment. It says from which checkpoint the column is valid."""
    field = field_of(TableColumn("m", "long", CheckpointId(7)))
    assert {"comment": "holds only what came after checkpoint 7"} == field.metadata
    assert {} == field_of(TableColumn("m", "long")).metadata
    assert pa.int64() == pa.schema(Schema([field]).to_arrow()).field("m").type


def test_every_type_of_a_pipeline_is_valid_in_an_entry() -> None:
    """Types in an entry of another warehouse are checked against Delta's types.

    All of Tidemark's types must be accepted.
    """
    assert all(is_delta_type(column.type) for column in declared_columns(arrow_schema(EVERY)))
    wrong = ["", "varchar", "decimal(39,0)", "{", '{"type":"struct","fields":7}', '{"type":"struct","fields":[{}]}']
    assert not any(is_delta_type(text) for text in wrong)


# ------------------------------------------------------------------
# Other writers may change a table. Each forbidden change is named with its way out.


DECLARED = (Column("k", "string", nullable=True), Column("v", "long", nullable=True))


def _shape(**changes: object) -> TableShape:
    plain = {"features": frozenset(), "properties": frozenset(), "columns": DECLARED, "partitioned_by": ()}
    return TableShape(**(plain | changes))  # type: ignore[arg-type]


def _texts(shape: TableShape, mode: TableMode, by: tuple[str, ...] = ()) -> list[str]:
    return [f"{found.what}: {found.way_out}" for found in problems_of(shape, DECLARED, mode, "/w/t", by)]


@pytest.mark.parametrize("mode", TableMode)
def test_a_table_made_by_tidemark_has_no_problem(mode: TableMode) -> None:
    features = frozenset({"appendOnly", "invariants", "changeDataFeed", "v2Checkpoint", "deletionVectors"})
    assert [] == _texts(_shape(), mode)
    assert [] == _texts(_shape(features=features), mode)


@pytest.mark.parametrize(
    ("feature", "way_out"),
    [
        ("rowTracking", "DROP FEATURE rowTracking"),
        ("domainMetadata", "DROP FEATURE domainMetadata"),
        ("inCommitTimestamp", "DROP FEATURE inCommitTimestamp"),
        ("columnMapping", "DROP FEATURE columnMapping TRUNCATE HISTORY"),
        ("clustering", "cannot drop it"),
        ("somethingNew", "DROP FEATURE somethingNew"),
    ],
)
def test_a_feature_that_forbids_publishing_is_named(feature: str, way_out: str) -> None:
    """Features that delta-rs refuses or handles wrongly are refused in every mode, and so are unknown features."""
    for mode in TableMode:
        (text,) = _texts(_shape(features=frozenset({feature})), mode)
        assert text.startswith(f"has the table feature {feature}")
        assert way_out in text


@pytest.mark.parametrize(
    ("changes", "append", "upsert"),
    [
        ({"properties": frozenset({("delta.appendOnly", "true")})}, None, "is append-only"),
        (
            {"properties": frozenset({("delta.constraints.pos", "v > 0")})},
            "check constraint pos",
            "DROP CONSTRAINT pos",
        ),
        ({"properties": frozenset({("delta.columnMapping.mode", "name")})}, "maps columns", "maps columns"),
        ({"partitioned_by": ("k",)}, "is laid out by k", "is laid out by k"),
        ({"columns": (*DECLARED, Column("x", "long", nullable=True))}, None, "column x that the pipeline does not"),
        ({"columns": (*DECLARED, Column("x", "long", nullable=False))}, "column x that may not be null", "column x"),
        ({"columns": DECLARED[:1]}, "no column v (long) any more", "ADD COLUMN v long"),
        ({"columns": (DECLARED[0], Column("v", "string", nullable=True))}, "column v as string", "writes long"),
        ({"columns": (DECLARED[0], Column("v", "long", nullable=False))}, "forbids null in column v", "DROP NOT NULL"),
        ({"columns": (DECLARED[0], Column("v", "long", True, "generated column"))}, "computes column v", "computes"),
    ],
)
def test_a_changed_table_goes_on_or_stops_by_name(
    changes: dict[str, object], append: str | None, upsert: str | None
) -> None:
    """An upsert table forbids more than an append table. Each problem names the column or property."""
    for mode, expected in ((TableMode.APPEND, append), (TableMode.UPSERT, upsert), (TableMode.STATE, upsert)):
        texts = _texts(_shape(**changes), mode)
        assert (expected is None) == (texts == [])
        assert expected is None or expected in texts[0]


def test_advice_distinguishes_a_refused_table_from_a_lost_race() -> None:
    """The advice tells the user to act only if waiting cannot help."""
    unsupported = "Unsupported table features required: [RowTracking]"
    assert refused_for_good(unsupported)
    assert "DROP FEATURE" in advice(unsupported)
    assert "appendOnly" in advice("Delta table is append-only")
    assert not refused_for_good("Failed to commit transaction: 0")
    assert "the next tick tries again" in advice("Failed to commit transaction: 0")


def test_a_table_keeps_its_layout() -> None:
    """The order of the partition columns matters, too."""
    assert [] == _texts(_shape(partitioned_by=("k",)), TableMode.APPEND, ("k",))
    (text,) = _texts(_shape(partitioned_by=("k", "v")), TableMode.UPSERT, ("v", "k"))
    assert "is laid out by k, v, and the pipeline says v, k: a table keeps its partition_by" in text
    (text,) = _texts(_shape(), TableMode.APPEND, ("k",))
    assert "is laid out by no column, and the pipeline says k" in text


def test_a_store_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a request may take a second, and retries end after a second.

    By default, delta-rs would retry for three minutes.
    """
    assert DELTA_CLIENT == {"retry_timeout": "30s"}
    monkeypatch.setattr(table_snapshot, "DELTA_CLIENT", {"timeout": "1s", "retry_timeout": "1s"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        began = time.monotonic()
        with pytest.raises(OSError, match="operation timed out"):
            delta_table(place_in("s3://lake/w", "silver/flights"), 3)
    assert time.monotonic() - began < 20
