"""Moves a source's positions in the simulator's stores, as `tidemark reset` does, effect by effect (K2).

The core decides the order of everything, and builds the entry.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from checkpointing.columns import TableColumn
from checkpointing.commit.at_rest import (
    Approved,
    Forget,
    Imported,
    Move,
    Rollback,
    SavepointAtRest,
    SourceReset,
    held_cut,
    is_savable,
    to_settle,
)
from checkpointing.commit.columns import columns_of, leaving_back
from checkpointing.commit.erasure import in_the_way, rewritten_tables
from checkpointing.commit.fencing import disposed_with, newest_checkpoint, stood_upon
from checkpointing.commit.live_files import live_files
from checkpointing.commit.lost_publications import mode_of, wanted
from checkpointing.commit.net_files import Renamed, keyed_tables, nothing_staged
from checkpointing.commit.outside_sinks import sinks_after
from checkpointing.commit.recovery import unpublished
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, SplitId, TableName, VertexId
from checkpointing.job.renaming import (
    due_renames,
    new_append_tables,
    relocated,
    relocated_files,
    renamed_tables,
    under_new_names,
)
from checkpointing.metadata.paths import ROOT
from checkpointing.metadata.record import CheckpointRecord, Claim, ErasedFile, Row, RowKind, TableRecord
from checkpointing.tick.attempts import APPROVAL, DISPOSAL, FORGET, IMPORT, REJECTION, RESET, ROLLBACK, SAVEPOINT
from checkpointing.tick.messages import RowChosen, TickFact, Work, Worked
from spec.history import LEAVES_OUTSIDE_EVERY, ErasureAsked, ImportBegun, ResetAsked, RowCommitted
from spec.reference.contents import line_of, named_files
from spec.reference.pipeline import (
    AUDIT,
    AUDIT_TABLE,
    JOB,
    KEYS,
    RENAMED_TABLES,
    RENAMED_VERTICES,
    ROW_BYTES,
    SPLITS,
    first_id,
    graph,
    key_of,
    position_before,
    with_broadcast,
    with_times,
)
from spec.rules.savepoints import drained_rows
from spec.world.draw import Moves
from spec.world.stores import World, Written, reading
from spec.world.tick_door import SOMEONE, Alive, Visitor, at_rest, cleaning, cleaning_beside, standing


def can_be_reset(world: World) -> bool:
    """Return whether the job has an entry whose positions can be reset."""
    return newest_checkpoint(world.rows()) is not None


def to_row(source: VertexId, splits: tuple[SplitId, ...], row: int) -> Move:
    """Return a reset of these splits to the position before this row, as a user writes it. Row 0 means the start."""
    return Move(source, dict.fromkeys(splits, position_before(row) if row else None))


def drawn_move(random: Random, readable: dict[SplitId, int]) -> Move:
    """Return a random reset of a source or of one of its splits, back or forth, within the readable rows."""
    source = random.choice(list(SPLITS))
    splits = random.choice([SPLITS[source], (random.choice(SPLITS[source]),)])
    return to_row(source, splits, random.randint(0, min(readable[split] for split in splits)))


def resetting(world: World, move: Move, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Reset the source, if there is an entry."""

    def chosen(work: Work) -> TickFact:
        if work.plan.restore is None:
            return Worked()
        world.history.add(ResetAsked(tuple(move.positions.items())))
        known = {first_id(was.vertex): was.vertex for was in work.plan.restore.vertices}
        return RowChosen(SourceReset(work.plan.restore, replace(move, source=known.get(move.source, move.source))))

    yield from at_rest(world, RESET, chosen, visitor)


# ------------------------------------------------------------------
# Erases all rows of a key in the simulator's stores, as `tidemark forget` does, effect by effect (K6).
#
# The core decides the order of everything, whether rows can be erased now, the entry, and its publication. As in the
# real stores, the process searches the files and writes the successors while it holds the job.


ERASED_AT_ONCE = 5


def forgetting(world: World, key: int, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Erase the rows of a key from tables, state, kept cuts and savepoints, unless an entry holds rows in flight."""
    erased: list[ErasedFile] = []

    def writing(work: Work) -> Iterator[None]:
        if newest_checkpoint(world.rows()) is None or in_the_way(world.checkpoints()) is not None:
            return
        world.searches = work.claim.generation
        for path in sorted(path for path in _searched(world) if _has(world.files[path], key)):
            table = TableName(path.rpartition("/_data/")[0] or path.rpartition("/")[0])
            erased.append(ErasedFile(table=table, path=path, into=_successor(world, path, key, work.claim.generation)))
            if len(erased) % ERASED_AT_ONCE == 0:
                yield

    def chosen(work: Work) -> TickFact:
        newest = newest_checkpoint(world.rows())
        if newest is None or not erased:
            return Worked()
        world.history.add(ErasureAsked(work.claim.generation, key))
        now = world.cuts.get(newest.checkpoint, {})
        versions = {name: now.get(name, 0) for name, log in sorted(world.tables.items()) if log.version}
        return RowChosen(Forget(newest, rewritten_tables(newest, JOB, erased, versions), tuple(erased)))

    yield from at_rest(world, FORGET, chosen, visitor, writing)


def _searched(world: World) -> frozenset[str]:
    """Return the files that exist and that an entry, or any version of a table, names."""
    logged = (paths for log in world.tables.values() for paths in log.versions)
    named = frozenset[str]().union(*logged, *map(world.paths_of, world.checkpoints()))
    return frozenset(path for path in named - world.gone if "/manifests/" not in path)


def _has(file: Written, key: int) -> bool:
    return key in file.state or any(_key(row) == key for row in file.rows)


def _key(row: tuple[int, ...]) -> int:
    """Return the key of a row: a source row is one number, and all other rows begin with their key."""
    return key_of(row[0]) if len(row) == 1 else row[0]


def _successor(world: World, path: str, key: int, generation: Generation) -> FileHandle:
    """Write a file again without the rows of a key. It may be empty. A neighbour's file stays one."""
    was = world.files[path]
    rows = tuple(row for row in was.rows if _key(row) != key)
    state = {each: value for each, value in was.state.items() if each != key}
    written = replace(was, generation=generation, micro_batch=0, rows=rows, state=state, at_ms=world.now_ms)
    size = len(rows) or len(state)
    if was.generation:
        return world.write(path.rpartition("/_data/")[0], written, size)
    again = f"{path}-{generation}"
    world.files[again] = replace(written, generation=Generation(0))
    world.durable.add(again)
    return FileHandle(again, size, size * ROW_BYTES, 0)


# ------------------------------------------------------------------
# Takes and disposes of savepoints of a job at rest in the simulator's stores, effect by effect (A9).


def saving(world: World, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Take a savepoint of the newest entry, if there is one and it holds no rows in flight."""

    def chosen(work: Work) -> TickFact:
        cut = work.plan.restore
        return RowChosen(SavepointAtRest(cut)) if cut is not None and is_savable(cut) else Worked()

    yield from at_rest(world, SAVEPOINT, chosen, visitor)


def disposable(world: World) -> tuple[CheckpointId, ...]:
    """Return the savepoints that may be dropped.

    No tick begins from them, and no other savepoint was taken right after them.
    """
    newest = newest_checkpoint(world.rows())
    rows = world.checkpoints()
    stays = stood_upon(rows)
    savepoints = (row for row in rows if row.is_savepoint and row.kind is not RowKind.HELD)
    return tuple(row.checkpoint for row in savepoints if row != newest and row.checkpoint not in stays)


def disposing(world: World, checkpoint: CheckpointId, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Drop a savepoint with the release. Then delete the state files that no other entry named."""
    seen: list[CheckpointRecord] = []

    def dropped(work: Work) -> TickFact:
        if checkpoint not in disposable(world):
            return Worked()
        seen.extend(row for row in work.seen.rows if isinstance(row, CheckpointRecord))
        return Worked(disposed_with(*_gone(seen, checkpoint)))

    yield from at_rest(world, DISPOSAL, dropped, visitor)
    yield
    if not seen or checkpoint in (row.checkpoint for row in world.checkpoints()):
        return
    gone = disposed_with(*_gone(seen, checkpoint))
    named, theirs = (
        frozenset[str]().union(*(world.paths_of(row) for row in seen if (row.checkpoint in gone) is goes))
        for goes in (False, True)
    )
    unused = (path for path in sorted(theirs - named) if path.startswith(f"{ROOT}/"))
    world.discard(world.readers.discardable(unused, world.now_ms))


def _gone(
    seen: list[CheckpointRecord], checkpoint: CheckpointId
) -> tuple[CheckpointRecord, tuple[CheckpointRecord, ...]]:
    """Return the savepoint's entry, and all entries."""
    return next(row for row in seen if row.checkpoint == checkpoint), tuple(seen)


# ------------------------------------------------------------------
# Approves or rejects a held cut in the simulator's stores, as `tidemark approve` and `tidemark reject` do, effect by
# effect.
#
# The core decides the order of everything, which cut may be approved or rejected, and builds the entry.


def waits(world: World) -> bool:
    """Return whether a held cut waits for its approval."""
    return held_cut(world.rows()) is not None


def approving(world: World, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Approve the held cut, if there is one."""

    def chosen(work: Work) -> TickFact:
        held = to_settle(work.seen.rows, JOB, approve=True).held
        return Worked() if held is None else RowChosen(Approved(held))

    yield from at_rest(world, APPROVAL, chosen, visitor)


def rejecting(world: World, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Drop the held cut with the release, if there is one. The next tick deletes its files."""

    def dropped(work: Work) -> TickFact:
        held = to_settle(work.seen.rows, JOB, approve=False).held
        return Worked() if held is None else Worked((held.checkpoint,))

    yield from at_rest(world, REJECTION, dropped, visitor)


# ------------------------------------------------------------------
# Renames in the simulator's stores: a tick translates the cut from which it begins to the pipeline's names (G2).
#
# The core decides what is renamed, and which paths the files get.


@dataclass(frozen=True, slots=True)
class Names:
    """A restored cut under the graph's names, and a dict from old to new names of renamed tables."""

    record: CheckpointRecord | None = None
    tables: Mapping[TableName, TableName] = field(default_factory=dict)

    def then(self, graph: JobGraph) -> tuple[TableName, ...]:
        """Return the tables of the graph under their names at the cut."""
        before = {now: was for was, now in self.tables.items()}
        return tuple(before.get(table.name, table.name) for table in graph.tables())


def names_of(graph: JobGraph, restored: CheckpointRecord | None) -> Names:
    """Return what the graph renames in a restored cut."""
    if restored is None:
        return Names()
    due = due_renames(graph, restored)
    return Names(under_new_names(graph, restored, due) if due else restored, renamed_tables(due, JOB))


def blocked(world: World, graph: JobGraph, names: Names) -> bool:
    """Return whether a neighbour's file lies in a renamed append table.

    In the product, the tick then ends with an error that names the table, and the user takes another name.
    """
    new = set(names.tables.values())
    appended = (table.name for table in graph.tables() if table.mode is TableMode.APPEND and table.name in new)
    return any(world.files[path].generation == 0 for name in appended for path in world.table(name).active)


def taken(world: World, restored: CheckpointRecord | None) -> bool:
    """Return whether the cut lacks the table that comes and goes, and a neighbour's file lies in that table.

    In the product, the tick then ends with an error that names the table, and the user goes on without the table.
    """
    lacks = restored is not None and AUDIT_TABLE not in {each.table for each in restored.columns}
    return lacks and any(world.files[path].generation == 0 for path in world.table(AUDIT_TABLE).active)


def link(
    world: World, graph: JobGraph, names: Names, generation: Generation
) -> tuple[CheckpointRecord | None, dict[TableName, Renamed]]:
    """Link the files of renamed tables into their new folders.

    Return the cut with the links, and the renamed tables.
    """
    if names.record is None:
        return None, {}
    renamed = _new_tables(world, graph, names.record)
    if not names.tables:
        return names.record, renamed
    moved = relocated(names.record, names.tables, generation)
    links = dict(moved.links)
    before = {now: was for was, now in names.tables.items()}
    for table in (table for table in graph.tables() if table.name in before):
        if table.mode is TableMode.APPEND:
            old = (handle_of(world, path) for path in sorted(world.table(before[table.name]).active))
            files, more = relocated_files(old, JOB, names.tables, generation)
            links |= more
            renamed[table.name] = replace(_emptied(world, table.name), files=files)
        else:
            renamed[table.name] = Renamed(columns=tuple(sorted(world.table(table.name).columns[-1])))
    world.link(links, generation)
    return moved.record, renamed


def _new_tables(world: World, graph: JobGraph, record: CheckpointRecord) -> dict[TableName, Renamed]:
    """Return the append tables that the cut lacks although their logs still show a checkpoint."""
    names = (name for name in new_append_tables(graph, record) if world.table(name).shown[-1])
    return {name: _emptied(world, name) for name in names}


def _emptied(world: World, name: TableName) -> Renamed:
    """Return the changes that take all old rows and columns out of an append table."""
    log = world.table(name)
    removes = tuple(handle_of(world, path) for path in sorted(log.active))
    return Renamed((), removes, tuple(sorted(log.columns[-1])), CheckpointId(log.shown[-1]))


def handle_of(world: World, path: str) -> FileHandle:
    """Return the handle of a file of the simulated warehouse."""
    rows = len(world.files[path].rows)
    return FileHandle(path, rows, rows * ROW_BYTES, 0)


# ------------------------------------------------------------------
# Restores an older cut in the simulator's stores, as `tidemark rollback` does, effect by effect (K2).
#
# The core decides the order of everything, builds the entry, and decides which entries are abandoned. As in the real
# stores, each table's log shows which files bring the table back.


def others_than_the_newest(world: World) -> tuple[CheckpointId, ...]:
    """Return the entries to which the job may be rolled back, abandoned savepoints included."""
    newest = newest_checkpoint(world.rows())
    others = (row for row in world.checkpoints() if newest and row.checkpoint != newest.checkpoint)
    return tuple(row.checkpoint for row in others if row.checkpoint in world.cuts or row.parent in world.cuts)


def rolling_back(world: World, graph: JobGraph, checkpoint: CheckpointId, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Roll tables, state and positions back to this entry.

    If a neighbour has merged files of a table, the merge is undone first. No entry is appended if a table cannot be
    rolled back, because a merge cannot be undone, or because log entries of the cut are lost.
    """

    def chosen(_: Work) -> TickFact:
        target = next((row for row in world.checkpoints() if row.checkpoint == checkpoint), None)
        if target is None or checkpoint not in others_than_the_newest(world):
            return Worked()
        if not _is_as_published(world, target):
            return Worked()
        _undo_merges(world, graph, target)
        if _merged(world, graph, target):
            return Worked()
        newest, then = newest_checkpoint(world.rows()), columns_of(target)
        pending = unpublished(world.rows(), world.cuts)
        tables = tuple(
            _back(world, vertex, table, target).model_copy(update={"leaving": lost})
            for vertex, table in _tables(world, graph, target)
            for lost in (leaving_back(_shown(world, newest, table), then.get(table.name), pending, table.name),)
        )
        world.make_durable({table.table: world.table(table.table).version for table in tables})
        leaves = checkpoint % LEAVES_OUTSIDE_EVERY == 0
        sinks = sinks_after(world.checkpoints(), target, leave_outside=leaves)
        return RowChosen(Rollback(target, tables, sinks))

    yield from at_rest(world, ROLLBACK, chosen, visitor, leaves_behind=checkpoint)


def _shown(world: World, newest: CheckpointRecord | None, table: Table) -> tuple[TableColumn, ...]:
    """Return the columns of a table in the newest entry, or the columns in its log if the entry lacks the table."""
    said = columns_of(newest).get(table.name)
    return said or tuple(TableColumn(name, "long") for name in sorted(world.table(table.name).columns[-1]))


def _tables(world: World, graph: JobGraph, target: CheckpointRecord) -> Iterator[tuple[VertexId, Table]]:
    """Yield every table that the job has now or had at the entry, each with the vertex that writes it.

    A renamed table is yielded under its first name, under its new name, or under both names if both have a log.
    """
    said = {each.table for each in target.columns}
    for vertex in graph.operators():
        for table in vertex.tables:
            comes_and_goes = vertex.id == AUDIT or table.broadcast
            if not comes_and_goes or table.name in said or world.table(table.name).version:
                yield vertex.id, table
            other = RENAMED_TABLES.get(table.name)
            if other is not None and (other in said or world.table(other).version):
                yield RENAMED_VERTICES[vertex.id], replace(table, name=other)


def _back(world: World, vertex: VertexId, table: Table, target: CheckpointRecord) -> TableRecord:
    """Return the files that roll a table back to that entry.

    These are all its files, or what an append table must add and remove.
    """
    log = world.table(table.name)
    if table.mode is not TableMode.APPEND:
        was = next((each for each in target.vertices if each.vertex == vertex), None)
        files = live_files(table, was) if was is not None else ()
        return TableRecord(table=table.name, mode=table.mode, files=files, parent_version=log.version)
    wanted = _appended(world, table.name, target)
    return TableRecord(
        table=table.name,
        mode=TableMode.APPEND,
        adds=tuple(handle_of(world, path) for path in sorted(wanted - log.active)),
        removes=tuple(handle_of(world, path) for path in sorted(log.active - wanted)),
        parent_version=log.version,
        planned_on=CheckpointId(log.shown[-1]),
    )


def _appended(world: World, name: TableName, target: CheckpointRecord) -> frozenset[str]:
    """Return an append table's files at the entry's cut.

    For a plain savepoint, these are the files of its parent's cut, with its own changes.
    """
    published = target.checkpoint in world.cuts
    cut = world.cuts.get(target.checkpoint if published else target.parent, {})
    net = [] if published else [each for each in target.tables if each.table == name]
    gone = {file.path for each in net for file in each.removes}
    return (world.table(name).versions[cut.get(name, 0)] - gone) | {file.path for each in net for file in each.adds}


def _is_as_published(world: World, target: CheckpointRecord) -> bool:
    """Return whether append tables still have the versions that the cut of the row names."""
    seen = standing(world)
    base = target.checkpoint if target.checkpoint in seen.cuts else target.parent
    versions = ((name, at, wanted(seen, base, name)) for name, at in seen.cuts.get(base, {}).items())
    return all(
        seen.logs[name].is_as_published(at, due)
        for name, at, due in versions
        if mode_of(seen, name) is TableMode.APPEND
    )


def _undo_merges(world: World, graph: JobGraph, target: CheckpointRecord) -> None:
    """Undo a neighbour's merges of files that must leave a table, if all files from before still exist.

    No row of the table changes.
    """
    for _, table in _tables(world, graph, target):
        if table.mode is TableMode.APPEND:
            leaving = world.files.keys() - _appended(world, table.name, target)
            undone = world.table(table.name).copy()
            undone.undo_merges(leaving, world.now_ms)
            if undone.active.isdisjoint(world.gone):
                world.table(table.name).undo_merges(leaving, world.now_ms)


def _merged(world: World, graph: JobGraph, target: CheckpointRecord) -> bool:
    """Return whether a neighbour's file mixes rows from before and after the entry. Then the rollback is refused."""
    appended = [table.name for _, table in _tables(world, graph, target) if table.mode is TableMode.APPEND]
    changing = (_appended(world, name, target) ^ world.table(name).active for name in appended)
    return any(world.files[path].generation == 0 for paths in changing for path in paths)


# ------------------------------------------------------------------
# Begins some runs with an import: an entry of another simulated warehouse, as `tidemark run --from DIR@N` does (G1).
#
# The other warehouse has had ticks and visits of its own, with their faults. Its entry is completed with all files of
# its tables, and these files are copied. The core decides the order of everything else, and builds the new entry. The
# importing process may die at any step, and other ticks may begin meanwhile.


COPIED_AT_ONCE = 5


def importable(origin: World) -> tuple[CheckpointRecord, ...]:
    """Return the entries of another warehouse whose files all exist there, each with all files of its tables."""
    whole = (_whole(origin, row) for row in origin.checkpoints())
    return tuple(row for row in whole if row is not None and not named_files(row) & origin.gone)


def importing(world: World, origin: World, wanted: CheckpointRecord, visitor: Visitor) -> Iterator[None]:
    """Import an entry of another warehouse, unless this warehouse has an entry by then."""
    files = sorted(named_files(wanted))
    lacks_entries = True

    def copying(work: Work) -> Iterator[None]:
        nonlocal lacks_entries
        lacks_entries = not world.checkpoints()
        if not lacks_entries:
            return
        world.history.add(_begun(work.claim, origin, wanted))
        for place, path in enumerate(files):
            world.files[path] = replace(origin.files[path], at_ms=world.now_ms)
            if place % COPIED_AT_ONCE == 0:
                yield

    def chosen(_: Work) -> TickFact:
        return RowChosen(Imported(wanted)) if lacks_entries else Worked()

    above = Generation(max(row.generation for row in origin.rows())), CheckpointId(max(map(_last_id, origin.rows())))
    yield from at_rest(world, IMPORT, chosen, visitor, copying, above=above)


def _begun(claim: Claim, origin: World, wanted: CheckpointRecord) -> ImportBegun:
    history = origin.history
    known = {event.record.checkpoint: event.record for event in history.events if isinstance(event, RowCommitted)}
    line = line_of(history, known[wanted.checkpoint])
    drains = {each.checkpoint for each in drained_rows(history)}
    return ImportBegun(
        generation=claim.generation,
        line=line,
        drained=tuple(each for each in line if each.checkpoint in drains),
        last_generation=max(row.generation for row in origin.rows()),
        last_id=max(known),
    )


def _whole(origin: World, row: CheckpointRecord) -> CheckpointRecord | None:
    """Return the entry with all files of every table, or None if neither its own cut nor its parent's exists."""
    base = row.checkpoint if row.checkpoint in origin.cuts else row.parent
    cut = origin.cuts.get(base, {})
    if base not in {NO_CHECKPOINT, *origin.cuts} or any(at > origin.table(name).version for name, at in cut.items()):
        return None
    keyed, said = dict(keyed_tables(row, JOB)), {each.table for each in row.columns}
    added = {each.table for each in row.tables if each.mode is TableMode.APPEND}
    appended = (name for name in sorted({*cut, *added}) if name in said and name not in keyed and _is_output(name))
    tables = [*(_appended_of_importing(origin, row, name, cut) for name in appended), *keyed.values()]
    changed = {
        "parent": NO_CHECKPOINT,
        "vertices": nothing_staged(row),
        "tables": tuple(each for each in tables if each.adds or each.files),
        "held_in": (),
    }
    return row.model_copy(update=changed)


def _is_output(name: TableName) -> bool:
    """Return whether a table is no state table. A cut may have state tables that the entry no longer has."""
    return not name.startswith(f"{ROOT}/")


def _appended_of_importing(
    origin: World, row: CheckpointRecord, name: TableName, cut: Mapping[TableName, int]
) -> TableRecord:
    """Return all files of an append table.

    These are the files of the cut. If the entry has no cut of its own, the entry's changes are applied to them.
    """
    net = [each for each in row.tables if each.table == name and row.checkpoint not in origin.cuts]
    gone = {file.path for each in net for file in each.removes}
    paths = (origin.table(name).versions[cut.get(name, 0)] - gone) | {file.path for each in net for file in each.adds}
    adds = tuple(handle_of(origin, path) for path in sorted(paths))
    return TableRecord(table=name, mode=TableMode.APPEND, adds=adds, parent_version=0)


def _last_id(row: Row) -> int:
    """Return the highest checkpoint id that was given out, as far as the entry shows."""
    match row:
        case CheckpointRecord():
            return row.checkpoint
        case Claim():
            return row.first_id
        case _:
            return row.next_id - 1


# ------------------------------------------------------------------
# Draws what visitors do to a job between its ticks: rollbacks, resets, savepoints at rest, disposals, clean-ups.
#
# A visit is one such errand. It goes step by step, and ticks have their turns in between. A visit is refused while a
# living process holds the job. Only a clean-up works beside a tick.


DIES_ROLLING_BACK = 0.05
"""The probability that a rollback dies, for each step."""
DIES_FORGETTING = 0.04
"""The probability that an erasure dies, for each step."""
DIES_READING = 0.05
"""The probability that a reader dies, for each step."""
READS_MAX = 20
RENEWS = 0.5
SETTLES = 0.6
"""For each tick: a person approves or rejects the held cut, before or after the other visits."""
APPROVES = 0.6
DIES = 0.2
"""The probability that any other visit dies, for each step."""
KEEPS = 0.6
"""How often a visitor takes a savepoint instead of a rollback, if the newest entry is no savepoint."""


@dataclass(slots=True)
class Visit:
    """A visit in progress. `dies` is the probability of a death, for each step."""

    told: str
    turns: Iterator[None]
    visitor: Visitor
    dies: float = DIES

    @property
    def generation(self) -> int:
        """The generation of the visitor's claim."""
        return self.visitor.generation


class Visits:
    """Draws the visits of a run."""

    def __init__(
        self,
        world: World,
        moves: Moves,
        random: Random,
        readable: dict[SplitId, int],
        settling: Random,
        erasing: Random,
    ) -> None:
        self._world = world
        self._moves = moves
        self._random = random
        self._readable = readable
        self._settling = settling
        self._erasing = erasing
        self._made = 0

    def drawn(self, alive: Alive) -> Iterator[Visit]:
        """Yield the visits after a tick. Each is drawn when the one before is over."""
        settles = int(self._moves.holds and self._settling.random() < SETTLES)
        first = settles and self._settling.random() < SETTLES
        made: list[tuple[int, Callable[[Visitor], Visit | None]]] = [
            (self._moves.rollbacks_max, self._rollback),
            (self._moves.resets_max, self._reset),
            (self._moves.savepoints_at_rest_max, self._savepoint),
            (self._moves.clean_ups_max, self._clean_up),
        ]
        self._random.shuffle(made)
        for most, make in [(first, self._settle), *made, (settles - first, self._settle)]:
            for _ in range(most if make == self._settle else self._random.randint(0, most) if most else 0):
                self._made += 1
                visit = make(Visitor(f"visit-{self._made}", alive))
                if visit is not None:
                    yield visit
        for _ in range(self._erasing.randint(0, self._moves.forgets_max) if self._moves.forgets_max else 0):
            self._made += 1
            yield self._forget(Visitor(f"visit-{self._made}", alive))

    def _forget(self, visitor: Visitor) -> Visit:
        key = self._erasing.randrange(KEYS)
        return Visit(f"erasure of key {key}", forgetting(self._world, key, visitor), visitor, DIES_FORGETTING)

    def settling(self, alive: Alive, *, dies: float = DIES) -> Visit | None:
        """Return a visit that approves or rejects the held cut, or None if there is none. Two such visits may race."""
        if not waits(self._world):
            return None
        self._made += 1
        visit = self._settle(Visitor(f"visit-{self._made}", alive))
        return None if visit is None else replace(visit, dies=dies)

    def _settle(self, visitor: Visitor) -> Visit | None:
        if not waits(self._world):
            return None
        if self._settling.random() < APPROVES:
            return Visit("approval", approving(self._world, visitor), visitor)
        return Visit("rejection", rejecting(self._world, visitor), visitor)

    def beside(self, alive: Alive) -> Visit:
        """Return a clean-up that begins while a tick runs, or after one has died."""
        self._made += 1
        return self._clean_up(Visitor(f"visit-{self._made}", alive))

    def last_clean_up(self, alive: Alive) -> Visit:
        """Return a clean-up of the job at rest, without grace for readers."""
        visitor = Visitor("last-visit", alive)
        return Visit("last clean-up", cleaning(self._world, 0, visitor), visitor, dies=0)

    def imported(self, origin: World, alive: Alive) -> Visit | None:
        """Return the import of an entry of another warehouse, or None if no entry there has all its files."""
        there = importable(origin)
        if not there:
            return None
        wanted = self._random.choice(there)
        self._made += 1
        visitor = Visitor(f"visit-{self._made}", alive)
        return Visit(
            f"import of {wanted.checkpoint}", importing(self._world, origin, wanted, visitor), visitor, DIES / 4
        )

    def reader(self) -> Visit | None:
        """Return a visit that reads a cut, or None if there is no cut."""
        if not self._world.cuts:
            return None
        self._made += 1
        name, cuts = f"reader-{self._made}", sorted(self._world.cuts)
        checkpoint = self._random.choice([cuts[0], *cuts])
        lease_ms = self._random.choice([60, 400, 3_000])
        renewals = [self._random.random() < RENEWS for _ in range(self._random.randint(1, READS_MAX))]
        turns = reading(self._world, name, checkpoint, lease_ms, renewals)
        return Visit(f"{name} reads cut {checkpoint}", turns, Visitor(name), DIES_READING)

    def _rollback(self, visitor: Visitor) -> Visit:
        """Return a rollback. If there is no other entry, return a savepoint to which a later visit may roll back.

        If the newest entry is no savepoint, some visits take one instead. It stays when a later rollback abandons this
        line, and the job may be rolled back to it.
        """
        others = others_than_the_newest(self._world)
        if not others or (not self._world.checkpoints()[-1].is_savepoint and self._random.random() < KEEPS):
            return Visit("savepoint to go back to", saving(self._world, visitor), visitor)
        abandoned = [row.checkpoint for row in self._world.checkpoints() if row.abandoned and row.checkpoint in others]
        to = self._random.choice([*others, *12 * abandoned])
        visitor.ignores_lost = self._made % 2 == 0
        return Visit(
            f"rollback to {to}",
            rolling_back(self._world, self._widest(), to, visitor),
            visitor,
            DIES_ROLLING_BACK,
        )

    def _widest(self) -> JobGraph:
        """Return a graph with all vertices and tables that a release may have."""
        widest = with_broadcast(graph(1, audited=True, overwrites=self._moves.overwrites))
        return with_times(widest, 1) if self._moves.times else widest

    def _reset(self, visitor: Visitor) -> Visit:
        move = drawn_move(self._random, self._readable)
        told = f"reset of {move.source} to {move.positions}"
        return Visit(told, resetting(self._world, move, visitor), visitor)

    def _savepoint(self, visitor: Visitor) -> Visit:
        there = disposable(self._world)
        if there and self._random.random() < DIES:
            gone = self._random.choice(there)
            return Visit(f"disposal of savepoint {gone}", disposing(self._world, gone, visitor), visitor)
        return Visit("savepoint at rest", saving(self._world, visitor), visitor)

    def _clean_up(self, visitor: Visitor) -> Visit:
        grace_ms = self._random.choice([0, 0, 300])
        held = self._world.holder()
        if visitor.alive(held):
            turns = cleaning_beside(self._world, self._world.generation, grace_ms)
            return Visit(f"clean-up beside {held}", turns, visitor)
        return Visit("clean-up", cleaning(self._world, grace_ms, visitor), visitor)
