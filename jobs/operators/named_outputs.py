"""The named outputs of a process function: each has rows of its own schema, beside the function's own output (M2).

The files of a named output lie in the channel of the vertex, in a folder that tells the output's name. A reader of the
vertex takes the files of its output and passes over those of the others. So the protocol needs to know nothing of
outputs: the files of all of them lie between the same barriers. (Flink: `OutputTag`, `SideOutputDataStream`.)
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import polars as pl
import pyarrow as pa

from checkpointing.channel_items import Segment, StagedSegment
from checkpointing.handles import FileHandle
from checkpointing.identifiers import TableName
from checkpointing.partitions import folder_of
from jobs.sinks.staged_files import StagedFiles
from jobs.state.frames import arrow_of, conform, empty_frame

OUTPUT: Final = "_output"
"""The name in the folder of a named output. No table is laid out by a column of this name."""

_IN_PATH: Final = re.compile(rf"/{OUTPUT}=([^/]+)/")


class UnknownOutputError(ValueError):
    """Rows are of an output that the vertex does not have. The message names the vertex and both ways out."""


@dataclass(frozen=True, slots=True)
class NamedOutputs:
    """The named outputs of one vertex, and the channel in which their files lie."""

    channel: TableName
    schemas: Mapping[str, pa.Schema]

    def conformed(self, operator: str, given: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Return the rows of each output, in its schema. An output that the function left out has none.

        Raises FrameSchemaError, and UnknownOutputError for rows of another output.
        """
        unknown = [name for name in given if name not in self.schemas]
        if unknown:
            raise UnknownOutputError(
                f"operator {operator}: the function put out rows as {unknown[0]!r}, and its outputs are "
                f"{', '.join(self.schemas) or 'none'}: declare it, as in process(..., outputs={{{unknown[0]!r}: ...}})"
            )
        return {
            name: conform(given[name], schema, operator, f"output {name}") if name in given else empty_frame(schema)
            for name, schema in self.schemas.items()
        }

    def write(self, writer: StagedFiles, rows: Mapping[str, pl.DataFrame]) -> tuple[FileHandle, ...]:
        """Write one file for each output that has rows. Raises StagedFileError."""
        return tuple(
            writer.write(self.channel, arrow_of(frame, self.schemas[name]), folder=folder_of([(OUTPUT, name)]))
            for name, frame in rows.items()
            if not frame.is_empty()
        )


def joined(parts: Sequence[Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """Return the rows of each output, from all parts in their order. All parts have the same outputs."""
    return {name: pl.concat([part[name] for part in parts]) for name in parts[0]}


def of_output(segments: Iterable[Segment], output: str | None, known: Iterable[str]) -> Iterator[Segment]:
    """Yield the segments with the files of one output only. None is the function's own output.

    `known` are the names of all outputs that the vertex has. Raises UnknownOutputError for rows of another one, which
    only a cut with rows in flight may hold.
    """
    names = frozenset(known)
    for segment in segments:
        if not isinstance(segment, StagedSegment):
            yield segment
            continue
        files = tuple(file for file in segment.files if _output_of(file, names) == output)
        if files:
            yield segment if len(files) == len(segment.files) else replace(segment, files=files)


def _output_of(file: FileHandle, known: frozenset[str]) -> str | None:
    found = _IN_PATH.search(file.path)
    if found is None:
        return None
    if found[1] not in known:
        raise UnknownOutputError(
            f"{file.rows} rows in flight are of the output {found[1]!r}, which the vertex that put them out no longer "
            "has: put the output back, let the pipeline run until a checkpoint holds no rows in flight (a drain does "
            "that), and take it away then"
        )
    return found[1]
