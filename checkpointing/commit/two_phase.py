"""Commits one checkpoint at a time: check, append the entry (THE COMMIT POINT), publish, record the cut.

After a crash before `RowAppended`, the epoch is read again. After a later crash, the epoch is committed, and the next
tick rolls it forward. A checkpoint that waits here is FINALISING for its coordinator. From sending the entry until its
outcome is known, it cannot expire, be declined or be subsumed. The next checkpoint waits until its cut is recorded.
During the check, outside sinks may vote (see `outside_sinks`). A plain savepoint is only an entry. It publishes
nothing, so no table is checked for it, and the next entry does not continue from it. A held cut is only an entry too,
but its tables are checked, and the tick commits nothing after it. `TRANSITIONS` has every transition.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest

from checkpointing.commit.columns import columns_at
from checkpointing.commit.net_files import NONE_RENAMED, Renamed, net_tables, with_changes, with_compactions
from checkpointing.commit.outside_sinks import outside_publications, pre_commits
from checkpointing.failures import CheckpointFailureReason
from checkpointing.graph import JobGraph
from checkpointing.handles import FileHandle
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName
from checkpointing.messages import (
    AppendRow,
    CheckTables,
    Compacted,
    CutRecorded,
    Publication,
    PublishFailed,
    PublishTable,
    RecordCut,
    RowAppended,
    RowRefused,
    RowUnknown,
    TableCheckFailed,
    TablePublished,
    TablesChecked,
)
from checkpointing.metadata.files import handles_of_snapshot
from checkpointing.metadata.record import (
    CheckpointRecord,
    Claim,
    HookState,
    PassedBarrier,
    RowKind,
    Statistics,
    VertexRecord,
)
from checkpointing.renamed_columns import declared_renames

# ------------------------------------------------------------------
# The input of a commit: the draft of a checkpoint, and what every entry of the tick carries.


@dataclass(frozen=True, slots=True)
class Draft:
    """A fully acknowledged checkpoint that waits for its turn. Its parent is known only when its turn comes.

    In the draft, `statistics.rows` and `rows_estimated` count the rows that the sources sent in this tick. In the
    entry, they count the rows since the parent's barrier.
    """

    checkpoint: CheckpointId
    vertices: tuple[VertexRecord, ...]
    statistics: Statistics
    subsumed: tuple[CheckpointId, ...] = ()
    """Retained checkpoints that the same commit drops."""
    kind: RowKind = RowKind.CHECKPOINT
    pinned: bool = False
    hooks: tuple[HookState, ...] = ()
    compacted: tuple[Compacted, ...] = ()
    """What the tick has compacted in append tables. A savepoint that publishes nothing has no compactions."""
    barriers: tuple[PassedBarrier, ...] = ()
    """The barriers before this one, at least those since the parent, if the job keeps event time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitIdentity:
    """What every entry of this tick carries. `nonce` is the nonce of the claim, and globally unique."""

    job: str
    generation: Generation
    nonce: str
    max_parallelism: int


class CommitState(Enum):
    """The state of the current commit."""

    IDLE = "idle"
    RESERVING = "reserving"
    """A claim on a further block of checkpoint ids is being appended."""
    CHECKING = "checking"
    FINALISING = "finalising"
    PUBLISHING = "publishing"
    RECORDING = "recording"
    ENDED = "ended"
    """This tick can commit nothing more: it is fenced, in doubt about an append, cannot publish, or holds a cut."""


_S = CommitState
TRANSITIONS: dict[tuple[CommitState, type], tuple[CommitState, ...]] = {
    (_S.CHECKING, TablesChecked): (_S.FINALISING, _S.IDLE),
    (_S.CHECKING, TableCheckFailed): (_S.IDLE,),
    (_S.RESERVING, RowAppended): (_S.IDLE,),
    (_S.RESERVING, RowRefused): (_S.ENDED,),
    (_S.RESERVING, RowUnknown): (_S.ENDED,),
    (_S.FINALISING, RowAppended): (_S.PUBLISHING, _S.RECORDING, _S.IDLE, _S.ENDED),
    (_S.FINALISING, RowRefused): (_S.ENDED,),
    (_S.FINALISING, RowUnknown): (_S.ENDED,),
    (_S.PUBLISHING, TablePublished): (_S.PUBLISHING, _S.RECORDING),
    (_S.PUBLISHING, PublishFailed): (_S.ENDED,),
    (_S.RECORDING, CutRecorded): (_S.IDLE,),
}
"""(state, fact) -> the states to which it can lead. Every other pair is an error of the caller."""


OFFERS: dict[tuple[CommitState, type], tuple[CommitState, ...]] = {
    (_S.IDLE, Claim): (_S.RESERVING,),
    (_S.IDLE, Draft): (_S.CHECKING, _S.FINALISING),
}
"""The first states after `IDLE`, when a draft is offered or its turn comes. A plain savepoint needs no check."""


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """Checkpoint n is committed and published, and its cut is recorded."""

    record: CheckpointRecord
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """The entry of plain savepoint or held cut n is in, and nothing more is to do.

    The tables go on showing its parent.
    """

    record: CheckpointRecord


@dataclass(frozen=True, slots=True)
class Declined:
    """Checkpoint n certainly did not commit. The job may go on and try again."""

    checkpoint: CheckpointId
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class CommitEnded:
    """This tick can commit nothing more. `checkpoint` is the one that it was committing, if any."""

    checkpoint: CheckpointId | None
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True)
class IdsReserved:
    """The tick has a further block of checkpoint ids."""

    first: CheckpointId
    last: CheckpointId


CommitFact = (
    TablesChecked
    | TableCheckFailed
    | RowAppended
    | RowRefused
    | RowUnknown
    | TablePublished
    | PublishFailed
    | CutRecorded
)
CommitOutcome = CheckpointCommitted | Saved | Declined | CommitEnded | IdsReserved
CommitEffect = CheckTables | AppendRow | PublishTable | RecordCut | CommitOutcome


class UnexpectedFactError(RuntimeError):
    """The door got a fact for which its state does not wait. Nothing was changed."""


class TwoPhaseCommit:
    """The door for commits. Offer drafts, step it with the answers, and carry out the effects that it returns."""

    def __init__(
        self,
        graph: JobGraph,
        identity: CommitIdentity,
        *,
        parent: CheckpointRecord | None,
        versions: Mapping[TableName, int],
        at_version: int,
        renamed: Mapping[TableName, Renamed] = NONE_RENAMED,
        stays: Iterable[CheckpointId] = (),
    ) -> None:
        """Begin after a claim at `at_version`, with the newest committed entry as the parent.

        The parent already has the graph's names. The first checkpoint publishes the tables in `renamed` whole. Entries
        in `stays` are not subsumed, because a plain savepoint was taken after them (`commit.fencing`).
        """
        self._graph = graph
        self._identity = identity
        self._parent = parent
        self._parent_rows = (0, 0)
        """How many rows the sources had sent in this tick at the parent's barrier, and how many are estimates."""
        self._rows = (0, 0)
        """The same two numbers at the barrier of the entry that is being appended."""
        self._stays = set(stays)
        self._versions = dict(versions)
        self._renamed = dict(renamed)
        self._at_version = at_version
        self._state = CommitState.IDLE
        self._waiting: deque[Draft] = deque()
        self._claim: Claim | None = None
        self._now_ms = 0
        self._record: CheckpointRecord | None = None
        self._unpublished: frozenset[TableName] = frozenset()
        self._outside: tuple[Publication, ...] = ()
        self._notes: tuple[str, ...] = ()

    @property
    def state(self) -> CommitState:
        """The state of the current commit."""
        return self._state

    @property
    def in_doubt(self) -> bool:
        """True while an entry is being appended or is not yet published.

        The tick should not end normally before that.
        """
        return self._state not in (_S.IDLE, _S.CHECKING, _S.ENDED)

    @property
    def parent(self) -> CheckpointRecord | None:
        """The newest committed entry of this line."""
        return self._parent

    def offer(self, draft: Draft, now_ms: int) -> tuple[CommitEffect, ...]:
        """Queue a fully acknowledged checkpoint.

        Its commit starts as soon as the cut of the checkpoint before is recorded.
        """
        self._now_ms = now_ms
        self._waiting.append(draft)
        return self._start()

    def withdraw(self) -> tuple[CommitEffect, ...]:
        """Give up all drafts whose entries were not sent, because the tick ends. They are certainly not committed."""
        reason = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
        withdrawn = tuple(Declined(draft.checkpoint, reason, reason.message) for draft in self._waiting)
        self._waiting.clear()
        if self._state is _S.CHECKING:
            self._state = _S.ENDED
        return withdrawn

    def reserve(self, claim: Claim) -> tuple[CommitEffect, ...]:
        """Append a claim on a further block of ids between two commits. IdsReserved is the answer."""
        self._claim = claim
        return self._start()

    def step(self, fact: CommitFact, now_ms: int) -> tuple[CommitEffect, ...]:
        """Take one answer and return what to do next.

        Raise UnexpectedFactError if the present state does not wait for it.
        """
        if (self._state, type(fact)) not in TRANSITIONS or not self._is_awaited(fact):
            raise UnexpectedFactError(f"{fact} while {self._state.value}")
        self._now_ms = now_ms
        match fact:
            case TablesChecked():
                return self._checked(fact)
            case TableCheckFailed():
                return self._decline(CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, fact.error)
            case RowAppended():
                return self._appended(fact)
            case RowRefused():
                return self._end(CheckpointFailureReason.FENCED, f"the job was claimed by {fact.holder}")
            case RowUnknown():
                unknown = f"whether the entry was written is unknown ({fact.error})"
                message = f"{unknown}; start again: the next tick finds out"
                return self._end(CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, message)
            case TablePublished():
                return self._published(fact)
            case PublishFailed():
                return self._end(CheckpointFailureReason.TABLE_CHANGED, fact.error)
            case CutRecorded():
                return self._recorded()

    def _is_awaited(self, fact: CommitFact) -> bool:
        match fact:
            case RowAppended() | RowRefused() | RowUnknown():
                return fact.nonce == self._awaited_nonce()
            case TablePublished() | PublishFailed():
                return fact.checkpoint == self._checkpoint() and fact.table in self._unpublished
            case TablesChecked() | TableCheckFailed() | CutRecorded():
                return fact.checkpoint == self._checkpoint()

    def _awaited_nonce(self) -> str | None:
        awaited = self._claim if self._state is CommitState.RESERVING else self._record
        return awaited.nonce if awaited else None

    def _checkpoint(self) -> CheckpointId | None:
        if self._state is CommitState.CHECKING:
            return self._waiting[0].checkpoint
        return self._record.checkpoint if self._record else None

    def _start(self) -> tuple[CommitEffect, ...]:
        if self._state is not CommitState.IDLE:
            return ()
        if self._claim is not None:
            self._state = CommitState.RESERVING
            return (AppendRow(self._claim, self._at_version),)
        if not self._waiting:
            return ()
        draft = self._waiting[0]
        if draft.kind is RowKind.SAVEPOINT:
            return self._save(self._waiting.popleft())
        self._state = CommitState.CHECKING
        tables = tuple(table.name for table in self._graph.tables())
        leaving = tuple(file.path for each in self._renamed.values() for file in each.removes)
        votes = pre_commits(self._graph, lambda: self._compose(draft), self._parent)
        return (CheckTables(draft.checkpoint, tables, leaving, votes, keeps=draft.kind is not RowKind.HELD),)

    def _save(self, draft: Draft) -> tuple[CommitEffect, ...]:
        """Append a plain savepoint's entry. Decline it if a newer checkpoint has committed already."""
        if self._parent is not None and self._parent.checkpoint > draft.checkpoint:
            message = f"checkpoint {self._parent.checkpoint} completed before savepoint {draft.checkpoint}; ask again"
            declined = Declined(draft.checkpoint, CheckpointFailureReason.CHECKPOINT_SUBSUMED, message)
            return (declined, *self._start())
        return self._finalise(draft)

    def _checked(self, fact: TablesChecked) -> tuple[CommitEffect, ...]:
        if fact.problems:
            return self._decline(CheckpointFailureReason.TABLE_CHANGED, "; ".join(fact.problems))
        return self._finalise(self._waiting.popleft())

    def _decline(self, reason: CheckpointFailureReason, message: str) -> tuple[CommitEffect, ...]:
        """Give up the draft whose tables were checked, and go on with the next one."""
        self._state = CommitState.IDLE
        return (Declined(self._waiting.popleft().checkpoint, reason, message), *self._start())

    def _finalise(self, draft: Draft) -> tuple[CommitEffect, ...]:
        self._state = CommitState.FINALISING
        self._record = self._compose(draft)
        self._rows = (draft.statistics.rows, draft.statistics.rows_estimated)
        subsumed = tuple(each for each in draft.subsumed if each not in self._stays)
        return (AppendRow(self._record, self._at_version, subsumed),)

    def _compose(self, draft: Draft) -> CheckpointRecord:
        by_vertex = {record.vertex: record for record in draft.vertices}
        columns = columns_at(self._graph, by_vertex, self._parent)
        tables = net_tables(self._graph, by_vertex, self._parent, self._versions, columns, renamed=self._renamed)
        since = self._parent.checkpoint if self._parent else NO_CHECKPOINT
        return CheckpointRecord(
            job=self._identity.job,
            kind=draft.kind,
            pinned=draft.pinned,
            checkpoint=draft.checkpoint,
            parent=since,
            generation=self._identity.generation,
            nonce=f"{self._identity.nonce}/{draft.checkpoint}",
            max_parallelism=self._identity.max_parallelism,
            vertices=draft.vertices,
            tables=with_compactions(tables, draft.compacted, self._versions),
            columns=columns,
            renames=declared_renames(self._graph),
            hooks=draft.hooks,
            outside=tuple(table.name for table in self._graph.tables() if table.outside),
            barriers=tuple(barrier for barrier in draft.barriers if barrier.checkpoint > since),
            statistics=self._of_the_epoch(draft.statistics),
        )

    def _of_the_epoch(self, tick: Statistics) -> Statistics:
        """Return the statistics with the rows since the parent's barrier."""
        rows, estimated = self._parent_rows
        since = {"rows": tick.rows - rows, "rows_estimated": tick.rows_estimated - estimated}
        return tick.model_copy(update={"committed_ms": self._now_ms, **since})

    def _appended(self, fact: RowAppended) -> tuple[CommitEffect, ...]:
        self._at_version = fact.version
        if self._state is CommitState.RESERVING:
            return self._reserved()
        record = self._committing()
        if not record.commits:
            self._stays.add(record.parent)
            self._record, self._state = None, _S.ENDED if record.kind is RowKind.HELD else _S.IDLE
            return (Saved(record), *self._start())
        self._notes, self._outside = (), outside_publications(record, self._parent)
        tables = with_changes(self._graph, record, self._parent, self._renamed)
        self._parent, self._parent_rows, self._renamed = record, self._rows, {}
        return self._publish(tables)

    def _publish(self, tables: tuple[Publication, ...] = ()) -> tuple[CommitEffect, ...]:
        """Publish the tables, then the outside sinks, so that no sink gets a checkpoint that a table refuses."""
        todo, self._outside = (tables, self._outside) if tables else (self._outside, ())
        if not todo:
            return self._record_cut()
        self._state, self._unpublished = CommitState.PUBLISHING, frozenset(each.table for each in todo)
        return tuple(PublishTable(self._committing().checkpoint, each) for each in todo)

    def _reserved(self) -> tuple[CommitEffect, ...]:
        claim, self._claim, self._state = self._claim, None, _S.IDLE
        if claim is None:
            raise UnexpectedFactError("no claim was being appended")
        return (IdsReserved(claim.first_id, claim.last_id), *self._start())

    def _published(self, fact: TablePublished) -> tuple[CommitEffect, ...]:
        if not fact.outside:
            self._versions[fact.table] = fact.version
        self._unpublished -= {fact.table}
        self._notes += (f"{fact.table}: {fact.note}",) if fact.note else ()
        return () if self._unpublished else self._publish()

    def _record_cut(self) -> tuple[CommitEffect, ...]:
        self._state = CommitState.RECORDING
        versions = tuple((table.name, self._versions.get(table.name, 0)) for table in self._graph.tables())
        return (RecordCut(self._committing().checkpoint, versions),)

    def _recorded(self) -> tuple[CommitEffect, ...]:
        done = CheckpointCommitted(self._committing(), self._notes)
        self._record, self._state = None, CommitState.IDLE
        return (done, *self._start())

    def _end(self, reason: CheckpointFailureReason, message: str) -> tuple[CommitEffect, ...]:
        self._state = CommitState.ENDED
        return (CommitEnded(self._record.checkpoint if self._record else None, reason, message),)

    def _committing(self) -> CheckpointRecord:
        if self._record is None:
            raise UnexpectedFactError("no checkpoint is being committed")
        return self._record


# ------------------------------------------------------------------
# Says in which order things must become durable, so that a power cut takes nothing that an entry or a recorded cut
# names.
#
# The order is the invariant: first the files that an entry names, then the entry (the commit point), then all log
# entries up to the versions of its cut, then the cut. Whatever retained entries and recorded cuts name is durable
# already, and is not synced again.
#
# A rollback is an exception. Its entry names only the files that change, and relies on the tables' logs for the
# others. So all log entries of its tables are synced before its entry.


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of a table's log from version `first` to version `last`."""

    table: TableName
    first: int
    last: int


def files_to_sync(row: CheckpointRecord, retained: Iterable[CheckpointRecord]) -> tuple[str, ...]:
    """Return the files that must be durable before the entry is appended: those that no retained entry names.

    A subtask that has the same snapshot in a retained entry is skipped, so that only changes cost anything. A file that
    has moved to another subtask may be returned although it is durable. A file whose content lies inside the entry
    becomes durable with it. The files of upsert and state tables are those of the snapshots.
    """
    entries = tuple(retained)
    wanted = dict.fromkeys(file.path for file in _appended(row) if not file.inline)
    durable = {file.path for each in entries for file in _appended(each)}
    known = [{vertex.vertex: vertex.subtasks for vertex in each.vertices} for each in entries]
    for vertex in row.vertices:
        for now, *before in zip_longest(vertex.subtasks, *(each.get(vertex.vertex, ()) for each in known)):
            if now in before:
                continue
            if now is not None:
                wanted |= dict.fromkeys(file.path for file in handles_of_snapshot(now) if not file.inline)
            durable.update(file.path for each in before if each is not None for file in handles_of_snapshot(each))
    return tuple(path for path in wanted if path not in durable)


def _appended(row: CheckpointRecord) -> Iterator[FileHandle]:
    """Yield the files that an entry adds to append tables, also those that replace compacted or erased files."""
    for table in row.tables:
        yield from (*table.adds, *(each.into for each in table.compactions))
    yield from (each.into for each in row.erased if each.into is not None)


def entries_to_sync(
    versions: Mapping[TableName, int], cuts: Mapping[CheckpointId, Mapping[TableName, int]]
) -> tuple[Entries, ...]:
    """Return the log entries that must be durable before a cut of these versions is recorded.

    These are all log entries since the newest recorded cut, including those of other writers. A log with a gap cannot
    be loaded.
    """
    return tuple(_entries(versions, cuts))


def _entries(
    versions: Mapping[TableName, int], cuts: Mapping[CheckpointId, Mapping[TableName, int]]
) -> Iterator[Entries]:
    for table, version in versions.items():
        durable = max((cut[table] for cut in cuts.values() if table in cut), default=-1)
        if version > durable:
            yield Entries(table, durable + 1, version)
