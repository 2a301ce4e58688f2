"""Plants bugs that trust an entry from outside, so that an effect would write or delete outside the job's folders.

The judge decodes entries that somebody else may have written. If the codec accepts an entry, publications add its
files, and discards and disposals delete them. None of these files may lie outside the folders of the entry's job.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from checkpointing.commit.recovery import publications
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, TableName, VertexId, job_name
from checkpointing.metadata import paths, row_validity
from checkpointing.metadata.codec import UnreadableRowError, decode, encode
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord, Row, Statistics, TableRecord, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot
from spec.mutants.judges import directed
from spec.mutants.planting import Patch, mutant

_PATHS: Final = ProtocolPaths(job_name("job"))
_NAME: Final = "_data/1/agg-1-00000000-0000-4000-8000-000000000000.parquet"
_TABLE: Final = TableName("gold/sums")
_STATE: Final = _PATHS.state_table(VertexId("agg"))
_OUTSIDE: Final = (
    "../victim.txt",
    "/etc/victim",
    f"_tidemark/../../{_NAME}",
    f"_tidemark/other/state/agg/{_NAME}",
    f"{_STATE}/../../../../{_NAME}",
    f"{_TABLE}/../../victim.txt",
    f"{_TABLE}/_delta_log/00000000000000000000.json",
)


def rows_from_outside_name_nothing_outside() -> bool:
    """Return whether a sound entry is read, and no effect follows an entry that names a file or table outside."""
    decode(encode(_row(), writer="spec"))
    return all(_is_inside(name) for text in _crafted() for name in _named_by_effects(text))


def _named_by_effects(text: str) -> Iterator[str]:
    try:
        row = decode(text)
    except UnreadableRowError:
        return
    if isinstance(row, CheckpointRecord):
        yield from files_of(row)
        for each in publications(row):
            yield from (file.path for file in (*each.adds, *each.files, *each.removes))
            yield f"{each.table}/{_NAME}"


def _is_inside(path: str) -> bool:
    folders = (f"{_TABLE}/", f"{_STATE}/")
    return path.startswith(folders) and not {"..", "_delta_log"}.intersection(path.split("/"))


def _crafted() -> Iterator[str]:
    sound = _row()
    for path in _OUTSIDE:
        yield encode(_row(state=path), writer="spec")
        for field in ("adds", "files", "removes"):
            table = sound.tables[0].model_copy(update={field: (_file(path),)})
            yield encode(sound.model_copy(update={"tables": (table,)}), writer="spec")
    for name in ("../other", "/tmp/other", "_tidemark/job/checkpoints", "_tidemark/other/state/agg"):  # noqa: S108
        table = TableRecord(table=TableName(name), mode=TableMode.APPEND, parent_version=0)
        yield encode(sound.model_copy(update={"tables": (table,)}), writer="spec")


def _row(state: str = f"{_STATE}/{_NAME}") -> CheckpointRecord:
    held = KeyedFile(_file(state), KeyedFileKind.BASE, 0, 3, Version(Generation(1), 1))
    vertex = VertexRecord(vertex=VertexId("agg"), micro_batch=1, subtasks=(SubtaskSnapshot(state=(held,)),))
    return CheckpointRecord(
        job="job",
        checkpoint=CheckpointId(1),
        parent=CheckpointId(0),
        generation=Generation(1),
        nonce="n",
        max_parallelism=4,
        vertices=(vertex,),
        tables=(TableRecord(table=_TABLE, mode=TableMode.APPEND, parent_version=0),),
        statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
    )


def _file(path: str) -> FileHandle:
    return replace(FileHandle("", 1, 1, 0), path=path)


_JUDGE: Final = directed(rows_from_outside_name_nothing_outside, "in-its-folders")


@mutant("in-its-folders", _JUDGE)
def a_row_that_is_read_is_believed(patch: Patch) -> None:
    def must_be_valid(row: Row) -> None:
        """Believe the entry."""

    patch.function(row_validity, "must_be_valid", must_be_valid)


@mutant("in-its-folders", _JUDGE)
def a_state_file_may_lie_anywhere(patch: Patch) -> None:
    def state(self: object, keyed: KeyedFile) -> None:
        """Believe the entry."""

    patch.put(vars(row_validity)["_Judge"], "_state", state)


@mutant("in-its-folders", _JUDGE)
def a_table_may_have_any_name(patch: Patch) -> None:
    def table_name(self: object, table: TableName) -> None:
        """Believe the entry."""

    patch.put(vars(row_validity)["_Judge"], "_table_name", table_name)


@mutant("in-its-folders", _JUDGE)
def a_data_file_may_leave_its_table(patch: Patch) -> None:
    patch.function(paths, "is_data_file", bool)


@mutant("in-its-folders", _JUDGE)
def the_log_of_a_table_is_a_folder_like_others(patch: Patch) -> None:
    patch.put(paths, "LOG", "no folder is called so")
