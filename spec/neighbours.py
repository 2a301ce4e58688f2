"""Simulates other programs that write to the job's tables: they merge files, as OPTIMIZE does."""

from collections.abc import Collection
from itertools import count

from checkpointing.identifiers import Generation, TableName, VertexId
from spec.table_log import Written
from spec.world import World


def optimize(world: World, name: TableName) -> None:
    """Merge all active files of a table into one, unless a committed entry must still remove one of them.

    In the product, publishing that entry would wait, and name the other program, until somebody undoes the merge. Here
    the merge simply does not happen.
    """
    log = world.table(name)
    if log.active & _leaving(world, name):
        return
    if len(log.active) < 2 or world.files[min(log.active)].state:  # noqa: PLR2004 - nothing to compact
        return
    rows = tuple(row for path in sorted(log.active) for row in world.files[path].rows)
    names = (f"{name}/part-{log.version}-{number}" for number in count(len(world.files)))
    path = next(each for each in names if each not in world.files)  # an imported file may have the first name
    world.files[path] = Written(Generation(0), VertexId("foreign"), 0, rows)
    world.durable.add(path)  # its own writer handles that
    log.merged[path] = log.active.union(*(log.merged.get(each, ()) for each in log.active))
    log.commit(frozenset({path}), log.shown[-1], world.now_ms)


def merged(world: World, leaving: Collection[str]) -> list[str]:
    """Return which of these files have been merged into others."""
    there = (files for log in world.tables.values() for path, files in log.merged.items() if path in log.active)
    return sorted(frozenset[str]().union(*there).intersection(leaving))


def undo_merges(world: World, leaving: Collection[str]) -> None:
    """Undo the merges of these files, whose writer a tick has named. The last tick must find none."""
    for log in world.tables.values():
        log.undo_merges(leaving, world.now_ms)


def _leaving(world: World, name: TableName) -> frozenset[str]:
    """Return the files that the table still shows and an entry removes: not published yet, or lost again."""
    shown = world.table(name).shown[-1]
    waiting = [
        row
        for row in world.checkpoints()
        if row.commits and (row.checkpoint not in world.cuts or row.checkpoint > shown)
    ]
    leaving = (file for row in waiting for table in row.tables if table.table == name for file in table.removes)
    return frozenset(file.path for file in leaving)
