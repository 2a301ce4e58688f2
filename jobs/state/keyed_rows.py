"""Rows by key in layers, as in an LSM tree: a change adds a layer, and copies no row that it does not touch.

A change of a frame of five million rows copies all of them, though it may touch fifty thousand. Here the changed rows
become a layer of their own, and the older layers only mark their rows of the same keys as replaced. Layers are merged
so that each is more than twice as large as the next one. So there are few of them, and a row is seldom copied.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from jobs.state.key_joins import join_by_key

_FOUND = "\0"
"""A column beside the user's: no column of a user begins with it."""


@dataclass(frozen=True, slots=True)
class RowLayer:
    """Some rows. `counts` says for each whether it still counts, None if all do."""

    rows: pl.DataFrame
    counts: pl.Series | None = None

    @property
    def live(self) -> pl.DataFrame:
        """The rows that still count."""
        return self.rows if self.counts is None else self.rows.filter(self.counts)

    def having(self, chosen: pl.Series) -> pl.Series:
        """Return the chosen places without those that no longer count."""
        return chosen if self.counts is None else chosen & self.counts

    @property
    def none(self) -> pl.Series:
        """The choice of none of its places."""
        return pl.repeat(value=False, n=self.rows.height, eager=True, dtype=pl.Boolean)

    def without(self, places: pl.Series) -> "RowLayer":
        """Return the layer without the rows at these places. It is written anew once half of its rows are gone."""
        if not places.any():
            return self
        counts = self.having(~places)
        if 2 * int(counts.sum()) < self.rows.height:
            return RowLayer(self.rows.filter(counts))
        return RowLayer(self.rows, counts)


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows in layers, oldest first; each key has at most one row that counts. `nothing` has the columns and no row.

    If columns are hidden, `beneath` has the same rows in the same places with all columns.
    """

    nothing: pl.DataFrame
    layers: tuple[RowLayer, ...] = ()
    beneath: "KeyedRows | None" = None

    @staticmethod
    def of(rows: pl.DataFrame) -> "KeyedRows":
        """Return these rows as one layer."""
        return KeyedRows(rows.clear(), () if rows.is_empty() else (RowLayer(rows),))

    @staticmethod
    def of_parts(nothing: pl.DataFrame, parts: Iterable[pl.DataFrame]) -> "KeyedRows":
        """Return these rows, each part as a layer of its own. `nothing` has the columns and no row."""
        return KeyedRows(nothing, tuple(RowLayer(part) for part in parts))

    def hiding(self, column: str) -> "KeyedRows":
        """Return the rows without a column. It copies none."""
        layers = (RowLayer(layer.rows.drop(column), layer.counts) for layer in self.layers)
        return KeyedRows(self.nothing.drop(column), tuple(layers), self)

    def filled(self, column: str, value: int) -> "KeyedRows":
        """Return the rows with a value in place of the nulls of a column."""
        rows = (each.rows.with_columns(pl.col(column).fill_null(value)) for each in self.layers)
        layers = (RowLayer(now, layer.counts) for now, layer in zip(rows, self.layers, strict=True))
        return KeyedRows(self.nothing, tuple(layers))

    @property
    def schema(self) -> pl.Schema:
        """The columns and their types."""
        return self.nothing.schema

    def frame(self) -> pl.DataFrame:
        """Return all rows that count, as one frame."""
        match [layer.live for layer in self.layers]:
            case []:
                return self.nothing
            case [only]:
                return only
            case several:
                return pl.concat(several)

    def least(self, column: str) -> int | None:
        """Return the least value of a column with numbers; None if there is none."""
        of_layers = (layer.live[column].min() for layer in self.layers)
        return min((value for value in of_layers if isinstance(value, int)), default=None)

    def estimated_size(self) -> int:
        """Return the size in memory in bytes, of replaced rows too, as they are still there."""
        return sum(int(layer.rows.estimated_size()) for layer in self.layers)

    def find(self, touched: pl.DataFrame, keys: Sequence[str]) -> "FoundKeys":
        """Return the rows of these keys. Null is a key like any other."""
        places = tuple(layer.having(_places_of(layer.rows, touched, keys)) for layer in self.layers)
        return self.at(places)

    def at(self, places: tuple[pl.Series, ...]) -> "FoundKeys":
        """Return the rows at these places: for each layer, which of its rows."""
        found = [layer.rows.filter(where) for layer, where in zip(self.layers, places, strict=True)]
        return FoundKeys(self, pl.concat([self.nothing, *found]), places)

    def where(self, condition: pl.Expr) -> "FoundKeys":
        """Return the rows of which this is true. Null is not."""
        chosen = (layer.rows.select(condition).to_series().fill_null(value=False) for layer in self.layers)
        return self.at(tuple(layer.having(places) for layer, places in zip(self.layers, chosen, strict=True)))


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """Some keys' rows among others, and their places: for each layer, which of its rows."""

    among: KeyedRows
    rows: pl.DataFrame
    places: tuple[pl.Series, ...]

    def only(self, chosen: pl.Series) -> "FoundKeys":
        """Return those of the found rows at these numbers."""
        marks, places, done = np.zeros(self.rows.height, dtype=bool), [], 0
        marks[chosen.to_numpy()] = True
        for where in self.places:
            place = where.to_numpy().copy()
            found = int(place.sum())
            place[place] = marks[done : done + found]
            places.append(pl.Series(place, dtype=pl.Boolean))
            done += found
        return FoundKeys(self.among, self.rows.filter(pl.Series(marks, dtype=pl.Boolean)), tuple(places))

    def replaced_by(self, rows: pl.DataFrame) -> KeyedRows:
        """Return all rows with these in place of the found ones. Any further key must be new."""
        layers = [layer.without(where) for layer, where in zip(self.among.layers, self.places, strict=True)]
        kept = [layer for layer in layers if not layer.rows.is_empty()]
        return KeyedRows(self.among.nothing, _merged(kept if rows.is_empty() else [*kept, RowLayer(rows)]))


def _merged(layers: Sequence[RowLayer]) -> tuple[RowLayer, ...]:
    """Return the layers, the newest ones merged until each is more than twice as large as the next."""
    first = len(layers) - 1
    size = sum(layer.rows.height for layer in layers[first:])
    while first > 0 and layers[first - 1].rows.height <= 2 * size:
        first -= 1
        size += layers[first].rows.height
    newest = layers[max(first, 0) :]
    if len(newest) <= 1:
        return tuple(layers)
    return (*layers[:first], RowLayer(pl.concat([layer.live for layer in newest], rechunk=True)))


def _places_of(rows: pl.DataFrame, touched: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """Return for each row whether its key is touched.

    If the key is one plain column, this looks the keys up in a set, which takes a fifth of a join's time.
    """
    (first, *further) = keys
    if not further and _is_plain(rows.schema[first]):
        return rows[first].is_in(touched[first].implode(), nulls_equal=True)
    wanted = touched.select(keys).unique().with_columns(pl.lit(value=True).alias(_FOUND))
    both = join_by_key(rows.select(keys), wanted, keys, "left")
    return both[_FOUND].is_not_null()


def _is_plain(kind: pl.DataType) -> bool:
    return kind.is_integer() or kind.is_temporal() or kind == pl.String
