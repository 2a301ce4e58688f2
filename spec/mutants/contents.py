"""Plants bugs in the content of a cut: staged files, state files, what a restore reads, what is published."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from checkpointing.channel_items import Segment
from checkpointing.columns import TableColumns
from checkpointing.commit import live_files as live
from checkpointing.commit import net
from checkpointing.commit.two_phase import CommitEffect, TwoPhaseCommit
from checkpointing.graph import JobGraph, Table, TableMode, Vertex
from checkpointing.handles import FileHandle, KeyedFile, StagedFile
from checkpointing.identifiers import ChannelId, CheckpointId, SubtaskId, TableName, VertexId
from checkpointing.job import restoring
from checkpointing.job.operator_run import LiveFiles, OperatorRun
from checkpointing.job.wiring import Wiring
from checkpointing.key_groups import KeyGroupRange
from checkpointing.messages import SubtaskOutput, TablePublished
from checkpointing.metadata.record import CheckpointRecord, TableRecord, VertexRecord
from checkpointing.snapshots import RangeFiles, SubtaskSnapshot
from checkpointing.task.messages import SubtaskEffect
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing
from spec.mutants.planting import Patch, mutant

# ------------------------------------------------------------------ the tables' rows


@mutant("cut-is-exact")
def an_abort_drops_the_staged_files(patch: Patch) -> None:
    real = SubtaskCheckpointing._abort

    def abort(self: SubtaskCheckpointing, checkpoint: CheckpointId, latest: CheckpointId) -> list[SubtaskEffect]:
        self._staged = ()
        return real(self, checkpoint, latest)

    patch.put(SubtaskCheckpointing, "_abort", abort)


@mutant("cut-is-exact")
def a_staged_file_belongs_to_every_later_epoch(patch: Patch) -> None:
    real = OperatorRun.staged

    def staged(self: OperatorRun, output: SubtaskOutput) -> tuple[StagedFile, ...]:
        return tuple(replace(file, after=CheckpointId(10_000)) for file in real(self, output))

    patch.put(OperatorRun, "staged", staged)


@mutant("cut-is-exact")
def the_rows_of_a_failed_epoch_belong_to_none(patch: Patch) -> None:
    def appended(record: VertexRecord, table: TableName, since: CheckpointId) -> Iterator[FileHandle]:
        files = (staged for snapshot in record.subtasks for staged in snapshot.staged)
        newest = max((staged.after for snapshot in record.subtasks for staged in snapshot.staged), default=since)
        return (staged.file for staged in files if staged.table == table and staged.after >= max(newest, since))

    patch.put(net, "_appended", appended)


@mutant("cut-is-exact")
def a_restore_begins_at_the_start(patch: Patch) -> None:
    def positions(graph: JobGraph, record: CheckpointRecord | None) -> dict[SubtaskId, str | None]:
        return {}

    patch.function(restoring, "positions", positions)


@mutant("cut-is-exact")
def a_restore_forgets_the_rows_in_flight(patch: Patch) -> None:
    def in_flight(record: CheckpointRecord | None) -> Iterator[tuple[ChannelId, Segment]]:
        return iter(())

    patch.function(restoring, "in_flight", in_flight)


@mutant("cut-is-exact")
def a_restore_hands_over_the_rows_in_flight_twice(patch: Patch) -> None:
    real = Wiring.recover

    def recover(self: Wiring, channel: ChannelId, segment: Segment) -> None:
        real(self, channel, segment)
        real(self, channel, segment)

    patch.put(Wiring, "recover", recover)


# ------------------------------------------------------------------ the operators' state


@mutant("state-is-exact")
def only_the_newest_state_file_is_live(patch: Patch) -> None:
    real = LiveFiles.take

    def take(self: LiveFiles, output: SubtaskOutput) -> tuple[tuple[KeyedFile, ...], tuple[KeyedFile, ...]]:
        gone, new = real(self, output)
        self.state = self.state[-1:]
        return gone, new

    patch.put(LiveFiles, "take", take)


@mutant("state-is-exact")
def a_snapshot_lacks_the_newest_state_file(patch: Patch) -> None:
    real = OperatorRun.take_snapshot

    def take_snapshot(self: OperatorRun, checkpoint: CheckpointId) -> tuple[SubtaskSnapshot, ...]:
        return tuple(replace(each, state=each.state[:-1]) for each in real(self, checkpoint))

    patch.put(OperatorRun, "take_snapshot", take_snapshot)


@mutant("state-is-exact")
def a_restore_forgets_the_state(patch: Patch) -> None:
    def live_files(vertex: Vertex, record: CheckpointRecord | None, max_parallelism: int) -> list[LiveFiles]:
        return [LiveFiles() for _ in range(vertex.parallelism)]

    patch.function(restoring, "live_files", live_files)


@mutant("state-is-exact")
def a_restore_mixes_up_old_and_new_state_files(patch: Patch) -> None:
    real = restoring._in_range

    def in_range(
        was: VertexRecord, own: KeyGroupRange, written: Collection[TableName], whole: tuple[RangeFiles, ...]
    ) -> LiveFiles:
        found = real(was, own, written, whole)
        return LiveFiles(tuple(reversed(found.state)), found.ranges)

    patch.put(restoring, "_in_range", in_range)


@mutant("state-is-exact")
def a_rescale_loses_files_that_reach_beyond_a_range(patch: Patch) -> None:
    def overlaps(keyed: KeyedFile, own: KeyGroupRange) -> bool:
        return own.first <= keyed.first_key_group and keyed.last_key_group <= own.last

    patch.put(restoring, "_overlaps", overlaps)


# ------------------------------------------------------------------ the cut as a whole


@mutant("cut-is-one")
def an_upsert_table_is_published_by_one_subtask_only(patch: Patch) -> None:
    real = live.lists_of

    def lists_of(table: Table, record: VertexRecord) -> live.Lists:
        return real(table, record.model_copy(update={"subtasks": record.subtasks[:1]}))

    patch.function(live, "lists_of", lists_of)


@mutant("cut-is-one")
def a_state_table_is_published_with_its_new_files_only(patch: Patch) -> None:
    real = net.net_tables

    def net_tables(
        graph: JobGraph,
        vertices: Mapping[VertexId, VertexRecord],
        parent: CheckpointRecord | None,
        versions: Mapping[TableName, int],
        columns: Iterable[TableColumns],
        *,
        renamed: Mapping[TableName, net.Renamed],
    ) -> tuple[TableRecord, ...]:
        before = {handle.path for record in (parent.tables if parent else ()) for handle in record.files}
        found = real(graph, vertices, parent, versions, columns, renamed=renamed)
        return tuple(_without(record, before) for record in found)

    patch.function(net, "net_tables", net_tables)


def _without(record: TableRecord, known: Iterable[str]) -> TableRecord:
    if record.mode is not TableMode.STATE:
        return record
    return record.model_copy(update={"files": tuple(file for file in record.files if file.path not in known)})


@mutant("cut-is-one")
def a_cut_names_the_versions_before_it_was_published(patch: Patch) -> None:
    real = TwoPhaseCommit._published

    def published(self: TwoPhaseCommit, fact: TablePublished) -> tuple[CommitEffect, ...]:
        return real(self, replace(fact, version=self._versions.get(fact.table, 0)))

    patch.put(TwoPhaseCommit, "_published", published)
