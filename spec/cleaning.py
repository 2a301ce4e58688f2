"""Cleans up in the simulator's stores: in the product's order of reading, with the core's decision.

Other processes have their turns between any two steps. So a clean-up may act on what was true before. If stores fail,
it may also read the entries or the recorded cuts without their newest change. It asks for the end of a table's log by
name, so no list misleads it there. It leaves a table alone whose log does not have the version of a cut.
"""

from collections.abc import Iterator, Mapping

from checkpointing.commit.cleanup import (
    CleanupFacts,
    CleanUpLook,
    ListedFile,
    Shown,
    TableSeen,
    decide_cleanup,
    noted,
    readable_cuts,
)
from checkpointing.identifiers import CheckpointId, Generation, TableName
from checkpointing.metadata.record import Row
from checkpointing.tick.attempts import CLEANUP
from checkpointing.tick.messages import Work, Worked
from spec.at_the_door import SOMEONE, Visitor, at_rest
from spec.table_log import TableLog
from spec.world import World

Cuts = list[Mapping[TableName, int]]


def cleaning(world: World, grace_ms: int, visitor: Visitor = SOMEONE) -> Iterator[None]:
    """Clean up a job that nobody holds, by claiming it."""

    def cleaned(work: Work) -> Iterator[None]:
        return cleaning_while_held(world, work.claim.generation, grace_ms)

    yield from at_rest(world, CLEANUP, lambda _: Worked(), visitor, cleaned)


def cleaning_while_held(world: World, current: Generation, grace_ms: int) -> Iterator[None]:
    """Clean up as the process that holds the job, or that was taken over and does not know it."""
    recorded = frozenset(world.cuts)
    yield
    readable = readable_cuts(world.rows(), recorded)
    yield
    world.drop_cuts(recorded - readable)
    yield from cleaning_beside(world, current, grace_ms, others_hold=False)


def cleaning_beside(world: World, current: Generation, grace_ms: int, *, others_hold: bool = True) -> Iterator[None]:
    """Delete unneeded files. `current` is the newest generation that was seen, perhaps at work."""
    there = world.listed()
    yield
    rows, recorded = _rows(world, others_hold=others_hold), _cuts(world, others_hold=others_hold)
    yield
    kept: Cuts = [recorded[each] for each in (recorded if others_hold else readable_cuts(rows, recorded.keys()))]
    kept += world.readers.cuts(world.now_ms)
    logs = {name: log.copy() for name, log in world.tables.items()}
    alone = {name for name, log in logs.items() if any(cut.get(name, 0) > log.version for cut in kept)}
    tables = {name: log for name, log in logs.items() if name not in alone}
    seen = {name: _seen(name, log, kept) for name, log in tables.items()}
    active = (log.versions[at] for name, log in tables.items() for at in {log.version, *seen[name].cuts})
    facts = CleanupFacts(
        current=current,
        others_hold=others_hold,
        now_ms=world.now_ms,
        grace_ms=grace_ms,
        rows=rows,
        recorded=frozenset(recorded),
        found=tuple(file for path in there if (file := _listed(world, path, tables)).table not in alone),
        active=frozenset[str]().union(*active),
        looks=world.looks,
        reservations=world.readers.all(),
    )
    yield
    if facts.pending is None:
        world.looks = noted(world.looks, CleanUpLook(facts.now_ms, seen), grace_ms)
    for unneeded in decide_cleanup(facts).delete:
        world.discard([unneeded.file.path])
    yield


def _rows(world: World, *, others_hold: bool) -> tuple[Row, ...]:
    """Return the entries. A process that does not hold the job may not see the newest one."""
    _, before = world.before
    return before if others_hold and _is_stale(world) else world.rows()


def _cuts(world: World, *, others_hold: bool) -> dict[CheckpointId, Mapping[TableName, int]]:
    """Return the recorded cuts. A process that does not hold the job may not see the newest one."""
    lags = others_hold and _is_stale(world)
    return {each: cut for each, cut in world.cuts.items() if not lags or each in world.cuts_before}


def _is_stale(world: World) -> bool:
    return world.faults is not None and world.faults.is_stale_for_clean_ups()


def _seen(name: TableName, log: TableLog, cuts: Cuts) -> TableSeen:
    versions = frozenset(cut[name] for cut in cuts if name in cut)
    return TableSeen(log.version, versions, in_every_cut=all(name in cut for cut in cuts))


def _listed(world: World, path: str, tables: dict[TableName, TableLog]) -> ListedFile:
    written = world.files[path]
    table = TableName(path.rpartition("/_data/")[0] or path.rpartition("/")[0])
    shown = tables[table].times_of(path) if table in tables else ()
    over = tuple(Shown(first, until, at_ms) for first, until, at_ms in shown)
    return ListedFile(path, table, written.generation or None, 1, written.at_ms, over)
