"""Plants bugs in the state descriptions of an entry: meanings of columns, and keys of upsert tables (D6)."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from checkpointing.commit import net
from checkpointing.commit.draft import Draft
from checkpointing.coordinator import messages as told
from checkpointing.job.drafts import Drafts
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics, VertexRecord
from spec.mutants.judges import ROLLBACKS, SAVEPOINTS
from spec.mutants.planting import Patch, mutant

_Change = Callable[[Draft, VertexRecord], VertexRecord]


def _compose_otherwise(patch: Patch, change: _Change) -> None:
    real = Drafts.compose

    def compose(self: Drafts, effect: told.CommitCheckpoint, statistics: Statistics, own: Mapping[str, str]) -> Draft:
        draft = real(self, effect, statistics, own)
        return replace(draft, vertices=tuple(change(draft, vertex) for vertex in draft.vertices))

    patch.put(Drafts, "compose", compose)


def _without_meanings(vertex: VertexRecord) -> VertexRecord:
    return vertex.model_copy(update={"meanings": None})


@mutant("state-is-described")
def an_entry_forgets_the_meaning_of_its_state(patch: Patch) -> None:
    _compose_otherwise(patch, lambda _, vertex: _without_meanings(vertex))


@mutant("state-is-described")
def an_entry_names_no_keys_of_upsert_tables(patch: Patch) -> None:
    _compose_otherwise(patch, lambda _, vertex: vertex.model_copy(update={"table_keys": ()}))


@mutant("state-is-described", SAVEPOINTS)
def a_plain_savepoint_forgets_the_meaning_of_its_state(patch: Patch) -> None:
    def change(draft: Draft, vertex: VertexRecord) -> VertexRecord:
        return _without_meanings(vertex) if draft.kind is RowKind.SAVEPOINT else vertex

    _compose_otherwise(patch, change)


@mutant("state-is-described", ROLLBACKS)
def a_rollback_forgets_the_meaning_of_its_state(patch: Patch) -> None:
    real = net.nothing_staged

    def nothing_staged(record: CheckpointRecord) -> tuple[VertexRecord, ...]:
        return tuple(map(_without_meanings, real(record)))

    patch.function(net, "nothing_staged", nothing_staged)
