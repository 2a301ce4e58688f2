"""The invariants of a committed entry: its tables were checked, its files judged, its barrier aligned (J3)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from checkpointing.graph import JobGraph, TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName, VertexId
from checkpointing.metadata.record import CheckpointRecord, RenameKind, RowKind
from spec.history import (
    CameToRest,
    CheckBegun,
    CheckpointTriggered,
    CutsCorrected,
    CutsDropped,
    CutsSeen,
    CutWritten,
    DoorStarted,
    EntryRead,
    EntryStored,
    EntryTranslated,
    FilesDiscarded,
    FoundFinished,
    History,
    JobClaimed,
    JobReleased,
    JudgementBegun,
    JudgementTold,
    LeftoversGone,
    LieTold,
    ListsWereStale,
    NamedTooEarly,
    PowerLost,
    ReservedGone,
    RowCommitted,
    RowsErased,
    SavepointDisposed,
    SegmentSent,
    SegmentsRun,
    TableChanged,
    TableRestored,
    TablesLookedAt,
    UnseenLeft,
    UnseenRefused,
)
from spec.reference.contents import ended_at, ended_before, named_files, says_finished
from spec.reference.pipeline import first_table, graph
from spec.rules import rule
from spec.rules.rollbacks import at_rest, goes_back
from spec.rules.sources_and_timers import positions_of

_Of = tuple[Generation, CheckpointId]
_Files = Mapping[TableName, frozenset[str]]
"""Maps each table to the paths of its files."""


def _watched(history: History) -> frozenset[Generation]:
    """Return the generations whose facts and effects are in the history.

    Of other generations, the history shows only the stores.
    """
    return frozenset(event.generation for event in history.events if isinstance(event, SegmentSent))


@rule("tables-are-checked")
def tables_are_checked(history: History) -> Iterator[str]:
    """Yield every checkpoint that was committed although its tables were not all checked, or had problems.

    The check also looks at every file that the checkpoint takes out of a table.

    Plain savepoints publish nothing, so they are not judged. Fenced generations are not judged either, and neither are
    generations whose checks the history does not show.
    """
    newest: Generation | None = None
    graphs: dict[Generation, JobGraph] = {}
    asked: dict[_Of, CheckBegun] = {}
    allowed: dict[_Of, bool | None] = {}
    watched = _watched(history)
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph):
                graphs[generation], newest = graph, generation
            case CheckBegun():
                asked[event.generation, event.checkpoint] = event
            case TablesLookedAt(generation, checkpoint, allow):
                allowed[generation, checkpoint] = allow
            case RowCommitted(record) if record.kind is RowKind.CHECKPOINT and record.generation in watched & {newest}:
                of = (record.generation, record.checkpoint)
                check = asked.get(of) or CheckBegun(*of, (), ())
                removed = {file.path for table in record.tables for file in table.removes}
                tables = {table.name for table in graphs[of[0]].tables()}
                missing = {*tables, *removed} - {*check.tables, *check.leaving}
                if missing:
                    yield f"entry {record.checkpoint} is in, and nobody had checked {sorted(missing)}"
                if not allowed.get(of):
                    yield f"entry {record.checkpoint} is in, and nobody had said that its tables allow it"
            case _:
                pass


@dataclass(slots=True)
class _Suites:
    """The files that suites were asked about, and the files that they accepted."""

    asked: dict[tuple[_Of, str], frozenset[str]] = field(default_factory=dict)
    passed: dict[_Of, frozenset[str]] = field(default_factory=dict)

    def told(self, verdict: JudgementTold) -> None:
        of = (verdict.generation, verdict.checkpoint)
        if verdict.passed:
            files = self.asked.get((of, verdict.vertex), frozenset())
            self.passed[of] = self.passed.get(of, frozenset()) | files


@rule("files-are-judged")
def files_are_judged(history: History) -> Iterator[str]:
    """Yield every file that a tick's entry adds to a judged table although no suite accepted it for that entry.

    A renamed table is published whole. Its files have been accepted under its old name. Of an overwrite table, only
    files that the entry's parent did not show must have been accepted.
    """
    judged: dict[Generation, frozenset[TableName]] = {}
    shown: dict[CheckpointId, _Files] = {}
    began: dict[Generation, CheckpointRecord] = {}
    suites, watched = _Suites(), _watched(history)
    for event in history.without_flow:
        match event:
            case DoorStarted(generation, graph, restored):
                judged[generation] = frozenset(table.name for table in graph.tables() if table.judged)
                if restored is not None:
                    began[generation] = restored  # under the names of the pipeline
            case JudgementBegun(generation, vertex, checkpoint, files):
                suites.asked[(generation, checkpoint), vertex] = files
            case JudgementTold():
                suites.told(event)
            case RowCommitted(record):
                shown[record.checkpoint] = _set_whole(record)
                if record.generation in watched and not at_rest(record):
                    passed = suites.passed.get((record.generation, record.checkpoint), frozenset())
                    first = began.get(record.generation)
                    is_first = first is not None and first.checkpoint == record.parent
                    before = _set_whole(first) if first and is_first else shown.get(record.parent, {})
                    yield from _not_let_through(record, judged, passed, before)
            case _:
                pass


def _set_whole(record: CheckpointRecord) -> _Files:
    """Return the files of each table whose files the entry names completely. Files of states are left out."""
    return {
        own.table: frozenset(keyed.file.path for keyed in own.files)
        for was in record.vertices
        for subtask in was.subtasks
        for own in subtask.ranges
    }


def _not_let_through(
    record: CheckpointRecord,
    judged: Mapping[Generation, frozenset[TableName]],
    passed: frozenset[str],
    shown: _Files,
) -> Iterator[str]:
    renamed = {one.now for one in record.renames if one.kind is RenameKind.TABLE}
    for table in record.tables:
        moved = table.mode is TableMode.APPEND and table.table in renamed
        if table.table in judged.get(record.generation, ()) and not moved:
            new = {file.path for file in table.adds + table.files} - shown.get(table.table, frozenset())
            for path in sorted(new - passed):
                yield f"entry {record.checkpoint} adds {path} to {table.table}, and no suite let it through"


@rule("empty-is-judged")
def empty_is_judged(history: History) -> Iterator[str]:
    """Yield every entry that adds nothing to a table although its vertex had rows, and no suite was asked about that.

    Only tables whose suite also judges an empty epoch are looked at.
    """
    graphs: dict[Generation, JobGraph] = {}
    worked: dict[tuple[Generation, VertexId], set[int]] = {}
    asked: set[tuple[_Of, VertexId]] = set()
    entries: dict[CheckpointId, CheckpointRecord] = {}
    watched = _watched(history)
    for event in history.events:
        match event:
            case DoorStarted(generation, graph):
                graphs[generation] = graph
            case SegmentsRun(generation, vertex, micro_batch, inputs) if any(each.segments for each in inputs):
                worked.setdefault((generation, vertex), set()).add(micro_batch)
            case JudgementBegun(generation, vertex, checkpoint):
                asked.add(((generation, checkpoint), vertex))
            case RowCommitted(record):
                parent = entries.get(record.parent)
                entries[record.checkpoint] = record
                if record.generation in watched and not at_rest(record):
                    ran = {name: numbers for (by, name), numbers in worked.items() if by == record.generation}
                    yield from _not_counted(record, parent, graphs[record.generation], ran, asked)
            case _:
                pass


def _not_counted(
    record: CheckpointRecord,
    parent: CheckpointRecord | None,
    graph: JobGraph,
    ran: Mapping[VertexId, set[int]],
    asked: set[tuple[_Of, VertexId]],
) -> Iterator[str]:
    same = parent is not None and parent.generation == record.generation
    before = {was.vertex: was.micro_batch for was in parent.vertices} if same and parent is not None else {}
    added = {table.table for table in record.tables if table.adds}
    for was in record.vertices:
        numbers = {each for each in ran.get(was.vertex, ()) if before.get(was.vertex, 0) < each <= was.micro_batch}
        tables = (table for vertex in graph.vertices if vertex.id == was.vertex for table in vertex.tables)
        counted = [each.name for each in tables if each.judged_empty and each.mode is TableMode.APPEND]
        for table in (each for each in counted if each not in added):
            if numbers and ((record.generation, record.checkpoint), was.vertex) not in asked:
                yield f"entry {record.checkpoint} adds nothing to {table}, and no suite was asked about that"


@rule("savepoint-is-aligned")
def savepoint_is_aligned(history: History) -> Iterator[str]:
    """Yield every savepoint that holds rows in flight. Its barrier is always aligned (C5)."""
    for event in history.without_flow:
        if isinstance(event, RowCommitted) and event.record.is_savepoint and _flying(event.record):
            yield f"savepoint {event.record.checkpoint} holds rows in flight on {_flying(event.record)}"


def _flying(record: CheckpointRecord) -> list[str]:
    held = (each for vertex in record.vertices for subtask in vertex.subtasks for each in subtask.in_flight)
    return [str(each.channel) for each in held]


# ------------------------------------------------------------------
# The invariants of power cuts and of lost log entries.


@rule("durable")
def taken_by_power_cuts(history: History) -> Iterator[str]:
    """Yield every version of a recorded cut, and every file of an entry, that a power cut destroyed."""
    for event in history.without_flow:
        if isinstance(event, PowerLost):
            yield from (f"file {path} had gone, and a row names it" for path in event.files)
            for checkpoint, table, version in event.versions:
                yield f"{table} lost version {version}, which the cut of {checkpoint} names"


@rule("synced-first")
def synced_first(history: History) -> Iterator[str]:
    """Yield every file that an entry names and that nobody had made durable before the entry was appended.

    The rule needs no power cut. So each seed judges each entry.
    """
    for event in history.of(NamedTooEarly):
        yield f"row {event.checkpoint} names {event.paths[0]}, which is not durable"


@rule("cuts-hold")
def cuts_hold(history: History) -> Iterator[str]:
    """Yield every table that shows something else at a recorded cut than when the cut was recorded."""
    recorded: dict[CheckpointId, dict[TableName, frozenset[str]]] = {}
    appended = {table.name for table in graph(1, audited=True).tables() if table.mode is TableMode.APPEND}
    for event in history.without_flow:
        match event:
            case CutWritten(checkpoint, _, active):
                recorded.setdefault(checkpoint, dict(active))
                continue
            case CutsSeen(generation, cuts):
                when = f"when generation {generation} begins"
            case RowsErased(cuts=cuts):
                when = "before rows are erased"
            case _:
                continue
        for checkpoint, active in cuts:
            known = recorded[checkpoint]
            for table, files in active:
                was = known.get(table, files)
                if files != was and (first_table(table) not in appended or not _same_rows(history, files, was)):
                    yield f"{when}, cut {checkpoint} shows other rows of {table}"
                known[table] = files  # after a repair, other files may have the same rows, and may be erased then
        if isinstance(event, RowsErased):
            recorded = {
                checkpoint: {table: event.successors(files) for table, files in tables.items()}
                for checkpoint, tables in recorded.items()
            }


@rule("cuts-stay")
def cuts_stay(history: History) -> Iterator[str]:
    """Yield every dropped cut that an entry needs: its own cut, or the cut of the entry from which it continues."""
    for event in history.without_flow:
        if isinstance(event, CutsDropped):
            yield from (f"the cut of {checkpoint} was dropped, and an entry needs it" for checkpoint in event.needed)


def _same_rows(history: History, files: frozenset[str], others: frozenset[str]) -> bool:
    """Return whether two sets of files hold the same rows.

    A neighbour may have merged files, and the merge may have been undone.
    """
    return history.multiset(files) == history.multiset(others)


# ------------------------------------------------------------------
# Invariants of the codec: every format is read as it was meant, and a false entry is refused (H1).


@rule("formats-keep-their-meaning")
def formats_keep_their_meaning(history: History) -> Iterator[str]:
    """Yield every entry of any format that is read differently from how it was meant."""
    for event in history.without_flow:
        if isinstance(event, EntryTranslated) and event.differs:
            yield f"a {event.kind} entry of format {event.format} is read otherwise: {event.differs}"


@rule("false-entries-refused")
def false_entries_refused(history: History) -> Iterator[str]:
    """Yield every entry that Tidemark cannot have written, and that the codec did not refuse."""
    for event in history.without_flow:
        if isinstance(event, LieTold) and event.answer != "refused":
            yield f"a {event.kind} entry with {event.lie} was {event.answer}"


# ------------------------------------------------------------------
# Invariants of manifests: an entry with manifests can always be read, and reads as it was appended (ADR 14).


@rule("manifests-hold")
def manifests_hold(history: History) -> Iterator[str]:
    """Yield every entry that reads differently from how it was appended."""
    for event in history.without_flow:
        if isinstance(event, EntryRead) and event.differs:
            yield f"entry {event.checkpoint} was read otherwise than it was appended"


@rule("manifests-first")
def manifests_first(history: History) -> Iterator[str]:
    """Yield every manifest that is missing, changed, or of a foreign generation when an entry begins to name it."""
    for event in history.without_flow:
        if isinstance(event, EntryStored):
            yield from (f"entry {event.checkpoint} names {path}, which does not fit" for path in event.unfit)


@rule("manifests-are-shared")
def manifests_are_shared(history: History) -> Iterator[str]:
    """Yield every entry that writes manifests although the entry before it has the same handles."""
    for event in history.without_flow:
        if isinstance(event, EntryStored) and event.new and not event.changed:
            yield f"entry {event.checkpoint} has the handles of the one before, and writes {event.new[0]}"


@rule("manifests-stay")
def manifests_stay(history: History) -> Iterator[str]:
    """Yield every manifest that was deleted, or found missing, while an entry named it."""
    stored: dict[CheckpointId, tuple[str, ...]] = {}
    named: dict[CheckpointId, tuple[str, ...]] = {}
    for event in history.without_flow:
        match event:
            case EntryStored():
                stored[event.checkpoint] = event.named
            case RowCommitted(record, kept):
                named[record.checkpoint] = stored.get(record.checkpoint, ())
                named = {checkpoint: paths for checkpoint, paths in named.items() if checkpoint in kept}
            case RowsErased(after=after):
                named |= {each.checkpoint: each.held_in for each in after if each.checkpoint in named}
            case SavepointDisposed(checkpoint):
                named.pop(checkpoint, None)
            case FilesDiscarded(paths):
                gone = set(paths)
                lost = ((each, path) for each, kept in named.items() for path in kept if path in gone)
                yield from (f"{path} was deleted, and entry {checkpoint} names it" for checkpoint, path in lost)
            case EntryRead(checkpoint, missing):
                yield from (f"{path} was missed, and entry {checkpoint} names it" for path in missing)
            case _:
                pass


# ------------------------------------------------------------------
# The invariant of what entries say of their state: each entry describes the state that it holds (D6).
#
# A later pipeline is compared with this description before it may read the state. With a missing or wrong description,
# a changed pipeline would go on from values that mean something else.


@rule("state-is-described")
def state_is_described(history: History) -> Iterator[str]:
    """Yield each vertex of a committed entry that lacks the meanings or upsert keys which its graph declared.

    An entry that no tick wrote describes its state exactly as its parent does.
    """
    graphs: dict[int, JobGraph] = {}
    rows: dict[int, CheckpointRecord] = {}
    for event in history.without_flow:
        match event:
            case DoorStarted():
                graphs[event.generation] = event.graph
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
                parent = rows.get(record.parent)
                if not at_rest(record) and record.generation in graphs:
                    yield from _of_row(record, graphs[record.generation])
                elif at_rest(record) and parent is not None and _described(record) != _described(parent):
                    yield f"row {record.checkpoint} does not say what row {parent.checkpoint} says of its state"
            case _:
                pass


def _described(record: CheckpointRecord) -> list[tuple[object, ...]]:
    return [(each.vertex, each.meanings, each.table_keys) for each in record.vertices]


def _of_row(record: CheckpointRecord, graph: JobGraph) -> Iterator[str]:
    described = {each.vertex: each for each in record.vertices}
    for vertex in graph.vertices:
        found = described.get(vertex.id)
        if found is None or found.meanings != vertex.meanings:
            yield f"row {record.checkpoint} does not say what the state of {vertex.id} means"
        named = (TableMode.UPSERT, TableMode.OVERWRITE)
        keys = {table.name: (table.mode, table.keys) for table in vertex.tables if table.mode in named}
        if found is not None and {each.table: (each.mode, each.columns) for each in found.table_keys} != keys:
            yield f"row {record.checkpoint} does not name the keys or the version of the tables of {vertex.id}"


# ------------------------------------------------------------------
# The invariants of deletions: readers keep what they reserved, and clean-ups leave no file that nobody needs (K4).


@rule("files-go")
def files_go(history: History) -> Iterator[str]:
    """Yield every file that no entry names, and that no table shows now or at a remaining cut.

    Also yield every remaining cut that nobody can ask for. A cut stays as long as its entry, and as long as an entry
    that continues from it without a cut of its own: a plain savepoint, or a savepoint of a stop that was abandoned
    unpublished.
    """
    entries: dict[CheckpointId, CheckpointRecord] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, kept):
                entries[record.checkpoint] = record
                entries = {each: entries[each] for each in kept if each in entries}
            case RowsErased(after=after):
                entries |= {each.checkpoint: each for each in after}
            case SavepointDisposed(checkpoint):
                entries.pop(checkpoint, None)
            case CameToRest(files, shown, cuts):
                recorded = {each for each, _ in cuts}
                bases = {row.parent for row in entries.values() if row.checkpoint not in recorded}
                strange = sorted(recorded - entries.keys() - bases)
                yield from (f"cut {each} is left, and nobody can ask for it" for each in strange)
                needed = shown.union(*map(named_files, entries.values()), *(active for _, active in cuts))
                erased = (each for row in entries.values() for each in row.erased)
                needed |= {each.into.path for each in erased if each.into is not None}
                yield from (f"{path} is left, and nobody needs it" for path in sorted(files - needed))
            case _:
                pass


@rule("reserved-stays")
def reserved_stays(history: History) -> Iterator[str]:
    """Yield every file that was deleted while a reader's reservation covered it."""
    for event in history.without_flow:
        if isinstance(event, ReservedGone):
            yield f"{event.path} was deleted, and a reader had reserved it"


# ------------------------------------------------------------------
# The invariants of the processes that hold a job, one after the other.


@rule("held")
def held_wrongly(history: History) -> Iterator[str]:
    """Yield every second release of a holder, every entry after a release, and every release that names a used id."""
    newest, highest = Generation(0), NO_CHECKPOINT
    released = set[Generation]()
    for event in history.without_flow:
        match event:
            case JobClaimed(claim):
                newest = claim.generation
                if newest in released:
                    yield f"generation {newest} claimed the job, and had released it"
            case JobReleased(release):
                if release.generation != newest:
                    yield f"generation {release.generation} released the job, {newest} holds it"
                if release.generation in released:
                    yield f"generation {release.generation} released the job twice"
                if release.next_id <= highest:
                    yield f"generation {release.generation} releases id {release.next_id}, and {highest} was given out"
                released.add(release.generation)
            case RowCommitted(record):
                if record.generation == newest and newest in released:
                    yield f"row {record.checkpoint} came after generation {record.generation} had released the job"
                highest = max(highest, record.checkpoint)
            case CheckpointTriggered(generation, checkpoint) if generation == newest:
                highest = max(highest, checkpoint)
            case _:
                pass


@rule("recovered-in-order")
def recovered_in_order(history: History) -> Iterator[str]:
    """Yield leftovers that were deleted before a committed entry had a cut, and entries that came before the deletion.

    Also yield leftovers that a process deleted although its claim was not appended.

    If the history shows no deletion of leftovers, as in a trace, the second part is not judged. A rollback deletes no
    leftovers if it leaves an entry behind that it could not publish. In two cases the rollback wrongly assumes that it
    leaves such an entry behind: the entry's cut was recorded but the reply was lost, or a stale list lacked that cut. A
    zombie knows only entries of older generations.
    """
    watched = bool(history.of(LeftoversGone))
    recorded = {NO_CHECKPOINT, *history.baseline}
    committed: list[tuple[Generation, CheckpointId]] = []
    gone = set[Generation]()
    started = set[Generation]()
    claimed = set[Generation]()
    found_unsettled = set[Generation]()
    not_shown = set[CheckpointId]()
    for event in history.without_flow:
        match event:
            case RowCommitted(record):
                leaves_behind = goes_back(record) and record.generation in found_unsettled
                works = record.generation in started or (at_rest(record) and not leaves_behind)
                if watched and works and record.generation not in gone:
                    yield f"row {record.checkpoint} came before generation {record.generation} had deleted leftovers"
                committed += [(record.generation, record.checkpoint)] * record.commits
            case DoorStarted(generation):
                started.add(generation)
            case JobClaimed(claim):
                claimed.add(claim.generation)
                if committed and committed[-1][1] not in recorded - not_shown:
                    found_unsettled.add(claim.generation)
                not_shown.clear()
            case ListsWereStale(lacks):
                not_shown.update(lacks)
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case LeftoversGone(generation):
                gone.add(generation)
                if claimed and generation not in claimed:
                    yield f"generation {generation} deleted leftovers, and its claim is not in"
                newest = next((row for by, row in reversed(committed) if by < generation), NO_CHECKPOINT)
                if newest not in recorded:
                    yield f"generation {generation} deleted leftovers before the cut of {newest} was recorded"
            case _:
                pass


@rule("nonces-differ")
def nonces_differ(history: History) -> Iterator[str]:
    """Yield every entry, claim and release with the nonce of another one.

    A process that searches the store for its nonce would find the other entry.
    """
    known: dict[str, str] = {}
    for event in history.without_flow:
        match event:
            case JobClaimed(claim):
                nonce, what = claim.nonce, f"the claim of generation {claim.generation} from id {claim.first_id}"
            case JobReleased(release):
                nonce, what = release.nonce, f"the release of generation {release.generation}"
            case RowCommitted(record):
                nonce, what = record.nonce, f"entry {record.checkpoint}"
            case _:
                continue
        if nonce in known:
            yield f"{what} has the nonce of {known[nonce]}"
        known[nonce] = what


# ------------------------------------------------------------------
# The invariant of jobs that have finished: nothing follows until somebody resets a source or rolls the job back (B4).


@rule("finished-is-final")
def finished_is_final(history: History) -> Iterator[str]:
    """Yield every split that went on after its end, and every tick that ran a finished job or wrongly reported one."""
    rows: dict[CheckpointId, CheckpointRecord] = {}
    over: CheckpointRecord | None = None
    """The finished entry, once its cut is recorded and its job is released."""
    newest: CheckpointRecord | None = None
    recorded: set[CheckpointId] = set()
    began: dict[Generation, CheckpointRecord] = {}
    graphs: dict[Generation, JobGraph] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, _):
                parent, graph = rows.get(record.parent), graphs.get(record.generation)
                yield from _follows(record, parent, graph) if parent is not None else ()
                rows[record.checkpoint] = record
                newest, over = (record, None) if record.commits else (newest, over)
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case JobReleased():
                is_over = newest is not None and says_finished(newest) and newest.checkpoint in recorded
                over = newest if is_over else None
            case JobClaimed(claim) if over is not None:
                began[claim.generation] = over
                over = None
            case TableRestored():
                over = None  # it had lost log entries, so somebody had to claim the job
            case ListsWereStale():
                over = None  # a tick has to claim a job if it does not see the last cut
            case CutsCorrected() | TableChanged():
                began.clear()  # the same, and they are published again
            case DoorStarted(generation, graph, restored):
                graphs[generation] = graph
                known = {each.vertex for each in restored.vertices} if restored is not None else set()
                is_over = restored is not None and generation in began
                if is_over and all(source.bounded and source.id in known for source in graph.sources()):
                    yield f"generation {generation} began a job that {began[generation].checkpoint} had finished"
            case FoundFinished():
                yield from _found(event)
            case _:
                pass


def _follows(record: CheckpointRecord, parent: CheckpointRecord, graph: JobGraph | None) -> Iterator[str]:
    """Yield each split that went on after its end. It may go on if its source is not bounded in this pipeline."""
    if record.kind in (RowKind.RESET, RowKind.ROLLBACK):
        return
    ended = ended_at(parent) & (ended_before(graph, parent) if graph is not None else ended_at(parent))
    before, now = positions_of(parent), positions_of(record)
    for split in ended & now.keys():
        if split not in ended_at(record) or now[split] != before[split]:
            yield f"{split[1]} had ended at {before[split]}, and entry {record.checkpoint} has it at {now[split]}"


def _found(event: FoundFinished) -> Iterator[str]:
    newest = event.newest
    if newest is None or not says_finished(newest):
        yield f"a tick found the job finished, its newest entry is {newest and newest.checkpoint}"
    elif newest.checkpoint not in event.recorded:
        yield f"a tick found the job finished, and cut {newest.checkpoint} is not recorded"
    if event.behind:
        yield f"a tick found the job finished, and {sorted(event.behind)} have lost log entries"


@rule("left-alone")
def left_alone(history: History) -> Iterator[str]:
    """Yield every claim that came before the unseen holder's lease ran out, or while that holder had no lease.

    A process may claim a job from itself, as it does at a restart. Also yield every refused process that left the
    unseen holder without a lease, because then nobody could ever take over from a dead holder.
    """
    for event in history.without_flow:
        if isinstance(event, UnseenRefused) and (event.lease is None or event.lease.generation < event.before):
            yield f"a process was refused by generation {event.before}, and left it without a lease"
        if isinstance(event, UnseenLeft) and event.holder != event.holder_before:
            lease, who = event.lease, f"generation {event.generation} took the job of generation {event.before}"
            if lease is None or lease.generation != event.before:
                yield f"{who}, which had no lease and was given none"
            elif event.now_ms < lease.expires_ms:
                yield f"{who} at {event.now_ms}, whose lease runs until {lease.expires_ms}"
