"""Begins some runs with an import: an entry of another simulated warehouse, as `tidemark run --from DIR@N` does (G1).

The other warehouse has had ticks and visits of its own, with their faults. Its entry gets all its tables' files, its
files are copied, and the core decides the order of everything else and builds the new entry. The importing process may
die at any step, and other ticks may begin meanwhile.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from checkpointing.commit.at_rest import Imported
from checkpointing.commit.net_files import keyed_tables, nothing_staged
from checkpointing.graph import TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation, TableName
from checkpointing.metadata.paths import ROOT
from checkpointing.metadata.record import CheckpointRecord, Claim, Row, TableRecord
from checkpointing.tick.attempts import IMPORT
from checkpointing.tick.messages import RowChosen, TickFact, Work, Worked
from spec.at_the_door import Visitor, at_rest
from spec.cut_contents import line_of
from spec.history import RowCommitted
from spec.named_files import named_files
from spec.pipeline import JOB
from spec.renaming import handle_of
from spec.rest_events import ImportBegun
from spec.savepoints import drained_rows
from spec.world import World

COPIED_AT_ONCE = 5


def importable(origin: World) -> tuple[CheckpointRecord, ...]:
    """Return the entries of another warehouse whose files can all be found there, each with all of them."""
    whole = (_whole(origin, row) for row in origin.checkpoints())
    return tuple(row for row in whole if row is not None and not named_files(row) & origin.gone)


def importing(world: World, origin: World, wanted: CheckpointRecord, visitor: Visitor) -> Iterator[None]:
    """Restore an entry of another warehouse, unless this one holds an entry by then."""
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
    """Return the entry with all files of every table, or None if its own cut and its parent's are gone."""
    base = row.checkpoint if row.checkpoint in origin.cuts else row.parent
    cut = origin.cuts.get(base, {})
    if base not in {NO_CHECKPOINT, *origin.cuts} or any(at > origin.table(name).version for name, at in cut.items()):
        return None
    keyed, said = dict(keyed_tables(row, JOB)), {each.table for each in row.columns}
    added = {each.table for each in row.tables if each.mode is TableMode.APPEND}
    appended = (name for name in sorted({*cut, *added}) if name in said and name not in keyed and _is_output(name))
    tables = [*(_appended(origin, row, name, cut) for name in appended), *keyed.values()]
    changed = {
        "parent": NO_CHECKPOINT,
        "vertices": nothing_staged(row),
        "tables": tuple(each for each in tables if each.adds or each.files),
        "held_in": (),
    }
    return row.model_copy(update=changed)


def _is_output(name: TableName) -> bool:
    """Return whether a table is no state table. One that is no longer in the entry has a cut too."""
    return not name.startswith(f"{ROOT}/")


def _appended(origin: World, row: CheckpointRecord, name: TableName, cut: Mapping[TableName, int]) -> TableRecord:
    """Return all files of an append table: those of the cut, and what an entry without a cut changes."""
    net = [each for each in row.tables if each.table == name and row.checkpoint not in origin.cuts]
    gone = {file.path for each in net for file in each.removes}
    paths = (origin.table(name).versions[cut.get(name, 0)] - gone) | {file.path for each in net for file in each.adds}
    adds = tuple(handle_of(origin, path) for path in sorted(paths))
    return TableRecord(table=name, mode=TableMode.APPEND, adds=adds, parent_version=0)


def _last_id(row: Row) -> int:
    """Return the highest id that the entry says was given out."""
    match row:
        case CheckpointRecord():
            return row.checkpoint
        case Claim():
            return row.first_id
        case _:
            return row.next_id - 1
