"""Plants bugs in single checks of an entry, and in how an entry is read (H1).

Each bug concerns one field. An entry without this field does not show it, nor does one with another false field.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from checkpointing.handles import FileHandle
from checkpointing.identifiers import VertexId
from checkpointing.metadata import codec, field_validity, files, migrations, row_validity
from checkpointing.metadata.record import FORMAT, CheckpointRecord, Statistics, VertexRecord, VertexStatistics
from checkpointing.snapshots import ChannelState, RangeFiles
from spec.machines.entries import NAMED
from spec.mutants.judges import ENTRIES
from spec.mutants.planting import Patch, mutant


@mutant("entries-are-checked", ENTRIES)
def a_range_may_be_of_any_table(patch: Patch) -> None:
    real = row_validity._Judge._ranges

    def ranges(self: row_validity._Judge, held: RangeFiles) -> None:
        self._known.add(held.table)
        real(self, held)

    patch.put(row_validity._Judge, "_ranges", ranges)


@mutant("entries-are-checked", ENTRIES)
def rows_in_flight_come_from_anywhere(patch: Patch) -> None:
    def in_flight(self: row_validity._Judge, held: ChannelState) -> None:
        for segment in held.segments:
            self._segment(segment)

    patch.put(row_validity._Judge, "_in_flight", in_flight)


@mutant("entries-are-checked", ENTRIES)
def the_last_number_that_every_reader_takes_is_refused(patch: Patch) -> None:
    patch.put(field_validity, "NUMBER_MAX", field_validity.NUMBER_MAX - 1)


@mutant("entries-are-checked", ENTRIES)
def a_source_with_splits_may_have_other_subtasks(patch: Patch) -> None:
    real = row_validity._Judge._vertex

    def vertex(self: row_validity._Judge, was: VertexRecord) -> None:
        splits = was.splits if len(was.splits) == len(was.subtasks) else ()
        real(self, was.model_copy(update={"splits": splits}))

    patch.put(row_validity._Judge, "_vertex", vertex)


@mutant("entries-are-checked", ENTRIES)
def counts_are_not_looked_at(patch: Patch) -> None:
    patch.put(row_validity, "_counts", lambda _: None)


@mutant("entries-are-checked", ENTRIES)
def measurements_of_any_number_of_subtasks_are_taken(patch: Patch) -> None:
    real = row_validity._of_vertex

    def of_vertex(vertex: VertexStatistics, _: int | None) -> None:
        real(vertex, None)

    patch.put(row_validity, "_of_vertex", of_vertex)


@mutant("entries-are-checked", ENTRIES)
def a_wrong_field_of_the_statistics_is_named_without_them(patch: Patch) -> None:
    real = row_validity._statistics

    def statistics(found: Statistics, subtasks: Mapping[VertexId, int]) -> None:
        try:
            real(found, subtasks)
        except field_validity.InvalidFieldError as error:
            raise field_validity.InvalidFieldError(error.field.rpartition(".")[2], error.why) from error

    patch.put(row_validity, "_statistics", statistics)


@mutant("entries-are-checked", ENTRIES)
def an_entry_whose_files_lie_in_manifests_is_taken_for_whole(patch: Patch) -> None:
    patch.function(codec, "decode", codec.decode_stored)


@mutant("entries-are-checked", ENTRIES)
def claims_of_older_formats_are_read_like_checkpoints(patch: Patch) -> None:
    real = migrations.migrate

    def migrate(kind: str, document: migrations.Document, *, at: int) -> migrations.Document:
        older = {"pinned": False} if at < FORMAT else {}
        return real(kind, older | document, at=at)

    patch.put(codec, "migrate", migrate)


@mutant("entries-are-checked", ENTRIES)
def an_entry_of_a_newer_build_is_called_damaged(patch: Patch) -> None:
    patch.put(codec, "_UNKNOWN_FIELD", ())


@mutant("entries-are-checked", ENTRIES)
def an_entry_with_a_later_field_and_a_false_one_is_called_newer(patch: Patch) -> None:
    patch.put(codec, "_fits_without_unknown_fields", lambda _kind, _document: True)


# ------------------------------------------------------------------ the files of an entry


@mutant(NAMED, ENTRIES)
def the_files_of_the_tables_are_nobodys(patch: Patch) -> None:
    _name_less(patch, lambda record: record.model_copy(update={"tables": ()}))


@mutant(NAMED, ENTRIES)
def what_a_compaction_wrote_is_nobodys(patch: Patch) -> None:
    def bare(record: CheckpointRecord) -> CheckpointRecord:
        tables = (each.model_copy(update={"compactions": ()}) for each in record.tables)
        return record.model_copy(update={"tables": tuple(tables)})

    _name_less(patch, bare)


@mutant(NAMED, ENTRIES)
def a_restore_needs_no_rows_in_flight(patch: Patch) -> None:
    real = files.handles_to_restore

    def handles_to_restore(record: CheckpointRecord) -> Iterator[FileHandle]:
        vertices = (
            each.model_copy(update={"subtasks": tuple(replace(one, in_flight=()) for one in each.subtasks)})
            for each in record.vertices
        )
        return real(record.model_copy(update={"vertices": tuple(vertices)}))

    patch.function(files, "handles_to_restore", handles_to_restore)


def _name_less(patch: Patch, less: Callable[[CheckpointRecord], CheckpointRecord]) -> None:
    real = files.files_of
    patch.function(files, "files_of", lambda record: real(less(record)))
