"""Plants bugs in the manifests that hold the handles of entries (ADR 14)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import sha256

from checkpointing.commit import cleanup, manifests
from checkpointing.commit.cleanup import CleanupDecision, CleanupFacts
from checkpointing.commit.manifests import SIZES, Handles, Manifest, PlacedFile, Sizes, Stored
from checkpointing.handles import FileHandle
from checkpointing.identifiers import Generation, TableName
from checkpointing.metadata import files
from checkpointing.metadata.files import handles_of
from checkpointing.metadata.record import CheckpointRecord, ManifestReference, Row
from spec.machines.manifests import FEW
from spec.mutants.judges import LARGE_ENTRIES, MANIFESTS
from spec.mutants.planting import Patch, mutant


@mutant("manifests-stay", MANIFESTS)
def a_clean_up_deletes_the_manifests_of_entries(patch: Patch) -> None:
    def files_of(record: CheckpointRecord) -> frozenset[str]:
        return frozenset(file.path for file in handles_of(record))

    patch.function(files, "files_of", files_of)


@mutant("manifests-stay", MANIFESTS)
def a_clean_up_deletes_the_manifests_of_savepoints(patch: Patch) -> None:
    def files_of(record: CheckpointRecord) -> frozenset[str]:
        return real(record.model_copy(update={"held_in": ()}) if record.is_savepoint else record)

    real = files.files_of
    patch.function(files, "files_of", files_of)


@mutant("manifests-stay", MANIFESTS)
def a_clean_up_keeps_the_manifests_of_the_newest_entry_alone(patch: Patch) -> None:
    def decide_cleanup(facts: CleanupFacts) -> CleanupDecision:
        newest = max((row.checkpoint for row in facts.rows if isinstance(row, CheckpointRecord)), default=None)
        rows = (
            row.model_copy(update={"held_in": ()})
            if isinstance(row, CheckpointRecord) and row.checkpoint != newest
            else row
            for row in facts.rows
        )
        return real(replace(facts, rows=tuple(rows)))

    real = cleanup.decide_cleanup
    patch.function(cleanup, "decide_cleanup", decide_cleanup)


@mutant("manifests-hold", MANIFESTS)
def handles_are_read_that_an_entry_leaves_out(patch: Patch) -> None:
    def counted_by(entry: CheckpointRecord, reference: ManifestReference, held: Handles) -> Manifest:
        return replace(real(entry, reference, held), left_out=0)

    real = manifests.counted_by
    patch.function(manifests, "counted_by", counted_by)


@mutant("manifests-hold", MANIFESTS)
def a_manifest_of_which_little_counts_is_dropped(patch: Patch) -> None:
    def without_sparse(kept: Iterable[Manifest], sizes: Sizes) -> Iterator[Manifest | list[PlacedFile]]:
        return (each for each in real(kept, sizes) if isinstance(each, Manifest))

    real = manifests._without_sparse
    patch.function(manifests, "_without_sparse", without_sparse)


@mutant("manifests-hold", MANIFESTS)
def tables_that_snapshots_name_are_read_without_files(patch: Patch) -> None:
    def shown_by_snapshots(record: CheckpointRecord) -> dict[TableName, tuple[FileHandle, ...]]:
        return real(record) if record.is_whole else {}

    real = manifests._shown_by_snapshots
    patch.function(manifests, "_shown_by_snapshots", shown_by_snapshots)


@mutant("manifests-first", MANIFESTS)
def only_the_first_new_manifest_is_written(patch: Patch) -> None:
    _storing(patch, lambda form: replace(form, new=dict([*form.new.items()][:1])))


@mutant("manifests-first", MANIFESTS)
def a_new_manifest_belongs_to_the_generation_before(patch: Patch) -> None:
    def stored(record: CheckpointRecord, before: Stored | None = None, sizes: Sizes = SIZES) -> Stored:
        earlier = record.model_copy(update={"generation": Generation(max(1, record.generation - 1))})
        form = real(earlier, before, sizes)
        return replace(form, entry=form.entry.model_copy(update={"generation": record.generation}))

    real = manifests.stored
    patch.function(manifests, "stored", stored)


@mutant("manifests-first", MANIFESTS)
def a_manifest_is_named_by_its_first_handle(patch: Patch) -> None:
    patch.put(manifests, "sha256", lambda content: sha256(content.partition(b"}}")[0]))


@mutant("manifests-are-shared", MANIFESTS)
def an_entry_keeps_the_manifests_of_the_oldest_one(patch: Patch) -> None:
    def newest_stored(rows: Iterable[Row]) -> CheckpointRecord | None:
        return real(reversed(tuple(rows)))

    real = manifests.newest_stored
    patch.function(manifests, "newest_stored", newest_stored)


@mutant("manifests-are-shared", MANIFESTS)
def small_manifests_are_always_written_anew(patch: Patch) -> None:
    def without_sparse(kept: Iterable[Manifest], sizes: Sizes) -> Iterator[Manifest | list[PlacedFile]]:
        for each in real(kept, sizes):
            small = isinstance(each, Manifest) and each.size < sizes.manifest
            yield [*each.counted_files] if isinstance(each, Manifest) and small else each

    real = manifests._without_sparse
    patch.function(manifests, "_without_sparse", without_sparse)


@mutant("manifests-are-shared", MANIFESTS)
def every_entry_writes_all_its_manifests(patch: Patch) -> None:
    def stored(record: CheckpointRecord, before: Stored | None = None, sizes: Sizes = SIZES) -> Stored:
        del before
        return real(record, None, sizes)

    real = manifests.stored
    patch.function(manifests, "stored", stored)


def _storing(patch: Patch, otherwise: Callable[[Stored], Stored]) -> None:
    """Change the stored form of every entry with this function."""
    real = manifests.stored

    def stored(record: CheckpointRecord, before: Stored | None = None, sizes: Sizes = SIZES) -> Stored:
        return otherwise(real(record, before, sizes))

    patch.function(manifests, "stored", stored)


@mutant("manifests-hold", LARGE_ENTRIES)
def merged_manifests_hold_again_what_the_entry_leaves_out(patch: Patch) -> None:
    real = manifests._merged

    def merged(parts: list[Manifest | list[PlacedFile]], most: int, sizes: Sizes) -> list[Manifest | list[PlacedFile]]:
        found = real(parts, most, sizes)
        whole = [replace(each, left_out=0) if isinstance(each, Manifest) else each for each in parts]
        return found if len(found) == len(parts) else real(whole, most, sizes)

    patch.put(manifests, "_merged", merged)


@mutant(FEW, LARGE_ENTRIES)
def a_manifest_of_which_little_counts_stays(patch: Patch) -> None:
    patch.put(manifests, "_without_sparse", lambda kept, sizes: iter(kept))


@mutant(FEW, LARGE_ENTRIES)
def small_manifests_are_never_merged(patch: Patch) -> None:
    patch.put(manifests, "_merged", lambda parts, most, sizes: parts)


@mutant(FEW, LARGE_ENTRIES)
def new_handles_stay_in_the_entry_until_a_manifest_is_full(patch: Patch) -> None:
    real = manifests.stored

    def stored(record: CheckpointRecord, before: Stored | None = None, sizes: Sizes = SIZES) -> Stored:
        return real(record, before, replace(sizes, recent=max(sizes.recent, sizes.manifest)))

    patch.function(manifests, "stored", stored)
