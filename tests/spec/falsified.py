"""Falsifies histories by changing what a door was told, so that its behaviour breaks an invariant.

Keyed by invariant.
"""

from dataclasses import replace
from itertools import chain

from checkpointing.channel_items import ChannelState, SourceSlice
from checkpointing.failures import CheckpointFailureReason
from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.graph import TableMode
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation, TableName
from checkpointing.messages import (
    EndTick,
    MicroBatchFinished,
    PollFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RunMicroBatch,
    SavepointFailed,
    SliceOffered,
    SourceIdle,
    StopKind,
    StopRequested,
    TickOutcome,
)
from checkpointing.metadata.record import RowKind
from spec.history import (
    CameToRest,
    CheckBegun,
    CheckpointEnded,
    CompactionTold,
    CutsDropped,
    CutWritten,
    DoorStarted,
    EntryAtRest,
    EntryRead,
    EntryStored,
    EntryTranslated,
    FilesDiscarded,
    History,
    ImportBegun,
    JudgementBegun,
    LieTold,
    OutsidePreCommitted,
    OutsidePublished,
    OutsideRecovered,
    OutsideRefused,
    OutsideRolledBack,
    ProcessBegan,
    ProcessOver,
    RowCommitted,
    SavepointDisposed,
    SegmentsRun,
    SegmentsTakenBack,
    TableChanged,
    TickOver,
)
from spec.reference.contents import named_files
from spec.reference.pipeline import (
    ORDERS,
    PAYMENTS,
    graph,
    position_before,
    rows_before,
)


def _built_from(history: History, **changes) -> History:
    steps = {}
    for generation, (begun, *others) in history.steps.items():
        steps[generation] = [replace(begun, told=replace(begun.told, setup=replace(begun.told.setup, **changes)))]
        steps[generation] += others
    return replace(history, steps=steps)


def _configured(history: History, **changes) -> History:
    (begun, *_) = next(iter(history.steps.values()))
    return _built_from(history, config=begun.told.setup.config.model_copy(update=changes))


def let_a_byte_fill_a_channel(history):
    return _built_from(history, credit_bytes=1)


def let_a_slice_have_no_row(history):
    return _configured(history, slice_rows_max=0)


def leave_idle_splits_alone(history):
    return _built_from(history, idle_poll_ms=10**9)


def trigger_each_millisecond(history):
    return _configured(history, interval_ms=1)


def take_longer_for_each_micro_batch(history):
    def slower(step):
        told = step.told
        return (
            replace(step, told=replace(told, duration_ms=told.duration_ms + 1))
            if isinstance(told, MicroBatchFinished)
            else step
        )

    steps = {generation: [slower(step) for step in taken] for generation, taken in history.steps.items()}
    return replace(history, steps=steps)


def let_a_tick_catch_up_with_a_split_that_failed(history):
    """For each split, the last poll before the end of such a tick failed."""

    def failed(step):
        told = step.told
        return replace(step, told=PollFailed(told.source, told.split, "?")) if isinstance(told, SourceIdle) else step

    steps = {generation: [failed(step) for step in taken] for generation, taken in history.steps.items()}
    return replace(history, steps=steps)


def say_that_the_job_has_finished(history):
    """The tick that caught up ends as finished, although its sources have no end."""

    def finished(effect):
        caught_up = isinstance(effect, EndTick) and effect.outcome is TickOutcome.CAUGHT_UP
        return EndTick(TickOutcome.FINISHED) if caught_up else effect

    steps = {
        generation: [replace(step, effects=tuple(map(finished, step.effects))) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def run_slices_from_a_row_later(history):
    def later(segment):
        return replace(segment, start=f"{segment.start}1") if isinstance(segment, SourceSlice) else segment

    def effects(step):
        return tuple(_run_otherwise(each, later) for each in step.effects)

    steps = {
        generation: [replace(step, effects=effects(step)) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def _run_otherwise(effect, changed):
    """Return a micro-batch over changed segments."""
    if not isinstance(effect, RunMicroBatch):
        return effect
    inputs = [replace(entry, segments=tuple(changed(segment) for segment in entry.segments)) for entry in effect.inputs]
    return replace(effect, inputs=tuple(inputs))


def let_every_slice_reach_a_cut(history):
    """Every slice says that it reaches a cut, when it is offered and when a micro-batch runs it."""

    def at_cut(segment):
        return replace(segment, cut="1", at_cut=True) if isinstance(segment, SourceSlice) else segment

    def reached(step):
        told = step.told
        told = replace(told, slice=at_cut(told.slice)) if isinstance(told, SliceOffered) else told
        return replace(step, told=told, effects=tuple(_run_otherwise(each, at_cut) for each in step.effects))

    grouped = _built_from(history, cut_groups={ORDERS: "shop", PAYMENTS: "shop"})
    steps = {generation: [reached(step) for step in taken] for generation, taken in grouped.steps.items()}
    return replace(grouped, steps=steps)


def let_another_process_claim_the_job(history):
    """The door hears of the claim, and goes on."""
    ((generation, (begun, *others)), *rest) = history.steps.items()
    claim = begun.told.setup.claim.model_copy(update={"generation": generation + 1})
    seen = replace(begun, told=RivalSeen(claim), effects=())
    return replace(history, steps={generation: [begun, seen, *others], **dict(rest)})


def publish_nothing(history):
    """Each checkpoint completes as it did. Until then its door seems to wait for nothing."""
    unasked = {
        generation: [
            replace(
                step, effects=tuple(each for each in step.effects if not isinstance(each, PublishTable | RecordCut))
            )
            for step in taken
        ]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=unasked)


def give_up_a_savepoint_at_the_end(history):
    """The tick that caught up had taken a request, and answers it only because it ends."""
    failed = SavepointFailed("request", CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "over")

    def gives_up(effect):
        caught_up = isinstance(effect, EndTick) and effect.outcome is TickOutcome.CAUGHT_UP
        return (failed, effect) if caught_up else (effect,)

    steps = {
        generation: [replace(step, effects=tuple(chain(*map(gives_up, step.effects)))) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def ask_every_tick_to_stop_at_once(history):
    """Every door hears so before its first fact, and goes on as it did."""
    stop = StopRequested(StopKind.NOW)
    steps = {
        generation: [begun, replace(begun, told=stop, effects=()), *others]
        for generation, (begun, *others) in history.steps.items()
    }
    return replace(history, steps=steps)


def say_nothing_of_what_changed(history):
    """Return the history with publications that do not say what changed."""

    def silent(effect):
        if isinstance(effect, PublishTable):
            return replace(effect, publication=replace(effect.publication, changes=None))
        return effect

    steps = {
        generation: [replace(step, effects=tuple(map(silent, step.effects))) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


FALSIFIED_AT_DOORS = {
    "ends-soon": ask_every_tick_to_stop_at_once,
    "savepoints-waited-for": give_up_a_savepoint_at_the_end,
    "cut-announced": let_every_slice_reach_a_cut,
    "checkpoints-go-on": publish_nothing,
    "gives-way": let_another_process_claim_the_job,
    "credit": let_a_byte_fill_a_channel,
    "splits-fail-alone": let_a_tick_catch_up_with_a_split_that_failed,
    "paced": let_a_slice_have_no_row,
    "not-too-early": leave_idle_splits_alone,
    "slices-whole": run_slices_from_a_row_later,
    "measured": take_longer_for_each_micro_batch,
    "inputs-end": say_that_the_job_has_finished,
    "not-too-late": trigger_each_millisecond,
}


# ------------------------------------------------------------------
# Falsifies what histories say about columns. The invariants of columns must find it.


def show_a_column_less(events):
    """Return the history without columns at its first cut."""
    cut = next(event for event in events if isinstance(event, CutWritten) and event.columns)
    return _swapped(events, cut, replace(cut, columns=tuple((table, frozenset()) for table, _ in cut.columns)))


def declare_a_column_more(events):
    """Return the history with another first tick: its pipeline declares more columns than its entries have."""
    door = next(event for event in events if isinstance(event, DoorStarted) and event.restored is None)
    return _swapped(events, door, replace(door, graph=graph(1, release=1)))


def _swapped(events, one, other):
    return [other if event is one else event for event in events]


# ------------------------------------------------------------------
# Falsified histories for the rules about compactions.


def take_out_a_file_unasked(events):
    """The last publication of an append table takes out a file that the table had before, and nobody asked for."""
    changes = [event for event in events if isinstance(event, TableChanged)]
    appended = [event for event in changes if event.publication.mode is TableMode.APPEND and len(event.active) > 1]
    last = appended[-1]
    added = {file.path for file in last.publication.adds}
    return [replace(event, active=event.active & added) if event is last else event for event in events]


def tell_of_files_that_nobody_commits(events):
    """The generation with the most checkpoints was told of compacted files when it began."""
    rows = [event.record.generation for event in events if isinstance(event, RowCommitted)]
    most = max(rows, key=rows.count)
    begun = next(at for at, event in enumerate(events) if isinstance(event, DoorStarted) and event.generation == most)
    return [*events[: begun + 1], CompactionTold(most, frozenset({"a"})), *events[begun + 1 :]]


FALSIFIED_COMPACTIONS = {
    "compaction-keeps-rows": take_out_a_file_unasked,
    "compaction-is-committed": tell_of_files_that_nobody_commits,
}


# ------------------------------------------------------------------
# Falsifies histories of checkpoints that fail, and of rows that could not be written.


def fail_for_no_reason(events):
    """A checkpoint fails because of a snapshot that could not be taken, but no subtask has said so."""
    return [*events, CheckpointEnded(Generation(1), CheckpointId(777), Reason.CHECKPOINT_ASYNC_EXCEPTION)]


def fail_before_anything_failed(events):
    """A tick ends because of an expired checkpoint, but none has expired."""
    *_, last = (event for event in events if isinstance(event, TickOver))
    end = EndTick(TickOutcome.FAILED, Reason.CHECKPOINT_EXPIRED)
    return [*events, replace(last, generation=Generation(1), end=end)]


def restart_uncounted(events):
    """A process says at its end that it has restarted the job seven times, but it never did."""
    began = next(event for event in events if isinstance(event, ProcessBegan))
    return [*events, ProcessOver(began.process, 7)]


def try_again_at_once(events):
    """A vertex whose rows could not be written begins again although no barrier came in between."""
    place = next(at for at, event in enumerate(events) if isinstance(event, DoorStarted))
    run = SegmentsRun(events[place].generation, "nobody", 1, ())
    back = SegmentsTakenBack(run.generation, "nobody", 1)
    return [*events[: place + 1], run, back, replace(run, micro_batch=2), *events[place + 1 :]]


# ------------------------------------------------------------------
# Falsifies a history: its first entry does not say what its state columns mean.


def describe_no_state(events):
    """Return the events, with the first committed entry stripped of its meanings."""
    place = next(number for number, event in enumerate(events) if isinstance(event, RowCommitted))
    record = events[place].record
    bare = tuple(vertex.model_copy(update={"meanings": ()}) for vertex in record.vertices)
    row = replace(events[place], record=record.model_copy(update={"vertices": bare}))
    return [*events[:place], row, *events[place + 1 :]]


# ------------------------------------------------------------------
# Falsifies one thing about an entry: its positions, checks, verdicts, marks, state or statistics.


def _first(events, kind, holds=lambda event: True):
    return next(place for place, event in enumerate(events) if isinstance(event, kind) and holds(event))


def _last(events, kind, holds=lambda event: True):
    return max(place for place, event in enumerate(events) if isinstance(event, kind) and holds(event))


def _swapped_of_entries_falsified(events, place, event):
    return [*events[:place], event, *events[place + 1 :]]


def _amended(events, place, **changes):
    record = events[place].record.model_copy(update=changes)
    return _swapped_of_entries_falsified(events, place, replace(events[place], record=record))


def tell_a_split_too_far(events):
    """The listener hears a position that is one row after the entry's."""
    place = _first(events, CheckpointEnded, lambda told: told.positions)
    (source, split, position), *others = events[place].positions
    further = ((source, split, position_before(rows_before(position) + 1)), *others)
    return _swapped_of_entries_falsified(events, place, replace(events[place], positions=further))


def check_a_table_less(events):
    place = _first(events, CheckBegun)
    return _swapped_of_entries_falsified(events, place, replace(events[place], tables=events[place].tables[1:]))


def judge_other_files(events):
    place = _first(events, JudgementBegun)
    return _swapped_of_entries_falsified(events, place, replace(events[place], files=frozenset({"another"})))


def pin_what_holds_rows_in_flight(events):
    """A savepoint of a stop has rows in flight."""
    place = _first(events, RowCommitted, lambda row: row.record.kind is RowKind.SAVEPOINT)
    record = events[place].record
    channel = ChannelId(EdgeId(record.vertices[0].vertex, record.vertices[2].vertex), 0)
    held = ChannelState(channel, ())
    vertices = tuple(
        vertex.model_copy(update={"subtasks": tuple(replace(each, in_flight=(held,)) for each in vertex.subtasks)})
        for vertex in record.vertices
    )
    return _amended(events, place, vertices=vertices)


def build_on_another_version(events):
    place = _first(events, RowCommitted, lambda row: row.record.tables)
    (table, *others) = events[place].record.tables
    return _amended(events, place, tables=(table.model_copy(update={"parent_version": 9}), *others))


def mark_the_newest(events):
    place = _last(events, RowCommitted)
    return _swapped_of_entries_falsified(
        events, place, replace(events[place], abandoned=(events[place].record.checkpoint,))
    )


def lose_rows_of_a_table(events):
    place = _first(events, CutWritten, lambda cut: dict(cut.active)["bronze/orders"])
    cut = events[place]
    active = tuple((table, frozenset() if table == "bronze/orders" else files) for table, files in cut.active)
    return _swapped_of_entries_falsified(events, place, replace(cut, active=active))


def lose_state(events):
    """The last entry has no state, and its state tables are empty."""
    place = _last(events, RowCommitted, lambda row: any(s.state for v in row.record.vertices for s in v.subtasks))
    return _lost(events, place, lambda table: "/state/" in table, lambda snapshot: replace(snapshot, state=()))


def lose_broadcast_state(events):
    """The last entry has no broadcast state, and the table that shows it is empty."""
    ranges = _last(events, RowCommitted, lambda row: any(map(_broadcast, _ranges(row.record))))
    return _lost(events, ranges, lambda table: table.endswith("_broadcast"), _without_broadcast)


def lose_a_copy_of_the_broadcast_state(events):
    """In the last entry, the last subtask of a vertex does not hold the broadcast state that the others hold."""
    place = _last(events, RowCommitted, lambda row: sum(map(_broadcast, _ranges(row.record))) > 1)
    record = events[place].record
    at = max(at for at, vertex in enumerate(record.vertices) if any(map(_broadcast, _ranges_of(vertex))))
    vertex = record.vertices[at]
    subtasks = (*vertex.subtasks[:-1], _without_broadcast(vertex.subtasks[-1]))
    vertices = (*record.vertices[:at], vertex.model_copy(update={"subtasks": subtasks}), *record.vertices[at + 1 :])
    return _amended(events, place, vertices=vertices)


def _ranges_of(vertex):
    return [own for subtask in vertex.subtasks for own in subtask.ranges]


def _ranges(record):
    return [own for vertex in record.vertices for own in _ranges_of(vertex)]


def _broadcast(ranges):
    return ranges.table.endswith("_broadcast")


def _without_broadcast(snapshot):
    return replace(snapshot, ranges=tuple(own for own in snapshot.ranges if not _broadcast(own)))


def _lost(events, place, is_lost, bare_snapshot):
    """Return the history with an entry whose snapshots are bare, and that leaves the lost tables empty."""
    record = events[place].record
    vertices = tuple(
        vertex.model_copy(update={"subtasks": tuple(bare_snapshot(each) for each in vertex.subtasks)})
        for vertex in record.vertices
    )
    tables = tuple(table.model_copy(update={"files": ()}) if is_lost(table.table) else table for table in record.tables)
    bare = record.model_copy(update={"vertices": vertices, "tables": tables})
    events = [
        replace(event, publication=replace(event.publication, files=()), active=frozenset())
        if isinstance(event, TableChanged)
        and event.checkpoint == record.checkpoint
        and is_lost(event.publication.table)
        else event
        for event in events
    ]
    events = _swapped_of_entries_falsified(events, place, replace(events[place], record=bare))
    cut = _first(events, CutWritten, lambda cut: cut.checkpoint == bare.checkpoint)
    active = tuple((table, frozenset() if is_lost(table) else files) for table, files in events[cut].active)
    return _swapped_of_entries_falsified(events, cut, replace(events[cut], active=active))


FALSIFIED_BROADCASTS = {
    "broadcast-is-exact": lose_broadcast_state,
    "broadcast-is-whole": lose_a_copy_of_the_broadcast_state,
}


def count_a_row_more(events):
    place = _first(events, RowCommitted)
    statistics = events[place].record.statistics
    return _amended(events, place, statistics=statistics.model_copy(update={"rows": statistics.rows + 1}))


def take_a_nonce_again(events):
    place = _first(events, RowCommitted)
    return _amended(events, _last(events, RowCommitted), nonce=events[place].record.nonce)


def measure_a_subtask_too_long(events):
    """The entry says one millisecond more than the subtask's tasks ran."""
    place = _first(events, RowCommitted, lambda row: any(v.subtasks.task_ms for v in row.record.statistics.vertices))
    statistics = events[place].record.statistics
    vertices = [
        vertex.model_copy(
            update={"subtasks": vertex.subtasks.model_copy(update={"task_ms": tuple(ms + 1 for ms in longer)})}
        )
        if (longer := vertex.subtasks.task_ms)
        else vertex
        for vertex in statistics.vertices
    ]
    return _amended(events, place, statistics=statistics.model_copy(update={"vertices": tuple(vertices)}))


def drop_a_cut_of_an_entry(events):
    cut = next(event for event in events if isinstance(event, CutWritten))
    return [*events, CutsDropped((cut.checkpoint,), (cut.checkpoint,))]


def say_that_orders_are_cuts(events):
    """The orders are said to be read from cut to cut, but no slice has reached a cut."""
    cuts = {ORDERS: "shop"}
    return [replace(event, cut_groups=cuts) if isinstance(event, DoorStarted) else event for event in events]


_ONE = CheckpointId(1)
FALSIFIED_STORED = {
    "imports-are-new": lambda events: [*events, ImportBegun(Generation(1), (), (), Generation(1), _ONE)],
    "manifests-hold": lambda events: [*events, EntryRead(_ONE, (), differs=True)],
    "manifests-first": lambda events: [*events, EntryStored(_ONE, ("a",), ("a",), ("a",), changed=True)],
    "manifests-are-shared": lambda events: [*events, EntryStored(_ONE, ("a",), ("a",), (), changed=False)],
    "manifests-stay": lambda events: [*events, EntryRead(_ONE, ("a",), differs=False)],
    "formats-keep-their-meaning": lambda events: [*events, EntryTranslated("savepoint", 1, "pinned")],
    "false-entries-refused": lambda events: [*events, LieTold("checkpoint", "a name twice", "believed")],
}


# ------------------------------------------------------------------
# Falsifies a history with held cuts, one of which is rejected. Their invariants must find it.


def _place(events, kind, holds=lambda event: True):
    """Return the last place of an event of that kind."""
    return max(place for place, event in enumerate(events) if isinstance(event, kind) and holds(event))


def _file_of_the_rejected(events):
    """Return a file that only the rejected cut names."""
    rejected = events[_place(events, SavepointDisposed)].checkpoint
    rows = [event.record for event in events if isinstance(event, RowCommitted)]
    others = frozenset().union(*(named_files(row) for row in rows if row.checkpoint != rejected))
    return min(next(named_files(row) for row in rows if row.checkpoint == rejected) - others)


def show_a_file_of_a_rejected_cut(events):
    """Return the history with a table that shows a file of the cut that was rejected."""
    place = _place(events, TableChanged)
    event = events[place]
    return [
        *events[:place],
        replace(event, active=event.active | {_file_of_the_rejected(events)}),
        *events[place + 1 :],
    ]


def delete_a_file_of_a_held_cut(events):
    """Return the history with a cut, one of whose files is deleted while it waits."""
    place = _place(events, RowCommitted, lambda event: event.record.kind is RowKind.HELD)
    earlier = frozenset().union(*(named_files(e.record) for e in events[:place] if isinstance(e, RowCommitted)))
    lost = min(named_files(events[place].record) - earlier)
    return [*events[: place + 1], FilesDiscarded((lost,), ()), *events[place + 1 :]]


def leave_a_file_of_a_rejected_cut(events):
    """Return the history with a file of the rejected cut that is there at the end."""
    place = _place(events, CameToRest)
    rest, file = events[place], _file_of_the_rejected(events)
    left = replace(rest, files=rest.files | {file}, shown=rest.shown | {file})
    return [*events[:place], left, *events[place + 1 :]]


def end_an_approval_before_it_has_published(events):
    """Return the history with an approval that ends when its entry is in, before it is published."""
    place = _place(events, EntryAtRest)
    appended = _place(events, RowCommitted, lambda event: event.record.checkpoint == events[place].record.checkpoint)
    return [*events[: appended + 1], events[place], *events[appended + 1 : place], *events[place + 1 :]]


FALSIFIED_HELD = {
    "held-is-invisible": show_a_file_of_a_rejected_cut,
    "held-is-kept": delete_a_file_of_a_held_cut,
    "rejected-leaves-nothing": leave_a_file_of_a_rejected_cut,
}


# ------------------------------------------------------------------
# Falsifies what a history says about names. The invariant of names must find it.


def tell_no_rename(events):
    """Return the history with a first entry that does not list the old names that its pipeline declares."""
    row = next(event for event in events if isinstance(event, RowCommitted))
    told = replace(row, record=row.record.model_copy(update={"renames": ()}))
    return [told if event is row else event for event in events]


# ------------------------------------------------------------------
# Falsifies what histories say about outside sinks. Their invariants must find it.


def publish_outside_without_an_entry(events):
    """Return the history with rows that go outside for a checkpoint that nobody committed."""
    return [*events, OutsidePublished(CheckpointId(99_999), TableName("bronze/orders"), ("a",))]


def give_every_table_a_sink(events):
    """Return the history with entries whose tables had sinks. Nothing was published into them."""
    return [_with_sinks(event) if isinstance(event, RowCommitted) else event for event in events]


def _with_sinks(event):
    tables = tuple(table.table for table in event.record.tables)
    return replace(event, record=event.record.model_copy(update={"outside": tables}))


def commit_what_a_sink_has_refused(events):
    """Return the history with a vote against each checkpoint."""
    ids = [event.record.checkpoint for event in events if isinstance(event, RowCommitted)]
    return [*(OutsideRefused(each, TableName("bronze/orders")) for each in ids), *events]


def roll_back_what_is_committed(events):
    """Return the history with a transaction of the newest entry that is rolled back in the end."""
    newest = max(event.record.checkpoint for event in events if isinstance(event, RowCommitted))
    return [*events, OutsideRolledBack(newest, TableName("bronze/orders"))]


def leave_a_transaction(events):
    """Return the history with a transaction that a start finds and leaves."""
    left = OutsidePreCommitted(Generation(99_999), CheckpointId(99_999), TableName("bronze/orders"), ("a",))
    return [*events, left, OutsideRecovered(Generation(100_000))]


FALSIFIED_OUTSIDE = {
    "votes-count": commit_what_a_sink_has_refused,
    "pre-committed-stays": roll_back_what_is_committed,
    "pre-committed-goes": leave_a_transaction,
    "outside-follows": publish_outside_without_an_entry,
    "outside-completely": give_every_table_a_sink,
}


# ------------------------------------------------------------------
# Names the rules that tests of their own falsify, such as test_in_time and test_simulated_held_cuts.


FALSIFIED_ELSEWHERE = {
    "new-tables-begin-empty",
    "pauses",
    "state-in-range",
    "changes-said",
    "compacts-first",
    "compacts-again",
    "hooks-in-time",
    "wakes-in-time",
    "at-rest",
    "said-why",
    "published-at-once",
    "way-back-stays",
    "outside-last",
    "empty-is-judged",
    "overwrites-show-newest",
    "overwrites-only-rise",
    *FALSIFIED_HELD,
    *FALSIFIED_BROADCASTS,
}
