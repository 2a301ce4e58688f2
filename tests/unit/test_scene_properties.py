"""Doors and pure functions keep their rules in short scenes that no random run reaches."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from checkpointing.channel_items import RangeFiles, SourceSlice, SubtaskSnapshot
from checkpointing.commit import (
    cleanup,
    fencing,
    lost_publications,
    outside_sinks,
    two_phase,
)
from checkpointing.commit.fencing import HolderObserved, Lease, MayClaim, Refused
from checkpointing.commit.lost_publications import Entry, LogSeen
from checkpointing.commit.recovery import publications
from checkpointing.config import CheckpointConfig
from checkpointing.coordinator import messages as told
from checkpointing.coordinator.completed import CompletedCheckpointStore, SharedStateRegistry
from checkpointing.coordinator.messages import AskHook, AskOperatorCoordinator
from checkpointing.coordinator.plan import PlannedVertex, Topology
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.coordinator.settings import CoordinatorSettings
from checkpointing.coordinator.task import Task
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.identifiers import CheckpointId, Generation, JobName, SplitId, TableName, VertexId, job_name
from checkpointing.job.setup import TickLimits
from checkpointing.job.tick_end import Cause, Ending
from checkpointing.messages import (
    AppendRow,
    EndTick,
    Fact,
    PollSource,
    SavepointKind,
    SavepointRequested,
    SliceOffered,
    StopKind,
    StopRequested,
    TickOutcome,
    TimeAdvanced,
)
from checkpointing.metadata.codec import UnreadableRowError, decode, encode
from checkpointing.metadata.files import files_of
from checkpointing.metadata.paths import ProtocolPaths, StagedName
from checkpointing.metadata.record import (
    CheckpointRecord,
    Claim,
    Holder,
    RowKind,
    Statistics,
    TableKeys,
    TableRecord,
    VertexRecord,
)
from checkpointing.tick import door
from checkpointing.tick.attempts import Terms
from spec.flink import messages as flink
from spec.flink.coordinator import FlinkCoordinator
from spec.machines.judging import expect
from spec.reference.pipeline import (
    BANK,
    HOOKS,
    MAX_PARALLELISM,
    ORDERS,
    PAYMENTS,
    SHOP,
    SPLITS,
    graph,
)
from spec.rules.invariants import violations
from spec.world.faults import NONE, Faults
from spec.world.whole_job import DrivenJob, SmallJob, join_graph
from tests.unit.full_entry import plain_entry

ENDS_AS_ASKED: Final = "ends-as-asked"
"""The strongest request decides how a tick ends: a failure, a stop now, the savepoint of a stop, a stop after a last
checkpoint."""
IN_ITS_FOLDERS: Final = "in-its-folders"
"""An entry that names a file or table outside of its job's folders is refused, and nothing follows from it."""
POLITE: Final = "polite"
"""A new tick that cannot see the holder's lease, or sees a lease of an older generation, gives the holder time."""

_FIRST = CheckpointId(1)


_TASKS: tuple[Task, ...] = ("vertex/0", "vertex/1")


def a_newer_coordinator_keeps_its_files() -> bool:
    """An older coordinator does not know of a newer one, and discards leftovers."""
    name, newer = StagedName(VertexId("joined"), 3, "0" * 32), Generation(5)
    return not cleanup.is_leftover(name, newer, current=Generation(4), newest=None)


def files_of_a_rejected_cut_are_leftovers() -> bool:
    """Generation 5 held a cut after checkpoint 1. The cut was rejected, so the next tick deletes its files."""
    nothing = Statistics(triggered_ms=0, committed_ms=0, rows=0)
    newest = plain_entry(
        job="job",
        checkpoint=_FIRST,
        parent=CheckpointId(0),
        generation=Generation(3),
        nonce="1",
        max_parallelism=1,
        statistics=nothing,
    )
    name, by = StagedName(VertexId("joined"), 3, "0" * 32), cleanup.referenced([newest])
    return cleanup.is_unreferenced("joined", name, Generation(5), current=Generation(6), by=by)


def an_emptied_sink_gets_all_rows() -> bool:
    """A rollback has emptied an upsert table and its sink. Then another table is renamed, and takes that name.

    The rollback's entry is read with the new names. So the entry lists files under this name, and the rows of these
    files never went to the sink.
    """
    table, file = TableName("gold/keyed"), FileHandle("gold/keyed/1", 1, 1, 1)
    keyed = KeyedFile(file, KeyedFileKind.BASE, 0, 7, Version(Generation(1), 1))
    subtasks = (SubtaskSnapshot(ranges=(RangeFiles(table, (keyed,)),)),)
    keys = (TableKeys(table=table, columns=("key",)),)
    vertices = (VertexRecord(vertex=VertexId("keyed"), micro_batch=1, subtasks=subtasks, table_keys=keys),)
    emptied = TableRecord(table=table, mode=TableMode.UPSERT, parent_version=1)
    rollback = plain_entry(RowKind.ROLLBACK, tables=(emptied,), vertices=vertices, outside=(table,))
    entry = plain_entry(checkpoint=CheckpointId(8), parent=CheckpointId(7), vertices=vertices, outside=(table,))
    (publication,) = outside_sinks.outside_publications(entry, rollback)
    return not publication.before


def triggering_outlives_an_abort() -> bool:
    """Everything pending is aborted, as after the failure of a region. Then the next interval must trigger again."""
    coordinator = _coordinator()
    coordinator.step(told.SchedulerStarted(0))
    coordinator.step(told.CoordinatorTimeAdvanced(_INTERVAL_MS))
    coordinator.step(told.CheckpointIdFetched(_FIRST))
    coordinator.tell(flink.AbortRequested(CheckpointFailureReason.JOB_FAILOVER_REGION))
    later = coordinator.step(told.CoordinatorTimeAdvanced(3 * _INTERVAL_MS))
    return told.FetchCheckpointId() in later


def every_task_is_told_of_a_completion() -> bool:
    """A checkpoint of two tasks completes. Both must be notified."""
    coordinator = _coordinator()
    coordinator.step(told.CheckpointRequested("request", CHECKPOINT))
    coordinator.step(told.CheckpointIdFetched(_FIRST))
    coordinator.step(told.LocationCreated(_FIRST))
    for task in _TASKS:
        coordinator.step(told.TaskAcknowledged("job", task, _FIRST))
    effects = coordinator.step(told.CommitSucceeded(_FIRST))
    return tuple(effect.task for effect in effects if isinstance(effect, told.NotifyCheckpointComplete)) == _TASKS


def every_entry_since_the_last_cut_is_made_durable() -> bool:
    """Another writer committed version 6 before our version 7. Without version 6, no engine could load the log."""
    table = TableName("out/numbers")
    due = two_phase.entries_to_sync({table: 7}, {_FIRST: {table: 5}})
    return due == (two_phase.Entries(table, 6, 7),)


def a_holder_that_nobody_can_see_is_given_time() -> bool:
    """A new tick cannot see the holder's lease, or sees a lease of an older generation.

    The tick is refused, and gives the holder a lease to renew. A tick may take the job over when that lease has ended.
    A tick that starts meanwhile finds the same lease and gives no other lease.
    """
    holder = Holder(host="elsewhere", pid=1, started="then")
    claim = Claim(generation=Generation(2), holder=holder, first_id=_FIRST, last_id=_FIRST, at_ms=0, nonce="n")
    lease: Lease | None = Lease(Generation(1), 10**9)
    for now_ms in (10**6, 10**6 + 1, 10**6 + 20_000):
        decision = fencing.decide_claim((claim,), HolderObserved(None, lease), now_ms, take_over=False)
        if not isinstance(decision, Refused):
            return False
        if decision.give_lease_ms is not None:
            lease = Lease(decision.generation, now_ms + decision.give_lease_ms)
    late = fencing.decide_claim((claim,), HolderObserved(None, lease), 10**6 + 40_000, take_over=False)
    return isinstance(late, MayClaim)


def a_tick_ends_as_it_was_asked() -> bool:
    """The strongest request decides: a failure, a stop now, the savepoint of a stop, a stop after a last checkpoint."""
    suspended, stopped, finished, failed = (Ending(TickLimits()) for _ in range(4))
    suspended.told(Cause.SAVEPOINT_ASKED)
    finished.told(Cause.SAVEPOINT_ASKED)
    finished.stop_requested(StopKind.AFTER_CHECKPOINT)
    finished.told(Cause.SAVEPOINT_FAILED)
    stopped.uncommitted = True
    stopped.stop_requested(StopKind.NOW)
    stopped.stop_requested(StopKind.AFTER_CHECKPOINT)
    failed.stop_requested(StopKind.NOW)
    failed.failed(CheckpointFailureReason.TASK_FAILURE, "a task died")
    ends = [_decided(ending) for ending in (suspended, stopped, finished, failed)]
    return ends == [None, TickOutcome.STOPPED, TickOutcome.STOPPED, TickOutcome.FAILED]


def a_rollback_is_published_only_onto_what_it_was_planned_on() -> bool:
    """An append table showed an earlier rollback, which had removed rows. The log has lost the rollback's entry."""
    name = TableName("out/a")
    table = TableRecord(table=name, mode=TableMode.APPEND, parent_version=4, planned_on=CheckpointId(4))
    log = LogSeen(3, CheckpointId(3), {at: Entry(CheckpointId(at)) for at in (1, 2, 3)})
    back = _row(5, table).model_copy(update={"kind": RowKind.ROLLBACK})
    seen = lost_publications.Standing(JobName("j"), (_row(1), back), {_FIRST: {name: 1}}, {name: log})
    return bool(lost_publications.decide_repairs(seen).lost)


def a_rollback_leaves_an_entry_behind_if_tables_are_lost() -> bool:
    """A rollback goes to the first checkpoint, while the newest one is not published yet."""
    terms = Terms(holder=Holder(host="here", pid=1, started=""), leaves_behind=_FIRST)
    return next(door.rolled_forward_or_left(terms, _row(2), (), whole=False), None) is None


def _row(checkpoint: int, *tables: TableRecord) -> CheckpointRecord:
    """Return an entry of a job whose parent is the first checkpoint."""
    return plain_entry(
        job=JobName("j"),
        checkpoint=CheckpointId(checkpoint),
        parent=_FIRST if checkpoint != _FIRST else CheckpointId(0),
        max_parallelism=1,
        tables=tables,
    )


def _decided(ending: Ending) -> TickOutcome | None:
    """Return how a tick ends when nothing is running and rows are left to read, or None if the tick goes on."""
    end = ending.next(0, quiet=True, in_doubt=False, idle=False, spent=False, failing=False, ended=False)
    return end.outcome if isinstance(end, EndTick) else None


def _coordinator() -> FlinkCoordinator:
    settings = CoordinatorSettings(job="job", interval_ms=_INTERVAL_MS)
    store = CompletedCheckpointStore(1, SharedStateRegistry())
    return FlinkCoordinator(settings, Topology((PlannedVertex("vertex", _TASKS),), ()), store)


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
    decode(encode(_outside_entry(), writer="spec"))
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
    sound = _outside_entry()
    for path in _OUTSIDE:
        yield encode(_outside_entry(state=path), writer="spec")
        for field in ("adds", "files", "removes"):
            table = sound.tables[0].model_copy(update={field: (_file(path),)})
            yield encode(sound.model_copy(update={"tables": (table,)}), writer="spec")
    for name in ("../other", "/tmp/other", "_tidemark/job/checkpoints", "_tidemark/other/state/agg"):  # noqa: S108
        table = TableRecord(table=TableName(name), mode=TableMode.APPEND, parent_version=0)
        yield encode(sound.model_copy(update={"tables": (table,)}), writer="spec")


def _outside_entry(state: str = f"{_STATE}/{_NAME}") -> CheckpointRecord:
    held = KeyedFile(_file(state), KeyedFileKind.BASE, 0, 3, Version(Generation(1), 1))
    vertex = VertexRecord(vertex=VertexId("agg"), micro_batch=1, subtasks=(SubtaskSnapshot(state=(held,)),))
    return plain_entry(
        job="job",
        checkpoint=CheckpointId(1),
        parent=CheckpointId(0),
        max_parallelism=4,
        vertices=(vertex,),
        tables=(TableRecord(table=_TABLE, mode=TableMode.APPEND, parent_version=0),),
    )


def _file(path: str) -> FileHandle:
    return replace(FileHandle("", 1, 1, 0), path=path)


_INTERVAL_MS = 100


def _in_doubt() -> DrivenJob:
    """Return a job whose entry is being appended."""
    config = CheckpointConfig(interval_ms=_INTERVAL_MS, max_concurrent=9, max_parallelism=MAX_PARALLELISM)
    rows = dict.fromkeys((split for splits in SPLITS.values() for split in splits), 4)
    driven = DrivenJob(SmallJob(graph=graph(1), config=config, rows=rows))
    driven.start()
    driven.tell(TimeAdvanced(driven.world.now_ms + _INTERVAL_MS))
    while not any(isinstance(effect, AppendRow) for effect in driven.outstanding):
        driven.answer(next(at for at, effect in enumerate(driven.outstanding) if not isinstance(effect, PollSource)))
    return driven


def _keeps(driven: DrivenJob, invariant: str) -> bool:
    """Answer all outstanding effects. Return whether the invariant held."""
    while driven.outstanding and driven.end is None:
        driven.answer(0)
    return not any(broken.invariant == invariant for broken in violations(driven.world.history))


def _begins_nothing(ends: Fact) -> bool:
    """Return whether a tick begins nothing after this fact."""
    driven = _in_doubt()
    driven.tell(ends)
    driven.tell(TimeAdvanced(driven.world.now_ms + 2 * _INTERVAL_MS))
    return _keeps(driven, "ends-soon")


def a_tick_that_must_stop_begins_nothing() -> bool:
    """A stop comes while an entry is being appended. Nothing may begin after it."""
    return _begins_nothing(StopRequested(StopKind.NOW))


def triggering_goes_on_after_a_failed_stop() -> bool:
    """Return whether triggering goes on. The hook of a stop's savepoint fails, and then the next interval passes."""
    config = CheckpointConfig(interval_ms=_INTERVAL_MS, tolerable_failures=9, max_parallelism=MAX_PARALLELISM)
    rows = dict.fromkeys((split for splits in SPLITS.values() for split in splits), 4)
    driven = DrivenJob(SmallJob(graph=graph(1, hooks=HOOKS[:1]), config=config, rows=rows))
    driven.start()
    for _ in range(3):  # two sources and a hook are restored
        driven.answer(0)
    driven.tell(SavepointRequested("stop", SavepointKind.SUSPEND))
    failing = Faults(hook_fails=1.0)
    for kind, faults in ((AskOperatorCoordinator, NONE), (AskOperatorCoordinator, NONE), (AskHook, failing)):
        driven.answer(next(place for place, asked in enumerate(driven.outstanding) if isinstance(asked, kind)), faults)
    driven.tell(TimeAdvanced(driven.world.now_ms + 3 * _INTERVAL_MS))
    return not any(broken.invariant == "not-too-late" for broken in violations(driven.world.history))


def two_jobs_come_to_their_cuts() -> bool:
    """Run a tick whose barrier waits until both upstream jobs are at a cut. Return whether the tick ends."""
    config = CheckpointConfig(interval_ms=None, max_parallelism=MAX_PARALLELISM, slice_rows_max=1)
    rows = {SplitId("a"): 1, SplitId("c"): 2}
    groups = {ORDERS: SHOP, PAYMENTS: BANK}
    driven = DrivenJob(SmallJob(graph=join_graph(), config=config, rows=rows, cut_groups=groups))
    driven.start()
    for source, at_cut in ((PAYMENTS, False), (ORDERS, True), (PAYMENTS, True)):
        poll = next(each for each in driven.outstanding if isinstance(each, PollSource) and each.source == source)
        driven.outstanding.remove(poll)
        offered = driven.hands.carry_out(poll, driven.generation, NONE)
        if not isinstance(offered, SliceOffered) or not isinstance(offered.slice, SourceSlice):
            return False
        driven.tell(SliceOffered(replace(offered.slice, cut=f"a cut of {source}", at_cut=at_cut)))
    while driven.outstanding and driven.end is None:
        driven.answer(0)
    return driven.end is not None


def test_a_newer_coordinator_keeps_its_files():
    """An older coordinator does not know of a newer one, and discards leftovers."""
    expect(a_newer_coordinator_keeps_its_files(), "discarded-is-unreferenced")


def test_files_of_a_rejected_cut_are_leftovers():
    """Generation 5 held a cut after checkpoint 1. The cut was rejected, so the next tick deletes its files."""
    expect(files_of_a_rejected_cut_are_leftovers(), "rejected-leaves-nothing")


def test_an_emptied_sink_gets_all_rows():
    """A rollback has emptied an upsert table and its sink. Then another table is renamed, and takes that name."""
    expect(an_emptied_sink_gets_all_rows(), "outside-follows")


def test_triggering_outlives_an_abort():
    """Everything pending is aborted, as after the failure of a region. Then the next interval must trigger again."""
    expect(triggering_outlives_an_abort(), "no-deadlock")


def test_every_task_is_told_of_a_completion():
    """A checkpoint of two tasks completes. Both must be notified."""
    expect(every_task_is_told_of_a_completion(), "told-truly")


def test_every_entry_since_the_last_cut_is_made_durable():
    """Another writer committed version 6 before our version 7. Without version 6, no engine could load the log."""
    expect(every_entry_since_the_last_cut_is_made_durable(), "durable")


def test_a_holder_that_nobody_can_see_is_given_time():
    """A new tick cannot see the holder's lease, or sees a lease of an older generation."""
    expect(a_holder_that_nobody_can_see_is_given_time(), POLITE)


def test_a_tick_ends_as_it_was_asked():
    """The strongest request decides: a failure, a stop now, the savepoint of a stop, a stop after a last checkpoint."""
    expect(a_tick_ends_as_it_was_asked(), ENDS_AS_ASKED)


def test_a_rollback_is_published_only_onto_what_it_was_planned_on():
    """An append table showed an earlier rollback, which had removed rows. The log has lost the rollback's entry."""
    expect(a_rollback_is_published_only_onto_what_it_was_planned_on(), "gone-back")


def test_a_rollback_leaves_an_entry_behind_if_tables_are_lost():
    """A rollback goes to the first checkpoint, while the newest one is not published yet."""
    expect(a_rollback_leaves_an_entry_behind_if_tables_are_lost(), "gone-back")


def test_rows_from_outside_name_nothing_outside():
    """Return whether a sound entry is read, and no effect follows an entry that names a file or table outside."""
    expect(rows_from_outside_name_nothing_outside(), IN_ITS_FOLDERS)


def test_a_tick_that_must_stop_begins_nothing():
    """A stop comes while an entry is being appended. Nothing may begin after it."""
    expect(a_tick_that_must_stop_begins_nothing(), "ends-soon")


def test_triggering_goes_on_after_a_failed_stop():
    """Return whether triggering goes on. The hook of a stop's savepoint fails, and then the next interval passes."""
    expect(triggering_goes_on_after_a_failed_stop(), "not-too-late")


def test_two_jobs_come_to_their_cuts():
    """Run a tick whose barrier waits until both upstream jobs are at a cut. Return whether the tick ends."""
    expect(two_jobs_come_to_their_cuts(), "no-deadlock")
