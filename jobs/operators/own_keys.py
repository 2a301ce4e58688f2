"""Checks that each key of an upsert table is written by one subtask only; two would show the key twice."""

from collections.abc import Sequence

import polars as pl


class ForeignKeyError(Exception):
    """A keyed function emitted a row under a key that was not its own: names vertex, table, key and the way out."""

    def __init__(self, operator: str, table: str, key: dict[str, object]) -> None:
        named = ", ".join(f"{name}={value}" for name, value in key.items())
        super().__init__(
            f"vertex {operator}: its function emitted a row with the key {named}, and no row with that key reached "
            f"this subtask; upsert table {table} could then show the key once for each subtask. Emit rows only under "
            "the keys of the rows and the state that the function was given, or key the stream by the table's keys"
        )


def require_own_keys(operator: str, table: str, keys: Sequence[str], output: pl.DataFrame, own: pl.DataFrame) -> None:
    """Raise ForeignKeyError unless the key of every output row is among the subtask's `own`; one join, no loop."""
    foreign = output.select(keys).join(own.select(keys), on=list(keys), how="anti", nulls_equal=True)
    if not foreign.is_empty():
        raise ForeignKeyError(operator, table, foreign.row(0, named=True))
