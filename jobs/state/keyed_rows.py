"""Rows by key in layers, as in an LSM tree: a change adds a layer, and copies no row that it does not touch.

A change of a frame of five million rows copies all rows, even if it touches only fifty thousand. Here the changed rows
become a new layer, and the older layers only mark their rows of the same keys as replaced. Layers are merged so that
each layer is more than twice as large as the next one. So there are few layers, and a row is seldom copied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from jobs.state.key_joins import join_by_key

_PLACE = "\0"
"""A helper column: no column of a user begins with this character."""


@dataclass(frozen=True, slots=True)
class RowLayer:
    """Some rows. `counts` says for each row whether it is live: neither replaced nor dropped since. None: all are.

    The rows may lie in a mapped file.
    """

    rows: pl.DataFrame
    counts: pl.Series | None = None
    is_mapped: bool = False

    @property
    def live(self) -> pl.DataFrame:
        """The live rows."""
        return self.rows if self.counts is None else self.rows.filter(self.counts)

    def part(self, first: int, rows: int) -> pl.DataFrame:
        """Return the live rows of a part.

        Unlike a slice, the result does not keep the lists of other rows.
        """
        part = self.rows.slice(first, rows)
        if self.counts is not None:
            return part.filter(self.counts.slice(first, rows))
        return part if part.height == self.rows.height else part.select(pl.all().gather(pl.int_range(pl.len())))

    def having(self, chosen: pl.Series) -> pl.Series:
        """Return the choice of rows, without rows that are no longer live."""
        return chosen if self.counts is None else chosen & self.counts

    @property
    def none(self) -> pl.Series:
        """The choice of no row."""
        return pl.repeat(value=False, n=self.rows.height, eager=True, dtype=pl.Boolean)

    def least(self, column: str) -> object:
        """Return the least value of a column among the live rows.

        In a sorted column, that is the first value.
        """
        values, counts = self.rows[column], self.counts
        if not _is_in_order(values):
            return values.min() if counts is None else values.filter(counts).min()
        first, end = _known(values)
        live = self.having(pl.repeat(value=True, n=len(values), dtype=pl.Boolean, eager=True)).slice(first, end - first)
        place = live.arg_max()
        return values[first + place] if place is not None and live[place] else None

    def up_to(self, column: str, most: int) -> pl.Series:
        """Return the choice of rows with at most this value. Null counts as greater."""
        values = self.rows[column]
        if not _is_in_order(values):
            return self.having((values <= most).fill_null(value=False))
        first, end = _known(values)
        last = first + int(values.slice(first, end - first).search_sorted(most, side="right"))
        parts = ((False, first), (True, last - first), (False, len(values) - last))
        return self.having(pl.concat([pl.repeat(is_it, n, dtype=pl.Boolean, eager=True) for is_it, n in parts]))

    def without(self, places: pl.Series) -> "RowLayer":
        """Return the layer without the rows at these places. If fewer than half of its rows then count, copy these."""
        if not places.any():
            return self
        counts = self.having(~places)
        if 2 * int(counts.sum()) < self.rows.height:
            return RowLayer(self.rows.filter(counts))
        return RowLayer(self.rows, counts, self.is_mapped)


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows in layers, oldest first. Each key has at most one row that counts. `nothing` has the columns and no row.

    If a column is hidden, `beneath` has the same rows in the same places, with all columns.
    """

    nothing: pl.DataFrame
    layers: tuple[RowLayer, ...] = ()
    beneath: "KeyedRows | None" = None

    @staticmethod
    def of(rows: pl.DataFrame, *, is_mapped: bool = False) -> "KeyedRows":
        """Return these rows as one layer."""
        return KeyedRows(rows.clear(), () if rows.is_empty() else (RowLayer(rows, None, is_mapped),))

    def hiding(self, column: str) -> "KeyedRows":
        """Return the rows without a column. No row is copied."""
        layers = (RowLayer(layer.rows.drop(column), layer.counts, layer.is_mapped) for layer in self.layers)
        return KeyedRows(self.nothing.drop(column), tuple(layers), self)

    def filled(self, column: str, value: int) -> "KeyedRows":
        """Return the rows with a value in place of the nulls of a column."""
        rows = (each.rows.with_columns(pl.col(column).fill_null(value)) for each in self.layers)
        layers = (RowLayer(now, layer.counts, layer.is_mapped) for now, layer in zip(rows, self.layers, strict=True))
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

    def pieces(self, bytes_max: int) -> Iterator[pl.DataFrame]:
        """Yield all rows that count, in frames of about so many bytes. So there is never a copy of all rows at once."""
        gathered: list[pl.DataFrame] = []
        size = 0
        for layer in self.layers:
            step = max(1, layer.rows.height * bytes_max // max(1, int(layer.rows.estimated_size())))
            for first in range(0, layer.rows.height, step):
                gathered.append(layer.part(first, step))
                size += int(gathered[-1].estimated_size())
                if 2 * size >= bytes_max:
                    yield pl.concat(gathered, rechunk=True)
                    gathered, size = [], 0
        if gathered:
            yield pl.concat(gathered, rechunk=True)

    @property
    def height(self) -> int:
        """The number of rows that count."""
        return sum(layer.rows.height if layer.counts is None else int(layer.counts.sum()) for layer in self.layers)

    def least(self, column: str) -> int | None:
        """Return the least value of a column of numbers. None: there is no value."""
        of_layers = (layer.least(column) for layer in self.layers)
        return min((value for value in of_layers if isinstance(value, int)), default=None)

    def estimated_size(self) -> int:
        """Return the size in memory in bytes, including replaced rows, which are still there.

        Mapped rows count as 0.
        """
        return sum(int(layer.rows.estimated_size()) for layer in self.layers if not layer.is_mapped)

    def find(self, touched: pl.DataFrame, keys: Sequence[str]) -> "FoundKeys":
        """Return the rows of these keys. Null is a key like any other."""
        places = tuple(layer.having(_places_of(layer.rows, touched, keys)) for layer in self.layers)
        return self.at(places)

    def at(self, places: tuple[pl.Series, ...]) -> "FoundKeys":
        """Return the rows at these places. For each layer, `places` selects some of its rows."""
        found = [layer.rows.filter(where) for layer, where in zip(self.layers, places, strict=True)]
        return FoundKeys(self, pl.concat([self.nothing, *found]), places)

    def where(self, condition: pl.Expr) -> "FoundKeys":
        """Return the rows for which the condition is true, and not null."""
        chosen = (layer.rows.select(condition).to_series().fill_null(value=False) for layer in self.layers)
        return self.at(tuple(layer.having(places) for layer, places in zip(self.layers, chosen, strict=True)))

    def up_to(self, column: str, most: int) -> "FoundKeys":
        """Return the rows with at most this value in a column. Null counts as greater."""
        return self.at(tuple(layer.up_to(column, most) for layer in self.layers))


def noting_order(rows: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the same rows. If a column is in ascending order, mark it as sorted."""
    return rows.with_columns(pl.col(column).set_sorted()) if rows[column].is_sorted() else rows


def _is_in_order(values: pl.Series) -> bool:
    """Return whether the values are marked as sorted.

    Then values up to a time are found without a scan of the others.
    """
    return values.flags["SORTED_ASC"]


def _known(values: pl.Series) -> tuple[int, int]:
    """Return where the values that are not null begin and end. In a sorted column, all nulls are at one end."""
    nulls = values.null_count()
    first = nulls if nulls and values[0] is None else 0
    return first, first + len(values) - nulls


@dataclass(frozen=True, slots=True)
class FoundKeys:
    """The rows of some keys, found `among` all rows, and their places: for each layer, which of its rows.

    If `all_change` is true, the following change includes all these keys.
    """

    among: KeyedRows
    rows: pl.DataFrame
    places: tuple[pl.Series, ...]
    all_change: bool = False

    def only(self, chosen: pl.Series) -> "FoundKeys":
        """Return the found rows with these numbers."""
        are_chosen, places, done = _marks(self.rows.height, chosen), [], 0
        for where in self.places:
            at = where.arg_true()
            places.append(_marks(len(where), at.filter(are_chosen.slice(done, len(at)))))
            done += len(at)
        return FoundKeys(self.among, self.rows.filter(are_chosen), tuple(places))

    def with_later(self, later: "FoundKeys", touched: pl.DataFrame, keys: Sequence[str]) -> "FoundKeys":
        """Return the rows of these keys and of the keys in `later`, all as they were before the first change.

        `later` was found after a change of these keys. `touched` has all keys of both. They are looked up again only in
        layers that `later` does not share.
        """
        known = {id(layer.rows): where for layer, where in zip(later.among.layers, later.places, strict=True)}
        places = (
            where | known[id(layer.rows)]
            if id(layer.rows) in known
            else layer.having(_places_of(layer.rows, touched, keys))
            for layer, where in zip(self.among.layers, self.places, strict=True)
        )
        return self.among.at(tuple(places))

    def replaced_by(self, rows: pl.DataFrame, *, are_mapped: bool = False) -> KeyedRows:
        """Return all rows, with these rows in place of the found ones. Keys beyond the found ones must be new."""
        layers = [layer.without(where) for layer, where in zip(self.among.layers, self.places, strict=True)]
        kept = [layer for layer in layers if not layer.rows.is_empty()]
        kept += [] if rows.is_empty() else [RowLayer(rows, None, are_mapped)]
        return KeyedRows(self.among.nothing, _merged(kept))


def _merged(layers: Sequence[RowLayer]) -> tuple[RowLayer, ...]:
    """Return the layers, with the newest ones merged until each is more than twice as large as the next.

    A layer in a mapped file is not merged. There are at most as many mapped layers as the state has files.
    """
    first = len(layers) - 1
    if first < 0 or layers[first].is_mapped:
        return tuple(layers)
    size = layers[first].rows.height
    while first > 0 and layers[first - 1].rows.height <= 2 * size and not layers[first - 1].is_mapped:
        first -= 1
        size += layers[first].rows.height
    newest = layers[first:]
    if len(newest) <= 1:
        return tuple(layers)
    return (*layers[:first], RowLayer(pl.concat([layer.live for layer in newest], rechunk=True)))


def _places_of(rows: pl.DataFrame, touched: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """Return for each row whether its key is touched.

    The values of plain columns are looked up in sets, which takes a fifth of a join's time. If there are several
    columns, a join follows for the rows all of whose values were found.
    """
    plain = [name for name in keys if _is_plain(rows.schema[name])]
    if not plain:
        return _marks(rows.height, _joined(rows, touched, keys))
    first, *further = plain
    near = rows[first].is_in(touched[first].implode(), nulls_equal=True)
    if len(keys) == 1:
        return near
    places = near.arg_true()
    for name in further:
        places = places.filter(rows[name].gather(places).is_in(touched[name].implode(), nulls_equal=True))
    return _marks(rows.height, places.gather(_joined(rows.select(keys)[places], touched, keys)))


def _joined(rows: pl.DataFrame, touched: pl.DataFrame, keys: Sequence[str]) -> pl.Series:
    """Return the places of rows with a key among these."""
    return join_by_key(rows.select(keys).with_row_index(_PLACE), touched.select(keys), keys, "semi")[_PLACE]


def _marks(height: int, places: pl.Series) -> pl.Series:
    """Return which of so many rows are at these places."""
    return pl.repeat(value=False, n=height, dtype=pl.Boolean, eager=True).scatter(places, values=True)


def _is_plain(kind: pl.DataType) -> bool:
    return kind.is_integer() or kind.is_temporal() or kind == pl.String
