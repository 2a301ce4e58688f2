"""Hypothesis strategies for entries that Tidemark may have written for the job `flights`."""

import base64
import json
import zlib
from typing import Any

from hypothesis import strategies as st

from checkpointing.channel_items import ChannelState, RangeFiles, SourceSlice, StagedSegment, SubtaskSnapshot
from checkpointing.columns import TableColumn, TableColumns
from checkpointing.graph import TableMode
from checkpointing.handles import UNKNOWN_CRC32, FileHandle, KeyedFile, KeyedFileKind, StagedFile, Version
from checkpointing.identifiers import (
    ChannelId,
    CheckpointId,
    EdgeId,
    Generation,
    SplitId,
    TableName,
    VertexId,
    job_name,
    table_name,
)
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import (
    CheckpointRecord,
    Claim,
    FileCompaction,
    Holder,
    HookState,
    ManifestReference,
    Release,
    Rename,
    RenameKind,
    RowKind,
    Statistics,
    TableKeys,
    TableRecord,
    VertexRecord,
)
from checkpointing.state_meaning import Argument, ColumnMeaning

JOB = ProtocolPaths(job_name("flights"))
JOIN = VertexId("join")
TABLES = (table_name("gold/routes"), table_name("silver/flights"))
KEY_GROUPS = 128
numbers = st.integers(1, 10**12)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
_few: dict[str, Any] = {"max_size": 2}


def _path(table: TableName) -> st.SearchStrategy[str]:
    staged = st.builds(StagedName, st.just(JOIN), st.integers(0, 10**9), st.uuids().map(str))
    return st.builds(JOB.staged_file, st.just(table), numbers.map(Generation), staged)


def _files(paths: st.SearchStrategy[str]) -> st.SearchStrategy[FileHandle]:
    return st.builds(
        FileHandle,
        path=paths,
        rows=numbers,
        bytes=numbers,
        crc32=st.integers(UNKNOWN_CRC32, 2**32 - 1),
        stats=st.dictionaries(texts, texts, max_size=2).map(json.dumps),
    )


def _inline(file: FileHandle, content: bytes) -> FileHandle:
    text = base64.b64encode(content).decode()
    return FileHandle(file.path, file.rows, len(content), zlib.crc32(content), file.stats, text)


def staged(table: TableName) -> st.SearchStrategy[FileHandle]:
    return _files(_path(table))


_state_files = staged(JOB.state_table(JOIN))
_states = _state_files | st.builds(_inline, _state_files, st.binary(max_size=9))
_groups = st.tuples(st.integers(0, KEY_GROUPS - 1), st.integers(0, KEY_GROUPS - 1)).map(sorted)


@st.composite
def _keyed(draw: st.DrawFn, files: st.SearchStrategy[FileHandle]) -> KeyedFile:
    first, last = draw(_groups)
    version = Version(Generation(draw(numbers)), draw(numbers))
    return KeyedFile(draw(files), draw(st.sampled_from(KeyedFileKind)), first, last, version)


def _tuple_of(item: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(item, **_few).map(tuple)


_slices = st.builds(
    SourceSlice,
    source=st.just(VertexId("s")),
    split=st.sampled_from(["EWR", "a=1", "2013.01"]).map(SplitId),
    start=texts,
    end=texts,
    detail=texts,
    rows=numbers,
    bytes=numbers,
)
_handed_on = st.one_of(*(staged(table) for table in (JOB.channel(JOIN), *TABLES)))
_segments = st.one_of(_slices, st.builds(StagedSegment, files=_tuple_of(_handed_on)))
_channel = ChannelId(EdgeId(VertexId("a"), VertexId("b"), 1), 2)
_snapshots = st.builds(
    SubtaskSnapshot,
    position=st.none() | texts,
    finished=st.booleans(),
    state=_tuple_of(_keyed(_states)),
    ranges=_tuple_of(st.builds(RangeFiles, table=st.just(TABLES[0]), files=_tuple_of(_keyed(staged(TABLES[0]))))),
    staged=_tuple_of(
        st.builds(StagedFile, table=st.just(TABLES[1]), file=staged(TABLES[1]), after=numbers.map(CheckpointId))
    ),
    in_flight=_tuple_of(st.builds(ChannelState, channel=st.just(_channel), segments=_tuple_of(_segments))),
)
_meanings = st.builds(
    ColumnMeaning,
    column=texts,
    function=texts,
    arguments=_tuple_of(st.builds(Argument, column=texts, type=texts)),
    version=st.none() | numbers,
)


@st.composite
def _vertex(draw: st.DrawFn, name: str) -> VertexRecord:
    subtasks = draw(_tuple_of(_snapshots))
    splits = draw(st.sampled_from([(), ("EWR", "JFK")[: len(subtasks)]]))
    meanings = draw(st.none() | _tuple_of(_meanings))
    counter = draw(numbers)
    keys = draw(_tuple_of(st.builds(TableKeys, table=st.sampled_from(TABLES), columns=_tuple_of(texts))))
    return VertexRecord(
        vertex=VertexId(name),
        micro_batch=counter,
        subtasks=subtasks,
        splits=splits,
        meanings=meanings,
        table_keys=keys,
        outputs_read=draw(st.none() | _tuple_of(st.none() | st.sampled_from(["alerts", "late"]))),
    )


_foreign = st.sampled_from([f"{TABLES[1]}/part-00000-x.snappy.parquet", f"{TABLES[1]}/year=2013/ä b%20.parquet"])
_compactions = st.builds(
    FileCompaction,
    into=staged(TABLES[1]),
    of=st.lists(staged(TABLES[1]).map(lambda file: file.path), unique=True, max_size=3).map(tuple),
).filter(lambda compaction: compaction.into.path not in compaction.of)
_tables = st.tuples(
    st.builds(
        TableRecord,
        table=st.just(TABLES[1]),
        mode=st.just(TableMode.APPEND),
        adds=_tuple_of(staged(TABLES[1]) | _files(_foreign)),
        removes=_tuple_of(staged(TABLES[1])),
        parent_version=numbers,
        planned_on=st.none() | numbers,
        compactions=_tuple_of(_compactions),
    ),
    st.builds(
        TableRecord,
        table=st.just(TABLES[0]),
        mode=st.just(TableMode.UPSERT),
        files=_tuple_of(staged(TABLES[0])),
        parent_version=numbers,
    ),
    st.builds(
        TableRecord,
        table=st.just(JOB.state_table(JOIN)),
        mode=st.just(TableMode.STATE),
        files=_tuple_of(_states),
        parent_version=numbers,
    ),
)


_types = st.sampled_from(
    ["long", "decimal(38,18)", "timestamp_ntz", '{"containsNull": true, "elementType": "string", "type": "array"}']
)
_columns = st.lists(
    st.builds(TableColumn, name=names.filter(bool), type=_types, after=numbers.map(CheckpointId)),
    max_size=2,
    unique_by=lambda column: column.name,
).map(tuple)


_renames = st.sampled_from(
    [
        Rename(kind=RenameKind.VERTEX, was="by_user", now="by_key"),
        Rename(kind=RenameKind.TABLE, was="gold/users", now=TABLES[0]),
        Rename(kind=RenameKind.COLUMN, was="n", now="rows of ö", vertex="by_key"),
    ]
).map(lambda rename: (rename,)) | st.just(())
states = st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=3).map(json.dumps)


@st.composite
def checkpoints(draw: st.DrawFn) -> CheckpointRecord:
    number = draw(numbers)
    return CheckpointRecord(
        job="flights",
        kind=draw(st.sampled_from([RowKind.CHECKPOINT, RowKind.SAVEPOINT, RowKind.ROLLBACK, RowKind.RESET])),
        pinned=draw(st.booleans()),
        abandoned=draw(st.booleans()),
        checkpoint=CheckpointId(number),
        parent=CheckpointId(draw(st.integers(0, number - 1))),
        generation=Generation(draw(numbers)),
        nonce=draw(names),
        max_parallelism=KEY_GROUPS,
        vertices=tuple(draw(_vertex(name)) for name in draw(st.sampled_from([(), ("join",), ("join", "by_key")]))),
        tables=draw(_tables),
        columns=tuple(TableColumns(table, draw(_columns)) for table in draw(st.permutations(TABLES))),
        renames=draw(_renames),
        hooks=tuple(HookState(hook=hook, state=draw(states)) for hook in draw(st.sampled_from([(), ("ledger",)]))),
        statistics=Statistics(triggered_ms=draw(numbers), committed_ms=draw(numbers), rows=draw(numbers)),
    )


references = st.builds(
    ManifestReference,
    generation=numbers.map(Generation),
    digest=st.binary(min_size=32, max_size=32).map(bytes.hex),
    handles=numbers,
    left_out=st.just("") | numbers.map("{:x}".format),
)
holders = st.builds(Holder, host=names, pid=st.integers(0, 2**31), started=names, dagster_run=st.none() | names)
claims = st.builds(
    Claim,
    generation=numbers.map(Generation),
    holder=holders,
    first_id=st.integers(1, 10**6).map(CheckpointId),
    last_id=st.integers(10**6, 10**12).map(CheckpointId),
    at_ms=numbers,
    nonce=names,
)
releases = st.builds(
    Release, generation=numbers.map(Generation), next_id=numbers.map(CheckpointId), at_ms=numbers, nonce=names
)
rows = st.one_of(checkpoints(), claims, releases)
