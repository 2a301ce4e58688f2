"""A source that replays folders of Parquet files: `<root>/<split>/*.parquet`, a folder a split.

Position and order are in `file_position`. What may happen to a folder while nobody looks:

- a new file is consumed next, whatever its name; a new folder is a new split of the next tick;
- a consumed file may be deleted, but not changed: then the rows that went into the tables are no
  longer those that are there, and polling stops with an error that names it;
- a name that begins with `.` or `_`, or ends in `.tmp`, is hidden or a file in the making;
- everything else is passed over, counted and named (`folder_look`).
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import InvalidNameError, SplitId, split_id
from checkpointing.messages import PollSource
from jobs.sources.file_footer import checked_rows
from jobs.sources.file_position import FilePosition, FileRange, SeenFile, SliceDetail, advance
from jobs.sources.file_reader import read_ranges
from jobs.sources.folder_look import SUFFIX, FolderLook, is_hidden, is_input, look
from jobs.sources.port import POSITION_COLUMN, SPLIT_COLUMN, SourceError


@dataclass(frozen=True, slots=True)
class _Found:
    """A file in a split's folder as the file system describes it."""

    name: str
    size: int
    modified_ns: int


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
        """Return what lies under the root, and what of it is passed over; see `port.LiesInFolder`."""
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

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows of a folder; see `port.Source.poll`.

        Raises SourceError too if a consumed file changed.
        """
        start = FilePosition.parse(request.position)
        found = self._listed(request.split)
        self._check_unchanged(request.split, start, found)
        known = {file.name for file in start.files}
        unseen = (self._discovered(request.split, file) for file in found.values() if file.name not in known)
        end, ranges = advance(start, unseen, request.max_rows)
        if not ranges:
            return None
        return SourceSlice(
            source=request.source,
            split=request.split,
            start=start.text(),
            end=end.text(),
            detail=SliceDetail(ranges=ranges).model_dump_json(),
            rows=sum(part.rows for part in ranges),
            bytes=sum(part.bytes for part in ranges),
        )

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the rows of the slices by one scan of their files; see `port.Source.read`."""
        ranges = [
            (split_id(piece.split), part)
            for piece in slices
            for part in SliceDetail.model_validate_json(piece.detail).ranges
        ]
        for split, part in ranges:
            self._check_present(split, part)
        return read_ranges(spark, self._root, self._schema, ranges)

    def _splits(self) -> Iterator[SplitId]:
        for entry in self._entries(self._root):
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                yield self._as_split(entry.name)
            elif entry.name.endswith(SUFFIX):
                raise SourceError(f"{entry.path} lies beside the folders of splits: move it into one of them")

    def _as_split(self, name: str) -> SplitId:
        try:
            return split_id(name)
        except InvalidNameError as error:
            raise SourceError(f"folder {self._root / name} cannot be a split: {error}; rename the folder") from error

    def _listed(self, split: SplitId) -> dict[str, _Found]:
        """Return the split's finished files by name, in order of their names."""
        found = {}
        for entry in sorted(self._entries(self._root / split), key=lambda entry: entry.name):
            if is_input(entry):
                self._must_be_text(split, entry.name)
                status = entry.stat()
                found[entry.name] = _Found(entry.name, status.st_size, status.st_mtime_ns)
        return found

    def _must_be_text(self, split: SplitId, name: str) -> None:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SourceError(f"{name!r} in {self._root / split} is not UTF-8: rename the file") from None

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except OSError as error:
            raise self._not_listed(folder, error) from error

    def _not_listed(self, folder: Path, error: OSError) -> SourceError:
        return SourceError(
            f"{folder} cannot be listed ({error.strerror}): create the folder, or correct the source's root"
        )

    def _discovered(self, split: SplitId, file: _Found) -> SeenFile:
        rows = checked_rows(self._root / split / file.name, self._schema)
        return SeenFile(name=file.name, size=file.size, modified_ns=file.modified_ns, rows=rows)

    def _check_unchanged(self, split: SplitId, position: FilePosition, found: dict[str, _Found]) -> None:
        """Raise SourceError if a file of the position changed, or the one consumed in part is gone."""
        for file in position.files:
            now = found.get(file.name)
            if now is not None and (now.size, now.modified_ns) != (file.size, file.modified_ns):
                raise self._changed(split, file, f"is now {now.size} bytes of {now.modified_ns} ns")
        if position.rest is not None and position.rest.file.name not in found:
            raise self._changed(split, position.rest.file, f"is gone, with {position.rest.rows} rows not yet consumed")

    def _check_present(self, split: SplitId, part: FileRange) -> None:
        """Raise SourceError unless the file is as it was polled."""
        try:
            status = (self._root / split / part.file.name).stat()
        except OSError as error:
            raise self._changed(split, part.file, f"cannot be read ({error.strerror})") from error
        if (status.st_size, status.st_mtime_ns) != (part.file.size, part.file.modified_ns):
            raise self._changed(split, part.file, f"is now {status.st_size} bytes of {status.st_mtime_ns} ns")

    def _changed(self, split: SplitId, file: SeenFile, now: str) -> SourceError:
        return SourceError(
            f"{self._root / split / file.name} was polled with {file.size} bytes of {file.modified_ns} ns and {now}: "
            f"put it back as it was (modification time included) and bring new rows in a file of a new name, "
            f"or begin anew with an empty warehouse"
        )
