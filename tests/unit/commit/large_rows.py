"""Makes entries of any size for the job `flights`, which has one operator with state and an upsert table."""

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId, job_name, table_name
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import CheckpointRecord, Statistics, TableRecord, VertexRecord

JOB = ProtocolPaths(job_name("flights"))
SUMS = VertexId("sums")
STATE, TOTALS = JOB.state_table(SUMS), table_name("gold/totals")


def keyed(number: int, table: TableName = STATE) -> KeyedFile:
    name = StagedName(SUMS, number, f"{number:032x}")
    file = FileHandle(JOB.staged_file(table, Generation(1), name), 1, 10, 7)
    return KeyedFile(file, KeyedFileKind.DELTA, 0, 3, Version(Generation(1), number))


def large_record(states: list[list[int]], ranges: list[list[int]], number: int = 1) -> CheckpointRecord:
    """Return an entry of `flights` whose subtasks have the files with these numbers. The tables show these files."""
    snapshots = tuple(
        SubtaskSnapshot(
            state=tuple(map(keyed, state)), ranges=(RangeFiles(TOTALS, tuple(keyed(each, TOTALS) for each in own)),)
        )
        for state, own in zip(states, ranges, strict=True)
    )
    shown = {TableMode.STATE: (STATE, states), TableMode.UPSERT: (TOTALS, ranges)}
    tables = tuple(
        TableRecord(
            table=table,
            mode=mode,
            files=tuple(keyed(each, table).file for own in lists for each in own),
            parent_version=number,
        )
        for mode, (table, lists) in shown.items()
    )
    return CheckpointRecord(
        job="flights",
        checkpoint=CheckpointId(number),
        parent=CheckpointId(number - 1),
        generation=Generation(3),
        nonce=f"n/{number}",
        max_parallelism=4,
        vertices=(VertexRecord(vertex=SUMS, micro_batch=number, subtasks=snapshots),),
        tables=tables,
        statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
    )


def numbered(subtasks: int, files: int, first: int = 1) -> list[list[int]]:
    return [list(range(first + subtask * files, first + (subtask + 1) * files)) for subtask in range(subtasks)]
