"""Declares the table that a stream of changes makes: SCD type 1 or 2."""

from collections.abc import Sequence
from typing import Literal

from pyspark.sql.types import BooleanType

from checkpointing.identifiers import vertex_id
from jobs.operators.applied_changes import (
    CURRENT,
    DELETES,
    HISTORY,
    SEQUENCE,
    VALID_FROM,
    VALID_TO,
    AppliedChanges,
    applied_output,
)
from jobs.operators.changes import KIND
from jobs.operators.schemas import quoted
from jobs.pipeline.columns import require_columns, require_free, require_keys, require_ordered, require_unique
from jobs.pipeline.declarations import AppliedVertex
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.former_names import former_id
from jobs.pipeline.streams import Stream


def apply_changes(  # noqa: PLR0913 - each says one thing of the table
    changes: Stream,
    id: str,  # noqa: A002 - its name
    *,
    keys: Sequence[str],
    sequence_by: str,
    type: Literal[1, 2] = 1,  # noqa: A002 - its name
    apply_as_deletes: str = "false",
    columns: Sequence[str] = (),
    except_columns: Sequence[str] = (),
    renamed_from: str | None = None,
) -> Stream:
    """Return the table that these changes make, to be kept with `upsert`, as AUTO CDC of Spark's pipelines does.

    With type 1 it has a row for each key: that of the change with the greatest `sequence_by`. With type 2 it has a row
    for each version of a key, with `valid_from`, `valid_to` and `current`. Changes may come in any order.
    `apply_as_deletes` is Spark SQL that is true for a change that deletes its key. The table has the keys and these
    `columns`, or all but `except_columns`. `renamed_from` is the id that the vertex had before.
    Raises InvalidNameError, and InvalidPipelineError for columns that are not there or updates of an aggregate.
    """
    where, rows, by = f"vertex {id}", changes.schema, tuple(keys)
    require_keys(where, rows, by)
    require_ordered(where, rows, sequence_by, "sequence_by")
    require_columns(where, rows, [*columns, *except_columns])
    if type not in (1, 2):
        raise InvalidPipelineError(f"{where}: type is {type!r}; write 1 for the newest rows or 2 for all versions")
    if columns and except_columns:
        raise InvalidPipelineError(f"{where}: name columns or except_columns, not both")
    upstream = changes.declarations.updates_of(changes.origin)
    if upstream is not None:
        raise InvalidPipelineError(
            f"{where}: its rows are updates of {upstream!r}, which say themselves what they replace. Write the stream "
            f"of {upstream!r} with upsert"
        )
    kept = columns or [name for name in rows.names if name not in except_columns]
    function = AppliedChanges(by, tuple(name for name in kept if name not in by), sequence_by, type == 2)  # noqa: PLR2004
    added = (VALID_FROM, VALID_TO, CURRENT) if function.history else ()
    require_unique(where, [*rows.names, SEQUENCE, DELETES, HISTORY, KIND, *added])
    require_free(where, rows.names)
    deletes = f"coalesce({apply_as_deletes}, false)"
    told = changes.with_column(DELETES, deletes, BooleanType())
    told = told.with_column(SEQUENCE, quoted([sequence_by]), rows[sequence_by].dataType)
    output = applied_output(told.schema, by, function.columns, history=function.history)
    before = former_id(renamed_from)
    vertex = AppliedVertex(vertex_id(id), (told.as_input(by),), output, function, renamed_from=before)
    changes.declarations.add(vertex)
    return Stream(changes.declarations, vertex.id, (), output)
