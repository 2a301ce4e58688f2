"""Renders `tidemark state`: real columns, one row per key, and a note on rows that are not in the state yet."""

from collections.abc import Iterator, Sequence

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from jobs.reading import Cut, OperatorState
from jobs.showing.quantities import plural

_CELL_MAX = 60


def render_state(cut: Cut, state: OperatorState, rows: pl.DataFrame, total: int) -> RenderableType:
    """Return these rows of an operator's state; `total` is how many keys match."""
    heading = Text.assemble(("state of ", "bold"), (state.operator, "bold"), f" at cut {cut.checkpoint} of {cut.job}")
    return Group(heading, _grid(state, rows), *_notes(state, rows.height, total))


def render_operators(cut: Cut, states: Sequence[OperatorState]) -> RenderableType:
    """Return which operators have state at a cut."""
    heading = Text.assemble(("operators with state ", "bold"), f"at cut {cut.checkpoint} of {cut.job}")
    grid = Grid("operator", "key", "state", "files")
    grid.columns[3].justify = "right"
    for state in states:
        values = [name for name in state.schema.names if name not in state.keys]
        grid.add_row(state.operator, ", ".join(state.keys), ", ".join(values), str(state.files))
    return Group(heading, grid)


def _grid(state: OperatorState, rows: pl.DataFrame) -> Grid:
    grid = Grid()
    for name in rows.columns:
        grid.add_column(Text(name), style="bold" if name in state.keys else None, no_wrap=True)
    for row in rows.iter_rows():
        grid.add_row(*(Text(_cell(value)) for value in row))
    return grid


def _notes(state: OperatorState, shown: int, total: int) -> Iterator[RenderableType]:
    if shown < total:
        yield Text(f"{shown} of {total:,} keys: --limit shows more, --key one of them, --sql the query for all")
    else:
        yield Text(plural(total, "key"))
    if state.rows_on_their_way:
        yield Text(
            f"an unaligned checkpoint: {plural(state.rows_on_their_way, 'row')} in flight to {state.operator} "
            "belong to this cut and are not in the state yet"
        )


def _cell(value: object) -> str:
    """Return a value on one line, a long one cut short."""
    if value is None:
        return "null"
    more = f" and {len(value) - 1} more" if isinstance(value, list) and len(value) > 1 else ""
    text = str(value[0]) if more and isinstance(value, list) else str(value)
    room = _CELL_MAX - len(more)
    return f"{text if len(text) <= room else f'{text[: room - 1]}…'}{more}"
