"""The steps between a claim and its work: repair tables that are behind, roll forward, discard leftovers.

Every start takes these steps. If it crashes here, the next one takes them again.
"""

from collections.abc import Iterable
from dataclasses import replace

from checkpointing.commit.behind import Doubt, Versions
from checkpointing.commit.columns import columns_of
from checkpointing.commit.cut_correcting import Correction, corrected
from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.leftovers import referenced
from checkpointing.commit.outside import outside_publications
from checkpointing.commit.recovery import Observed, publications
from checkpointing.graph import TableMode
from checkpointing.identifiers import TableName
from checkpointing.messages import (
    CutRecorded,
    EndTick,
    PublishTable,
    RecordCut,
    TablePublished,
)
from checkpointing.metadata.record import CheckpointRecord, Claim, Row, RowKind
from checkpointing.tick.asking import StepFailedError, Steps, asked
from checkpointing.tick.claiming import Held
from checkpointing.tick.errand import Errand, Terms
from checkpointing.tick.messages import (
    CorrectCuts,
    CutRead,
    DiscardLeftovers,
    Done,
    EnsureTables,
    LeftoversDiscarded,
    LogsSeen,
    LookAtLogs,
    LookAtTables,
    PublishAgain,
    ReadCut,
    Recovered,
    RolledForward,
    TablesSeen,
)


def recovered(errand: Errand, terms: Terms, held: Held) -> Steps[Recovered]:
    """Do everything that dead holders left unfinished, in this order."""
    pending = held.plan.roll_forward if errand.rolls_forward else None
    whole = (yield from repaired(errand, terms, held)) if errand.repairs else True
    settled = pending is None or (yield from rolled_forward_or_left(terms, pending, held.seen.rows, whole=whole))
    leftovers = 0
    if errand.discards and settled:
        leftovers = yield from discarded(held.claim, held.seen)
    return Recovered(held.plan, leftovers)


def repaired(errand: Errand, terms: Terms, held: Held) -> Steps[bool]:
    """Repair tables that show less than a recorded cut, and correct the cuts.

    Return False if a table cannot be repaired and the process goes on nevertheless. Only a rollback does so.
    """
    looked = yield from asked(LookAtTables(held.seen.rows), TablesSeen)
    doubt, pending = looked.doubt, held.plan.roll_forward
    if errand.ensures:
        unsettled = {table.table for table in pending.tables} if pending is not None else set()
        unsettled |= doubt.repairs.tables if doubt is not None else set()
        yield from asked(EnsureTables(held.plan, frozenset(unsettled)), Done)
    if doubt is None or doubt.is_none:
        return doubt is not None
    for again in doubt.repairs.again:
        yield from asked(PublishAgain(again), TablePublished)
    yield from given_to_sinks(terms, held, doubt)
    yield from asked(CorrectCuts(doubt, (yield from _correction(doubt))), Done)
    return True


def given_to_sinks(terms: Terms, held: Held, doubt: Doubt) -> Steps[None]:
    """Publish the newest entry to outside sinks once more, if its cut was lost. No log says whether they have its rows.

    A rollback that leaves this entry behind does not, since it takes these rows back.
    """
    newest = newest_checkpoint(held.seen.rows)
    if newest is not None and newest.checkpoint in doubt.rebuilt and not _may_leave(terms, newest):
        for publication in outside_publications(newest, _parent_of(newest, held.seen.rows)):
            yield from asked(PublishTable(newest.checkpoint, publication), TablePublished)


def _correction(doubt: Doubt) -> Steps[Correction]:
    if not doubt.repairs.tables:
        return Correction(doubt.rebuilt, ())
    logs = yield from asked(LookAtLogs(doubt), LogsSeen)
    correction = corrected(doubt.seen, logs.published)
    return replace(correction, changed={**doubt.rebuilt, **correction.changed})


def rolled_forward_or_left(terms: Terms, pending: CheckpointRecord, rows: Iterable[Row], *, whole: bool) -> Steps[bool]:
    """Roll forward an entry that a dead holder left unpublished. Return whether that was done.

    If it cannot be published, a rollback leaves it behind, unless it goes back to this very entry. If tables are lost
    (not `whole`), a rollback does not even try: the entry's cut would hold other rows than the entry says.
    """
    may_leave = _may_leave(terms, pending)
    if may_leave and not whole:
        return False
    try:
        yield from rolled_forward(pending, rows)
    except StepFailedError as failed:
        if not isinstance(failed.outcome, EndTick) or not may_leave:
            raise
        return False
    return True


def _may_leave(terms: Terms, record: CheckpointRecord) -> bool:
    """Return whether this is a rollback to another entry than this one."""
    return terms.leaves_behind not in (None, record.checkpoint)


def rolled_forward(record: CheckpointRecord, rows: Iterable[Row]) -> Steps[None]:
    """Publish every table of a committed entry, then to outside sinks, and record its cut. `rows` are all entries.

    The cut has all tables whose columns the entry lists: those of the pipeline that wrote it. Tables that the entry
    does not change have the version of its parent's cut. An entry that no tick wrote, or that lists no columns, keeps
    all tables of its parent's cut.

    If an upsert or state table lost log entries, and no retained entry tells its version at the parent's cut, the table
    is missing in that cut (`cut_correcting.corrected`). Its present columns are unknown then, so it gets this entry's
    columns alone.

    The former holder may still be running. It may record this cut, and drop its parent's. So this cut is read after the
    parent's, and if it exists it is used.
    """
    parent = (yield from asked(ReadCut(record.parent), CutRead)).versions
    own = (yield from asked(ReadCut(record.checkpoint), CutRead)).versions
    if own:
        yield RolledForward(record, tuple(own.items()), ())
        return
    versions, notes = _versions_at(parent, record), []
    untold = _untold(parent, record)
    for publication in (*publications(record), *outside_publications(record, _parent_of(record, rows))):
        due = replace(publication, no_others=publication.table in untold)
        published = yield from asked(PublishTable(record.checkpoint, due), TablePublished)
        if not published.outside:
            versions[publication.table] = published.version
        if published.note:
            notes.append(f"{publication.table}: {published.note}")
    yield from asked(RecordCut(record.checkpoint, tuple(versions.items())), CutRecorded)
    yield RolledForward(record, tuple(versions.items()), tuple(notes))


def _parent_of(record: CheckpointRecord, rows: Iterable[Row]) -> CheckpointRecord | None:
    found = (row for row in rows if isinstance(row, CheckpointRecord) and row.checkpoint == record.parent)
    return next(found, None)


def _untold(parent: Versions, record: CheckpointRecord) -> frozenset[TableName]:
    """Return the upsert and state tables that were removed from the parent's cut."""
    were = (table for table in record.tables if parent and table.parent_version and table.table not in parent)
    return frozenset(table.table for table in were if table.mode is not TableMode.APPEND)


def _versions_at(parent: Versions, record: CheckpointRecord) -> dict[TableName, int]:
    touched = {table.table: table.parent_version for table in record.tables}
    said = columns_of(record)
    kept = () if said and record.kind is RowKind.CHECKPOINT else parent
    names = (*said, *kept, *touched)
    return {table: parent.get(table, touched.get(table, 0)) for table in names}


def discarded(claim: Claim, seen: Observed) -> Steps[int]:
    """Delete unreferenced staged files of older generations. Return how many they were.

    What outside sinks have pre-committed for older checkpoints is rolled back with them.

    If an entry cannot be read, delete nothing, because it may name some of the files.
    """
    if seen.damaged:
        return 0
    gone = yield from asked(
        DiscardLeftovers(claim.generation, referenced(seen.rows), claim.first_id), LeftoversDiscarded
    )
    return gone.files
