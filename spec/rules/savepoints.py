"""The invariants of savepoints and stops."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.messages import SavepointKind, TickOutcome
from checkpointing.metadata.record import CheckpointRecord, RowKind
from spec.history import (
    AttemptBegan,
    CameToRest,
    CheckpointEnded,
    CutWritten,
    DoorStarted,
    Event,
    FilesDiscarded,
    History,
    JobClaimed,
    OutsidePublished,
    RowCommitted,
    RowsErased,
    SavepointAnswered,
    SavepointAsked,
    SavepointDisposed,
    TableChanged,
    TickOver,
)
from spec.reference.contents import named_files
from spec.reference.pipeline import JOINED, first_id, graph_of
from spec.rules import rule
from spec.rules.rollbacks import goes_back

Request = tuple[Generation, str]


def drained_rows(history: History) -> tuple[CheckpointRecord, ...]:
    """Return the entries at which every key of the join had ended, in order.

    These are the pinned checkpoints of generations that were asked to drain. They are also the entries in which a
    subtask of the join is finished, because all sources had ended.
    """
    waiting: dict[Request, SavepointKind] = {}
    found = []
    for event in history.without_flow:
        match event:
            case SavepointAsked(generation, request, kind):
                waiting[generation, request] = kind
            case SavepointAnswered(generation, request, _):
                waiting.pop((generation, request), None)
            case RowCommitted(record, _) if record.pinned and record.kind is RowKind.CHECKPOINT:
                kinds = [kind for (generation, _), kind in waiting.items() if generation == record.generation]
                if SavepointKind.DRAIN in kinds or _has_ended_keys(record):
                    found.append(record)
            case RowCommitted(record, _) if _has_ended_keys(record):
                found.append(record)
            case _:
                pass
    return tuple(found)


def _has_ended_keys(record: CheckpointRecord) -> bool:
    joins = (vertex for vertex in record.vertices if first_id(vertex.vertex) == JOINED)
    return any(subtask.finished for vertex in joins for subtask in vertex.subtasks)


def plain_savepoints(history: History) -> Iterator[tuple[CheckpointRecord, CutWritten]]:
    """Yield every plain savepoint with the cut that its restore produces: its parent's cut with its own net files."""
    cuts: dict[CheckpointId, CutWritten] = {}
    for event in history.without_flow:
        if isinstance(event, CutWritten):
            cuts.setdefault(event.checkpoint, event)
        elif isinstance(event, RowCommitted) and event.record.kind is RowKind.SAVEPOINT:
            record = event.record
            parent = dict(cuts[record.parent].active) if record.parent in cuts else {}
            active = {table.name: parent.get(table.name, frozenset()) for table in graph_of(record).tables()}
            for table in record.tables:
                adds, whole, removes = (
                    frozenset(file.path for file in files) for files in (table.adds, table.files, table.removes)
                )
                active[table.table] = whole or (active.get(table.table, frozenset()) - removes) | adds
            yield record, CutWritten(record.checkpoint, (), tuple(active.items()))


@rule("savepoint-is-silent")
def savepoint_is_silent(history: History) -> Iterator[str]:
    """Yield what a plain savepoint changed or announced. It must publish nothing, have no cut, and notify nobody."""
    saved = {
        event.record.checkpoint
        for event in history.without_flow
        if isinstance(event, RowCommitted) and event.record.kind is RowKind.SAVEPOINT
    }
    for event in history.without_flow:
        match event:
            case TableChanged(checkpoint, publication) if checkpoint in saved:
                yield f"{publication.table} shows savepoint {checkpoint}"
            case CutWritten(checkpoint) if checkpoint in saved:
                yield f"a cut was recorded for savepoint {checkpoint}"
            case CheckpointEnded(_, checkpoint, None) if checkpoint in saved:
                yield f"savepoint {checkpoint} was told complete"
            case RowCommitted(record, _) if record.parent in saved and not goes_back(record):
                yield f"row {record.checkpoint} builds on savepoint {record.parent}"
            case _:
                pass


@rule("pinned-stays")
def pinned_stays(history: History) -> Iterator[str]:
    """Yield every savepoint that disappeared although nobody disposed of it, and every deleted file of a savepoint."""
    pinned: dict[CheckpointId, frozenset[str]] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, kept):
                if record.is_savepoint and record.kind is not RowKind.HELD:
                    pinned[record.checkpoint] = named_files(record)
                lost = [checkpoint for checkpoint in pinned if checkpoint not in kept]
                yield from (f"savepoint {checkpoint} is gone after row {record.checkpoint}" for checkpoint in lost)
            case RowsErased(after=after):
                pinned |= {each.checkpoint: named_files(each) for each in after if each.checkpoint in pinned}
            case FilesDiscarded(paths, _):
                for path in paths:
                    for checkpoint in [savepoint for savepoint, files in pinned.items() if path in files]:
                        yield f"{path} of savepoint {checkpoint} was deleted"
            case SavepointDisposed(checkpoint):
                pinned.pop(checkpoint, None)
            case _:
                pass


@rule("cut-of-a-savepoint-stays")
def cut_of_a_savepoint_stays(history: History) -> Iterator[str]:
    """Yield every plain savepoint whose cut lost its entry or a file. That cut is the checkpoint before the savepoint.

    The savepoint's tables are those of this cut, and only the cut's entry describes the operators' state there.
    """
    rows: dict[CheckpointId, CheckpointRecord] = {}
    stands: dict[CheckpointId, CheckpointId] = {}
    for event in history.without_flow:
        match event:
            case RowCommitted(record, kept):
                rows[record.checkpoint] = record
                if not record.commits and record.parent in rows and record.parent in kept:
                    stands[record.checkpoint] = record.parent
                stands = {each: cut for each, cut in stands.items() if each in kept}
                lost = [(each, cut) for each, cut in stands.items() if cut not in kept]
                yield from (
                    f"{each} stands on {cut}, which is gone after row {record.checkpoint}" for each, cut in lost
                )
            case RowsErased(after=after):
                rows |= {each.checkpoint: each for each in after}
            case FilesDiscarded(paths, _):
                for each, cut in stands.items():
                    gone = sorted(named_files(rows[cut]).intersection(paths))
                    yield from (f"{path} of cut {cut} was deleted, on which {each} stands" for path in gone)
            case SavepointDisposed(checkpoint):
                stands.pop(checkpoint, None)
            case _:
                pass


@rule("requests-are-answered")
def requests_are_answered(history: History) -> Iterator[str]:
    """Yield every request answered twice or left open by a tick that ended, and every answer without a request."""
    asked: dict[Generation, list[str]] = {}
    answered: set[Request] = set()
    over: set[Generation] = set()
    for event in history.without_flow:
        match event:
            case SavepointAsked(generation, request, _):
                asked.setdefault(generation, []).append(request)
            case SavepointAnswered(generation, request, _):
                if (generation, request) in answered:
                    yield f"{request} was answered twice by generation {generation}"
                if request not in asked.get(generation, ()):
                    yield f"{request} was answered by generation {generation}, which nobody had asked"
                answered.add((generation, request))
            case TickOver(generation, _):
                over.add(generation)
            case _:
                pass
    for generation in sorted(over):
        for request in asked.get(generation, ()):
            if (generation, request) not in answered:
                yield f"{request} was never answered by generation {generation}"


@rule("answers-are-true")
def answers_are_true(history: History) -> Iterator[str]:
    """Yield every wrong answer: the entry was not committed or of another kind, or the tick did not stop at it.

    The end of a tick that no longer holds the job is not judged, because other processes may have continued the job or
    rolled it back.
    """
    kinds: dict[Request, SavepointKind] = {}
    rows: dict[CheckpointId, CheckpointRecord] = {}
    recorded: set[CheckpointId] = set()
    stopped: dict[Generation, CheckpointId] = {}
    holder = Generation(0)
    for event in history.without_flow:
        match event:
            case JobClaimed(claim):
                holder = max(holder, claim.generation)
            case SavepointAsked(generation, request, kind):
                kinds[generation, request] = kind
            case RowCommitted(record, _):
                rows[record.checkpoint] = record
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case SavepointAnswered(generation, request, checkpoint) if checkpoint is not None:
                plain = kinds.get((generation, request)) is SavepointKind.PLAIN
                yield from _untrue(checkpoint, rows.get(checkpoint), plain=plain)
                if not plain:
                    stopped[generation] = checkpoint
                    if checkpoint not in recorded:
                        yield f"the savepoint {checkpoint} of a stop was told, its cut is not recorded"
            case TickOver(generation, end, _, newest) if generation in stopped and generation == holder:
                there = newest.checkpoint if newest else NO_CHECKPOINT
                if (end.outcome, there) != (TickOutcome.STOPPED, stopped[generation]):
                    yield f"after the savepoint {stopped[generation]} of a stop: {end.outcome.value} at {there}"
            case _:
                pass


def _untrue(checkpoint: CheckpointId, record: CheckpointRecord | None, *, plain: bool) -> Iterator[str]:
    wanted = RowKind.SAVEPOINT if plain else RowKind.CHECKPOINT
    if record is None:
        yield f"savepoint {checkpoint} was told, its row is not in"
    elif record.kind is not wanted or not record.pinned:
        yield f"savepoint {checkpoint} is a {record.kind.value}{' that is pinned' * record.pinned}, not as asked"


# ------------------------------------------------------------------
# The invariants of held cuts: no held cut is visible before its approval, none loses anything, and a rejected one is
# deleted.
#
# They share no code with the core, which decides what a held cut blocks.


@dataclass(slots=True)
class _Cuts:
    """The held cuts so far, each with the files that no other entry named when it was held."""

    waiting: dict[CheckpointId, CheckpointRecord] = field(default_factory=dict)
    hidden: dict[CheckpointId, frozenset[str]] = field(default_factory=dict)
    """Maps each held cut, waiting or rejected, to the files that no other entry named."""
    rejected: set[CheckpointId] = field(default_factory=set)
    ever: set[CheckpointId] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    there: dict[CheckpointId, frozenset[str]] = field(default_factory=dict)
    """Maps each existing entry to the files that it names."""
    newest: int = 0
    """The generation of the newest claim. An older one that wakes up is fenced."""
    holders: set[Generation] = field(default_factory=set)
    """The generations that are to hold their checkpoint."""

    def note(self, event: Event) -> None:
        """Process an event after it was judged."""
        match event:
            case JobClaimed(claim):
                self.newest = max(self.newest, claim.generation)
            case AttemptBegan(_, generation, limits) if limits.hold:
                self.holders.add(generation)
            case RowCommitted(record, kept):
                for gone in [each for each in self.waiting if each not in kept]:
                    del self.waiting[gone], self.hidden[gone]
                files = named_files(record)
                if record.kind is RowKind.HELD:
                    self.waiting[record.checkpoint] = record
                    self.ever.add(record.checkpoint)
                    self.hidden[record.checkpoint] = files - self.named
                self.named |= files
                self.there = {each: self.there[each] for each in kept if each in self.there}
                self.there[record.checkpoint] = files
            case SavepointDisposed(checkpoint):
                self.there.pop(checkpoint, None)
                if self.waiting.pop(checkpoint, None) is not None:
                    self.rejected.add(checkpoint)
            case _:
                pass


@rule("held-is-invisible")
def held_is_invisible(history: History) -> Iterator[str]:
    """Yield each table, notice and entry that shows, announces or continues from a held cut before its approval."""
    cuts = _Cuts()
    for event in history.without_flow:
        match event:
            case TableChanged(checkpoint, publication, _, active):
                if checkpoint in cuts.ever:
                    yield f"{publication.table} shows held cut {checkpoint}"
                for held, files in cuts.hidden.items():
                    if files & active:
                        yield f"{publication.table} shows {min(files & active)} of held cut {held}"
            case CutWritten(checkpoint) if checkpoint in cuts.ever:
                yield f"a cut was recorded for held cut {checkpoint}"
            case CheckpointEnded(_, checkpoint, None) if checkpoint in cuts.ever:
                yield f"held cut {checkpoint} was told complete"
            case OutsidePublished(checkpoint) if checkpoint in cuts.ever:
                yield f"an outside sink got rows of held cut {checkpoint}"
            case DoorStarted(generation, _, restored) if restored is not None and restored.checkpoint in cuts.ever:
                yield f"generation {generation} began from held cut {restored.checkpoint}"
            case RowCommitted(record, _) if record.parent in cuts.ever:
                yield f"row {record.checkpoint} continues from held cut {record.parent}"
            case RowCommitted(record, _) if record.commits and record.generation in cuts.holders:
                yield f"generation {record.generation} committed {record.checkpoint}, and was to hold it"
            case _:
                pass
        cuts.note(event)


@rule("held-is-kept")
def held_is_kept(history: History) -> Iterator[str]:
    """Yield every held cut that disappeared without approval or rejection, and every deleted file of a waiting one.

    The job must not go on while a cut waits. An approval appends the same cut as a checkpoint, with the same parent and
    the same measurements. It has no counts, because these belong to the generation that held the cut.
    """
    cuts = _Cuts()
    for event in history.without_flow:
        match event:
            case RowCommitted(record, kept):
                gone = [each for each in cuts.waiting if each not in kept]
                for each in gone:
                    if not _approves(record, cuts.waiting[each]):
                        yield f"held cut {each} is gone after row {record.checkpoint}, which does not approve it"
                if (record.commits or record.kind is RowKind.HELD) and len(gone) < len(cuts.waiting):
                    yield f"row {record.checkpoint} was committed while held cut {min(cuts.waiting)} waits"
            case DoorStarted(generation) if cuts.waiting and generation == cuts.newest:
                yield f"generation {generation} runs the job while held cut {min(cuts.waiting)} waits"
            case FilesDiscarded(paths):
                for held in cuts.waiting:
                    lost = cuts.hidden[held].intersection(paths)
                    if lost:
                        yield f"{min(lost)} of held cut {held} was deleted"
            case _:
                pass
        cuts.note(event)


def _approves(record: CheckpointRecord, held: CheckpointRecord) -> bool:
    same = ("parent", "vertices", "tables", "columns", "renames", "hooks", "outside", "max_parallelism")
    equal = all(getattr(record, name) == getattr(held, name) for name in same)
    measured = record.statistics.model_copy(update={"committed_ms": held.statistics.committed_ms})
    due = held.statistics.model_copy(update={"counts": None})
    return record.kind is RowKind.CHECKPOINT and equal and measured == due


@rule("rejected-leaves-nothing")
def rejected_leaves_nothing(history: History) -> Iterator[str]:
    """Yield every file of a rejected cut that no entry names and that still exists when the job has come to rest.

    A savepoint that was taken while the cut waited may share a manifest with it.
    """
    cuts = _Cuts()
    for event in history.without_flow:
        if isinstance(event, CameToRest):
            needed = frozenset[str]().union(*cuts.there.values())
            for held in sorted(cuts.rejected):
                left = (cuts.hidden[held] & event.files) - needed
                if left:
                    yield f"{min(left)} of rejected cut {held} is left"
        cuts.note(event)
