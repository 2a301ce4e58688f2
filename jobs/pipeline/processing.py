"""Declares the vertex of a user's keyed function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

from pyspark.sql.types import StructType

from checkpointing.event_time import Expiry
from checkpointing.identifiers import InvalidNameError, VertexId, output_name, vertex_id
from checkpointing.metadata.paths import broadcast_of
from jobs.operators.broadcast import Broadcast
from jobs.operators.in_time.timers import CLOCK, TIMER_STATE, HasTimers, with_timers
from jobs.operators.keyed_vertices import InvalidStateVersionError, process_meanings
from jobs.operators.process import AnyFunction, KeyedFunction, MergesPartials
from jobs.pipeline.columns import InvalidPipelineError, former_columns, former_id, require_free, require_unique
from jobs.pipeline.vertices import Declarations, Declared, Input, ProcessVertex
from jobs.settings import duration_ms
from jobs.state.backend import Expires

NO_OUTPUTS: Final[Mapping[str, StructType]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rows:
    """The columns of a process function: of its own state, of its output, and of its named `outputs`.

    `renamed` maps new column names to old ones.
    """

    state: StructType
    output: StructType
    renamed: Mapping[str, str]
    outputs: Mapping[str, StructType]


def expires(
    after: str,
    *,
    by: Literal["event time", "clock"] = "event time",
    refresh: Literal["writes", "reads"] = "writes",
) -> Expires:
    """Return a time to live of keyed state, as in `ttl=expires("1d", by="clock")` (N5).

    A row of the state is treated as written at the next barrier: at that barrier's watermark, or at its clock if `by`
    says so. With refresh="reads", each row that arrives for its key also extends its life. `ttl="1d"` is short for
    `ttl=expires("1d")`. Raises InvalidPipelineError.
    """
    if by not in ("event time", "clock"):
        raise InvalidPipelineError(f'expires: by is {by!r}; write "event time" or "clock"')
    if refresh not in ("writes", "reads"):
        raise InvalidPipelineError(f'expires: refresh is {refresh!r}; write "writes" or "reads"')
    try:
        after_ms = duration_ms(after)
    except ValueError as error:
        raise InvalidPipelineError(f"expires: {error}") from None
    if after_ms <= 0:
        raise InvalidPipelineError(f"expires: {after} is no time to live; write one such as 1d")
    return Expires(Expiry(after_ms, by_clock=by == "clock"), on_read=refresh == "reads")


def time_to_live(
    name: str, ttl: str | Expires | None, declarations: Declarations, inputs: Sequence[Input]
) -> Expires | None:
    """Return when the state of a vertex expires.

    Raises InvalidPipelineError if that needs event times and rows have none.
    """
    said = expires(ttl) if isinstance(ttl, str) else ttl
    if said is None:
        return None
    if not isinstance(said, Expires):
        raise InvalidPipelineError(
            f'vertex {name}: ttl is {ttl!r}; write one such as "1d" or expires("1d", by="clock")'
        )
    if not said.expiry.by_clock and not any(declarations.has_times(reads) for reads in inputs):
        raise InvalidPipelineError(
            f"vertex {name}: its rows have no event times by which state could expire: declare event_time on a source "
            'of it, or let the clock count, as in ttl=expires("1d", by="clock")'
        )
    return said


def of_user(
    name: str, function: KeyedFunction | HasTimers, rows: Rows, declarations: Declarations, inputs: Sequence[Input]
) -> tuple[AnyFunction, Rows]:
    """Return a user's function in the form in which it runs, and its columns.

    If the function has `on_time`, both include its timers (N4). Raises InvalidPipelineError if no timer could ever be
    due.
    """
    if not isinstance(function, HasTimers):
        return function, rows
    where = f"vertex {name}: its function has on_time"
    by_clock = bool(getattr(function, "by_clock", False))
    if not by_clock and not any(declarations.has_times(reads) for reads in inputs):
        raise InvalidPipelineError(f"{where}, and its rows have no event times: declare event_time on a source of it")
    if by_clock:
        for reads in inputs:
            require_unique(f"vertex {name}", [*reads.schema.names, CLOCK])
    if isinstance(function, MergesPartials) or any(not reads.keys for reads in inputs):
        raise InvalidPipelineError(
            f"{where}, which a function that merges partials or sees a broadcast cannot have: take one of the two away"
        )
    require_unique(f"vertex {name}, state", [*rows.state.names, *TIMER_STATE.names])
    state = StructType([*rows.state.fields, *TIMER_STATE.fields])
    return with_timers(function, inputs[0].keys, by_clock=by_clock), replace(rows, state=state)


def process_vertex(
    inputs: tuple[Input, ...],
    name: str,
    function: AnyFunction,
    rows: Rows,
    renamed_from: str | None,
    *,
    broadcast: Broadcast | None = None,
    expires: Expires | None = None,
) -> ProcessVertex:
    """Return the vertex. Raise InvalidNameError or InvalidPipelineError for names that it cannot have.

    With a `broadcast`, the last input has no keys, and the broadcast says which of its rows are kept.
    """
    where, state, output, keys = f"vertex {name}", rows.state, rows.output, inputs[0].keys
    require_unique(f"{where}, state", [*keys, *state.names])
    require_free(where, [*keys, *state.names])
    require_unique(f"{where}, output", output.names)
    outputs = {output_name(named): schema for named, schema in rows.outputs.items()}
    for named, schema in outputs.items():
        _require_columns_of_output(f"{where}, output {named!r}", schema)
    if outputs and isinstance(function, MergesPartials):
        raise InvalidPipelineError(
            f"{where}: its function merges partials, so its output is its new state and it has no other outputs; "
            "take the methods `partials` and `merged` away, or leave `outputs` out"
        )
    if broadcast is not None:
        _require_broadcast(where, vertex_id(name), inputs[-1].schema, function)
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
        columns_renamed_from=_former_columns(where, keys, rows),
        outputs=outputs,
        broadcast=broadcast,
        expires=expires,
    )


def _require_broadcast(where: str, vertex: VertexId, rows: StructType, function: AnyFunction) -> None:
    """Raise InvalidPipelineError if the rows of a broadcast cannot be kept, or if the function would never see them."""
    require_unique(f"{where}, broadcast", rows.names)
    require_free(f"{where}, broadcast", rows.names)
    try:
        vertex_id(broadcast_of(vertex))
    except InvalidNameError as error:
        raise InvalidPipelineError(
            f"{where}: its broadcast state is called {broadcast_of(vertex)!r}, which is too long; shorten its id"
        ) from error
    if isinstance(function, MergesPartials):
        raise InvalidPipelineError(
            f"{where}: its function merges partials, which depend on the rows of a key alone; take the methods "
            "`partials` and `merged` away to see the broadcast"
        )


def named_output(vertex: Declared | None, origin: VertexId, name: str) -> StructType:
    """Return the columns of this named output. Raise InvalidPipelineError if there is none."""
    if not isinstance(vertex, ProcessVertex):
        raise InvalidPipelineError(
            f"output {name!r} of {origin}: only the stream that process(...) returns has named outputs; call output on "
            "it before any other step"
        )
    if name not in vertex.outputs:
        have = ", ".join(vertex.outputs) or "none"
        raise InvalidPipelineError(
            f"vertex {origin} has no output {name!r}; it has {have}. Declare it, as in "
            f"process(..., outputs={{{name!r}: StructType(...)}})"
        )
    return vertex.outputs[name]


def _require_columns_of_output(where: str, schema: StructType) -> None:
    """Raise InvalidPipelineError for columns that cannot be written to files."""
    if not getattr(schema, "fields", ()):
        raise InvalidPipelineError(f"{where}: give its columns as a StructType with at least one field, not {schema!r}")
    require_unique(where, schema.names)


def _former_columns(where: str, keys: Sequence[str], rows: Rows) -> Mapping[str, str]:
    """Return the old names of columns of state, output and named outputs, each of which has its own columns.

    Raises InvalidNameError, InvalidPipelineError for a rename that makes no sense in one of them.
    """
    own = _own(keys, rows.state, rows.output)
    named = {column for schema in rows.outputs.values() for column in schema.names}
    former_columns(where, keys, own, {new: old for new, old in rows.renamed.items() if new in own or new not in named})
    for name, schema in rows.outputs.items():
        its = {new: old for new, old in rows.renamed.items() if new in schema.names}
        former_columns(f"{where}, output {name!r}", (), schema.names, its)
    return dict(rows.renamed)


def _own(keys: Sequence[str], *schemas: StructType) -> tuple[str, ...]:
    """Return the columns of these schemas that are not keys, each once."""
    return tuple(dict.fromkeys(name for schema in schemas for name in schema.names if name not in keys))
