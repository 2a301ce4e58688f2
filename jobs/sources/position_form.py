"""The short form of positions that people read in reports and write for `tidemark reset`.

| position of                | is written as                                                       |
|----------------------------|---------------------------------------------------------------------|
| any source, at its start   | `start`                                                             |
| a source of numbers        | the next number, `150`                                              |
| a source of files          | the last file and its rows that were read, `2013-01-07.parquet:842` |
"""

import json
from typing import Final

from checkpointing.identifiers import SplitId, VertexId
from checkpointing.metadata.record import CheckpointRecord

START: Final = "start"
END: Final = "end"


def positions_of(record: CheckpointRecord | None) -> dict[tuple[VertexId, SplitId], str | None]:
    """Return the position of each split of each source at a cut."""
    return {
        (vertex.vertex, SplitId(split)): subtask.position
        for vertex in (record.vertices if record is not None else ())
        if vertex.splits
        for split, subtask in zip(vertex.splits, vertex.subtasks, strict=True)
    }


def written(position: str | None) -> str:
    """Return a position in its short form; a text of an unknown kind as it is."""
    if position is None:
        return START
    match _parsed(position):
        case {"files": [], "consumed": 0}:
            return START
        case {"files": [*_, {"name": str(name)} | [str(name), *_]], "consumed": int(consumed)}:
            return f"{name}:{consumed}"
        case _:
            return position


def rows_before(position: str | None) -> int | None:
    """Return the rows before a position of a sequence or of a file source; None for a text of another kind."""
    if position is None:
        return 0
    match _parsed(position):
        case bool():
            return None
        case int(number):
            return number
        case {"before": int(before), "consumed": int(consumed)}:
            return before + consumed
        case _:
            return None


def _parsed(position: str) -> object:
    try:
        return json.loads(position)
    except ValueError:
        return None
