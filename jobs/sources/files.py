"""A source of Parquet files in folders: `<root>/<split>/*.parquet`. Each folder is a split.

`file_position` has position and order. These things may happen to a folder between two polls:

- A new file is read next, whatever its name. A new folder is a new split of the next tick.
- A file that was read may be deleted, touched or renamed (`file_matching`), but not changed. If it was changed, the
  tables hold rows that the file no longer has. Polling then stops with an error that names the file and the way out.
- A file whose name begins with `.` or `_`, or ends in `.tmp`, is ignored.
- Everything else is passed over, counted and named (`folder_look`).

`arrow_types` says which column types of other writers are read, and how nanoseconds are.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import InvalidNameError, SplitId, VertexId, split_id
from checkpointing.messages import PollSource
from jobs.engine_paths import typed
from jobs.sources.file_footer import Conversions, Footer, check_columns, conversions_of, read_footer
from jobs.sources.file_matching import FileChangedError, FoundFile, Matched, is_same, matched
from jobs.sources.file_position import FilePosition, FileRange, SeenFile, SliceDetail, advance
from jobs.sources.file_reader import read_ranges
from jobs.sources.file_seeking import in_file, names_file, rows_before, written
from jobs.sources.folder_look import SUFFIX, FolderLook, entries, is_input, look
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, Lag, SourceDescription, SourceError
from jobs.sources.position_words import END

_ASKED: Final = VertexId("SOURCE")
"""How messages name a source that does not know its own name."""


class FileSource:
    """Parquet files under `root`, one folder a split, all with the columns of `schema` (see `port.Source`)."""

    def __init__(self, root: Path, schema: StructType) -> None:
        """Raise SourceError if the schema has a column of a name that the source or Spark itself adds."""
        for name in (SPLIT_COLUMN, POSITION_COLUMN, "_metadata"):
            if name in schema.names:
                raise SourceError(f"{root}: the schema has a column {name!r}, a name that is taken: rename it")
        self._root = root.absolute()
        self._schema = schema

    @property
    def root(self) -> Path:
        """The folder whose folders are the splits, absolute."""
        return self._root

    def look(self) -> FolderLook:
        """Return which files lie under the root, and which are passed over; see `port.LiesInFolder`."""
        try:
            return look(self._root)
        except OSError as error:
            raise self._not_listed(self._root, error) from error

    def schema(self) -> StructType:
        """Return the columns of the files."""
        return self._schema

    def splits(self) -> tuple[SplitId, ...]:
        """Return the folders under the root; see `port.Source.splits`."""
        return tuple(sorted(self._splits()))

    def described(self) -> SourceDescription:
        """Return that these are Parquet files, and their folder; see `port.DescribesItself`."""
        return SourceDescription("parquet", str(self._root))

    def named(self, split: SplitId, position: str) -> str:
        """Return the last file and its rows that were read; see `port.NamesPositions`."""
        del split
        return written(FilePosition.parse(position))

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int:
        """Return the rows between two positions; see `port.CountsRows`."""
        del split
        return rows_before(FilePosition.parse(end)) - rows_before(FilePosition.parse(start))

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Return the position that `end` or `FILE:ROWS` names; see `port.SeeksPositions`.

        A file that was read already needs no look at the folder. So a reset can go back even if a file of the folder
        has changed or is lost.
        """
        now = FilePosition.parse(position)
        if words != END and names_file(now, words):
            return in_file(now, words).text()
        end, ranges = self._rest(PollSource(_ASKED, split, position, sys.maxsize))
        if words == END:
            return end.text() if ranges else position
        return in_file(end, words).text()

    def lag(self, positions: Mapping[SplitId, str]) -> dict[SplitId, Lag]:
        """Return the unread rows of each folder, and how old its oldest unread file is; see `port.KnowsLag`."""
        return {split: self._lag(split, positions.get(split)) for split in self.splits()}

    def _lag(self, split: SplitId, position: str | None) -> Lag:
        _, ranges = self._rest(PollSource(_ASKED, split, position, sys.maxsize))
        oldest_ns = min((part.file.modified_ns for part in ranges), default=None)
        age_s = 0.0 if oldest_ns is None else max(0.0, (time.time_ns() - oldest_ns) / 1e9)
        return Lag(sum(part.rows for part in ranges), age_s)

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows of a folder; see `port.Source.poll`.

        Raises SourceError too if a consumed file changed.
        """
        end, ranges = self._rest(request)
        if not ranges:
            return None
        return SourceSlice(
            source=request.source,
            split=request.split,
            start=FilePosition().text() if request.position is None else request.position,
            end=end.text(),
            detail=SliceDetail(ranges=ranges).model_dump_json(),
            rows=sum(part.rows for part in ranges),
            bytes=sum(part.bytes for part in ranges),
        )

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the rows of the slices by one scan of their files; see `port.Source.read`."""
        ranges = [(split_id(piece.split), part) for piece in slices for part in SliceDetail.parse(piece.detail).ranges]
        alike: dict[Conversions, list[tuple[SplitId, FileRange]]] = {}
        for split, part in ranges:
            now = self._check_present(split, part)
            alike.setdefault(self._conversions(split, now), []).append((split, part))
        frames = [read_ranges(spark, self._root, self._schema, parts, dict(found)) for found, parts in alike.items()]
        return reduce(DataFrame.unionAll, frames)

    def _rest(self, request: PollSource) -> tuple[FilePosition, tuple[FileRange, ...]]:
        """Return the position after at most so many more rows, and the ranges read on the way."""
        found = self._listed(request.split)
        known = self._matched(request, FilePosition.parse(request.position), found)
        unseen = (self._discovered(request.split, found[name]) for name in known.unseen)
        return advance(known.position.remembering(found), unseen, request.max_rows)

    def _conversions(self, split: SplitId, file: FoundFile) -> Conversions:
        """Return the conversions that the types of a file need."""
        return conversions_of(_footer(self._root / split, file), self._schema.names)

    def _splits(self) -> Iterator[SplitId]:
        for entry in self._entries(self._root):
            if entry.is_dir():
                yield self._as_split(entry.name)
            elif entry.name.endswith(SUFFIX):
                raise SourceError(f"{entry.path} lies beside the folders of splits: move it into one of them")

    def _as_split(self, name: str) -> SplitId:
        try:
            return split_id(name)
        except InvalidNameError as error:
            raise SourceError(f"folder {self._root / name} cannot be a split: {error}; rename the folder") from error

    def _listed(self, split: SplitId) -> dict[str, FoundFile]:
        """Return the split's finished files by name, in order of their names."""
        found = {}
        for entry in sorted(self._entries(self._root / split), key=lambda entry: entry.name):
            if is_input(entry):
                self._must_be_text(split, entry.name)
                status = entry.stat()
                found[entry.name] = FoundFile(entry.name, status.st_size, status.st_mtime_ns)
        return found

    def _must_be_text(self, split: SplitId, name: str) -> None:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SourceError(f"{name!r} in {self._root / split} is not UTF-8: rename the file") from None

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            return entries(folder)
        except OSError as error:
            raise self._not_listed(folder, error) from error

    def _not_listed(self, folder: Path, error: OSError) -> SourceError:
        return SourceError(
            f"{folder} cannot be listed ({error.strerror}): create the folder, or correct the source's root"
        )

    def _discovered(self, split: SplitId, file: FoundFile) -> SeenFile:
        folder = self._root / split
        footer = _footer(folder, file)
        check_columns(folder / file.name, footer, self._schema)
        return SeenFile(
            name=file.name, size=file.size, modified_ns=file.modified_ns, rows=footer.rows, contents=footer.contents
        )

    def _matched(self, request: PollSource, position: FilePosition, found: Mapping[str, FoundFile]) -> Matched:
        """Match the files with the position; raise SourceError if one changed, or was removed half read."""
        try:
            known = matched(position, found, lambda name: _footer_if_any(self._root / request.split, found[name]))
        except FileChangedError as error:
            raise SourceError(_changed(self._root, request, error)) from error
        rest = known.position.rest
        if rest is not None and rest.file.name not in found:
            raise SourceError(_gone(self._root, request, rest))
        return known

    def _check_present(self, split: SplitId, part: FileRange) -> FoundFile:
        """Return the present file; raise SourceError unless it has the contents that were polled."""
        path = self._root / split / part.file.name
        try:
            status = path.stat()
        except OSError as error:
            raise SourceError(
                f"{path} was found, and cannot be read now ({error.strerror}): put it back, under this name"
            ) from error
        now = FoundFile(part.file.name, status.st_size, status.st_mtime_ns)
        untouched = (now.size, now.modified_ns) == (part.file.size, part.file.modified_ns)
        if not untouched and not is_same(part.file, now, lambda _: _footer_if_any(path.parent, now)):
            raise SourceError(
                f"{path} was found with other contents than it has now ({_sizes(part.file, now)}): put it back as it "
                "was (its time does not matter), and bring new rows in a file of a new name"
            )
        return now


@lru_cache(maxsize=4_096)
def _footer(folder: Path, file: FoundFile) -> Footer:
    """Return the footer of a file from a cache, so that it is opened once."""
    return read_footer(folder / file.name)


def _footer_if_any(folder: Path, file: FoundFile) -> Footer | None:
    try:
        return _footer(folder, file)
    except SourceError:
        return None


def _changed(root: Path, request: PollSource, error: FileChangedError) -> str:
    path = root / request.split / error.read.name
    return (
        f"{path} has been read, and its contents have changed ({_sizes(error.read, error.now)}). Put it back as it "
        "was (its time does not matter), or remove it: what has been read is no longer needed. Bring new rows in a "
        "file of a new name. To read it, and all that was found after it, once more: "
        f"{_reset(request, error.read.name, 0)}"
    )


def _gone(root: Path, request: PollSource, rest: FileRange) -> str:
    path = root / request.split / rest.file.name
    return (
        f"{path} is gone, with {rest.rows} rows not yet consumed: put it back as it was. To go on without those rows: "
        f"{_reset(request, rest.file.name, rest.file.rows)}"
    )


def _reset(request: PollSource, name: str, rows: int) -> str:
    """Return the command that moves the split."""
    return f"tidemark reset PIPELINE {request.source} --split {request.split} --to {typed(f'{name}:{rows}')}"


def _sizes(read: SeenFile, now: FoundFile) -> str:
    if read.size == now.size:
        return f"{now.size} bytes as before, but another Parquet footer"
    return f"{now.size} bytes instead of {read.size}"
