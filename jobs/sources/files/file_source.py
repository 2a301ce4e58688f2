"""Turns positions of a file source into words and back: the last read file and its rows, `2013-01-07.parquet:842`.

For a file that is read whole, `2013-01-07.csv` is the position after the file, and `2013-01-07.csv:0` the position
before the file.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from typing import Final, Literal

import structlog
from pydantic import BaseModel, ConfigDict, JsonValue, NonNegativeInt, field_validator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, NullType, StringType, StructField, StructType

from checkpointing.channel_items import SourceSlice
from checkpointing.identifiers import CheckpointId, SplitId, split_id
from checkpointing.messages import PollSource
from jobs.engine_paths import typed
from jobs.sources.csv_text import why_unreadable
from jobs.sources.exact_values import KEYS_ARE_TEXTS, map_without_texts
from jobs.sources.files.file_columns import Contract, Fit, OnMisfit
from jobs.sources.files.file_footer import Column, Footer
from jobs.sources.files.file_formats import Options, format_named
from jobs.sources.files.file_matching import (
    AfterReading,
    ConsumedFiles,
    FileChangedError,
    FoundFile,
    Matched,
    is_same,
    matched,
    must_be_behind_removed,
)
from jobs.sources.files.file_position import (
    PLACES,
    FilePosition,
    FileRange,
    SeenFile,
    SliceDetail,
    advance,
)
from jobs.sources.files.file_reader import FileReader, joined
from jobs.sources.files.input_folder import InputFiles, input_folder
from jobs.sources.folder_look import FolderLook
from jobs.sources.hybrid import ReadsFirst
from jobs.sources.places import root_of
from jobs.sources.port import (
    POSITION_COLUMN,
    SPLIT_COLUMN,
    UNNAMED,
    Lag,
    NoSuchPositionError,
    SourceDescription,
    SourceError,
)
from jobs.sources.position_words import END
from jobs.sources.schema_json import SchemaJsonError, schema_of_json
from jobs.storage.address import Root, is_inside
from jobs.storage.json_files import document
from jobs.storage.parquet import FileScan, Numbering
from jobs.storage.place import StoragePlace, place_in


def written(position: FilePosition) -> str:
    """Return the words that `tidemark reset --to` accepts for the position."""
    if not position.files:
        return "start"
    last = position.files[-1]
    return last.name if last.rows == position.consumed == PLACES else f"{last.name}:{position.consumed}"


def rows_before(position: FilePosition) -> int:
    """Return the number of the split's rows before the position."""
    return position.before + position.consumed


def names_file(position: FilePosition, words: str) -> bool:
    """Return True if the words name one of the position's files."""
    return any(_rows(file, words) is not None for file in position.files)


def in_file(position: FilePosition, words: str) -> FilePosition:
    """Return the position that the words name in one of the position's files. Raise NoSuchPositionError."""
    if not position.files:
        raise NoSuchPositionError("the split is empty so far: only 'start' is there")
    for index, (file, before) in enumerate(position.places()):
        rows = _rows(file, words)
        if rows is None:
            continue
        if rows.isdecimal() and (int(rows) in {0, file.rows} if file.rows == PLACES else int(rows) <= file.rows):
            return FilePosition(files=position.files[: index + 1], consumed=int(rows), before=before)
        if file.rows == PLACES:
            raise NoSuchPositionError(f"{file.name} is read whole: write {file.name}:0 or {file.name}")
        if rows.isdecimal():
            raise NoSuchPositionError(f"{file.name} has {file.rows} rows")
    names = [file.name for file in position.files]
    shown = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    form = "FILE" if position.files[-1].rows == PLACES else "FILE:ROWS"
    raise NoSuchPositionError(f"write 'start', 'end' or {form}, like {written(position)}; files: {shown}")


def _rows(file: SeenFile, words: str) -> str | None:
    """Return the number of rows that the words name, or None if they do not name the file."""
    if words == file.name and file.rows == PLACES:
        return str(PLACES)
    name, colon, rows = words.rpartition(":")
    return rows if colon and name == file.name else None


# ------------------------------------------------------------------
# Stores the columns that a file source found in its files and that its declared schema lacks.
#
# The columns are in a hidden file in the source's folder, `_columns.json`. Once a completed checkpoint has read the
# file in which a column was found (its *teacher*), the column stays, even if its files are removed. So a table never
# loses a column because of its input.
#
# Before that, the teacher can turn out to be damaged, or to be in the folder by mistake. If it is removed or changed,
# the column is forgotten. So a file that no longer exists cannot block a job.


FOUND: Final = "_columns.json"


class Teacher(BaseModel):
    """The place, below the source's folder, of a file in which a column was found and that no checkpoint has read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    split: str
    folder: str
    name: str
    size: NonNegativeInt
    modified_ns: int

    @field_validator("folder", "name")
    @classmethod
    def _below_the_root(cls, path: str) -> str:
        if "\0" in path or not {".", ".."}.isdisjoint(path.split("/")) or path.startswith("/"):
            raise ValueError("must be a path below the source's folder")
        return path

    def is_there(self, root: StoragePlace) -> bool:
        """Return whether the file still exists unchanged."""
        try:
            now = input_folder(root / self.folder if self.folder else root).found(self.name)
        except OSError:
            return False
        return (now.size, now.modified_ns) == (self.size, self.modified_ns)


class FoundColumns(BaseModel):
    """The content of the file: the columns in the order in which they were found, in Spark's JSON for schemas.

    Format 2 has `taught`: for each column whose file no completed checkpoint has read yet, this file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1, 2] = 2
    columns: dict[str, JsonValue]
    taught: dict[str, Teacher] = {}


@dataclass(frozen=True, slots=True)
class Lessons:
    """The found columns, and the files of those columns of which no checkpoint has read a value yet."""

    columns: StructType
    taught: Mapping[str, Teacher]


def found_columns(root: StoragePlace) -> Lessons:
    """Return the columns that were found so far. Raise SourceError if the file that lists them cannot be read.

    A column is left out if its file was removed or changed before a checkpoint had read the file.
    """
    path = root / FOUND
    try:
        said = FoundColumns.model_validate_json(path.read())
        columns = schema_of_json(said.columns)
        gone = {name for name, teacher in said.taught.items() if not teacher.is_there(root)}
        kept = StructType([field for field in columns if field.name not in gone])
        return Lessons(kept, {name: each for name, each in said.taught.items() if name not in gone})
    except FileNotFoundError:
        return Lessons(StructType(), {})
    except (OSError, ValueError) as error:
        why = str(error) if isinstance(error, SchemaJsonError) else type(error).__name__
        raise SourceError(
            f"{path}, which names the columns that were found in files, cannot be read ({why}): put "
            "it back as it was, or add its columns to the source's schema and delete it"
        ) from error


def remember(
    root: StoragePlace, file: StoragePlace, columns: Iterable[Column], teacher: Teacher, declared: Iterable[str]
) -> None:
    """Add columns that were found in a file. Raise SourceError if a type or name among them cannot be read.

    Spark treats two names that differ only in case as one. `declared` are the names of the source's schema.
    """
    known = found_columns(root)
    new = [StructField(each.name, _type(file, each)) for each in columns if each.name not in known.columns.names]
    taken = {name.lower(): name for name in (*declared, *known.columns.names)}
    for field in new:
        if field.name.lower() in taken:
            raise SourceError(
                f"{file}: column {field.name!r} has the name of column {taken[field.name.lower()]!r} but for its case, "
                "and Spark takes both for one: rename it in the file"
            )
        taken[field.name.lower()] = field.name
    lessons = Lessons(StructType([*known.columns, *new]), {**known.taught, **{field.name: teacher for field in new}})
    _write(root, lessons, f"to add the columns of {file}")


def confirm(root: StoragePlace, read: Callable[[Teacher], bool]) -> None:
    """Store for ever the columns whose file a completed checkpoint has read. Raise SourceError if this fails."""
    known = found_columns(root)
    left = {name: teacher for name, teacher in known.taught.items() if not read(teacher)}
    if len(left) < len(known.taught):
        _write(root, Lessons(known.columns, left), "to keep the columns of files that were read")


def _write(root: StoragePlace, lessons: Lessons, why: str) -> None:
    said = FoundColumns(columns=lessons.columns.jsonValue(), taught=dict(lessons.taught))
    try:
        (root / FOUND).replace(document(said))
    except OSError as error:
        raise SourceError(
            f"{root / FOUND} cannot be written ({error.strerror or error}), {why}: correct the "
            "rights of the folder, or add the columns to the source's schema"
        ) from error


def _type(file: StoragePlace, column: Column) -> DataType:
    if column.type is None:
        raise SourceError(
            f"{file}: column {column.name!r} is {column.said}, a type that Spark cannot read: write another"
        )
    if isinstance(column.type, NullType):
        raise SourceError(
            f"{file}: column {column.name!r} has no values and no type: write it with a type, or leave it out"
        )
    return column.type


# ------------------------------------------------------------------
# A source of files in folders. Each folder under the root is a split, unless all are one split (`input_folder`).
#
# `file_position` has position and order. Between two polls, a folder may change in these ways:
#
# - A new file is read next, whatever its name. A new folder becomes a split in the next tick.
# - A file that was read may be deleted, touched or renamed (`file_matching`), but not changed. If it was changed, the
#   tables hold rows that the file no longer has. Polling then stops with an error that names the file and the way out.
# - A hidden file, or one that is still being written, is ignored silently.
# - The source ignores all other files, but counts and names them (`folder_look`).
#
# `file_formats` says what is known of a file before it is read. `file_columns` says which columns a file must have, and
# `arrow_types` how types that Spark itself does not write are read.


_log = structlog.get_logger(__name__)


class FileSource(ReadsFirst):
    """Files under `root`, a folder or a URL such as `s3://bucket/in`, with the columns of `schema` (see `port.Source`).

    `format` is `parquet`, `orc`, `avro`, `csv` or `json` (a record a line), and `options` are the options of Spark's
    reader for this format. `avro` needs the extra `avro`. `glob` is a pattern of paths below a split's folder, such as
    `**/*.csv`. Without `glob`, the source reads the files directly in the folder that have a suffix of the format.
    `one_split` makes the root itself the only split, `all`.

    `columns` says what happens if a file has other columns than `schema`: `fail`, `ignore`, `quarantine` or `evolve`
    (`file_columns`). `corrupt_column` adds a column of text. The column has the text of a record that cannot be read,
    and is null for other rows. `check_rows` can send rows with such a text to quarantine. Without `corrupt_column`, a
    record that cannot be read fails the micro-batch.

    `file_column` adds a column of text with the path of the row's file below the root, as in `berlin/2026-01.json`.
    Rows in quarantine have this column too.

    A `bounded` source ends each split when it first finds no unread row in it. Files that arrive later are never read.

    `after_reading` says what the source does with a file after a completed checkpoint has all its rows: `keep`,
    `delete`, or `archive`, which moves the file to the folder `archive` (`file_matching`).
    """

    def __init__(  # noqa: PLR0913 - each is a question of its own, with an answer that suits most
        self,
        root: Root | str,
        schema: StructType,
        *,
        format: str = "parquet",  # noqa: A002 - the word of Spark's readers
        options: Options | None = None,
        glob: str | None = None,
        one_split: bool = False,
        columns: str = "fail",
        corrupt_column: str | None = None,
        file_column: str | None = None,
        after_reading: str = "keep",
        archive: Root | str | None = None,
        bounded: bool = False,
    ) -> None:
        """Raise SourceError for a setting with an unknown value, or for a column name that is taken."""
        self._format = format_named(format)
        self._options = dict(options or {})
        self._files = InputFiles(root_of(root), self._format.title, self._format.suffixes, glob, one_split)
        self._contract = _contract(place_in(self._files.root, ""), schema, columns, corrupt_column)
        self._consumed = _consumed_files(self._files.root, after_reading, archive)
        self._corrupt, self._file_column = corrupt_column, file_column
        self.bounded = bounded
        self._waiting: set[SplitId] = set()
        """The splits with a file that waits for the next tick, whose schema has the file's columns."""
        own = list(self._contract.schema)
        own += [StructField(name, StringType()) for name in (corrupt_column, file_column) if name]
        self._schema = StructType(own)
        for name in (SPLIT_COLUMN, POSITION_COLUMN, "_metadata"):
            if name in self._schema.names:
                raise SourceError(f"{root}: the schema has a column {name!r}, a name that is taken: rename it")
        odd = map_without_texts(schema) if format == "json" else None
        if odd is not None:
            raise SourceError(f"{root}: column {odd!r} has a map {KEYS_ARE_TEXTS}")
        strange = why_unreadable(self._options, is_json=format == "json") if self._format.is_text else None
        if strange is not None:
            raise SourceError(f"{root}: {strange}")
        if corrupt_column in schema.names:
            raise SourceError(f"{root}: the schema has the corrupt column {corrupt_column!r} too: leave it out there")
        if file_column and self._schema.names.count(file_column) > 1:
            raise SourceError(f"{root}: the files have a column {file_column!r} too: name the file_column otherwise")

    @property
    def root(self) -> Root:
        """The folder of the files: an absolute path, or a URL."""
        return self._files.root

    @property
    def stores(self) -> tuple[Root, ...]:
        """The folder or store that Spark reads; see `port.ReadsStores`."""
        return (self._files.root,)

    def look(self) -> FolderLook:
        """Return which files lie under the root, and which of them are ignored; see `port.LiesInFolder`."""
        return self._files.look()

    def schema(self) -> StructType:
        """Return the columns of the files, the corrupt column, and the column that names the file."""
        return self._schema

    def splits(self) -> tuple[SplitId, ...]:
        """Return the folders under the root, or `all`; see `port.Source.splits`."""
        return self._files.splits()

    def described(self) -> SourceDescription:
        """Return the format of the files, and their folder; see `port.DescribesItself`."""
        return SourceDescription(self._format.name, str(self.root))

    def named(self, split: SplitId, position: str) -> str:
        """Return the last read file and the number of its read rows; see `port.NamesPositions`."""
        del split
        return written(FilePosition.parse(position))

    def rows_between(self, split: SplitId, start: str | None, end: str | None) -> int | None:
        """Return the number of rows between two positions, None if files are read whole; see `port.CountsRows`."""
        del split
        if self._format.is_whole:
            return None
        return rows_before(FilePosition.parse(end)) - rows_before(FilePosition.parse(start))

    def seek(self, split: SplitId, position: str | None, words: str) -> str | None:
        """Return the position that `end`, `FILE:ROWS` or `FILE` names; see `port.SeeksPositions`.

        For a file that is in the position already, the method does not look at the folder. So a reset to an earlier
        file works even if a file of the folder has changed or is lost.
        """
        now = FilePosition.parse(position)
        if words != END and names_file(now, words):
            return in_file(now, words).text()
        end, ranges = self._rest(PollSource(UNNAMED, split, position, sys.maxsize))
        if words == END:
            return end.text() if ranges else position
        return in_file(end, words).text()

    def lag(self, positions: Mapping[SplitId, str]) -> dict[SplitId, Lag]:
        """Return the unread rows of each split, and how old its oldest unread file is; see `port.KnowsLag`."""
        return {split: self._lag(split, positions.get(split)) for split in self.splits()}

    def _lag(self, split: SplitId, position: str | None) -> Lag:
        _, ranges = self._rest(PollSource(UNNAMED, split, position, sys.maxsize))
        oldest_ns = min((part.file.modified_ns for part in ranges), default=None)
        age_s = 0.0 if oldest_ns is None else max(0.0, (time.time_ns() - oldest_ns) / 1e9)
        return Lag(self._rows_of(split, ranges), age_s, estimated=self._format.is_whole)

    def poll(self, request: PollSource) -> SourceSlice | None:
        """Return the next rows of a split; see `port.Source.poll`.

        Also raises SourceError if a file that was read has changed.
        """
        must_be_behind_removed(self._files.folder(request.split), FilePosition.parse(request.position))
        end, ranges = self._rest(request)
        if not ranges:
            return None
        return SourceSlice(
            source=request.source,
            split=request.split,
            start=FilePosition().text() if request.position is None else request.position,
            end=end.text(),
            detail=SliceDetail(ranges=ranges).model_dump_json(),
            rows=self._rows_of(request.split, ranges),
            bytes=sum(part.bytes for part in ranges),
            rows_estimated=self._format.is_whole,
        )

    def has_ended(self, split: SplitId, position: str | None) -> bool:
        """Return True for a bounded source, unless a file of the split waits for the next tick; see `port.Bounded`."""
        del position
        return self.bounded and split not in self._waiting

    def read(self, spark: SparkSession, slices: Sequence[SourceSlice]) -> DataFrame:
        """Return the rows of the slices by one scan of their files; see `port.Source.read`."""
        alike: dict[Fit, list[tuple[SplitId, FileRange]]] = {}
        for split, part in _ranges(slices):
            alike.setdefault(self._fit(split, self._check_present(split, part)), []).append((split, part))
        reader = FileReader(
            self._files, self._format, self._options, self._contract.schema, self._corrupt, self._file_column
        )
        return reduce(DataFrame.unionAll, [reader.read(spark, parts, how) for how, parts in alike.items()])

    def scans(self, slices: Sequence[SourceSlice]) -> tuple[FileScan, ...] | None:
        """Return the parts of the files, or None if Spark must read one of them; see `OffersScans`.

        A subclass that overrides `read` has no scans, so that its `read` is used.
        """
        if self._format.name != "parquet" or self._options or self._corrupt or type(self).read is not FileSource.read:
            return None
        parts = joined(_ranges(slices))
        present = [(split, part, self._check_present(split, part)) for split, part in parts]
        if any(not self._is_plain(split, file) for split, _, file in present):
            return None
        return tuple(self._scan(split, part) for split, part, _ in present)

    def _is_plain(self, split: SplitId, file: FoundFile) -> bool:
        """Return whether Arrow reads the values of the file as Spark does."""
        footer, fit = self._footer(split, file), self._fit(split, file)
        return footer.is_plain and not fit.conversions and fit.set_aside is None

    def _scan(self, split: SplitId, part: FileRange) -> FileScan:
        place = self._files.folder(split) / part.file.name
        return FileScan(
            root=str(place.storage.root),
            name=place.name,
            first=part.first,
            end=part.end,
            bytes=part.file.size,
            numbering=Numbering(
                SPLIT_COLUMN,
                split,
                POSITION_COLUMN,
                part.before,
                file_column=self._file_column,
                file=part.file.name if self._files.one_split else f"{split}/{part.file.name}",
            ),
        )

    def notify_checkpoint_complete(self, checkpoint: CheckpointId, positions: Mapping[SplitId, str]) -> None:
        """Keep columns found in read files, and remove read files if configured; see `port.CommitsPositions`."""
        if self._contract.taught:
            self._confirm(positions)
        if self._consumed.after is AfterReading.KEEP:
            return
        for split, position in positions.items():
            found = self._files.listed(split)
            self._consumed.remove(self._files.folder(split), split, FilePosition.parse(position), found, checkpoint)

    def _rest(self, request: PollSource) -> tuple[FilePosition, tuple[FileRange, ...]]:
        """Return the position after at most `request.max_rows` more rows, and the ranges up to that position."""
        found = self._files.listed(request.split)
        known = self._matched(request, FilePosition.parse(request.position), found)
        unseen = self._discovered(request.split, (found[name] for name in known.unseen))
        estimate = partial(self._rows_in, request.split) if self._format.is_whole else None
        return advance(known.position.remembering(found), unseen, request.max_rows, estimate)

    def _rows_of(self, split: SplitId, ranges: Iterable[FileRange]) -> int:
        return sum(self._rows_in(split, part.file) if self._format.is_whole else part.rows for part in ranges)

    def _rows_in(self, split: SplitId, file: SeenFile) -> int:
        found = FoundFile(file.name, file.size, file.modified_ns)
        return self._format.rows_in(file.size, self._footer_if_any(split, found))

    def _fit(self, split: SplitId, file: FoundFile) -> Fit:
        path = self._files.folder(split) / file.name
        return self._contract.fit(path, self._footer(split, file))

    def _discovered(self, split: SplitId, files: Iterable[FoundFile]) -> Iterator[SeenFile]:
        """Yield the files before the first one with a column for the next tick's schema. Raise SourceError."""
        self._waiting.discard(split)
        for file in files:
            footer, unknown = self._footer(split, file), self._fit(split, file).unknown
            if unknown and self._contract.on_misfit is OnMisfit.EVOLVE:
                self._learn(split, file, unknown)
                self._waiting.add(split)
                return
            yield SeenFile(
                name=file.name, size=file.size, modified_ns=file.modified_ns, rows=footer.rows, contents=footer.contents
            )

    def _learn(self, split: SplitId, file: FoundFile, unknown: tuple[Column, ...]) -> None:
        """Store the new columns of a file. If the file cannot be read, raise SourceError and store nothing."""
        path = self._files.folder(split) / file.name
        self._format.require_readable(path, self._footer(split, file), keeps_corrupt=self._corrupt is not None)
        folder = "" if self._files.one_split else str(split)
        teacher = Teacher(split=split, folder=folder, name=file.name, size=file.size, modified_ns=file.modified_ns)
        remember(place_in(self._files.root, ""), path, unknown, teacher, self._contract.schema.names)
        _log.info("waits for the next tick, which has its columns", file=str(path))

    def _confirm(self, positions: Mapping[SplitId, str]) -> None:
        read = set[tuple[SplitId, str]]()
        for split, text in positions.items():
            position = FilePosition.parse(text)
            whole = position.files if position.rest is None else position.files[:-1]
            read.update((split, file.name) for file in whole)
        confirm(place_in(self._files.root, ""), lambda teacher: (split_id(teacher.split), teacher.name) in read)

    def _footer(self, split: SplitId, file: FoundFile) -> Footer:
        return _footer(self._format.name, tuple(self._options.items()), self._files.folder(split), file)

    def _footer_if_any(self, split: SplitId, file: FoundFile) -> Footer | None:
        try:
            return self._footer(split, file)
        except SourceError:
            return None

    def _matched(self, request: PollSource, position: FilePosition, found: Mapping[str, FoundFile]) -> Matched:
        """Match the files with the position. Raise SourceError if a file changed, or if a partly read file is gone."""
        try:
            known = matched(position, found, lambda name: self._footer_if_any(request.split, found[name]))
        except FileChangedError as error:
            raise SourceError(self._changed(request, error)) from error
        rest = known.position.rest
        if rest is not None and rest.file.name not in found:
            raise SourceError(self._gone(request, rest))
        return known

    def _check_present(self, split: SplitId, part: FileRange) -> FoundFile:
        """Return the file as it is now. Raise SourceError if its contents differ from those that were polled."""
        path = self._files.folder(split) / part.file.name
        try:
            now = self._files.found(split, part.file.name)
        except OSError as error:
            raise SourceError(
                f"{path} was found, and cannot be read now ({error.strerror or error}): put it back, under this name"
            ) from error
        untouched = (now.size, now.modified_ns) == (part.file.size, part.file.modified_ns)
        if not untouched and not is_same(part.file, now, lambda _: self._footer_if_any(split, now)):
            raise SourceError(
                f"{path} was found with other contents than it has now ({_sizes(part.file, now)}): put it back as it "
                "was (its time does not matter), and bring new rows in a file of a new name"
            )
        return now

    def _changed(self, request: PollSource, error: FileChangedError) -> str:
        path = self._files.folder(request.split) / error.read.name
        return (
            f"{path} has been read, and its contents have changed ({_sizes(error.read, error.now)}). Put it back as it "
            "was (its time does not matter), or remove it: what has been read is no longer needed. Bring new rows in a "
            "file of a new name. To read it, and all that was found after it, once more: "
            f"{_reset(request, error.read.name, 0)}"
        )

    def _gone(self, request: PollSource, rest: FileRange) -> str:
        path = self._files.folder(request.split) / rest.file.name
        return (
            f"{path} is gone, with {rest.rows} rows not yet consumed: put it back as it was. To go on without those "
            f"rows: {_reset(request, rest.file.name, rest.file.rows)}"
        )


def _ranges(slices: Sequence[SourceSlice]) -> list[tuple[SplitId, FileRange]]:
    return [(split_id(piece.split), part) for piece in slices for part in SliceDetail.parse(piece.detail).ranges]


@lru_cache(maxsize=4_096)
def _footer(kind: str, options: tuple[tuple[str, str], ...], folder: StoragePlace, file: FoundFile) -> Footer:
    """Return the footer of a file from a cache, so that the file is opened only once."""
    return format_named(kind).footer(folder / file.name, dict(options))


def _contract(root: StoragePlace, schema: StructType, columns: str, corrupt_column: str | None) -> Contract:
    known = [each.value for each in OnMisfit]
    if columns not in known:
        raise SourceError(f"columns={columns!r}: write one of {', '.join(known)}")
    if columns == OnMisfit.QUARANTINE.value and not corrupt_column:
        raise SourceError('columns="quarantine" needs a corrupt_column: it holds the rows that do not fit')
    if columns != OnMisfit.EVOLVE.value:
        return Contract(schema, OnMisfit(columns), keeps_corrupt=bool(corrupt_column))
    lessons = found_columns(root)
    later = [field for field in lessons.columns if field.name not in schema.names]
    return Contract(
        StructType([*schema, *later]),
        OnMisfit.EVOLVE,
        found=frozenset(field.name for field in later),
        keeps_corrupt=bool(corrupt_column),
        taught=bool(lessons.taught),
    )


def _consumed_files(root: Root, after_reading: str, archive: Root | str | None) -> ConsumedFiles:
    known = [each.value for each in AfterReading]
    if after_reading not in known:
        raise SourceError(f"after_reading={after_reading!r}: write one of {', '.join(known)}")
    if (after_reading == AfterReading.ARCHIVE.value) != (archive is not None):
        raise SourceError('after_reading="archive" and archive=FOLDER belong together: give both, or neither')
    folder = None if archive is None else root_of(archive)
    if folder is not None and is_inside(folder, root):
        raise SourceError(f"archive {folder} lies below the source's root {root}: name a folder elsewhere")
    return ConsumedFiles(AfterReading(after_reading), None if folder is None else place_in(folder, ""))


def _reset(request: PollSource, name: str, rows: int) -> str:
    """Return the command that resets the split to this row of the file."""
    return f"tidemark reset PIPELINE {request.source} --split {request.split} --to {typed(f'{name}:{rows}')}"


def _sizes(read: SeenFile, now: FoundFile) -> str:
    if read.size == now.size:
        return f"{now.size} bytes as before, but other contents"
    return f"{now.size} bytes instead of {read.size}"
