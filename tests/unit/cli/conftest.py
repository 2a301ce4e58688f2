"""A console that records its output, and the entry of a checkpoint with all its times."""

import pytest
from rich.console import Console

from checkpointing.channel_items import SubtaskSnapshot
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId
from checkpointing.metadata.record import (
    BarrierRecord,
    CheckpointRecord,
    Statistics,
    TableRecord,
    VertexRecord,
    VertexStatistics,
)

STARTED_MS = 1_700_000_000_000
SILVER = TableName("silver/flights")
GOLD = TableName("gold/delays_by_route")


@pytest.fixture
def shown():
    """Return a function that renders something as text for a wide terminal without colours."""

    def show(renderable, *, width=160):
        console = Console(width=width, record=True, file=open("/dev/null", "w"), highlight=False)  # noqa: SIM115, PTH123
        with console.file:
            console.print(renderable, soft_wrap=True)
        return console.export_text()

    return show


def state_file(
    path="_tidemark/flights/state/joined/_data/1/joined-1-00000000-0000-4000-8000-000000000001.parquet", size=2048
):
    return KeyedFile(FileHandle(path, 10, size, 7), KeyedFileKind.BASE, 0, 127, Version(Generation(1), 1))


POSITION = '{"format":1,"files":[{"a":1},{"b":2}],"consumed":1200}'


def checkpoint_record(checkpoint=7, parent=6, rows=12_000, position=POSITION):
    """Return a checkpoint of one source and one joining vertex, triggered at STARTED_MS."""
    joined = VertexStatistics(
        vertex=VertexId("joined"),
        barriers=(
            BarrierRecord(channel="flights->joined:0[0]", at_ms=STARTED_MS + 100),
            BarrierRecord(channel="weather->joined:1[0]", at_ms=STARTED_MS + 900),
        ),
        aligned_ms=STARTED_MS + 900,
        alignment_ms=800,
        bytes_held=4096,
        acknowledged_ms=STARTED_MS + 950,
        micro_batches=2,
        rows_in=rows,
        rows_out=rows - 1,
        bytes_out=5000,
        busy_ms=640,
    )
    source = SubtaskSnapshot(position=position)
    adds = (FileHandle("silver/flights/_data/1/joined-1-00000000-0000-4000-8000-000000000001.parquet", 11, 3000, 1),)
    unique = "00000000-0000-4000-8000-00000000000"
    gold = tuple(FileHandle(f"{GOLD}/_data/1/joined-1-{unique}{each}.parquet", 11, 3000, 1) for each in (1, 2))
    return CheckpointRecord(
        job="flights",
        checkpoint=CheckpointId(checkpoint),
        parent=CheckpointId(parent),
        generation=Generation(2),
        nonce="n",
        max_parallelism=128,
        vertices=(
            VertexRecord(vertex=VertexId("flights"), micro_batch=0, subtasks=(source,), splits=("EWR",)),
            VertexRecord(
                vertex=VertexId("joined"),
                micro_batch=3,
                subtasks=(SubtaskSnapshot(state=(state_file(),)), SubtaskSnapshot(state=(state_file(),))),
            ),
        ),
        tables=(
            TableRecord(table=SILVER, mode=TableMode.APPEND, adds=adds, parent_version=6),
            TableRecord(table=GOLD, mode=TableMode.UPSERT, files=gold, parent_version=6),
        ),
        statistics=Statistics(triggered_ms=STARTED_MS, committed_ms=STARTED_MS + 1200, rows=rows, vertices=(joined,)),
    )


@pytest.fixture
def record():
    return checkpoint_record
