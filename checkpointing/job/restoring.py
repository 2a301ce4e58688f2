"""Builds the doors' first state from the newest entry: positions, live files by key group, the store (G1, D3)."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from checkpointing.channel_items import RangeFiles, Segment, SourceSlice, SubtaskSnapshot
from checkpointing.commit.fencing import stood_upon
from checkpointing.commit.live_files import lists_of
from checkpointing.commit.two_phase import CommitIdentity, TwoPhaseCommit
from checkpointing.coordinator.completed import CompletedCheckpoint, CompletedCheckpointStore, SharedStateRegistry
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.coordinator.task import AcknowledgedState, Task
from checkpointing.event_time import BEFORE_TIME, ChannelTime, VertexTime, Watermark
from checkpointing.gate.input_gate import InputGate
from checkpointing.graph import JobGraph, Table, TableMode, Vertex, VertexKind
from checkpointing.handles import FileHandle, KeyedFile
from checkpointing.identifiers import NO_CHECKPOINT, ChannelId, SubtaskId, TableName, VertexId
from checkpointing.job.operator_run import LiveFiles, OperatorRun, broadcasts_left, gate_config, restored_broadcasts
from checkpointing.job.setup import JobSetup
from checkpointing.key_groups import KeyGroupRange, key_group_ranges
from checkpointing.metadata.paths import is_state_table, laid_out_otherwise, partition_of
from checkpointing.metadata.record import CheckpointRecord, VertexRecord

# ------------------------------------------------------------------
# Finds output tables whose rows a changed pipeline would lose: renamed, removed, or written by another vertex.
#
# An upsert or overwrite table consists of the files that its vertex holds, and the vertex finds them by the table's
# name. Under another name, or at another vertex, the table would begin empty and show only later rows. An append table
# under another name would leave its rows behind. So such a change is refused as missing state is (G2), unless the user
# accepts that the old rows are left behind.


_ACCEPT = "accept that with --allow-non-restored-state"


def tables_left(graph: JobGraph, record: CheckpointRecord) -> tuple[TableName, ...]:
    """Return the output tables of the cut that the graph no longer has."""
    now = {table.name for table in graph.tables()}
    return tuple(name for name in tables_of(record) if name not in now)


def unfit_tables(graph: JobGraph, record: CheckpointRecord) -> Iterator[str]:
    """Yield what happens to each table that cannot keep its rows under this graph, and the ways out."""
    known = tables_of(record)
    new = [table.name for vertex in graph.operators() for table in vertex.tables if table.name not in known]
    new = [name for name in new if not is_state_table(name)]
    for name in tables_left(graph, record):
        there = f", and {', '.join(new)} {'is' if len(new) == 1 else 'are'} new in it" if new else ""
        yield (
            f"has table {name}, which the pipeline no longer has{there}: under another name a table begins without "
            f"the rows that it had. Name it {name} again, say renamed_from={name!r} where it has its new name, or "
            "leave it behind with --allow-non-restored-state"
        )
    before = {was.vertex: was for was in record.vertices}
    for vertex in graph.operators():
        yield from _unfit_sets(vertex, before, known)


def _unfit_sets(vertex: Vertex, before: dict[VertexId, VertexRecord], known: tuple[TableName, ...]) -> Iterator[str]:
    was = before.get(vertex.id)
    for table in vertex.tables:
        if table.mode not in (TableMode.UPSERT, TableMode.OVERWRITE):
            continue
        upserts = table.mode is TableMode.UPSERT
        writer = next((name for name, each in before.items() if table.name in _ranges(each)), vertex.id)
        if writer != vertex.id:
            left = "the keys that are touched" if upserts else "rows that come"
            yield (
                f"has table {table.name} as written by {writer!r}, and now {vertex.id!r} writes it: it would show only "
                f"{left} from now on. Let {writer!r} write it again, or {_ACCEPT}"
            )
        elif upserts and table.name not in known and was is not None and _table_holds_state(was):
            yield (
                f"holds state of {vertex.id!r}, and table {table.name} is new beside it: it would show only the keys "
                f"that are touched from now on. Begin without state under another id, or {_ACCEPT}"
            )


def written_otherwise(table: Table, record: CheckpointRecord) -> tuple[str, str] | None:
    """Return a table's declaration at the cut and its present one, if the mode or version column has changed.

    Return None if neither has changed, or if the table is new. The key columns of an upsert table are not compared
    here. They are also the key columns of its vertex's state, and the restore compares the state's columns.
    """
    if table.mode is TableMode.STATE or table.name not in tables_of(record):
        return None
    then, now = _written_as(table.name, record), (table.mode, table.keys)
    if then[0] is now[0] and (then == now or now[0] is not TableMode.OVERWRITE):
        return None
    return _declared_as(*then), _declared_as(*now)


def _written_as(name: TableName, record: CheckpointRecord) -> tuple[TableMode, tuple[str, ...]]:
    """Return the table's mode at the cut, and its key columns or its version column."""
    keys = {each.table: (each.mode, each.columns) for was in record.vertices for each in was.table_keys}
    return keys.get(name, (TableMode.APPEND, ()))


def _declared_as(mode: TableMode, keys: tuple[str, ...]) -> str:
    by = {TableMode.UPSERT: " by key ", TableMode.OVERWRITE: " by version "}.get(mode, "") if keys else ""
    return f"an {mode.value} table{by}{', '.join(keys) if by else ''}"


def tables_of(record: CheckpointRecord) -> tuple[TableName, ...]:
    """Return the output tables of the cut."""
    return tuple(each.table for each in record.columns if not is_state_table(each.table))


def _ranges(was: VertexRecord) -> Iterator[TableName]:
    return (entry.table for snapshot in was.subtasks for entry in snapshot.ranges if entry.files)


def _table_holds_state(was: VertexRecord) -> bool:
    return any(snapshot.state for snapshot in was.subtasks)


class CutDoesNotFitError(ValueError):
    """The cut cannot be restored into this graph. The message names the vertex, split or setting, and the way out."""


def check_fits(
    graph: JobGraph, record: CheckpointRecord, max_parallelism: int, *, allow_non_restored_state: bool = False
) -> None:
    """Raise CutDoesNotFitError unless the graph has a place for every vertex and table of the cut (G2, D3).

    With `allow_non_restored_state`, state without a place is left behind (Flink: `allowNonRestoredState`).
    """
    if record.max_parallelism != max_parallelism:
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} was taken with max_parallelism {record.max_parallelism}, the job says "
            f"{max_parallelism}: keys would be in other key groups; set it back to {record.max_parallelism}"
        )
    known = {vertex.id: vertex for vertex in graph.vertices}
    for channel, _ in in_flight(record):
        if channel.edge not in graph.edges:
            raise CutDoesNotFitError(
                f"checkpoint {record.checkpoint} holds rows in flight on {channel.edge}, which the pipeline no longer "
                "has; put it back, or let a tick of the old pipeline catch up first"
            )
    _check_outputs(graph, record)
    if not allow_non_restored_state:
        _must_leave_nothing(graph, record)
    for was in record.vertices:
        if was.vertex in known:
            _check_splits(known[was.vertex], was, record)
    for vertex in graph.vertices:
        _check_changes(vertex, record)
    for table in graph.tables():
        _check_layout(table, record)
        _check_mode(table, record)


def _check_outputs(graph: JobGraph, record: CheckpointRecord) -> None:
    """Raise CutDoesNotFitError if an input with rows in flight now reads another output, and would lose them."""
    for edge in dict.fromkeys(channel.edge for channel, _ in in_flight(record)):
        was = _vertex(record, edge.downstream)
        if was is None or was.outputs_read is None:
            continue
        then = _output_of(was.outputs_read, edge.input)
        now = _output_of(graph.vertex(edge.downstream).outputs_read, edge.input)
        if then != now:
            raise CutDoesNotFitError(
                f"checkpoint {record.checkpoint} holds rows in flight to {edge.downstream!r}, whose input {edge.input} "
                f"read {_named(then)} of {edge.upstream!r} and reads {_named(now)} now, so these rows would be lost. "
                f"Let it read {_named(then)} again and run the pipeline until a checkpoint holds no rows in flight "
                "('tidemark stop --suspend' takes such a one). Change it then"
            )


def _output_of(outputs: tuple[str | None, ...], number: int) -> str | None:
    return outputs[number] if number < len(outputs) else None


def _named(output: str | None) -> str:
    return "the main output" if output is None else f"the output {output!r}"


def _must_leave_nothing(graph: JobGraph, record: CheckpointRecord) -> None:
    left = not_restored(graph, record)
    if left:
        before = {was.vertex for was in record.vertices}
        new = [repr(vertex.id) for vertex in graph.vertices if vertex.id not in before]
        there = f", and {', '.join(new)} {'is' if len(new) == 1 else 'are'} new in it" if new else ""
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} holds state of {left[0]!r}, which the pipeline no longer has{there}; "
            f"put it back under that id, say renamed_from={left[0]!r} where it has its new one, or leave its state "
            "behind with --allow-non-restored-state"
        )
    for hook in hooks_left(graph, record):
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} holds state of master hook {hook!r}, which the pipeline no longer has; "
            f"declare it again with pipeline.hook({hook!r}, ...), or leave its state behind with "
            "--allow-non-restored-state"
        )
    for source in coordinators_left(graph, record):
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} holds state of source {source!r} besides its positions, and the pipeline "
            "has another kind of source there now: put the source back, give the new one an id of its own, or leave "
            "the state behind with --allow-non-restored-state"
        )
    for vertex in broadcasts_left(graph, record):
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} holds broadcast state of {vertex!r}, which has no broadcast input any "
            "more: put the input back, or leave its state behind with --allow-non-restored-state"
        )
    unfit = next(unfit_tables(graph, record), None)
    if unfit is not None:
        raise CutDoesNotFitError(f"checkpoint {record.checkpoint} {unfit}")


def not_restored(graph: JobGraph, record: CheckpointRecord) -> tuple[VertexId, ...]:
    """Return the vertices of the cut that have state and that the graph no longer has, in their order (G2)."""
    known = {vertex.id for vertex in graph.vertices}
    return tuple(
        was.vertex
        for was in record.vertices
        if was.vertex not in known and any(_holds_state(snapshot) for snapshot in was.subtasks)
    )


def hooks_left(graph: JobGraph, record: CheckpointRecord) -> tuple[str, ...]:
    """Return the master hooks that have state in the cut and that the pipeline no longer has, in their order (A8)."""
    known = {hook.name for hook in graph.hooks}
    return tuple(held.hook for held in record.hooks if held.hook not in known)


def coordinators_left(graph: JobGraph, record: CheckpointRecord) -> tuple[VertexId, ...]:
    """Return the sources that have state of their own in the cut and can no longer take it (A7)."""
    plain = {vertex.id for vertex in graph.vertices if not vertex.coordinated}
    return tuple(was.vertex for was in record.vertices if was.coordinator is not None and was.vertex in plain)


def _check_splits(vertex: Vertex, was: VertexRecord, record: CheckpointRecord) -> None:
    missing = [split for split in was.splits if split not in vertex.splits]
    if missing:
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} stands in split {missing[0]!r} of source {vertex.id!r}, "
            "which the source no longer has; bring it back (an empty one will do)"
        )
    strange = [split for split in was.splits if vertex.parts and not split.startswith(vertex.parts)]
    if strange:
        begins = " or ".join(map(repr, vertex.parts))
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} stands in split {strange[0]!r} of source {vertex.id!r}, which reads "
            f"several sources one after the other now. Their splits begin with {begins}. Put the source back as it "
            "was, or give it another id: then all of them are read from their start, and its old positions are left "
            "behind with --allow-non-restored-state"
        )


def _check_changes(vertex: Vertex, record: CheckpointRecord) -> None:
    """Raise CutDoesNotFitError if a vertex would miss earlier changes from upstream, or keep rows of another vertex.

    The vertex's state must come from all rows that the upstream vertex has added and not taken back. Otherwise it would
    take back rows that it never got. So both vertices begin together, and no column of the state begins later.
    """
    for upstream in vertex.changes_of:
        _require_all_changes(vertex, upstream, record)


def _require_all_changes(vertex: Vertex, upstream: VertexId, record: CheckpointRecord) -> None:
    was, its = _vertex(record, vertex.id), _vertex(record, upstream)
    if was is None and its is None:
        return
    begins = f"give {vertex.id!r} and {upstream!r} new ids: then both begin without state, together"
    if was is None or its is None:
        new, old = (vertex.id, upstream) if was is None else (upstream, vertex.id)
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} holds state of {old!r} and none of {new!r}; {vertex.id!r} takes the "
            f"changes of {upstream!r}, and would take back rows that it never got. To go on, {begins}"
        )
    recorded = {meaning.column for meaning in was.meanings or ()}
    columns = {meaning.column: vertex.columns_renamed_from.get(meaning.column) for meaning in vertex.meanings}
    lacking = [name for name, old in columns.items() if name not in recorded and old not in recorded]
    if lacking:
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} holds state of {vertex.id!r} without {lacking[0]!r}; the vertex takes the "
            f"changes of {upstream!r}, and for this column it would take back rows that it never got. Leave "
            f"the column out, or {begins}"
        )


def _check_layout(table: Table, record: CheckpointRecord) -> None:
    """Raise CutDoesNotFitError if the table's files at the cut have other partition columns: files can't be moved."""
    named = (file.path for each in record.tables if each.table == table.name for file in (*each.adds, *each.files))
    held = (file.path for was in record.vertices for each in was.subtasks for file in _files_of(table, each))
    unfit = laid_out_otherwise(table.partitioned_by, (*named, *held))
    if unfit is not None:
        by = ", ".join(column for column, _ in partition_of(unfit)) or "no column"
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} has files of table {table.name} that are laid out by {by}, and the "
            f"pipeline says partition_by={list(table.partitioned_by)}. A table keeps its layout: put partition_by "
            "back, or give the table and its vertex new names"
        )


def _check_mode(table: Table, record: CheckpointRecord) -> None:
    """Raise CutDoesNotFitError if the table's mode or an overwrite table's version column has changed since the cut."""
    changed = written_otherwise(table, record)
    if changed is not None:
        then, now = changed
        raise CutDoesNotFitError(
            f"checkpoint {record.checkpoint} has table {table.name} as {then}, and the pipeline declares it as {now}. "
            "The rows that it has would not fit: declare it as before, or give the table and its vertex new names"
        )


def _files_of(table: Table, snapshot: SubtaskSnapshot) -> Iterator[FileHandle]:
    yield from (staged.file for staged in snapshot.staged if staged.table == table.name)
    yield from (keyed.file for each in snapshot.ranges if each.table == table.name for keyed in each.files)


def _holds_state(snapshot: SubtaskSnapshot) -> bool:
    return bool(snapshot.state or snapshot.ranges) or snapshot.position is not None


def positions(graph: JobGraph, record: CheckpointRecord | None) -> dict[SubtaskId, str | None]:
    """Return the position of every source split at the cut. Splits are found by name. New splits begin at the start."""
    found: dict[SubtaskId, str | None] = {}
    for source in graph.sources():
        was = _vertex(record, source.id)
        known = dict(zip(was.splits, was.subtasks, strict=True)) if was else {}
        for index, split in enumerate(source.splits):
            found[SubtaskId(source.id, index)] = known[split].position if split in known else None
    return found


def ended_splits(graph: JobGraph, record: CheckpointRecord | None) -> frozenset[SubtaskId]:
    """Return the splits that had ended at the cut (B4).

    If all splits of a source's part had ended, the part has ended: splits that it finds later are never read. A source
    without parts is one part. If a source is not bounded any more, no split of its last part is treated as ended.
    """
    found = set()
    for source in graph.sources():
        was = _vertex(record, source.id)
        over = {split: each.finished for split, each in zip(was.splits, was.subtasks, strict=True)} if was else {}
        ended_parts = {source.part(each) for each in over} - {source.part(each) for each in over if not over[each]}
        for index, split in enumerate(source.splits):
            if source.ends(split) and (over.get(split) or source.part(split) in ended_parts):
                found.add(SubtaskId(source.id, index))
    return frozenset(found)


def operator_runs(setup: JobSetup) -> dict[VertexId, OperatorRun]:
    """Return the run of every operator vertex at the restored cut."""
    config, graph, restored = setup.config, setup.graph, setup.restored
    return {
        vertex.id: OperatorRun(
            vertex,
            InputGate(gate_config(config), graph.channels_into(vertex.id)),
            setup.claim.generation,
            live_files(vertex, restored, config.max_parallelism),
            time=_vertex_time(graph, vertex, restored),
            now_ms=_now_ms(vertex, restored),
            clock_ms=max(setup.claim.at_ms, restored.statistics.triggered_ms if restored else 0),
            passed=restored.checkpoint if restored else NO_CHECKPOINT,
        )
        for vertex in graph.operators()
    }


def _now_ms(vertex: Vertex, record: CheckpointRecord | None) -> int | None:
    """Return the time by which a vertex's state expires at the cut (N5).

    If the state did not expire at the cut, or expired by the other kind of time, the cut's files are treated as written
    at the next barrier.
    """
    was = _vertex(record, vertex.id)
    return (
        was.expiry.now_ms if was is not None and was.expiry is not None and not _begins_to_expire(vertex, was) else None
    )


def _begins_to_expire(vertex: Vertex, was: VertexRecord) -> bool:
    """Return whether the cut's state has no times by which it could expire now."""
    now, then = vertex.expiry, was.expiry
    return now is not None and (then is None or then.by_clock != now.by_clock)


def _vertex_time(graph: JobGraph, vertex: Vertex, record: CheckpointRecord | None) -> VertexTime | None:
    """Return how far in event time a vertex is at the cut, or None if it tracks no event time (N1).

    A split that the cut does not know has no time yet.
    """
    channels = graph.time_channels(vertex.id)
    if not channels:
        return None
    time, was = VertexTime(channels), _vertex(record, vertex.id)
    if was is not None and was.time is not None:
        then = {
            (each.input, each.upstream, each.split): ChannelTime(
                Watermark(each.watermark_ms, each.idle), each.active_ms
            )
            for each in was.time.inputs
        }
        places = {channel: _place_of(graph, channel) for channel in channels}
        known = {channel: then[place] for channel, place in places.items() if place in then}
        splits = ended_splits(graph, record)
        ended = {channel for channel in channels if SubtaskId(channel.edge.upstream, channel.subtask) in splits}
        rows_ms = BEFORE_TIME if was.time.rows_ms is None else was.time.rows_ms
        time.restore(Watermark(was.time.watermark_ms, was.time.idle), rows_ms, known, ended)
    return time


def _place_of(graph: JobGraph, channel: ChannelId) -> tuple[int, VertexId, str]:
    upstream = graph.vertex(channel.edge.upstream)
    return channel.edge.input, upstream.id, upstream.splits[channel.subtask] if upstream.splits else ""


def live_files(vertex: Vertex, record: CheckpointRecord | None, max_parallelism: int) -> list[LiveFiles]:
    """Return each subtask's files: those of the cut whose key groups overlap its range, oldest first.

    A vertex without keys has only the files of its overwrite tables.
    """
    was = _vertex(record, vertex.id)
    if vertex.kind is not VertexKind.KEYED or was is None:
        none = [LiveFiles() for _ in range(vertex.parallelism)]
        return none if was is None else [_of_first(vertex, was), *none[1:]]
    tables = {table.name for table in vertex.tables if not table.broadcast}
    ranges = key_group_ranges(parallelism=vertex.parallelism, max_parallelism=max_parallelism)
    whole = restored_broadcasts(vertex.tables, was, vertex.parallelism)
    live = [_in_range(was, own, tables, copies) for own, copies in zip(ranges, whole, strict=True)]
    for own in live if _begins_to_expire(vertex, was) else ():
        own.state = tuple(replace(keyed, touched_ms=None) for keyed in own.state)
    return live


def _in_range(
    was: VertexRecord, own: KeyGroupRange, written: Collection[TableName], whole: tuple[RangeFiles, ...]
) -> LiveFiles:
    """Return the files whose key groups overlap `own`, in order of version. Of overlapping files, the newest one wins.

    Ranges of a table that the vertex no longer writes are left behind. `whole` is the subtask's broadcast state.
    """
    state = {keyed.file.path: keyed for snapshot in was.subtasks for keyed in snapshot.state if _overlaps(keyed, own)}
    oldest_first = sorted(state.values(), key=lambda keyed: keyed.version)
    tables: dict[TableName, dict[str, KeyedFile]] = {}
    for snapshot in was.subtasks:
        for entry in (each for each in snapshot.ranges if each.table in written):
            held = tables.setdefault(entry.table, {})
            held.update({keyed.file.path: keyed for keyed in entry.files if _overlaps(keyed, own)})
    ranges = tuple(RangeFiles(table, tuple(files.values())) for table, files in tables.items())
    overlapping = (each for each in was.subtasks if any(_overlaps(keyed, own) for keyed in each.state))
    due_ms = min((each.due_ms for each in overlapping if each.due_ms is not None), default=None)
    return LiveFiles(tuple(oldest_first), (*ranges, *whole), due_ms)


def _of_first(vertex: Vertex, was: VertexRecord) -> LiveFiles:
    return LiveFiles(ranges=tuple(RangeFiles(table.name, fs) for table in vertex.tables for fs in lists_of(table, was)))


def _overlaps(keyed: KeyedFile, own: KeyGroupRange) -> bool:
    return own.intersection(keyed.key_groups) is not None


def in_flight(record: CheckpointRecord | None) -> Iterator[tuple[ChannelId, Segment]]:
    """Yield the segments in flight of an unaligned cut, channel by channel, in order (C5)."""
    for was in record.vertices if record else ():
        for snapshot in was.subtasks:
            for held in snapshot.in_flight:
                for segment in held.segments:
                    yield held.channel, segment


def channel_now(graph: JobGraph, channel: ChannelId, segment: Segment) -> ChannelId:
    """Return the channel of a segment that a cut's channel held. The parallelism upstream may have changed.

    A slice comes on the channel of its split, since event times belong to splits. Any other segment may come on any
    channel of the edge, because its rows are exchanged by key afterwards.
    """
    upstream = graph.vertex(channel.edge.upstream)
    if isinstance(segment, SourceSlice) and segment.split in upstream.splits:
        return ChannelId(channel.edge, upstream.splits.index(segment.split))
    return ChannelId(channel.edge, channel.subtask % upstream.parallelism)


def commit_of(setup: JobSetup) -> TwoPhaseCommit:
    """Return the commit door for a tick's checkpoints. The restored cut is the first parent."""
    claim = setup.claim
    identity = CommitIdentity(
        job=setup.job,
        generation=claim.generation,
        nonce=claim.nonce,
        max_parallelism=setup.config.max_parallelism,
    )
    return TwoPhaseCommit(
        setup.graph,
        identity,
        parent=setup.restored,
        versions=setup.versions,
        at_version=setup.at_version,
        renamed=setup.renamed,
        stays=stood_upon(setup.retained),
    )


def completed_store(retained: tuple[CheckpointRecord, ...], keep: int) -> CompletedCheckpointStore:
    """Return the store of the retained checkpoints, with every state file registered under its checkpoint (D4).

    Savepoints belong to the user. The store neither contains nor subsumes them (E4). The same holds for an abandoned
    checkpoint, which stays because a savepoint was taken after it.
    """
    registry = SharedStateRegistry()
    completed = []
    own = (record for record in retained if not (record.is_savepoint or record.abandoned))
    for record in sorted(own, key=lambda each: each.checkpoint):
        states: dict[Task, AcknowledgedState] = {
            SubtaskId(was.vertex, index): acknowledged(snapshot)
            for was in record.vertices
            for index, snapshot in enumerate(was.subtasks)
        }
        for state in states.values():
            for key, handle in state.shared:
                registry.register(key, handle, record.checkpoint)
        completed.append(CompletedCheckpoint(id=record.checkpoint, properties=CHECKPOINT, states=states))
    return CompletedCheckpointStore(keep, registry, completed)


def acknowledged(snapshot: SubtaskSnapshot) -> AcknowledgedState:
    """Return a snapshot in the coordinator's form. Files of the operator's state are shared handles.

    Files of tables are no shared handles. They belong to their tables, and only clean-up deletes them (K4).
    """
    return AcknowledgedState(
        shared=tuple((keyed.file.path, keyed.file.path) for keyed in snapshot.state), payload=snapshot
    )


def _vertex(record: CheckpointRecord | None, name: VertexId) -> VertexRecord | None:
    return next((was for was in record.vertices if was.vertex == name), None) if record else None
