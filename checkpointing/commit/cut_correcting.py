"""Corrects the recorded cuts after tables that had lost log entries were published again.

A corrected cut has the versions at which its tables show the checkpoint again. If an append table's version at a cut
cannot be determined, the cut is dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from checkpointing.commit.behind import Cuts, Reference, Standing, Versions, mode_of, reference, wanted
from checkpointing.graph import TableMode
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, TableName


@dataclass(frozen=True, slots=True)
class Correction:
    """The cuts to record again with other versions, and the cuts to drop because a version cannot be determined."""

    changed: Cuts
    dropped: tuple[CheckpointId, ...]


def corrected(seen: Standing, published: Mapping[TableName, Mapping[CheckpointId, int]]) -> Correction:
    """Return the corrections of the cuts. `published` has the versions at which repaired tables show each checkpoint.

    An upsert or state table whose version cannot be determined is left out of its cut. To go back to the cut, its entry
    is enough. A cut that lacks an append table's version is dropped, except the reference, since the pending entry
    continues from it.
    """
    at = reference(seen)
    changed: dict[CheckpointId, Versions] = {}
    dropped: list[CheckpointId] = []
    for checkpoint, cut in sorted(seen.cuts.items()):
        now = {
            table: version if table not in published else _version_now(seen, at, checkpoint, table, published[table])
            for table, version in cut.items()
        }
        told = {table: version for table, version in now.items() if version is not None}
        untold = [table for table in now if table not in told and mode_of(seen, table) is TableMode.APPEND]
        if untold and (at is None or checkpoint != at.checkpoint):
            dropped.append(checkpoint)
        elif told != cut:
            changed[checkpoint] = told
    return Correction(changed, tuple(dropped))


def _version_now(
    seen: Standing,
    at: Reference | None,
    checkpoint: CheckpointId,
    table: TableName,
    published: Mapping[CheckpointId, int],
) -> int | None:
    """Return a table's version at a cut after all repairs, or None if it cannot be determined."""
    version, want = seen.cuts[checkpoint][table], wanted(seen, checkpoint, table)
    if seen.logs[table].is_as_published(version, want):
        return version
    if want.named is not None:
        return published.get(want.named)
    if at is None or checkpoint not in at.checkpoints or mode_of(seen, table) is TableMode.APPEND:
        return None
    shown = max((each for each in published if each <= checkpoint), default=NO_CHECKPOINT)
    return published[shown] if shown in at.checkpoints else None
