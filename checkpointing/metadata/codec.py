"""Translates entries of `checkpoints` to JSON text and back, with their kind, their format number and their writer.

The envelope is `{"kind", "format", "writer", "row"}`. Every version of Tidemark can read the envelope, even if it
cannot read the entry inside. So a version that is too old can say what to install.

Anybody who can write to a warehouse can forge an entry. So every entry is checked here, once, before it is used
(`metadata.row_validity`). Code that uses a decoded entry need not check again whether a path leaves the job's folders.
"""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from checkpointing.metadata.record import FORMAT, CheckpointRecord, Claim, Release, Row, RowKind
from checkpointing.metadata.row_validity import InvalidFieldError, must_be_valid

__all__ = [
    "WAY_OUT",
    "UnknownFormatError",
    "UnreadableRowError",
    "decode",
    "decode_stored",
    "encode",
    "kind_of",
    "must_be_ours",
    "named",
]


# ------------------------------------------------------------------
# Translates entries of older formats into the present format, step by step.
#
# A step takes the JSON object of an entry in format n, and returns it with the fields of format n + 1. `migrate` then
# sets the format number. No other code reads older formats. If you raise `FORMAT`, add a step from the previous
# format, and a test with an entry in that format.


Document = dict[str, Any]
"""An entry as a JSON object."""

Step = Callable[[str, Document], Document]
"""(kind, entry in format n) -> entry with the fields of format n + 1."""


def _each(document: Document, name: str, new: Document) -> Document:
    """Add fields to each object of a list. Anything else stays as it is: the model refuses it."""
    there = document.get(name)
    if not isinstance(there, list):
        return document
    return document | {name: [new | each if isinstance(each, dict) else each for each in there]}


def _with_what_came_to_format_6(kind: str, document: Document) -> Document:
    """Format 7 has fields that versions added to format 6 without a new number.

    An entry without such a field is valid.
    """
    if kind not in (RowKind.CLAIM.value, RowKind.RELEASE.value):
        later = {"renamed": [], "in_order": False, "compactions": [], "of_snapshots": False}
        document = {"outside": [], **_each(document, "tables", later)}
        document = _each(document, "vertices", {"coordinator": None, "outputs_read": None})
        document = _each(document, "columns", {"dropped": []})
    return document


STEPS: Mapping[int, Step] = MappingProxyType({6: _with_what_came_to_format_6})
"""Format n -> the step to n + 1. Version 0.1.0 wrote format 6. No released version wrote an older format."""


class UnknownFormatError(ValueError):
    """An entry in a format that this version cannot read. The message names its writer and what to install."""


def migrate(kind: str, document: Document, *, at: int, to: int = FORMAT, steps: Mapping[int, Step] = STEPS) -> Document:
    """Return the entry, which has format `at`, in format `to`. Raise UnknownFormatError if no steps lead there."""
    for number in range(at, to):
        if number not in steps:
            raise UnknownFormatError(f"no way leads from format {number} of a {kind} row to format {to}")
        document = steps[number](kind, document) | {"format": number + 1}
    return document


_MODELS: dict[str, type[Row]] = {
    RowKind.CLAIM.value: Claim,
    RowKind.RELEASE.value: Release,
    RowKind.CHECKPOINT.value: CheckpointRecord,
    RowKind.SAVEPOINT.value: CheckpointRecord,
    RowKind.ROLLBACK.value: CheckpointRecord,
    RowKind.RESET.value: CheckpointRecord,
    RowKind.FORGET.value: CheckpointRecord,
    RowKind.HELD.value: CheckpointRecord,
}

_ENVELOPE: dict[str, type] = {"kind": str, "format": int, "writer": str, "row": dict}


ROW_CHARACTERS_MAX: Final = 512 * 1024 * 1024
"""Texts longer than this are refused unread. An entry with ten thousand files has some megabytes."""

_WRITER_MAX: Final = 100
_UNKNOWN_FIELD: Final = ("extra_forbidden", "unexpected_keyword_argument")
"""Pydantic's errors for a field that a model, or a dataclass in it, does not have."""


class UnreadableRowError(ValueError):
    """A text is no entry of any format, or Tidemark cannot have written it.

    The message names the entry, the wrong field and the way out.
    """


def kind_of(row: Row) -> RowKind:
    """Return the kind under which an entry is persisted."""
    match row:
        case Claim():
            return RowKind.CLAIM
        case Release():
            return RowKind.RELEASE
        case CheckpointRecord():
            return row.kind


def encode(row: Row, *, writer: str) -> str:
    """Return the entry as JSON text. `writer` is the software and its version, as a user would install it."""
    kind = kind_of(row).value
    return (
        f'{{"kind":{json.dumps(kind)},"format":{FORMAT},"writer":{json.dumps(writer)},"row":{row.model_dump_json()}}}'
    )


def decode(text: str) -> Row:
    """Return an entry, as `decode_stored` does. If some of its files are in manifests, raise UnreadableRowError."""
    row = decode_stored(text)
    if isinstance(row, CheckpointRecord) and not row.is_whole:
        raise UnreadableRowError(f"{named(row)} has its files in manifests, and lies where entries are whole")
    return row


def decode_stored(text: str) -> Row:
    """Return the entry of a JSON text, migrated to the present format. None of its fields names a path outside the job.

    A large entry is in its stored form: `commit.manifests` makes it whole. Raises UnknownFormatError for a format or
    kind of a newer version, with its writer and what to install. Raises UnreadableRowError for any other text that
    Tidemark cannot have written.
    """
    envelope = _envelope(text)
    kind, number, writer = envelope["kind"], envelope["format"], _shown(envelope["writer"])
    if number > FORMAT or kind not in _MODELS:
        what = f"format {number}" if number > FORMAT else f"kind {_shown(kind)!r}"
        raise UnknownFormatError(
            f"a {_shown(kind)} entry in `checkpoints` was written by {writer} in {what}, and this version reads "
            "formats "
            f"up to {FORMAT}: install {writer} or newer"
        )
    row = _row(kind, number, envelope["row"], writer)
    must_be_ours(row, writer)
    if kind_of(row).value != kind:
        raise UnreadableRowError(f"{named(row)} calls itself a {kind} entry outside. {WAY_OUT}")
    return row


def must_be_ours(row: Row, writer: str) -> None:
    """Raise UnreadableRowError for an entry that Tidemark cannot have written."""
    try:
        must_be_valid(row)
    except InvalidFieldError as error:
        raise UnreadableRowError(
            f"{named(row)}, written by {writer}, is not one that Tidemark writes: {error}. {WAY_OUT}"
        ) from error


WAY_OUT: Final = (
    "Use nothing of this warehouse that you did not make yourself: take the savepoint again where it was taken "
    "('tidemark savepoint JOB --to DIR'), or restore the folder `checkpoints` from a backup"
)


def _row(kind: str, number: int, row: dict[str, Any], writer: str) -> Row:
    try:
        document = migrate(kind, row, at=number)
        return _MODELS[kind].model_validate_json(to_json(document))
    except UnknownFormatError:
        raise
    except ValidationError as error:
        raise _misfit(kind, number, document, writer, error) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise UnreadableRowError(
            f"a {kind} entry written by {writer} is damaged: {_first_of(error)}. {WAY_OUT}"
        ) from error


def _misfit(
    kind: str, number: int, document: dict[str, Any], writer: str, error: ValidationError
) -> UnknownFormatError | UnreadableRowError:
    """Return the error for an entry that does not fit its model.

    If the only errors are fields that this version does not know, a newer version wrote the entry in the same format.
    """
    unknown = next((each for each in error.errors(include_url=False) if each["type"] in _UNKNOWN_FIELD), None)
    if unknown is not None and number == FORMAT and _fits_without_unknown_fields(kind, document):
        where = ".".join(str(part) for part in unknown["loc"])
        return UnknownFormatError(
            f"a {kind} entry in `checkpoints` was written by {writer}, newer than this version, which does not know "
            f"its field {_shown(where)}: install {writer} or newer"
        )
    return UnreadableRowError(f"a {kind} entry written by {writer} is damaged: {_first_of(error)}. {WAY_OUT}")


def _fits_without_unknown_fields(kind: str, document: dict[str, Any]) -> bool:
    try:
        _MODELS[kind].model_validate_json(to_json(document), extra="ignore")
    except ValidationError:
        return False
    return True


def _first_of(error: Exception) -> str:
    """Return what is wrong, in one line. For a validation error, return the first wrong field with its rule."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return f"row.{'.'.join(str(part) for part in first['loc'])}: {first['msg']}{more}"
    return f"{type(error).__name__}: {_shown(str(error))}"


def named(row: Row) -> str:
    """Return an entry as messages name it."""
    if isinstance(row, CheckpointRecord):
        return f"the entry of {row.kind.value} {row.checkpoint} of job {_shown(row.job)}"
    return f"the {kind_of(row).value} entry of generation {row.generation}"


def _shown(text: str) -> str:
    """Return a text from outside in a form for messages: short, and without control characters."""
    return "".join(each if each.isprintable() else "?" for each in text[:_WRITER_MAX])


def _envelope(text: object) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > ROW_CHARACTERS_MAX:
        raise UnreadableRowError(f"an entry in `checkpoints` is not text, or is too long. {WAY_OUT}")
    try:
        envelope: Any = from_json(text)
    except ValueError as error:
        raise UnreadableRowError(f"an entry in `checkpoints` is not JSON: {error}. {WAY_OUT}") from error
    if not isinstance(envelope, dict):
        raise UnreadableRowError(f"an entry in `checkpoints` is not a JSON object: {_shown(text)}. {WAY_OUT}")
    for name, kind in _ENVELOPE.items():
        if not isinstance(envelope.get(name), kind) or envelope[name] is True or envelope[name] is False:
            raise UnreadableRowError(f"an entry in `checkpoints` has no {name!r}: {_shown(text)}. {WAY_OUT}")
    return envelope
