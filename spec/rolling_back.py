"""Going back to an older cut over the simulator's stores: what `tidemark rollback` does, effect by effect (K2).

Where rows turn, which ones leave and how a row is published is the core's own; what leads each table back is
read from its log, as the real stores do it. Each yield is a place where whoever does it may die.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from checkpointing.columns import TableColumn
from checkpointing.commit.columns import columns_of, leaving
from checkpointing.commit.fencing import HolderObserved, newest_checkpoint
from checkpointing.commit.line import Turn, turn_back
from checkpointing.commit.live_files import live_files
from checkpointing.commit.net import nothing_staged
from checkpointing.commit.recovery import Observed, RecoveryPlan, decide_recovery, publications
from checkpointing.graph import JobGraph, Table, TableMode
from checkpointing.handles import FileHandle
from checkpointing.identifiers import CheckpointId, TableName, VertexId
from checkpointing.metadata.record import (
    CheckpointRecord,
    Claim,
    Holder,
    Release,
    RowKind,
    Statistics,
    TableRecord,
)
from spec.behind import bringing_back, restore_what_is_lost
from spec.pipeline import RENAMED_TABLES, RENAMED_VERTICES, ROW_BYTES
from spec.world import World

_NOBODY_TURNS: Final = Turn((), (), ())


def claimed_at_rest(world: World) -> tuple[Claim, RecoveryPlan]:
    """Append a claim on a job that nobody holds any more; return it with what is to be done first."""
    restore_what_is_lost(world)
    holder = HolderObserved(alive=False, lease=None)
    seen = Observed(world.version, world.rows(), frozenset(world.cuts), holder, world.now_ms)
    plan = decide_recovery(seen, take_over=True)
    if not isinstance(plan, RecoveryPlan):
        raise TypeError(f"nobody holds the job, and yet: {plan}")
    claim = plan.claim.claim(Holder(host="here", pid=1, started=""), 0, f"claim-{plan.claim.generation}")
    world.append(claim, world.version)
    return claim, plan


def others_than_the_newest(world: World) -> tuple[CheckpointId, ...]:
    """Return the rows that the job may go back to, savepoints that it has left behind among them."""
    newest = newest_checkpoint(world.rows())
    others = (row for row in world.checkpoints() if newest and row.checkpoint != newest.checkpoint)
    return tuple(row.checkpoint for row in others if row.checkpoint in world.cuts or row.parent in world.cuts)


def rolling_forward(world: World, graph: JobGraph, record: CheckpointRecord | None) -> Iterator[None]:
    """Publish a committed row table by table, and record its cut; nothing if there is none."""
    if record is None:
        return
    parent = world.cuts.get(record.parent, {})
    touched = {table.table: table.parent_version for table in record.tables}
    said = [each.table for each in record.columns] or [table.name for table in graph.tables()]
    versions = {name: parent.get(name, touched.get(name, 0)) for name in dict.fromkeys([*said, *parent, *touched])}
    for publication in publications(record):
        versions[publication.table] = world.publish(record.checkpoint, publication).version
        yield
    world.record_cut(record.checkpoint, tuple(versions.items()))
    yield


def made_ready(world: World, graph: JobGraph, claim: Claim, plan: RecoveryPlan) -> Iterator[None]:
    """Publish what is committed, and delete what a dead tick left, before a row comes that no tick wrote."""
    yield from bringing_back(world)
    yield from rolling_forward(world, graph, plan.roll_forward)
    world.discard_leftovers(claim.generation)
    yield


def moved_on(
    world: World, graph: JobGraph, claim: Claim, row: CheckpointRecord, turn: Turn = _NOBODY_TURNS
) -> Iterator[None]:
    """Append a row that no tick wrote, publish it, record its cut, and release the job behind its id."""
    world.append(row, world.version, turn.dropped, turn.marks)
    yield
    yield from rolling_forward(world, graph, row)
    released(world, claim, CheckpointId(row.checkpoint + 1))


def released(world: World, claim: Claim, next_id: CheckpointId) -> None:
    """Let the job go; the next claim goes on with that id."""
    world.append(release_of(claim, next_id), world.version)


def release_of(claim: Claim, next_id: CheckpointId) -> Release:
    """Return the row that ends a claim."""
    return Release(generation=claim.generation, next_id=next_id, at_ms=0, nonce=f"{claim.nonce}/release")


def rolling_back(world: World, graph: JobGraph, checkpoint: CheckpointId) -> Iterator[None]:
    """Take tables, state and positions back to that row: claim, roll forward, discard, append, publish, release.

    Nothing is changed but the claim if a table cannot go back, since a neighbour has merged its files, or since the
    cut has gone with entries that its log has lost.
    """
    claim, plan = claimed_at_rest(world)
    yield
    yield from made_ready(world, graph, claim, plan)
    rows = world.checkpoints()
    target = next(row for row in rows if row.checkpoint == checkpoint)
    if checkpoint not in others_than_the_newest(world) or _merged(world, graph, target):
        released(world, claim, claim.first_id)
        return
    yield from moved_on(world, graph, claim, _rollback_to(world, graph, target, claim), turn_back(rows, target))


def _rollback_to(world: World, graph: JobGraph, target: CheckpointRecord, claim: Claim) -> CheckpointRecord:
    newest = newest_checkpoint(world.rows())
    return target.model_copy(
        update={
            "kind": RowKind.ROLLBACK,
            "pinned": False,
            "abandoned": False,
            "checkpoint": claim.first_id,
            "parent": target.checkpoint,
            "generation": claim.generation,
            "nonce": f"{claim.nonce}/rollback",
            "vertices": nothing_staged(target),
            "tables": tuple(
                _back(world, vertex, table, target).model_copy(
                    update={"leaving": leaving(_shown(world, newest, table), columns_of(target).get(table.name))}
                )
                for vertex, table in _tables(world, graph, target)
            ),
            "statistics": Statistics(triggered_ms=0, committed_ms=0, rows=0),
        }
    )


def _shown(world: World, newest: CheckpointRecord | None, table: Table) -> tuple[TableColumn, ...]:
    """Return the columns of a table that the newest row has, or those of its log if the row has it not."""
    said = columns_of(newest).get(table.name)
    return said or tuple(TableColumn(name, "long") for name in sorted(world.table(table.name).columns[-1]))


def _tables(world: World, graph: JobGraph, target: CheckpointRecord) -> Iterator[tuple[VertexId, Table]]:
    """Yield every table that the job has now or had at the row, each with the vertex that writes it.

    It may have its first name, the other one, or both, if both have a log.
    """
    said = {each.table for each in target.columns}
    for vertex in graph.operators():
        for table in vertex.tables:
            yield vertex.id, table
            other = RENAMED_TABLES.get(table.name)
            if other is not None and (other in said or world.table(other).version):
                yield RENAMED_VERTICES[vertex.id], replace(table, name=other)


def _back(world: World, vertex: VertexId, table: Table, target: CheckpointRecord) -> TableRecord:
    """Return what leads a table to its content at that row: its files, or of an append table what comes and goes."""
    log = world.table(table.name)
    if table.mode is not TableMode.APPEND:
        was = next((each for each in target.vertices if each.vertex == vertex), None)
        files = live_files(table, was) if was is not None else ()
        return TableRecord(table=table.name, mode=table.mode, files=files, parent_version=log.version)
    wanted = _appended(world, table.name, target)
    return TableRecord(
        table=table.name,
        mode=TableMode.APPEND,
        adds=tuple(_handle(world, path) for path in sorted(wanted - log.active)),
        removes=tuple(_handle(world, path) for path in sorted(log.active - wanted)),
        parent_version=log.version,
    )


def _appended(world: World, name: TableName, target: CheckpointRecord) -> frozenset[str]:
    """Return an append table's files at the row: at its cut, or at its parent's and what a plain savepoint adds."""
    published = target.checkpoint in world.cuts
    cut = world.cuts.get(target.checkpoint if published else target.parent, {})
    net = [] if published else [each for each in target.tables if each.table == name]
    gone = {file.path for each in net for file in each.removes}
    return (world.table(name).versions[cut.get(name, 0)] - gone) | {file.path for each in net for file in each.adds}


def _merged(world: World, graph: JobGraph, target: CheckpointRecord) -> bool:
    """Return whether somebody else's file holds rows from before and after the row: the rollback stops by name."""
    appended = [table.name for _, table in _tables(world, graph, target) if table.mode is TableMode.APPEND]
    changing = (_appended(world, name, target) ^ world.table(name).active for name in appended)
    return any(world.files[path].generation == 0 for paths in changing for path in paths)


def _handle(world: World, path: str) -> FileHandle:
    rows = len(world.files[path].rows)
    return FileHandle(path, rows, rows * ROW_BYTES, 0)
