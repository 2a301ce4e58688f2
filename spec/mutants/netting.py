"""Plants bugs in what publishing an entry changes: files and columns of the tables, compared with the parent's cut."""

from collections.abc import Iterator
from typing import Any

from checkpointing.commit import net, table_changes
from checkpointing.commit.live_files import Lists
from checkpointing.graph import TableMode
from checkpointing.handles import StagedFile
from checkpointing.identifiers import CheckpointId, JobName, TableName
from checkpointing.metadata.record import CheckpointRecord, TableRecord, VertexRecord
from spec.machines.netting import KEYED, NET
from spec.mutants.judges import NET_FILES
from spec.mutants.planting import Patch, mutant


@mutant(NET, NET_FILES)
def a_subtask_that_stages_nothing_in_the_epoch_adds_its_older_files_again(patch: Patch) -> None:
    real = net._appended

    def appended(record: VertexRecord, table: TableName, since: CheckpointId) -> Iterator[Any]:
        for snapshot in record.subtasks:
            is_idle = not any(_is_new(staged, since) for staged in snapshot.staged)
            one = record.model_copy(update={"subtasks": (snapshot,)})
            yield from real(one, table, CheckpointId(0) if is_idle else since)

    patch.function(net, "_appended", appended)


@mutant(NET, NET_FILES)
def a_table_that_only_gets_another_type_is_not_published(patch: Patch) -> None:
    def differ(was: Any, now: Any) -> bool:  # noqa: ANN401 - columns of two cuts
        return was is not None and now is not None and {each.name for each in was} != {each.name for each in now}

    patch.put(net, "differ", differ)


@mutant(NET, NET_FILES)
def the_files_of_the_table_that_had_the_name_before_stay(patch: Patch) -> None:
    _change(patch, lambda record: record.model_copy(update={"removes": ()}))


@mutant(NET, NET_FILES)
def a_renamed_column_leaves_the_table(patch: Patch) -> None:
    _change(patch, lambda record: record.model_copy(update={"renamed": ()}))


@mutant(NET, NET_FILES)
def a_table_that_is_only_compacted_is_forgotten(patch: Patch) -> None:
    real = net.with_compactions

    def with_compactions(tables: tuple[TableRecord, ...], *arguments: Any) -> tuple[TableRecord, ...]:  # noqa: ANN401
        return real(tables, *arguments)[: len(tables)]

    patch.function(net, "with_compactions", with_compactions)


@mutant(NET, NET_FILES)
def files_of_others_stay_in_an_upsert_table(patch: Patch) -> None:
    patch.function(
        table_changes,
        "_explains",
        lambda said, active, _files: active.issuperset(file.path for file in said.gone),
    )


@mutant(KEYED, NET_FILES)
def a_file_that_two_subtasks_hold_is_named_twice(patch: Patch) -> None:
    patch.put(net, "each_once", lambda lists: tuple(each.file for files in lists for each in files))


@mutant(KEYED, NET_FILES)
def an_overwrite_table_is_taken_for_an_upsert_table(patch: Patch) -> None:
    real = net.keyed_lists

    def keyed_lists(record: CheckpointRecord, job: JobName) -> Iterator[tuple[TableName, TableMode, Lists]]:
        for name, mode, lists in real(record, job):
            yield name, TableMode.UPSERT if mode is TableMode.OVERWRITE else mode, lists

    patch.function(net, "keyed_lists", keyed_lists)


@mutant(KEYED, NET_FILES)
def the_state_of_a_vertex_without_tables_of_its_own_is_forgotten(patch: Patch) -> None:
    real = net.keyed_lists

    def keyed_lists(record: CheckpointRecord, job: JobName) -> Iterator[tuple[TableName, TableMode, Lists]]:
        found = [*real(record, job)]
        yield from found if any(mode is not TableMode.STATE for _, mode, _ in found) else ()

    patch.function(net, "keyed_lists", keyed_lists)


def _is_new(staged: StagedFile, since: CheckpointId) -> bool:
    return staged.after >= since


def _change(patch: Patch, change: Any) -> None:  # noqa: ANN401 - a function of a record
    real = net.net_tables

    def net_tables(*arguments: Any, **options: Any) -> tuple[TableRecord, ...]:  # noqa: ANN401 - passed on
        return tuple(map(change, real(*arguments, **options)))

    patch.function(net, "net_tables", net_tables)
