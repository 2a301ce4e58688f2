"""Plants bugs in imports: their numbers, what the new entry says, and what happens beside them (G1)."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from checkpointing.commit import cleanup
from checkpointing.commit.at_rest import Imported, Stamp
from checkpointing.commit.cleanup import CleanupDecision, CleanupFacts
from checkpointing.commit.fencing import MayClaim
from checkpointing.metadata.record import CheckpointRecord, Claim, VertexRecord
from checkpointing.snapshots import SubtaskSnapshot
from checkpointing.tick.claiming import Claiming
from spec.mutants.judges import IMPORTS, IMPORTS_WITH_CUTS, IMPORTS_WITH_SINKS, with_long_runs
from spec.mutants.planting import Patch, mutant

Changes = Callable[[CheckpointRecord], Mapping[str, object]]
"""The wrong fields of an import's entry, computed from the other warehouse's entry."""


def _append_otherwise(patch: Patch, changes: Changes) -> None:
    real = Imported.row

    def row(self: Imported, claim: Claim, at: Stamp) -> CheckpointRecord:
        return real(self, claim, at).model_copy(update=dict(changes(self.record)))

    patch.put(Imported, "row", row)


def _each_snapshot(
    record: CheckpointRecord, otherwise: Callable[[SubtaskSnapshot], SubtaskSnapshot]
) -> tuple[VertexRecord, ...]:
    return tuple(was.model_copy(update={"subtasks": tuple(map(otherwise, was.subtasks))}) for was in record.vertices)


# ------------------------------------------------------------------ numbers


@mutant("imports-are-new", IMPORTS)
def an_import_counts_as_if_the_other_warehouse_did_not_exist(patch: Patch) -> None:
    patch.put(Claiming, "_above", lambda _, claim: claim)


@mutant("imports-are-new", IMPORTS)
def an_import_counts_ids_on_but_not_generations(patch: Patch) -> None:
    real = Claiming._above

    def above(self: Claiming, claim: MayClaim) -> MayClaim:
        return replace(real(self, claim), generation=claim.generation)

    patch.put(Claiming, "_above", above)


# ------------------------------------------------------------------ what the entry says


@mutant("imports-are-new", IMPORTS)
def the_import_of_a_savepoint_is_pinned(patch: Patch) -> None:
    _append_otherwise(patch, lambda record: {"pinned": record.pinned})


@mutant("imports-are-new", IMPORTS)
def the_import_of_a_plain_savepoint_is_one(patch: Patch) -> None:
    _append_otherwise(patch, lambda record: {"kind": record.kind})


@mutant("imports-are-new", IMPORTS)
def the_import_of_an_abandoned_savepoint_is_abandoned(patch: Patch) -> None:
    _append_otherwise(patch, lambda record: {"abandoned": record.abandoned})


@mutant("cut-is-exact", IMPORTS)
def an_import_leaves_the_rows_in_flight_behind(patch: Patch) -> None:
    _append_otherwise(
        patch, lambda record: {"vertices": _each_snapshot(record, lambda one: replace(one, in_flight=()))}
    )


@mutant("cut-is-exact", IMPORTS)
def an_import_publishes_keyed_tables_only(patch: Patch) -> None:
    _append_otherwise(patch, lambda record: {"tables": tuple(each for each in record.tables if each.files)})


@mutant("imports-are-new", IMPORTS_WITH_SINKS)
def an_import_goes_outside_once_more(patch: Patch) -> None:
    _append_otherwise(patch, lambda record: {"outside": record.outside})


@mutant("imports-are-new", IMPORTS_WITH_CUTS)
def an_import_forgets_where_a_split_stands(patch: Patch) -> None:
    def forgotten(record: CheckpointRecord) -> Mapping[str, object]:
        first = next(was.vertex for was in record.vertices if was.splits)
        vertices = (
            was.model_copy(update={"subtasks": (replace(was.subtasks[0], position=None), *was.subtasks[1:])})
            if was.vertex == first
            else was
            for was in record.vertices
        )
        return {"vertices": tuple(vertices)}

    _append_otherwise(patch, forgotten)


# ------------------------------------------------------------------ beside an import


@mutant("no-file-is-missed", with_long_runs(IMPORTS))
def a_clean_up_beside_an_import_deletes_what_no_entry_names_yet(patch: Patch) -> None:
    real = cleanup.decide_cleanup

    def decide_cleanup(facts: CleanupFacts) -> CleanupDecision:
        return real(replace(facts, others_hold=False))

    patch.function(cleanup, "decide_cleanup", decide_cleanup)
