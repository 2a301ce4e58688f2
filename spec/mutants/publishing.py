"""Plants bugs in what an entry publishes, and in the order of commits (F4): versions, tables, commits that wait."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from checkpointing.columns import TableColumns
from checkpointing.commit import live_files, net, table_changes
from checkpointing.commit.net import NONE_RENAMED, Renamed
from checkpointing.commit.two_phase import CommitEffect, CommitState, TwoPhaseCommit
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.messages import Publication, RowAppended
from checkpointing.metadata.record import CheckpointRecord, Claim, RowKind, TableRecord, VertexRecord
from spec.mutants.judges import COMMIT, RELEASES, SAVEPOINTS, SIMULATOR, with_long_runs
from spec.mutants.planting import Patch, mutant

_Versions = Mapping[TableName, int]


def _net_otherwise(
    patch: Patch,
    of_versions: Callable[[_Versions], _Versions] = lambda versions: versions,
    of_tables: Callable[[tuple[TableRecord, ...]], Iterable[TableRecord]] = lambda tables: tables,
) -> None:
    real = net.net_tables

    def net_tables(
        graph: JobGraph,
        vertices: Mapping[VertexId, VertexRecord],
        parent: CheckpointRecord | None,
        versions: _Versions,
        columns: Iterable[TableColumns] = (),
        *,
        renamed: Mapping[TableName, Renamed] = NONE_RENAMED,
    ) -> tuple[TableRecord, ...]:
        return tuple(of_tables(real(graph, vertices, parent, of_versions(versions), columns, renamed=renamed)))

    patch.function(net, "net_tables", net_tables)


@mutant("tables-follow")
def every_table_builds_on_the_version_of_the_first(patch: Patch) -> None:
    _net_otherwise(patch, lambda versions: dict.fromkeys(versions, next(iter(versions.values()), 0)))


@mutant("tables-follow", COMMIT)
def a_table_builds_on_the_version_behind_its_parents_cut(patch: Patch) -> None:
    _net_otherwise(patch, lambda versions: {table: version + 1 for table, version in versions.items()})


@mutant("tables-follow")
def a_tick_goes_on_building_on_the_cut_that_it_began_from(patch: Patch) -> None:
    begun: list[tuple[_Versions, _Versions]] = []

    def at_first(versions: _Versions) -> _Versions:
        known = next((first for each, first in begun if each is versions), None)
        if known is None:
            known = dict(versions)
            begun.append((versions, known))
        return known

    _net_otherwise(patch, at_first)


@mutant("tables-follow", COMMIT)
def a_table_that_is_emptied_is_not_published(patch: Patch) -> None:
    _net_otherwise(patch, of_tables=lambda tables: (each for each in tables if each.adds or each.files))


@mutant("tables-follow")
def an_upsert_table_is_published_without_its_last_file(patch: Patch) -> None:
    _net_otherwise(
        patch,
        of_tables=lambda tables: (
            each if each.mode is not TableMode.UPSERT else each.model_copy(update={"files": each.files[:-1]})
            for each in tables
        ),
    )


# ------------------------------------------------------------------ doubtful outcomes


def _certain_while(patch: Patch, *certain: CommitState) -> None:
    """Count a commit in one of these states as done."""
    real = vars(TwoPhaseCommit)["in_doubt"].fget
    patch.put(TwoPhaseCommit, "in_doubt", property(lambda commit: commit.state not in certain and real(commit)))


@mutant("ends-settled", SAVEPOINTS)
def a_tick_may_end_while_tables_are_published(patch: Patch) -> None:
    _certain_while(patch, CommitState.PUBLISHING)


@mutant("ends-settled", SAVEPOINTS)
def a_tick_may_end_before_the_cut_is_recorded(patch: Patch) -> None:
    _certain_while(patch, CommitState.RECORDING)


# ------------------------------------------------------------------ commits that follow each other


@mutant("commits-go-on", COMMIT)
def after_a_declined_checkpoint_the_next_one_waits(patch: Patch) -> None:
    real = TwoPhaseCommit._decline

    def decline(self: TwoPhaseCommit, reason: CheckpointFailureReason, message: str) -> tuple[CommitEffect, ...]:
        waiting, self._waiting = self._waiting, deque([self._waiting[0]])
        effects = real(self, reason, message)
        self._waiting = deque([*waiting][1:])
        return effects

    patch.put(TwoPhaseCommit, "_decline", decline)


@mutant("commits-go-on", COMMIT)
def after_a_plain_savepoint_the_next_checkpoint_waits(patch: Patch) -> None:
    real = TwoPhaseCommit._appended

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> tuple[CommitEffect, ...]:
        saves = self._record is not None and self._record.kind is RowKind.SAVEPOINT
        waiting, self._waiting = self._waiting, deque() if saves else self._waiting
        effects = real(self, fact)
        self._waiting = waiting
        return effects

    patch.put(TwoPhaseCommit, "_appended", appended)


@mutant("commits-go-on", COMMIT)
def a_further_block_waits_for_a_commit(patch: Patch) -> None:
    def reserve(self: TwoPhaseCommit, claim: Claim) -> tuple[CommitEffect, ...]:
        self._claim = claim
        return ()

    patch.put(TwoPhaseCommit, "reserve", reserve)


# ------------------------------------------------------------------ files of append tables


@mutant("tables-follow", RELEASES)
def renamed_tables_are_published_whole_with_every_checkpoint(patch: Patch) -> None:
    real = TwoPhaseCommit._appended

    def appended(self: TwoPhaseCommit, fact: RowAppended) -> tuple[CommitEffect, ...]:
        renamed = self._renamed
        effects = real(self, fact)
        self._renamed = renamed
        return effects

    patch.put(TwoPhaseCommit, "_appended", appended)


@mutant("tables-follow", SIMULATOR)
def an_append_table_gets_the_files_of_its_parent_once_more(patch: Patch) -> None:
    real = net._net_files

    def net_files(table: Table, now: VertexRecord, parent: CheckpointRecord | None) -> tuple[FileHandle, ...]:
        before = (each for each in (parent.tables if parent is not None else ()) if each.table == table.name)
        return (*(file for each in before for file in each.adds), *real(table, now, parent))

    patch.put(net, "_net_files", net_files)


@mutant("tables-follow", RELEASES)
def a_renamed_table_forgets_what_its_log_showed(patch: Patch) -> None:
    _net_otherwise(patch, of_tables=lambda tables: [_planned(each, None) for each in tables])


@mutant("tables-follow", RELEASES)
def a_renamed_table_is_planned_on_what_is_still_to_come(patch: Patch) -> None:
    _net_otherwise(patch, of_tables=lambda tables: [_planned(each, CheckpointId(10**6)) for each in tables])


def _planned(table: TableRecord, on: CheckpointId | None) -> TableRecord:
    return table.model_copy(update={"planned_on": on}) if table.planned_on is not None else table


# ------------------------------------------------------------------ what a publication says it changes


def _believe_all_changes(patch: Patch) -> None:
    patch.function(table_changes, "_explains", lambda _said, _active, _files: True)


def _say_other_changes(
    patch: Patch, say: Callable[[tuple[FileHandle, ...], tuple[FileHandle, ...]], tuple[tuple[FileHandle, ...], ...]]
) -> None:
    real = live_files.each_changed
    patch.function(live_files, "each_changed", lambda lists, were: say(*real(lists, were)))
    _believe_all_changes(patch)


@mutant("changes-said")
def a_file_that_two_subtasks_share_is_shown_twice(patch: Patch) -> None:
    real = live_files.changed_files

    def changed(
        table: Table, now: VertexRecord, before: VertexRecord | None, shown: tuple[FileHandle, ...] = ()
    ) -> tuple[FileHandle, ...] | None:
        if real(table, now, before, shown) is None:
            return None
        return tuple(each.file for files in live_files.lists_of(table, now) for each in files)

    patch.put(net, "changed_files", changed)


@mutant("cut-is-one")
def a_publication_forgets_the_files_that_left_their_subtasks(patch: Patch) -> None:
    _say_other_changes(patch, lambda new, _gone: (new, ()))


@mutant("cut-is-one")
def a_publication_forgets_the_last_new_file(patch: Patch) -> None:
    _say_other_changes(patch, lambda new, gone: (new[:-1], gone))


@mutant("cut-is-one", with_long_runs(SIMULATOR))
def changes_are_applied_to_a_table_that_has_moved_on(patch: Patch) -> None:
    real = table_changes.changes_at

    def changes_at(
        publication: Publication, version: int, active: set[str] | frozenset[str]
    ) -> tuple[list[FileHandle], set[str] | frozenset[str]]:
        said = publication.changes
        return real(publication, version if said is None else said.version, active)

    patch.function(table_changes, "changes_at", changes_at)
    _believe_all_changes(patch)
