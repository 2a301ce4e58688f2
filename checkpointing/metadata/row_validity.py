"""Checks an entry that was read, before it is used. Anybody may have written it.

An entry from outside comes with a savepoint's copy, or from a warehouse to which others may write. So each field is
checked here, once: could Tidemark have written it for this job? Names pass the same validators as when they are
declared. Files lie in a folder that the job may name. Numbers are bounded. Only the source can judge its positions.
"""

import base64
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar, assert_never

from checkpointing.channel_items import Segment, SourceSlice, StagedSegment
from checkpointing.columns import TableColumn, TableColumns, is_delta_type
from checkpointing.config import MEMORY_STATE_BYTES_MAX
from checkpointing.graph import TableMode
from checkpointing.handles import UNKNOWN_CRC32, FileHandle, KeyedFile, StagedFile
from checkpointing.identifiers import (
    InvalidNameError,
    TableName,
    VertexId,
    column_name,
    has_control_characters,
    hook_name,
    job_name,
    output_name,
    split_id,
    vertex_id,
)
from checkpointing.key_groups import KEY_GROUPS_MAX
from checkpointing.metadata.inline_state import InvalidInlineStateError, must_be_inline_state
from checkpointing.metadata.paths import ProtocolPaths, relative_to_table, staging_folder
from checkpointing.metadata.record import (
    BarrierRecord,
    CheckpointRecord,
    Claim,
    HookState,
    Release,
    Rename,
    RenameKind,
    Row,
    Statistics,
    TableRecord,
    VertexRecord,
    VertexStatistics,
)
from checkpointing.snapshots import ChannelState, RangeFiles, SubtaskSnapshot
from checkpointing.state_meaning import ColumnMeaning

NUMBER_MAX: Final = 2**53 - 1
"""The largest number that every reader of JSON takes exactly. Ids, generations, rows and bytes stay below it."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""

CRC32_MAX: Final = 2**32 - 1
TEXT_MAX: Final = 1_024
"""The most characters of a nonce, or of a channel's name in the statistics."""

STATS_MAX: Final = 4 * 1024 * 1024
"""The most characters of a file's statistics. A table of a hundred columns has some kilobytes."""

_T = TypeVar("_T")


class InvalidFieldError(ValueError):
    """A field whose value Tidemark cannot have written. The message names the field, the value and the rule."""

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field} {why}")

    def within(self, outer: str) -> "InvalidFieldError":
        """Return the same error for a field that lies inside another one."""
        return InvalidFieldError(f"{outer}.{self.field}" if self.field else outer, self.why)


def must_be_valid(row: Row) -> None:
    """Raise InvalidFieldError for the first field that Tidemark cannot have written."""
    _text("nonce", row.nonce)
    match row:
        case Claim():
            _numbers(row, "generation", "first_id", "last_id")
            _times(row, "at_ms")
            if row.first_id > row.last_id:
                raise InvalidFieldError("last_id", f"{row.last_id} comes before first_id {row.first_id}")
        case Release():
            _numbers(row, "generation", "next_id")
            _times(row, "at_ms")
        case CheckpointRecord():
            _checkpoint(row)
        case _ as unreachable:
            assert_never(unreachable)


def _checkpoint(row: CheckpointRecord) -> None:
    _numbers(row, "generation", "checkpoint", "parent")
    if row.parent >= row.checkpoint:
        raise InvalidFieldError("parent", f"{row.parent} does not come before checkpoint {row.checkpoint}")
    if not 1 <= row.max_parallelism <= KEY_GROUPS_MAX:
        raise InvalidFieldError("max_parallelism", f"{row.max_parallelism} is not between 1 and {KEY_GROUPS_MAX}")
    _name("job", job_name, row.job)
    _Judge(ProtocolPaths(job_name(row.job)), row.max_parallelism).judge(row)
    _unique("hooks", [held.hook for held in row.hooks])
    _each("hooks", row.hooks, _hook)
    subtasks = {vertex.vertex: len(vertex.subtasks) for vertex in row.vertices}
    _inside("statistics", row.statistics, lambda statistics: _statistics(statistics, subtasks))


class _Judge:
    """Checks the vertices and tables of one entry. Which names are valid depends on the entry's job."""

    def __init__(self, paths: ProtocolPaths, max_parallelism: int) -> None:
        self._paths = paths
        self._key_groups = max_parallelism
        self._known: set[str] = set()
        """Folders of tables that were checked already, because a few of them hold thousands of files."""

    def judge(self, row: CheckpointRecord) -> None:
        """Raise InvalidFieldError for the first field of a vertex or a table."""
        _unique("vertices", [vertex.vertex for vertex in row.vertices])
        _each("vertices", row.vertices, self._vertex)
        _unique("tables", [table.table for table in row.tables])
        _each("tables", row.tables, self._table)
        _unique("columns", [columns.table for columns in row.columns])
        _each("columns", row.columns, self._columns)
        _each("renames", row.renames, self._rename)
        _each("outside", row.outside, self._table_name)

    def _vertex(self, vertex: VertexRecord) -> None:
        _name("vertex", vertex_id, vertex.vertex)
        _numbers(vertex, "micro_batch")
        _each("splits", vertex.splits, lambda split: _name("", split_id, split))
        _unique("splits", vertex.splits)
        if vertex.splits and len(vertex.splits) != len(vertex.subtasks):
            raise InvalidFieldError("splits", f"are {len(vertex.splits)} for {len(vertex.subtasks)} subtasks")
        _each("meanings", vertex.meanings or (), _meaning)
        _each("table_keys", vertex.table_keys, lambda keys: self._table_name(keys.table))
        _each("subtasks", vertex.subtasks, self._snapshot)
        named = [name for name in vertex.outputs_read or () if name is not None]
        _each("outputs_read", named, lambda name: _name("", output_name, name))
        _each("coordinator", [text for text in [vertex.coordinator] if text is not None], must_be_inline_state)

    def _snapshot(self, snapshot: SubtaskSnapshot) -> None:
        _each("state", snapshot.state, self._state)
        _each("ranges", snapshot.ranges, self._ranges)
        _each("staged", snapshot.staged, self._staged)
        _each("in_flight", snapshot.in_flight, self._in_flight)

    def _state(self, keyed: KeyedFile) -> None:
        self._keyed(keyed)
        self._staged_below(self._paths.states, keyed.file)
        _inside("file", keyed.file, lambda file: _handle(file, inline=True))

    def _ranges(self, ranges: RangeFiles) -> None:
        self._table_name(ranges.table)

        def of_table(keyed: KeyedFile) -> None:
            self._keyed(keyed)
            _inside("file", keyed.file, _staged_for(ranges.table))

        _each("files", ranges.files, of_table)

    def _staged(self, staged: StagedFile) -> None:
        self._table_name(staged.table)
        _numbers(staged, "after")
        _inside("file", staged.file, _staged_for(staged.table))

    def _in_flight(self, held: ChannelState) -> None:
        _name("channel.edge.upstream", vertex_id, held.channel.edge.upstream)
        _name("channel.edge.downstream", vertex_id, held.channel.edge.downstream)
        _number("channel.edge.input", held.channel.edge.input)
        _number("channel.subtask", held.channel.subtask)
        _each("segments", held.segments, self._segment)

    def _segment(self, segment: Segment) -> None:
        match segment:
            case SourceSlice():
                _name("source", vertex_id, segment.source)
                _name("split", split_id, segment.split)
                _numbers(segment, "rows", "bytes")
            case StagedSegment():
                _each("files", segment.files, self._handed_on)
            case _ as unreachable:
                assert_never(unreachable)

    def _handed_on(self, file: FileHandle) -> None:
        """Check a segment's file: it lies in a channel's folder, or is a file of a table."""
        if file.path.startswith(f"{self._paths.channels}/"):
            self._staged_below(self._paths.channels, file, at="")
        else:
            self._folder(file, at="")
        _handle(file)

    def _keyed(self, keyed: KeyedFile) -> None:
        _inside("version", keyed.version, lambda version: _numbers(version, "generation", "micro_batch"))
        if not 0 <= keyed.first_key_group <= keyed.last_key_group < self._key_groups:
            groups = f"{keyed.first_key_group} to {keyed.last_key_group}"
            raise InvalidFieldError("first_key_group", f"{groups} are not among {self._key_groups} key groups")

    def _table(self, table: TableRecord) -> None:
        self._table_name(table.table)
        _numbers(table, "parent_version", "planned_on")
        _each("adds", table.adds, _appended_to(table.table))
        _each("files", table.files, _staged_for(table.table, inline=table.mode is TableMode.STATE))
        _each("removes", table.removes, _staged_for(table.table))

    def _rename(self, rename: Rename) -> None:
        judges = {RenameKind.VERTEX: vertex_id, RenameKind.TABLE: self._paths.known_table}
        if rename.kind is RenameKind.COLUMN:
            _name("vertex", vertex_id, rename.vertex)
        for field, name in (("was", rename.was), ("now", rename.now)):
            _name(field, judges.get(rename.kind, column_name), name)

    def _columns(self, columns: TableColumns) -> None:
        self._table_name(columns.table)
        _unique("columns", [column.name for column in columns.columns])
        _each("columns", columns.columns, _column)

    def _table_name(self, table: TableName) -> None:
        if table not in self._known:
            _name("table", self._paths.known_table, table)
            self._known.add(table)

    def _staged_below(self, root: str, file: FileHandle, at: str = "file.") -> None:
        """Check that the file lies in a vertex's folder, as those of state and channels do."""
        folder = staging_folder(file.path)
        if folder is None or not folder.startswith(f"{root}/"):
            raise InvalidFieldError(f"{at}path", f"{file.path!r} is no staged file below {root}")
        if folder not in self._known:
            _name(f"{at}path", vertex_id, folder.removeprefix(f"{root}/"))
            self._known.add(folder)

    def _folder(self, file: FileHandle, at: str) -> None:
        folder = staging_folder(file.path)
        if folder is None:
            raise InvalidFieldError(f"{at}path", f"{file.path!r} is no staged file")
        if folder not in self._known:
            _name(f"{at}path", self._paths.known_table, folder)
            self._known.add(folder)


# ------------------------------------------------------------------ files


def _staged_for(table: TableName, *, inline: bool = False) -> Callable[[FileHandle], None]:
    def judge(file: FileHandle) -> None:
        if staging_folder(file.path) != table:
            raise InvalidFieldError("path", f"{file.path!r} is no file that was staged for table {table}")
        _handle(file, inline=inline)

    return judge


def _appended_to(table: TableName) -> Callable[[FileHandle], None]:
    """Return the check of an append table's file.

    In a copy, others may have written it anywhere in the table's folder.
    """

    def judge(file: FileHandle) -> None:
        if relative_to_table(table, file.path) is None:
            raise InvalidFieldError("path", f"{file.path!r} is no data file of table {table}")
        _handle(file)

    return judge


def _handle(file: FileHandle, *, inline: bool = False) -> None:
    if not (0 <= file.rows <= NUMBER_MAX and 0 <= file.bytes <= NUMBER_MAX):
        raise InvalidFieldError("bytes", f"{file.bytes} and {file.rows} rows are no size of a file")
    if not UNKNOWN_CRC32 <= file.crc32 <= CRC32_MAX:
        raise InvalidFieldError("crc32", f"{file.crc32} is no checksum")
    if file.inline:
        _content(file, allowed=inline)
    if not _is_object(file.stats):
        raise InvalidFieldError("stats", f"{file.stats[:200]!r} is no JSON object")


def _content(file: FileHandle, *, allowed: bool) -> None:
    if not allowed:
        raise InvalidFieldError("inline", "holds a file's content, which only a file of state may carry")
    if file.bytes > MEMORY_STATE_BYTES_MAX:
        raise InvalidFieldError("bytes", f"{file.bytes} is more than a row may hold, {MEMORY_STATE_BYTES_MAX}")
    try:
        held = len(base64.b64decode(file.inline, validate=True))
    except ValueError as error:
        raise InvalidFieldError("inline", f"is no base64 ({error})") from error
    if held != file.bytes:
        raise InvalidFieldError("inline", f"holds {held} bytes, and the handle says {file.bytes}")


def _is_object(text: str) -> bool:
    try:
        return text == "{}" or (len(text) <= STATS_MAX and isinstance(json.loads(text), dict))
    except (ValueError, RecursionError):
        return False


# ------------------------------------------------------------------ what a cut says of itself


def _column(column: TableColumn) -> None:
    """Check a column. Its name may be any that a user's table has. Every engine reads its type."""
    _numbers(column, "after")
    _name("name", column_name, column.name)
    if len(column.type) > STATS_MAX or not is_delta_type(column.type):
        raise InvalidFieldError("type", f"{column.type[:200]!r} is no type of a Delta table")


def _meaning(meaning: ColumnMeaning) -> None:
    """Check a meaning. Column names may be any that a user's table has, because they become no path."""
    _numbers(meaning, "version")


def _hook(held: HookState) -> None:
    _name("hook", hook_name, held.hook)
    _inside("state", held.state, must_be_inline_state)


def _statistics(statistics: Statistics, subtasks: Mapping[VertexId, int]) -> None:
    _times(statistics, "triggered_ms", "committed_ms")
    _numbers(statistics, "rows", "rows_estimated")
    _each("vertices", statistics.vertices, lambda vertex: _of_vertex(vertex, subtasks.get(vertex.vertex)))
    if statistics.counts is not None:
        _numbers(statistics.counts, "total", "in_progress", "completed", "failed", "restored")


def _of_vertex(vertex: VertexStatistics, subtasks: int | None) -> None:
    """Refuse numbers out of range. A duration may be negative, because clocks are set back.

    `subtasks` is None if a restore left the vertex out of the entry, or took it over under another name.
    """
    _name("vertex", vertex_id, vertex.vertex)
    _each("barriers", vertex.barriers, _barrier)
    _times(vertex, "aligned_ms", "acknowledged_ms")
    _numbers(vertex, "bytes_held", "micro_batches", "rows_in", "rows_out", "bytes_out")
    for name in ("alignment_ms", "busy_ms", "start_delay_ms", "bytes_processed", "async_ms"):
        _number(name, abs(getattr(vertex, name) or 0))
    for name, column in vertex.subtasks:
        if subtasks is not None and len(column) not in (0, subtasks):
            raise InvalidFieldError(f"subtasks.{name}", f"has {len(column)} entries for {subtasks} subtasks")
        _each(f"subtasks.{name}", column, lambda number: _number("", number or 0))


def _barrier(barrier: BarrierRecord) -> None:
    _text("channel", barrier.channel)
    _times(barrier, "at_ms")


# ------------------------------------------------------------------ fields


def _each(name: str, items: Iterable[_T], judge: Callable[[_T], None]) -> None:
    for number, item in enumerate(items):
        _inside(f"{name}[{number}]", item, judge)


def _inside(name: str, item: _T, judge: Callable[[_T], None]) -> None:
    try:
        judge(item)
    except InvalidFieldError as error:
        raise error.within(name) from error
    except InvalidInlineStateError as error:
        raise InvalidFieldError(name, str(error)) from error


def _name(field: str, validator: Callable[[str], str], text: str) -> None:
    try:
        validator(text)
    except InvalidNameError as error:
        raise InvalidFieldError(field, f"is no name ({error})") from error


def _unique(field: str, names: Collection[str]) -> None:
    if len(set(names)) < len(names):
        raise InvalidFieldError(field, "names one thing twice")


def _text(field: str, text: str) -> None:
    if len(text) > TEXT_MAX or has_control_characters(text):
        raise InvalidFieldError(field, f"{text[:200]!r} is too long, or holds control characters")


def _numbers(of: object, *fields: str) -> None:
    for field in fields:
        _number(field, getattr(of, field) or 0)


def _number(field: str, number: int) -> None:
    if not 0 <= number <= NUMBER_MAX:
        raise InvalidFieldError(field, f"{number} is not between 0 and {NUMBER_MAX}")


def _times(of: object, *fields: str) -> None:
    for field in fields:
        if not 0 <= getattr(of, field) <= TIME_MS_MAX:
            raise InvalidFieldError(field, f"{getattr(of, field)} is no time in milliseconds since the epoch")
