"""Declares the vertex of a user's keyed function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from checkpointing.identifiers import vertex_id
from jobs.operators.functions import KeyedFunction
from jobs.operators.meanings import InvalidStateVersionError, process_meanings
from jobs.pipeline.columns import require_free, require_unique
from jobs.pipeline.declarations import Input, ProcessVertex
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.former_names import former_columns, former_id


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns of a process function: its state's own, and what it puts out; `renamed`: old names by new ones."""

    state: StructType
    output: StructType
    renamed: Mapping[str, str]


def process_vertex(
    inputs: tuple[Input, ...], name: str, function: KeyedFunction, rows: Rows, renamed_from: str | None
) -> ProcessVertex:
    """Return the vertex; raise InvalidNameError or InvalidPipelineError for names that it cannot have."""
    where, state, output, keys = f"vertex {name}", rows.state, rows.output, inputs[0].keys
    require_unique(f"{where}, state", [*keys, *state.names])
    require_free(where, [*keys, *state.names])
    require_unique(f"{where}, output", output.names)
    keyed = StructType([*[inputs[0].schema[key] for key in keys], *state.fields])
    try:
        process_meanings(function, keyed, keys)
    except InvalidStateVersionError as error:
        raise InvalidPipelineError(f"{where}: {error}") from error
    return ProcessVertex(
        vertex_id(name),
        inputs,
        output,
        function,
        keyed,
        renamed_from=former_id(renamed_from),
        columns_renamed_from=former_columns(where, keys, _own(keys, state, output), rows.renamed),
    )


def _own(keys: Sequence[str], *schemas: StructType) -> tuple[str, ...]:
    """Return the columns of these schemas that are no keys, each once."""
    return tuple(dict.fromkeys(name for schema in schemas for name in schema.names if name not in keys))
