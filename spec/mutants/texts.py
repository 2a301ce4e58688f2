"""Plants bugs in how the codec reads older formats, and in what it refuses (H1)."""

from collections.abc import Callable
from typing import Any

from checkpointing.metadata import codec, field_validity, migrations, row_validity
from checkpointing.metadata.record import FORMAT, CheckpointRecord, Row, RowKind
from spec.mutants.judges import CODEC
from spec.mutants.planting import Patch, mutant

Fields = dict[str, Any]

# ------------------------------------------------------------------ older formats


def _migrating(patch: Patch, change: Callable[[Fields], Fields], below: int = FORMAT) -> None:
    """Let an entry of an older format be read with other fields. `change` returns them."""
    real = migrations.migrate

    def migrate(kind: str, document: Fields, *, at: int) -> Fields:
        moved = real(kind, document, at=at)
        is_cut = kind not in (RowKind.CLAIM.value, RowKind.RELEASE.value)
        return moved | change(moved) if is_cut and at < below else moved

    patch.function(migrations, "migrate", migrate)


@mutant("formats-keep-their-meaning", CODEC)
def an_older_rollback_forgets_the_files_that_leave_a_table(patch: Patch) -> None:
    _migrating(patch, lambda row: {"tables": [table | {"removes": []} for table in row["tables"]]})


@mutant("formats-keep-their-meaning", CODEC)
def entries_from_before_manifests_know_no_columns(patch: Patch) -> None:
    _migrating(patch, lambda _: {"columns": []})


@mutant("formats-keep-their-meaning", CODEC)
def every_cut_from_before_rollbacks_is_pinned(patch: Patch) -> None:
    _migrating(patch, lambda _: {"pinned": True}, below=3)


@mutant("formats-keep-their-meaning", CODEC)
def positions_of_the_oldest_formats_are_not_read(patch: Patch) -> None:
    def vertex(each: Fields) -> Fields:
        return each | {"subtasks": [subtask | {"position": None} for subtask in each["subtasks"]]}

    _migrating(patch, lambda row: {"vertices": [vertex(each) for each in row["vertices"]]}, below=4)


# ------------------------------------------------------------------ false entries


def _believing(patch: Patch, *fields: str) -> None:
    """Let the codec believe an entry in which one of these fields is wrong."""
    real = row_validity.must_be_valid

    def must_be_valid(row: Row) -> None:
        try:
            real(row)
        except field_validity.InvalidFieldError as error:
            if error.field.split(".")[-1].split("[")[0] not in fields:
                raise

    patch.put(codec, "must_be_valid", must_be_valid)


@mutant("false-entries-refused", CODEC)
def a_vertex_may_read_one_split_twice(patch: Patch) -> None:
    _believing(patch, "splits")


@mutant("false-entries-refused", CODEC)
def a_table_may_have_one_column_twice(patch: Patch) -> None:
    _believing(patch, "columns")


@mutant("false-entries-refused", CODEC)
def a_checkpoint_may_be_its_own_parent(patch: Patch) -> None:
    _believing(patch, "parent")


@mutant("false-entries-refused", CODEC)
def a_file_may_lie_outside_the_folders_of_the_job(patch: Patch) -> None:
    _believing(patch, "path")


def _outside_decides(patch: Patch, *kinds: RowKind) -> None:
    """Let the envelope decide which of these kinds an entry is."""
    real = codec._row

    def row_of(kind: str, number: int, row: Fields, writer: str) -> Row:
        read = real(kind, number, row, writer)
        if isinstance(read, CheckpointRecord) and read.kind in kinds and RowKind(kind) in kinds:
            return read.model_copy(update={"kind": RowKind(kind)})
        return read

    patch.put(codec, "_row", row_of)


@mutant("false-entries-refused", CODEC)
def a_savepoint_may_call_itself_a_checkpoint_outside(patch: Patch) -> None:
    _outside_decides(patch, RowKind.CHECKPOINT, RowKind.SAVEPOINT)


@mutant("false-entries-refused", CODEC)
def a_reset_may_call_itself_a_rollback_outside(patch: Patch) -> None:
    _outside_decides(patch, RowKind.ROLLBACK, RowKind.RESET)


@mutant("false-entries-refused", CODEC)
def a_checkpoint_may_call_itself_a_rollback_outside(patch: Patch) -> None:
    _outside_decides(patch, RowKind.CHECKPOINT, RowKind.ROLLBACK)


@mutant("false-entries-refused", CODEC)
def a_kind_that_is_not_known_is_a_checkpoint(patch: Patch) -> None:
    real = codec._envelope

    def envelope(text: object) -> Fields:
        found = real(text)
        return found if found["kind"] in codec._MODELS else found | {"kind": RowKind.CHECKPOINT.value}

    patch.put(codec, "_envelope", envelope)
