"""Declares the table that a stream writes: its keys or version column, layout, comments and properties."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from checkpointing.event_time import TimePartitions
from checkpointing.graph import JobGraph, TableMode, Vertex
from checkpointing.identifiers import TableName, table_name
from checkpointing.partitions import escaped
from jobs.operators.in_time.windows import END, START, PeriodicWindows, SessionWindows
from jobs.operators.process import OUTPUT
from jobs.pipeline.columns import (
    NOTHING,
    ChangedColumns,
    InvalidPipelineError,
    former_table,
    require_columns,
    require_keys,
    require_no_key,
    require_unique,
    time_zone,
)
from jobs.pipeline.vertices import (
    AggregateVertex,
    Declarations,
    Declared,
    KeyedVertex,
    OutputTable,
    Partitions,
    ProcessVertex,
    SourceVertex,
    StagedVertex,
    former_names_of_columns,
    keys_of_rows,
)
from jobs.sinks.port import Description, Sink, UpsertSink

_PARTITIONING: Final = (BooleanType, ByteType, DateType, IntegerType, LongType, ShortType, StringType)
"""The types of columns by which a table can be laid out."""

_VERSIONS: Final = (
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
"""The types of version columns. All engines agree on which of two values is the greater.

Doubles are left out, because the order of NaN is not the same everywhere.
"""

_PROPERTY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_OWNED: Final = ("delta.", "tidemark.")
"""Prefixes of properties that users may not set. Delta defines those with the first, Tidemark those with the second."""


def append_table(
    name: str, rows: StructType, partition_by: Sequence[str], sink: Sink | None, renamed_from: str | None
) -> OutputTable:
    """Return an append table of these rows. Raises InvalidNameError, InvalidPipelineError."""
    by, was = _partition_columns(name, rows, partition_by), former_table(renamed_from)
    return OutputTable(table_name(name), TableMode.APPEND, renamed_from=was, sink=sink, partitioned_by=by)


def with_changed_columns(vertex: StagedVertex | KeyedVertex, changed: ChangedColumns) -> StagedVertex | KeyedVertex:
    """Return the vertex with the declared changes of the columns of its append tables.

    Raises InvalidPipelineError for a renamed column that the table is laid out by, or whose name the vertex itself
    declares.
    """
    table = vertex.table
    if isinstance(vertex, AggregateVertex | ProcessVertex):
        for new, old in changed.renamed_from.items():
            process = f"process(..., columns_renamed_from={{{new!r}: {old!r}}})"
            place = f"{new}=count(renamed_from={old!r})" if isinstance(vertex, AggregateVertex) else process
            raise InvalidPipelineError(
                f"change_columns: vertex {vertex.id} names the column {new!r} itself, so give its old name there: "
                f"{place}"
            )
    if table is not None:
        _partition_columns(table.name, vertex.rows, table.partitioned_by, changed.renamed_from)
        return replace(vertex, table=replace(table, changed=changed))
    if isinstance(vertex, StagedVertex) and vertex.check is not None:
        return replace(vertex, check=replace(vertex.check, changed=changed))
    raise InvalidPipelineError(f"change_columns: vertex {vertex.id} writes no table")


def upsert_table(
    name: TableName,
    vertex: KeyedVertex,
    rows: StructType,
    keys: Sequence[str],
    partition_by: Sequence[str],
    *,
    sink: UpsertSink | None,
    renamed_from: str | None,
) -> OutputTable:
    """Return an upsert table of a vertex's rows. Raises InvalidNameError, InvalidPipelineError."""
    own, was = _upsert_keys(name, vertex, rows, keys), former_table(renamed_from)
    by = _partition_columns(name, rows, partition_by, former_names_of_columns(vertex))
    return OutputTable(name, TableMode.UPSERT, own, renamed_from=was, sink=sink, partitioned_by=by)


def overwrite_table(
    name: str, rows: StructType, version: str, partition_by: Sequence[str], renamed_from: str | None
) -> OutputTable:
    """Return an overwrite table of these rows. Raises InvalidNameError, InvalidPipelineError."""
    where, was = f"version of table {name}", former_table(renamed_from)
    by = _partition_columns(name, rows, partition_by)
    require_columns(where, rows, [version])
    kind = rows[version].dataType
    if not isinstance(kind, _VERSIONS):
        raise InvalidPipelineError(
            f"{where}: column {version!r} is a {kind.simpleString()}, and only whole numbers, dates, timestamps and "
            "texts can be versions; derive such a column with with_column"
        )
    if version in by:
        raise InvalidPipelineError(
            f"{where}: column {version!r} is in partition_by too, so each partition has one version and keeps all of "
            "its rows; leave it out of partition_by, or append the rows with table"
        )
    return OutputTable(table_name(name), TableMode.OVERWRITE, (version,), renamed_from=was, partitioned_by=by)


def _upsert_keys(table: str, vertex: KeyedVertex, rows: StructType, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of an upsert table: `keys`, or those of its vertex.

    Raises InvalidPipelineError for a key that the rows lack or that is renamed, and if a key of the vertex is missing.
    """
    own = vertex.inputs[0].keys
    by = tuple(keys) or keys_of_rows(vertex)
    require_keys(f"table {table}", rows, by)
    lacking = [key for key in own if key not in by]
    if lacking:
        raise InvalidPipelineError(
            f"table {table}: the keys {list(by)} lack {lacking[0]!r}, a key of vertex {vertex.id}; "
            "rows of one table key must meet in one subtask"
        )
    for new, old in former_names_of_columns(vertex).items():
        require_no_key(f"table {table}: column {new} is renamed from {old!r}", by, new)
    return by


def _partition_columns(
    table: str, rows: StructType, by: Sequence[str], renamed: Mapping[str, str] = NOTHING
) -> tuple[str, ...]:
    """Return the columns by which a table is laid out. `renamed` maps new names of its columns to the old ones.

    Raises InvalidPipelineError for a column that is missing, named twice or renamed, for a type whose values Delta
    writes as texts that not all readers understand alike, and if no other column is left.
    """
    if isinstance(by, str):
        raise InvalidPipelineError(f"table {table}: partition_by is the text {by!r}; name columns, as in [{by!r}]")
    where = f"partition_by of table {table}"
    require_unique(where, by)
    require_columns(where, rows, by)
    for name in by:
        kind = rows[name].dataType
        if not isinstance(kind, _PARTITIONING):
            raise InvalidPipelineError(
                f"{where}: column {name!r} is a {kind.simpleString()}, and only texts, whole numbers, dates and "
                "booleans can lay a table out; derive such a column with with_column, as a date of a timestamp"
            )
        if escaped(name) != name:
            raise InvalidPipelineError(
                f"{where}: column {name!r} would name folders that Polars cannot read; lay the table out by a column "
                "whose name has only letters, digits, '_', '.' and '-'"
            )
        if name == OUTPUT:
            raise InvalidPipelineError(f"{where}: folders of {name!r} are Tidemark's own; rename the column")
        if name in renamed:
            raise InvalidPipelineError(
                f"{where}: column {name!r} is renamed from {renamed[name]!r}, and the table's files lie in folders of "
                "the old name; keep the name, or name another table"
            )
    if by and len(by) == len(rows.fields):
        raise InvalidPipelineError(f"{where}: it names all columns of the table; leave out at least one")
    return tuple(by)


PARTITIONS: Final = {"1h": 3_600_000, "1d": 86_400_000, "1w": 604_800_000}
"""The sizes in ms of Dagster's hourly, daily and weekly partitions."""
_ALL_ZONES_MS: Final = 900_000
"""A quarter of an hour. The offsets of all time zones are multiples of it."""


def partitions_of(
    table: OutputTable, rows: StructType, said: Partitions, windows: PeriodicWindows | SessionWindows | None
) -> Partitions:
    """Return the declared hours, days or weeks of a table with these rows.

    Raises InvalidPipelineError for a wrong declaration, also if rows of `windows` may be emitted after the partition of
    their time in `by` was complete.
    """
    where, size, start, by = f"partitions of table {table.name}", said.size, said.start, said.by
    if size not in PARTITIONS:
        raise InvalidPipelineError(f"{where}: the size is {size!r}; choose one of {', '.join(PARTITIONS)}")
    try:
        first = date.fromisoformat(start)
    except (TypeError, ValueError) as error:
        raise InvalidPipelineError(f"{where}: start is {start!r}; write its first day, as 2026-11-01") from error
    if size == "1w" and first.weekday():
        monday = first - timedelta(days=first.weekday())
        raise InvalidPipelineError(
            f"{where}: start is {start}, a {first:%A}, and weeks begin on Mondays: write {monday}"
        )
    if not by:
        raise InvalidPipelineError(f"{where}: it has no column {END}; name the column with the event times in by=")
    require_columns(where, rows, [by])
    if not isinstance(rows[by].dataType, TimestampType | TimestampNTZType):
        raise InvalidPipelineError(f"{where}: column {by} is a {rows[by].dataType.simpleString()}, and no timestamp")
    zone = time_zone(where, said.zone)
    in_time = windows is None or said.before_ms > 0 or (by == START and _lie_inside(windows, PARTITIONS[size], zone))
    if not in_time:
        raise InvalidPipelineError(
            f"{where}: by is {by}, and a window may be put out after the {size} in which its {by} lies was complete: "
            f"leave out by=, and a window belongs to the {size} of the last millisecond before its {END}"
        )
    return said


def windows_of(declarations: Declarations, vertex: Declared) -> PeriodicWindows | SessionWindows | None:
    """Return the windows whose rows a vertex writes: its own, or those of a vertex upstream. None: there are none."""
    if isinstance(vertex, ProcessVertex):
        windows = getattr(vertex.function, "windows", None)  # of aggregates, joins and top rows
        return windows if isinstance(windows, PeriodicWindows | SessionWindows) else None
    if not isinstance(vertex, StagedVertex):
        return None
    found = (windows_of(declarations, declarations.vertex(reads.origin)) for reads in vertex.inputs)
    return next((windows for windows in found if windows is not None), None)


def _lie_inside(windows: PeriodicWindows | SessionWindows, size_ms: int, zone: str) -> bool:
    """Return whether each window lies within one partition."""
    if not isinstance(windows, PeriodicWindows) or windows.cumulative or windows.step_ms != windows.size_ms:
        return False
    if size_ms % windows.size_ms or _begins_at(size_ms, windows) % windows.size_ms:
        return False
    if windows.zone == "UTC":
        return zone == "UTC" or not _ALL_ZONES_MS % windows.size_ms
    return windows.zone == zone and size_ms > PARTITIONS["1h"]  # a local hour that comes twice is two hours to Dagster


def _begins_at(size_ms: int, windows: PeriodicWindows) -> int:
    """Return the time from the beginning of a window to the beginning of a partition, in local time.

    Weeks begin on Mondays.
    """
    monday_ms = 4 * PARTITIONS["1d"] if size_ms == PARTITIONS["1w"] else 0
    return monday_ms - windows.offset_ms


@lru_cache(maxsize=64)
def time_partitions(said: Partitions) -> TimePartitions:
    """Return the partitions as the protocol numbers them. For hours, only the minutes of the zone's offset matter.

    So a local hour that occurs twice is two partitions. After the year 2100, a zone's offset stays the same.
    """
    zone, size_ms = ZoneInfo(said.zone), PARTITIONS[said.size]

    def ahead_ms(ms: int) -> int:
        offset = (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone).utcoffset() or timedelta()
        return offset // _MS % size_ms if size_ms == PARTITIONS["1h"] else offset // _MS

    start_ms = (datetime.fromisoformat(said.start).replace(tzinfo=zone) - _EPOCH) // _MS
    offsets = [(start_ms, ahead_ms(start_ms))]
    for week_ms in range(start_ms, (datetime(2101, 1, 1, tzinfo=UTC) - _EPOCH) // _MS, PARTITIONS["1w"]):
        (_, before_ms), weeks_ms = offsets[-1], range(week_ms - PARTITIONS["1w"], week_ms)
        if ahead_ms(week_ms) != before_ms:
            place = bisect_left(weeks_ms, True, key=lambda ms: ahead_ms(ms) != before_ms)  # noqa: FBT003
            offsets.append((weeks_ms.start + place, ahead_ms(week_ms)))
    midnight_ms = (datetime.fromisoformat(said.start).replace(tzinfo=UTC) - _EPOCH) // _MS
    begins_ms = start_ms + offsets[0][1] if size_ms == PARTITIONS["1h"] else midnight_ms  # also if no clock shows it
    return TimePartitions(size_ms, begins_ms, tuple(offsets))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def require_partitions_in_time(graph: JobGraph, tables: Iterable[OutputTable]) -> None:
    """Raise InvalidPipelineError for a table with partitions for which no cut can say until when it is complete."""
    writers = {table.name: vertex for vertex in graph.vertices for table in vertex.tables}
    for table in tables:
        if table.partitions is None:
            continue
        where, vertex = f"partitions of table {table.name}", writers[table.name]
        if not keeps_time(graph, vertex):
            raise InvalidPipelineError(f"{where}: its rows have no event times: declare event_time on their source")
        if graph.rows_wait_ms(vertex.id) is None:
            raise InvalidPipelineError(
                f"{where}: its rows may wait in a state until a drain, so none would ever be complete; join in time, "
                "with join(within=)"
            )


def keeps_time(graph: JobGraph, vertex: Vertex) -> bool:
    """Return whether a vertex has watermarks. The splits of its sources need not be known yet."""
    above = (graph.vertex(edge.upstream) for edge in graph.upstream(vertex.id))
    return any(vertex.event_times) or any(keeps_time(graph, each) for each in above)


def description_of(
    table: OutputTable, rows: StructType, comment: str, columns: Mapping[str, str], properties: Mapping[str, str]
) -> Description:
    """Return the description of a table with these rows.

    Raises InvalidPipelineError for a column that the table lacks, for a comment or property that is not a text, and for
    a property that Tidemark does not set.
    """
    where = f"description of table {table.name}"
    require_columns(where, rows, list(columns))
    texts = {"the comment": comment, **{f"column {name}": text for name, text in columns.items()}}
    texts |= {f"property {name}": text for name, text in properties.items()}
    for what, text in texts.items():
        if not isinstance(text, str):
            raise InvalidPipelineError(f"{where}: {what} must be a text, and is {text!r}")
    for name in properties:
        if name.startswith(_OWNED):
            raise InvalidPipelineError(
                f"{where}: Tidemark sets no property {name!r}, because names that begin with {_OWNED[0]!r} or "
                f"{_OWNED[1]!r} change how tables are written; set it with ALTER TABLE, and Tidemark keeps it"
            )
        if not _PROPERTY.fullmatch(name):
            raise InvalidPipelineError(f"{where}: {name!r} is no name of a property, as team or quality.level is")
    return Description(comment, dict(columns), dict(properties))


# ------------------------------------------------------------------
# Checks what may be added to the vertex whose direct output a stream is: a table, or a description of its table.


def with_table(vertex: Declared | None, where: str) -> tuple[StagedVertex | KeyedVertex, OutputTable]:
    """Return the vertex and its table. Raise InvalidPipelineError if the vertex has no table.

    The message begins with `where`.
    """
    if vertex is None or isinstance(vertex, SourceVertex) or vertex.table is None:
        raise InvalidPipelineError(f"{where}; write it right after table(...)")
    return vertex, vertex.table


def with_append_table(vertex: Declared, steps: int, output: str | None) -> tuple[StagedVertex | KeyedVertex, str]:
    """Return a vertex that writes an append table or a quarantine, and the table's name.

    The stream has `steps` steps after the vertex: `check_rows` adds one. Raises InvalidPipelineError without a table,
    and for an upsert table.
    """
    way_out = "change_columns: write it right after table(...) or check_rows(...)"
    if isinstance(vertex, SourceVertex) or output is not None:
        raise InvalidPipelineError(way_out)
    check = vertex.check if isinstance(vertex, StagedVertex) else None
    if steps > (1 if check is not None else 0) or (vertex.table is None and check is None):
        raise InvalidPipelineError(way_out)
    if vertex.table is not None and vertex.table.mode is not TableMode.APPEND:
        raise InvalidPipelineError(
            f"change_columns: {vertex.table.name} is no append table. The columns of an upsert table follow the "
            "pipeline anyway: give the old name of a column where it is named, as in count(renamed_from=...). Those of "
            "an overwrite table stay"
        )
    return vertex, vertex.table.name if vertex.table is not None else check.quarantine if check is not None else ""


def unkept_keyed_vertex(vertex: Declared | None) -> KeyedVertex | None:
    """Return the vertex if it is keyed and writes no table yet."""
    if vertex is None or isinstance(vertex, SourceVertex | StagedVertex) or vertex.table is not None:
        return None
    return vertex


def unkept_union(vertex: Declared | None) -> StagedVertex | None:
    """Return the vertex if it is a union and writes no table yet."""
    if isinstance(vertex, StagedVertex) and len(vertex.inputs) > 1 and vertex.table is None:
        return vertex
    return None
