"""Keeps the newest row of each key of a table's changes. Deleted rows are kept, and marked as deleted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from jobs.operators.process import Processed
from jobs.sources.change_rows import BEFORE, DELETE, KIND, LSN, TRUNCATE, UNCHANGED
from jobs.sources.port import POSITION_COLUMN
from jobs.state.key_joins import join_by_key
from jobs.state.merge import KEY_GROUP

DELETED: Final = "_is_deleted"
_BEFORE: Final = "\0"
"""Prefix of the state's columns beside the new ones. No column of a user begins with this character."""


class TruncatedError(Exception):
    """A table was truncated. No change of a single key can express that."""


@dataclass(frozen=True, slots=True)
class NewestRows:
    """The keyed function: state and output are alike, a row for each key (see `MergesPartials`).

    `columns` are the table's columns without its keys. A value that an update did not change is taken from the key's
    previous row. If there is no such row, the value stays unknown: it is null, and `_unchanged` names its column.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    ignores_truncates: bool
    state_version: int = 1

    def process(self, inputs: Sequence[pl.DataFrame], state: pl.DataFrame) -> Processed:
        """Return the newest row of each touched key, as state and as output. Raises TruncatedError."""
        group = pl.lit(0, dtype=pl.Int32).alias(KEY_GROUP)
        partials = self.partials(inputs[0].with_columns(group), state.schema)
        new = self.merged(partials, state.with_columns(group)).drop(KEY_GROUP)
        return Processed(state=new, output=new)

    def partials(self, rows: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:  # noqa: ARG002 - of the protocol
        """Return the newest of these rows for each key.

        Raise TruncatedError for a truncate, unless truncates are ignored.
        """
        truncated = rows[KIND] == TRUNCATE
        if truncated.any():
            if not self.ignores_truncates:
                raise TruncatedError(
                    "the table was truncated, and an upsert table cannot drop all its keys at once. To go on, write "
                    f'newest_rows(..., truncates="ignore"), and let readers leave out rows whose {LSN} is not above '
                    "that of the newest truncate in the bronze table"
                )
            rows = rows.filter(~truncated)
        rows = rows.sort(POSITION_COLUMN).with_columns(pl.col(KIND).is_in([DELETE, BEFORE]).alias(DELETED))
        newest = rows.unique(subset=list(self.keys), keep="last").select(self._all())
        unsent = rows[UNCHANGED].explode().drop_nulls().unique().to_list()
        return self._sent_earlier(rows, newest, unsent) if unsent else newest

    def merged(self, partials: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """Return the newest row of each key of the partials, out of the partials and of `before`."""
        others = [name for name in before.columns if name not in (KEY_GROUP, *self.keys)]
        known = before.select(*self.keys, *(pl.col(name).alias(_BEFORE + name) for name in others))
        beside = join_by_key(partials, known, self.keys, "left")
        had = pl.col(_BEFORE + POSITION_COLUMN).is_not_null()
        newer = ~had | (pl.col(POSITION_COLUMN) >= pl.col(_BEFORE + POSITION_COLUMN))
        filled = [
            pl.when(newer & ~(had & _lacks(name))).then(name).otherwise(_BEFORE + name).alias(name)
            for name in self.columns
        ]
        still = (
            pl.when(had)
            .then(pl.col(UNCHANGED).list.set_intersection(pl.col(_BEFORE + UNCHANGED).fill_null([])))
            .otherwise(UNCHANGED)
        )
        unsent = pl.when(still.list.len() > 0).then(still)
        rest = [
            pl.when(newer).then(new).otherwise(_BEFORE + name).alias(name)
            for name, new in ((LSN, LSN), (POSITION_COLUMN, POSITION_COLUMN), (UNCHANGED, unsent), (DELETED, DELETED))
        ]
        return beside.select(KEY_GROUP, *self.keys, *filled, *rest)

    def _sent_earlier(self, rows: pl.DataFrame, newest: pl.DataFrame, unsent: Sequence[str]) -> pl.DataFrame:
        """Fill in values that an earlier row of the same key has."""
        lacking = [pl.col(name).filter(~_lacks(name)).last().alias(_BEFORE + name) for name in unsent]
        known = [(~_lacks(name)).any().alias(f"{_BEFORE}{_BEFORE}{name}") for name in unsent]
        found = rows.group_by(self.keys).agg(*lacking, *known)
        beside = join_by_key(newest, found, self.keys, "left")
        still = pl.concat_list(
            [
                pl.when(_lacks(name) & ~pl.col(f"{_BEFORE}{_BEFORE}{name}")).then(pl.lit(name)).otherwise(None)
                for name in unsent
            ]
        ).list.drop_nulls()
        filled = [pl.when(_lacks(name)).then(_BEFORE + name).otherwise(name).alias(name) for name in unsent]
        unchanged = pl.when(still.list.len() > 0).then(still).alias(UNCHANGED)
        return beside.with_columns(*filled, unchanged).select(self._all())

    def _all(self) -> list[str]:
        return [KEY_GROUP, *self.keys, *self.columns, LSN, POSITION_COLUMN, UNCHANGED, DELETED]


def _lacks(name: str) -> pl.Expr:
    """Whether the row's value of this column was not sent."""
    return pl.col(UNCHANGED).list.contains(name).fill_null(value=False)
