"""Checks an entry that was read before it is used, since anybody may have written it.

An entry from outside comes with a savepoint's copy, or from a warehouse to which others can write. So each field is
checked here, once: could Tidemark have written it for this job? Names pass the same validators as when they are
declared. Files lie in a folder that the job may name. Numbers are bounded. Positions are not checked here, since only
their source understands them.
"""

import base64
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar, assert_never

from checkpointing.channel_items import ChannelState, RangeFiles, Segment, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns, is_delta_type
from checkpointing.config import MEMORY_STATE_BYTES_MAX
from checkpointing.event_time import BEFORE_TIME, END_OF_TIME
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
from checkpointing.metadata.paths import ProtocolPaths, relative_to_table, staging_folder
from checkpointing.metadata.record import (
    COMPACTED_FILES_MAX,
    BarrierRecord,
    CheckpointCounts,
    CheckpointFailure,
    CheckpointRecord,
    Claim,
    ErasedFile,
    ExpiryRecord,
    FileCompaction,
    HookState,
    InputTimeRecord,
    PassedBarrier,
    Release,
    Rename,
    RenameKind,
    Row,
    SplitPosition,
    Statistics,
    TableRecord,
    TickEnd,
    VertexRecord,
    VertexStatistics,
)
from checkpointing.state_meaning import ColumnMeaning

# ------------------------------------------------------------------
# Checks the state of a master hook (A8) or a source (A7). The entry itself contains it as a JSON text of limited size.


INLINE_STATE_MAX: Final = 1024 * 1024
"""The most characters of one such state. Every entry of `checkpoints` contains it in full."""


class InvalidInlineStateError(ValueError):
    """A text cannot be a state in an entry. The message says what is wrong."""


def must_be_inline_state(text: str) -> None:
    """Raise InvalidInlineStateError for a text that is too long or not JSON."""
    if len(text) > INLINE_STATE_MAX:
        raise InvalidInlineStateError(
            f"is {len(text):,} characters of JSON, and a checkpoint takes {INLINE_STATE_MAX:,}"
        )
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInlineStateError(f"is no JSON ({type(error).__name__}: {error})") from error


# ------------------------------------------------------------------
# Checks single fields of an entry that was read. Each check raises InvalidFieldError, which names the field.


NUMBER_MAX: Final = 2**53 - 1
"""The largest number that every reader of JSON reads exactly. Ids, generations, rows and bytes stay below it."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""

TEXT_MAX: Final = 1_024
"""The most characters of a nonce, or of a channel's name in the statistics."""

MESSAGE_MAX: Final = 4_000
"""The most characters of the message of a failure."""

_T = TypeVar("_T")


class InvalidFieldError(ValueError):
    """A field whose value Tidemark cannot have written. The message names the field, the value and the rule."""

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field} {why}")

    def within(self, outer: str) -> "InvalidFieldError":
        """Return the same error for a field that lies inside another field."""
        return InvalidFieldError(f"{outer}.{self.field}" if self.field else outer, self.why)


def each_valid(name: str, items: Iterable[_T], judge: Callable[[_T], None]) -> None:
    """Check each item of a field. An error names the item by its number."""
    for number, item in enumerate(items):
        valid_inside(f"{name}[{number}]", item, judge)


def valid_inside(name: str, item: _T, judge: Callable[[_T], None]) -> None:
    """Check the content of a field. An error names the field too."""
    try:
        judge(item)
    except InvalidFieldError as error:
        raise error.within(name) from error
    except InvalidInlineStateError as error:
        raise InvalidFieldError(name, str(error)) from error


def valid_name(field: str, validator: Callable[[str], str], text: str) -> None:
    """Refuse a text that the validator does not accept as a name."""
    try:
        validator(text)
    except InvalidNameError as error:
        raise InvalidFieldError(field, f"is no name ({error})") from error


def all_differ(field: str, names: Collection[str]) -> None:
    """Refuse a field that has the same value twice."""
    if len(set(names)) < len(names):
        raise InvalidFieldError(field, "names one thing twice")


def valid_text(field: str, text: str) -> None:
    """Refuse a text that is too long, or that holds control characters."""
    if len(text) > TEXT_MAX or has_control_characters(text):
        raise InvalidFieldError(field, f"{text[:200]!r} is too long, or holds control characters")


def valid_message(field: str, text: str) -> None:
    """Refuse a message that is too long, or that holds control characters other than the ends of its lines."""
    if len(text) > MESSAGE_MAX or has_control_characters(text.replace("\n", "")):
        raise InvalidFieldError(field, f"{text[:200]!r} is too long, or holds control characters")


def valid_numbers(of: object, *fields: str) -> None:
    """Refuse an object if one of these fields is not between 0 and NUMBER_MAX. None counts as 0."""
    for field in fields:
        valid_number(field, getattr(of, field) or 0)


def valid_number(field: str, number: int) -> None:
    """Refuse a number that is not between 0 and NUMBER_MAX."""
    if not 0 <= number <= NUMBER_MAX:
        raise InvalidFieldError(field, f"{number} is not between 0 and {NUMBER_MAX}")


def valid_times(of: object, *fields: str) -> None:
    """Refuse an object if one of these fields is not a valid time."""
    for field in fields:
        if not 0 <= getattr(of, field) <= TIME_MS_MAX:
            raise InvalidFieldError(field, f"{getattr(of, field)} is no time in milliseconds since the epoch")


CRC32_MAX: Final = 2**32 - 1
STATS_MAX: Final = 4 * 1024 * 1024
"""The most characters of a file's statistics. A table of a hundred columns has some kilobytes."""


def must_be_valid(row: Row) -> None:
    """Raise InvalidFieldError for the first field that Tidemark cannot have written."""
    valid_text("nonce", row.nonce)
    match row:
        case Claim():
            valid_numbers(row, "generation", "first_id", "last_id")
            valid_times(row, "at_ms")
            if row.first_id > row.last_id:
                raise InvalidFieldError("last_id", f"{row.last_id} comes before first_id {row.first_id}")
        case Release():
            valid_numbers(row, "generation", "next_id")
            valid_times(row, "at_ms")
            if row.ended is not None:
                valid_inside("ended", row.ended, _tick_end)
        case CheckpointRecord():
            _checkpoint(row)
        case _ as unreachable:
            assert_never(unreachable)


def _a_time(field: str, ms: int | None) -> None:
    if ms is not None and not BEFORE_TIME <= ms <= END_OF_TIME:
        raise InvalidFieldError(field, f"{ms} is no time")


def _passed_barrier(barrier: PassedBarrier) -> None:
    valid_number("checkpoint", barrier.checkpoint)
    valid_times(barrier, "clock_ms")
    each_valid("positions", barrier.positions, _position)
    each_valid("watermarks", barrier.watermarks, lambda reached: valid_name("vertex", vertex_id, reached.vertex))


def _position(place: SplitPosition) -> None:
    valid_name("source", vertex_id, place.source)
    valid_name("split", split_id, place.split)


def _expiry(expiry: ExpiryRecord) -> None:
    valid_numbers(expiry, "ttl_ms")
    _a_time("now_ms", expiry.now_ms)


def _input_time(then: InputTimeRecord) -> None:
    valid_numbers(then, "input", "delay_ms", "idle_after_ms", "close_after_ms")
    valid_name("upstream", vertex_id, then.upstream)
    if then.split:
        valid_name("split", split_id, then.split)
    if then.active_ms is not None:
        valid_times(then, "active_ms")


def _tick_end(ended: TickEnd) -> None:
    valid_message("message", ended.message)
    each_valid("failed", ended.failed, _failed_checkpoint)


def _failed_checkpoint(failed: CheckpointFailure) -> None:
    valid_number("checkpoint", failed.checkpoint)
    valid_times(failed, "at_ms")
    valid_message("message", failed.message)


def _checkpoint(row: CheckpointRecord) -> None:
    valid_numbers(row, "generation", "checkpoint", "parent")
    if row.parent >= row.checkpoint:
        raise InvalidFieldError("parent", f"{row.parent} does not come before checkpoint {row.checkpoint}")
    if not 1 <= row.max_parallelism <= KEY_GROUPS_MAX:
        raise InvalidFieldError("max_parallelism", f"{row.max_parallelism} is not between 1 and {KEY_GROUPS_MAX}")
    valid_name("job", job_name, row.job)
    _Judge(ProtocolPaths(job_name(row.job)), row.max_parallelism).judge(row)
    all_differ("hooks", [held.hook for held in row.hooks])
    each_valid("hooks", row.hooks, _hook)
    each_valid("barriers", row.barriers, _passed_barrier)
    subtasks = {vertex.vertex: len(vertex.subtasks) for vertex in row.vertices}
    valid_inside("statistics", row.statistics, lambda statistics: _statistics(statistics, subtasks))


class _Judge:
    """Checks the vertices and tables of one entry. Which names are valid depends on the entry's job."""

    def __init__(self, paths: ProtocolPaths, max_parallelism: int) -> None:
        self._paths = paths
        self._key_groups = max_parallelism
        self._known: set[str] = set()
        """Tables' folders that were checked already, so that thousands of files in a few folders are not slow."""

    def judge(self, row: CheckpointRecord) -> None:
        """Raise InvalidFieldError for the first field of a vertex or a table."""
        all_differ("vertices", [vertex.vertex for vertex in row.vertices])
        each_valid("vertices", row.vertices, self._vertex)
        all_differ("tables", [table.table for table in row.tables])
        each_valid("tables", row.tables, self._table)
        all_differ("erased", [erased.path for erased in row.erased])
        each_valid("erased", row.erased, self._erased)
        all_differ("columns", [columns.table for columns in row.columns])
        each_valid("columns", row.columns, self._columns)
        each_valid("renames", row.renames, self._rename)
        each_valid("outside", row.outside, self._table_name)

    def _vertex(self, vertex: VertexRecord) -> None:
        valid_name("vertex", vertex_id, vertex.vertex)
        valid_numbers(vertex, "micro_batch")
        each_valid("splits", vertex.splits, lambda split: valid_name("", split_id, split))
        all_differ("splits", vertex.splits)
        if vertex.splits and len(vertex.splits) != len(vertex.subtasks):
            raise InvalidFieldError("splits", f"are {len(vertex.splits)} for {len(vertex.subtasks)} subtasks")
        each_valid("meanings", vertex.meanings or (), _meaning)
        each_valid("table_keys", vertex.table_keys, lambda keys: self._table_name(keys.table))
        each_valid("subtasks", vertex.subtasks, self._snapshot)
        named = [name for name in vertex.outputs_read or () if name is not None]
        each_valid("outputs_read", named, lambda name: valid_name("", output_name, name))
        each_valid("coordinator", [text for text in [vertex.coordinator] if text is not None], must_be_inline_state)
        if vertex.time is not None:
            each_valid("time.inputs", vertex.time.inputs, _input_time)
            each_valid("time.tables", vertex.time.tables, self._table_name)
            valid_inside("time", vertex.time, lambda time: valid_numbers(time, "behind_ms"))
        if vertex.expiry is not None:
            valid_inside("expiry", vertex.expiry, _expiry)

    def _snapshot(self, snapshot: SubtaskSnapshot) -> None:
        _a_time("due_ms", snapshot.due_ms)
        each_valid("state", snapshot.state, self._state)
        each_valid("ranges", snapshot.ranges, self._ranges)
        each_valid("staged", snapshot.staged, self._staged)
        each_valid("in_flight", snapshot.in_flight, self._in_flight)

    def _state(self, keyed: KeyedFile) -> None:
        self._keyed(keyed)
        self._staged_below(self._paths.states, keyed.file)
        valid_inside("file", keyed.file, lambda file: _handle(file, inline=True))

    def _ranges(self, ranges: RangeFiles) -> None:
        self._table_name(ranges.table)

        def of_table(keyed: KeyedFile) -> None:
            self._keyed(keyed)
            valid_inside("file", keyed.file, _staged_for(ranges.table))

        each_valid("files", ranges.files, of_table)

    def _staged(self, staged: StagedFile) -> None:
        self._table_name(staged.table)
        valid_numbers(staged, "after")
        valid_inside("file", staged.file, _staged_for(staged.table))

    def _in_flight(self, held: ChannelState) -> None:
        valid_name("channel.edge.upstream", vertex_id, held.channel.edge.upstream)
        valid_name("channel.edge.downstream", vertex_id, held.channel.edge.downstream)
        valid_number("channel.edge.input", held.channel.edge.input)
        valid_number("channel.subtask", held.channel.subtask)
        each_valid("segments", held.segments, self._segment)

    def _segment(self, segment: Segment) -> None:
        match segment:
            case SourceSlice():
                valid_name("source", vertex_id, segment.source)
                valid_name("split", split_id, segment.split)
                valid_numbers(segment, "rows", "bytes")
                valid_times(segment, "offered_ms")
            case StagedSegment():
                each_valid("files", segment.files, self._handed_on)
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
        valid_inside("version", keyed.version, lambda version: valid_numbers(version, "generation", "micro_batch"))
        if not 0 <= keyed.first_key_group <= keyed.last_key_group < self._key_groups:
            groups = f"{keyed.first_key_group} to {keyed.last_key_group}"
            raise InvalidFieldError("first_key_group", f"{groups} are not among {self._key_groups} key groups")
        _a_time("touched_ms", keyed.touched_ms)

    def _table(self, table: TableRecord) -> None:
        self._table_name(table.table)
        valid_numbers(table, "parent_version", "planned_on")
        each_valid("adds", table.adds, _appended_to(table.table))
        each_valid("files", table.files, _staged_for(table.table, inline=table.mode is TableMode.STATE))
        each_valid("removes", table.removes, _staged_for(table.table))
        each_valid("compactions", table.compactions, _compacted_in(table))
        for number, pair in enumerate(table.renamed):
            each_valid(f"renamed[{number}]", pair, _column_name)

    def _erased(self, erased: ErasedFile) -> None:
        self._table_name(erased.table)
        if relative_to_table(erased.table, erased.path) is None:
            raise InvalidFieldError("path", f"{erased.path!r} is no data file of table {erased.table}")
        each_valid("into", [erased.into] if erased.into is not None else [], _appended_to(erased.table, inline=True))

    def _rename(self, rename: Rename) -> None:
        judges = {RenameKind.VERTEX: vertex_id, RenameKind.TABLE: self._paths.known_table}
        if rename.kind is RenameKind.COLUMN:
            valid_name("vertex", vertex_id, rename.vertex)
        elif rename.vertex:
            raise InvalidFieldError("vertex", f"{rename.vertex[:200]!r} is named, and a {rename.kind.value} is renamed")
        for field, name in (("was", rename.was), ("now", rename.now)):
            valid_name(field, judges.get(rename.kind, column_name), name)

    def _columns(self, columns: TableColumns) -> None:
        self._table_name(columns.table)
        all_differ("columns", [column.name for column in columns.columns])
        each_valid("columns", columns.columns, _column)
        each_valid("dropped", columns.dropped, _column_name)

    def _table_name(self, table: TableName) -> None:
        if table not in self._known:
            valid_name("table", self._paths.known_table, table)
            self._known.add(table)

    def _staged_below(self, root: str, file: FileHandle, at: str = "file.") -> None:
        """Check that the file lies in a vertex's folder, as the files of state and channels do."""
        folder = staging_folder(file.path)
        if folder is None or not folder.startswith(f"{root}/"):
            raise InvalidFieldError(f"{at}path", f"{file.path!r} is no staged file below {root}")
        if folder not in self._known:
            valid_name(f"{at}path", vertex_id, folder.removeprefix(f"{root}/"))
            self._known.add(folder)

    def _folder(self, file: FileHandle, at: str) -> None:
        folder = staging_folder(file.path)
        if folder is None:
            raise InvalidFieldError(f"{at}path", f"{file.path!r} is no staged file")
        if folder not in self._known:
            valid_name(f"{at}path", self._paths.known_table, folder)
            self._known.add(folder)


# ------------------------------------------------------------------ files


def _staged_for(table: TableName, *, inline: bool = False) -> Callable[[FileHandle], None]:
    def judge(file: FileHandle) -> None:
        if staging_folder(file.path) != table:
            raise InvalidFieldError("path", f"{file.path!r} is no file that was staged for table {table}")
        _handle(file, inline=inline)

    return judge


def _appended_to(table: TableName, *, inline: bool = False) -> Callable[[FileHandle], None]:
    """Return the check of an append table's file, or of a successor of an erased file.

    In a copy, another writer may have written the file anywhere in the table's folder.
    """

    def judge(file: FileHandle) -> None:
        if relative_to_table(table, file.path) is None:
            raise InvalidFieldError("path", f"{file.path!r} is no data file of table {table}")
        _handle(file, inline=inline)

    return judge


def _compacted_in(table: TableRecord) -> Callable[[FileCompaction], None]:
    """Return the check of a compaction. It takes files out of the table, so all must be the job's own files."""

    def judge(compaction: FileCompaction) -> None:
        if table.mode is not TableMode.APPEND:
            raise InvalidFieldError("into", f"{compaction.into.path!r} is compacted in a table that is set whole")
        valid_inside("into", compaction.into, _staged_for(table.table))
        if len(compaction.of) > COMPACTED_FILES_MAX or compaction.into.path in compaction.of:
            raise InvalidFieldError("of", f"names more than {COMPACTED_FILES_MAX} files, or the new one")
        all_differ("of", compaction.of)
        foreign = next((path for path in compaction.of if staging_folder(path) != table.table), None)
        if foreign is not None:
            raise InvalidFieldError("of", f"{foreign!r} is no file that was staged for table {table.table}")

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


def _column_name(name: str) -> None:
    valid_name("", column_name, name)


def _column(column: TableColumn) -> None:
    """Check a column. Its name may be any name in a user's table. Its type must be one that every engine reads."""
    valid_numbers(column, "after")
    valid_name("name", column_name, column.name)
    if column.first:
        valid_name("first", column_name, column.first)
    if len(column.type) > STATS_MAX or not is_delta_type(column.type):
        raise InvalidFieldError("type", f"{column.type[:200]!r} is no type of a Delta table")


def _meaning(meaning: ColumnMeaning) -> None:
    """Check a meaning. Column names may be any names in a user's table, because they become no path."""
    valid_numbers(meaning, "version")


def _hook(held: HookState) -> None:
    valid_name("hook", hook_name, held.hook)
    valid_inside("state", held.state, must_be_inline_state)


def _statistics(statistics: Statistics, subtasks: Mapping[VertexId, int]) -> None:
    valid_times(statistics, "triggered_ms", "committed_ms")
    valid_numbers(statistics, "rows", "rows_estimated")
    each_valid("vertices", statistics.vertices, lambda vertex: _of_vertex(vertex, subtasks.get(vertex.vertex)))
    if statistics.counts is not None:
        valid_inside("counts", statistics.counts, _counts)
    each_valid("failed", statistics.failed, _failed_checkpoint)


def _counts(counts: CheckpointCounts) -> None:
    valid_numbers(counts, "total", "in_progress", "completed", "failed", "restored")


def _of_vertex(vertex: VertexStatistics, subtasks: int | None) -> None:
    """Refuse numbers out of range. A duration may be negative, because a clock may be set back.

    `subtasks` is None if a restore left the vertex out of the entry, or renamed it.
    """
    valid_name("vertex", vertex_id, vertex.vertex)
    each_valid("barriers", vertex.barriers, _barrier)
    valid_times(vertex, "aligned_ms", "acknowledged_ms")
    valid_numbers(vertex, "bytes_held", "micro_batches", "rows_in", "rows_out", "bytes_out")
    for name in ("alignment_ms", "busy_ms", "start_delay_ms", "bytes_processed", "async_ms"):
        valid_number(name, abs(getattr(vertex, name) or 0))
    for name, column in vertex.subtasks:
        if subtasks is not None and len(column) not in (0, subtasks):
            raise InvalidFieldError(f"subtasks.{name}", f"has {len(column)} entries for {subtasks} subtasks")
        each_valid(f"subtasks.{name}", column, lambda number: valid_number("", number or 0))


def _barrier(barrier: BarrierRecord) -> None:
    valid_text("channel", barrier.channel)
    valid_times(barrier, "at_ms")
