"""Reads the staged files that a checkpoint gives to an outside sink, and compares those of an upsert table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from checkpointing.handles import FileHandle
from checkpointing.messages import Publication
from jobs.sinks.port import Difference, TableChanges
from jobs.state.key_joins import join_by_key
from jobs.storage.parquet import parquet_of
from jobs.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class RowsOfFiles:
    """The rows of staged files. Each iteration reads the files again, batch by batch."""

    warehouse: Warehouse
    files: tuple[FileHandle, ...]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, file by file."""
        for file in self.files:
            with pq.ParquetFile(parquet_of(self.warehouse.place(file.path))) as parquet:
                yield from parquet.iter_batches()

    def frame(self) -> pl.DataFrame:
        """Return all rows. A column that only some files have is null in the others."""
        frames = [pl.from_arrow(batch) for batch in self]
        return pl.concat((each for each in frames if isinstance(each, pl.DataFrame)), how="diagonal_relaxed")


@dataclass(frozen=True, slots=True)
class ChangesOfFiles(TableChanges):
    """An upsert table as the files of a checkpoint have it.

    What has changed since the checkpoint before is in the files that only one of the two has. Both are read at once, so
    this takes about as much memory as the ranges that the checkpoint has written anew.
    """

    warehouse: Warehouse
    publication: Publication
    keys: tuple[str, ...]

    def since(self, checkpoint: int) -> Difference | None:
        """Return what has changed since the checkpoint before this one, and None for any other."""
        if self.publication.since != checkpoint:
            return None
        new, old = self._only_now(), self._only_before()
        now = RowsOfFiles(self.warehouse, new).frame() if new else None
        was = RowsOfFiles(self.warehouse, old).frame() if old else None
        return difference(now, was, self.keys)

    def whole(self) -> RowsOfFiles:
        """Return all rows."""
        return RowsOfFiles(self.warehouse, self.publication.files)

    def _only_now(self) -> tuple[FileHandle, ...]:
        were = {file.path for file in self.publication.before}
        return tuple(file for file in self.publication.files if file.path not in were)

    def _only_before(self) -> tuple[FileHandle, ...]:
        now = {file.path for file in self.publication.files}
        return tuple(file for file in self.publication.before if file.path not in now)


def difference(now: pl.DataFrame | None, was: pl.DataFrame | None, keys: Sequence[str]) -> Difference:
    """Return the rows of `now` that `was` does not have just so, and the keys of `was` that `now` does not have.

    Both have each key once. A null is equal to a null, and a NaN to a NaN. If a column has another type now, or there
    was none, all rows have changed.
    """
    nothing = pa.table({})
    if now is None:
        return Difference(nothing, nothing if was is None else was.select(keys).to_arrow())
    if was is None:
        return Difference(now.to_arrow(), nothing)
    kinds = pl.Schema({name: now.schema[name] for name in keys})
    gone = was.select(keys).cast(kinds).join(now.select(keys), on=list(keys), how="anti", nulls_equal=True)
    if any(was.schema.get(name) != kind for name, kind in now.schema.items()):
        return Difference(now.to_arrow(), gone.to_arrow())
    numbers = {name: str(number) for number, name in enumerate(now.columns)}  # no name of a user's meets another one
    by, others = [numbers[name] for name in keys], [numbers[name] for name in now.columns if name not in keys]
    named = {name: f"{number} before" if name not in keys else number for name, number in numbers.items()}
    before = was.select(now.columns).rename(named).with_columns(pl.lit(value=True).alias("known"))
    joined = join_by_key(now.rename(numbers), before, by, "left")
    differs = [pl.col(name).ne_missing(pl.col(f"{name} before")) for name in others]
    changed = joined.filter(pl.any_horizontal(pl.col("known").is_null(), *differs)).select(numbers.values())
    return Difference(changed.rename({number: name for name, number in numbers.items()}).to_arrow(), gone.to_arrow())
