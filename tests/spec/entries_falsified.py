"""Falsifies one thing about an entry: its positions, checks, verdicts, marks, state or statistics."""

from dataclasses import replace

from checkpointing.channel_items import ChannelState
from checkpointing.identifiers import ChannelId, CheckpointId, EdgeId, Generation
from checkpointing.metadata.record import RowKind
from spec.history import (
    CheckBegun,
    CheckpointEnded,
    CutsDropped,
    CutWritten,
    DoorStarted,
    RowCommitted,
    TableChanged,
)
from spec.judgement_events import JudgementBegun
from spec.pipeline import ORDERS, position_before, rows_before
from spec.rest_events import EntryRead, EntryStored, EntryTranslated, ImportBegun, LieTold


def _first(events, kind, holds=lambda event: True):
    return next(place for place, event in enumerate(events) if isinstance(event, kind) and holds(event))


def _last(events, kind, holds=lambda event: True):
    return max(place for place, event in enumerate(events) if isinstance(event, kind) and holds(event))


def _swapped(events, place, event):
    return [*events[:place], event, *events[place + 1 :]]


def _amended(events, place, **changes):
    record = events[place].record.model_copy(update=changes)
    return _swapped(events, place, replace(events[place], record=record))


def tell_a_split_too_far(events):
    """The listener hears a position that is one row after the entry's."""
    place = _first(events, CheckpointEnded, lambda told: told.positions)
    (source, split, position), *others = events[place].positions
    further = ((source, split, position_before(rows_before(position) + 1)), *others)
    return _swapped(events, place, replace(events[place], positions=further))


def check_a_table_less(events):
    place = _first(events, CheckBegun)
    return _swapped(events, place, replace(events[place], tables=events[place].tables[1:]))


def judge_other_files(events):
    place = _first(events, JudgementBegun)
    return _swapped(events, place, replace(events[place], files=frozenset({"another"})))


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
    return _swapped(events, place, replace(events[place], abandoned=(events[place].record.checkpoint,)))


def lose_rows_of_a_table(events):
    place = _first(events, CutWritten, lambda cut: dict(cut.active)["bronze/orders"])
    cut = events[place]
    active = tuple((table, frozenset() if table == "bronze/orders" else files) for table, files in cut.active)
    return _swapped(events, place, replace(cut, active=active))


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
    events = _swapped(events, place, replace(events[place], record=bare))
    cut = _first(events, CutWritten, lambda cut: cut.checkpoint == bare.checkpoint)
    active = tuple((table, frozenset() if is_lost(table) else files) for table, files in events[cut].active)
    return _swapped(events, cut, replace(events[cut], active=active))


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
