"""Writes Delta tables with delta-rs, and polls them, for the tests of `DeltaSource`."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from checkpointing.identifiers import VertexId
from checkpointing.messages import PollSource
from jobs.sources.delta.delta_reader import DeltaSlice
from jobs.sources.delta.delta_source import SPLIT, DeltaSource


def append(table: Path, *ids: int, **options) -> None:
    """Commit these ids, each with a word, as one file."""
    rows = pa.table({"id": pa.array(ids, pa.int64()), "word": [f"w{n}" for n in ids]})
    write_deltalake(str(table), rows, mode="append", **options)


def delta(table: Path) -> DeltaTable:
    return DeltaTable(str(table))


def poll(source: DeltaSource, position: str | None = None, rows_max: int = 100):
    return source.poll(PollSource(VertexId("orders"), SPLIT, position, rows_max))


def slices(source: DeltaSource, rows_max: int = 100, position: str | None = None):
    while (piece := poll(source, position, rows_max)) is not None:
        assert piece.rows <= rows_max
        yield piece
        position = piece.end


def rows(source: DeltaSource, pieces, *columns: str):
    """Return the rows of slices with their ordinals. pyarrow reads the rows from the files that the slices name."""
    found = []
    for piece in pieces:
        for part in DeltaSlice.parse(piece.detail).ranges:
            file = pq.read_table(str(source._history.folder / part.path), partitioning=None).to_pylist()
            for number in range(part.first, part.end):
                change = file[number].get("_change_type", part.change.value)
                row = file[number] | part.partition | {"change": change, "version": part.version}
                found.append((part.before + number, *(row[column] for column in columns)))
    return found


def ids(source: DeltaSource, pieces):
    return [row[1] for row in rows(source, pieces, "id")]
