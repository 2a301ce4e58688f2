"""Rows of `checkpoints` to JSON text and back, with their kind, their format number and who wrote them.

The envelope is `{"kind", "format", "writer", "row"}`: it can be read by every version, whatever the
row inside looks like, so that a version that is too old can say what to install.
"""

import json
from typing import Any

from pydantic import ValidationError

from checkpointing.metadata.migrations import UnknownFormatError, migrate
from checkpointing.metadata.record import FORMAT, CheckpointRecord, Claim, Release, Row, RowKind

__all__ = ["UnknownFormatError", "UnreadableRowError", "decode", "encode", "kind_of"]

_MODELS: dict[str, type[Row]] = {
    RowKind.CLAIM.value: Claim,
    RowKind.RELEASE.value: Release,
    RowKind.CHECKPOINT.value: CheckpointRecord,
    RowKind.SAVEPOINT.value: CheckpointRecord,
    RowKind.ROLLBACK.value: CheckpointRecord,
    RowKind.RESET.value: CheckpointRecord,
}

_ENVELOPE: dict[str, type] = {"kind": str, "format": int, "writer": str, "row": dict}


class UnreadableRowError(ValueError):
    """A row whose text is no row of any format: names the place at which it is wrong."""


def kind_of(row: Row) -> RowKind:
    """Return the kind under which a row is persisted."""
    match row:
        case Claim():
            return RowKind.CLAIM
        case Release():
            return RowKind.RELEASE
        case CheckpointRecord():
            return row.kind


def encode(row: Row, *, writer: str) -> str:
    """Return the row as JSON text; `writer` is the software and its version, as a user would install it."""
    kind = kind_of(row).value
    return (
        f'{{"kind":{json.dumps(kind)},"format":{FORMAT},"writer":{json.dumps(writer)},"row":{row.model_dump_json()}}}'
    )


def decode(text: str) -> Row:
    """Return the row of a JSON text, migrated to the present format.

    Raises UnknownFormatError for a format or kind that only a newer version knows, naming what wrote it
    and what to install, and UnreadableRowError for a text that is no row at all.
    """
    envelope = _envelope(text)
    kind, number, writer = envelope["kind"], envelope["format"], envelope["writer"]
    if number > FORMAT or kind not in _MODELS:
        what = f"format {number}" if number > FORMAT else f"kind {kind!r}"
        raise UnknownFormatError(
            f"a {kind} row in `checkpoints` was written by {writer} in {what}, and this version reads formats "
            f"up to {FORMAT}: install {writer} or newer"
        )
    document = migrate(kind, envelope["row"], at=number)
    try:
        return _MODELS[kind].model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise UnreadableRowError(f"a {kind} row written by {writer} is damaged: {error}") from error


def _envelope(text: str) -> dict[str, Any]:
    try:
        envelope: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableRowError(f"a row in `checkpoints` is no JSON: {error}") from error
    if not isinstance(envelope, dict):
        raise UnreadableRowError(f"a row in `checkpoints` is no JSON object: {text[:200]}")
    for name, kind in _ENVELOPE.items():
        if not isinstance(envelope.get(name), kind):
            raise UnreadableRowError(f"a row in `checkpoints` has no {name!r}: {text[:200]}")
    return envelope
