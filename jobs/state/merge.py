"""Merges a base and its deltas by key, newest last, with pure functions on frames.

A state frame has `_key_group`, the key columns and the state columns, and one row per key. A file also has the column
`_deleted`. A null key is treated like any other key.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from checkpointing.handles import KeyedFileKind
from checkpointing.key_groups import KeyGroupRange
from jobs.state.key_joins import join_by_key
from jobs.state.keyed_rows import FoundKeys, KeyedRows

KEY_GROUP = "_key_group"
DELETED = "_deleted"
TOUCHED = "_touched_ms"
"""The column of state that expires by event time: when the row was written.

Null: at the first barrier after its file.
"""
TOUCHED_BY_CLOCK = "_touched_clock_ms"
"""The same column of state that expires by the clock."""

_BEFORE = "\0"
"""Prefix of the old columns beside the new ones. No column of a user begins with this character."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """The content of one state file: all rows of a range (BASE), or the rows of its touched keys (DELTA).

    The rows may lie in a mapped file.
    """

    kind: KeyedFileKind
    range: KeyGroupRange
    rows: pl.DataFrame
    are_mapped: bool = False


def in_range(rows: pl.DataFrame, key_groups: KeyGroupRange) -> pl.DataFrame:
    """Return the rows whose key group lies in the range. Files of another parallelism hold further rows."""
    groups = rows[KEY_GROUP]
    inside = groups.is_between(key_groups.first, key_groups.last)
    return rows if inside.all() else rows.filter(inside)


def apply_change(state: KeyedRows, change: StateChange, keys: Sequence[str]) -> KeyedRows:
    """Return the state after a change. The change's rows replace the rows of the same keys."""
    match change.kind:
        case KeyedFileKind.BASE:
            replaced = state.where(pl.col(KEY_GROUP).is_between(change.range.first, change.range.last))
            live = _live(change.rows)
            return replaced.replaced_by(live, are_mapped=change.are_mapped and live.height == change.rows.height)
        case KeyedFileKind.DELTA:
            found = state.find(change.rows, keys)
            return apply_delta(found, change.rows, keys, change.rows if change.are_mapped else None)


def apply_delta(
    found: FoundKeys, delta: pl.DataFrame, keys: Sequence[str], mapped: pl.DataFrame | None = None
) -> KeyedRows:
    """Return the state in which these keys were found, after a delta that touches no other existing keys.

    `mapped` has the rows of the delta in a mapped file. That file may lack tombstones.
    """
    written = delta if mapped is None else mapped
    live, stay = _live(written).select(found.rows.columns), unchanged(found, delta, keys)
    if stay.is_empty():
        return found.replaced_by(live, are_mapped=mapped is not None and live.height == written.height)
    return found.replaced_by(pl.concat([stay, live]))


def unchanged(found: FoundKeys, delta: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows of found keys that a delta does not touch."""
    if found.all_change or found.rows.is_empty():
        return found.rows.clear()
    return found.rows.join(delta, on=list(keys), how="anti", nulls_equal=True)


def _live(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that are not tombstones. If there is no tombstone, no row is copied."""
    return (rows.filter(~pl.col(DELETED)) if rows[DELETED].any() else rows).drop(DELETED)


def change_of(before: pl.DataFrame, after: pl.DataFrame, touched: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return the rows of a delta: the new row of each touched key, or a tombstone if the key lost its state.

    `touched` has the key columns and `_key_group`. `before` is the state of the touched keys, and `after` has the new
    rows without key group. Raise KeyError if `after` holds a key that was not touched, or holds a key twice.
    """
    on = list(keys)
    new = join_by_key(touched, after, on, "inner")
    if new.height != after.height:
        raise KeyError(f"{after.height - new.height} rows of the new state have keys that were not touched")
    if after.select(on).is_duplicated().any():
        raise KeyError("the new state has two rows for one key")
    lost = before.join(after, on=on, how="anti", nulls_equal=True)
    return pl.concat(
        [
            new.select(before.columns).with_columns(pl.lit(value=False).alias(DELETED)),
            lost.with_columns(pl.lit(value=True).alias(DELETED)),
        ]
    )


def without_unchanged(delta: pl.DataFrame, before: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return a delta without rows that are equal to those in `before`, the state of the touched keys.

    Tombstones stay.
    """
    others = [name for name in before.columns if name not in (KEY_GROUP, *keys)]
    was = before.select(
        *keys, *(pl.col(name).alias(_BEFORE + name) for name in others), pl.lit(value=True).alias(_BEFORE)
    )
    both = join_by_key(delta, was, keys, "left")
    there = pl.col(_BEFORE).fill_null(value=False) & ~pl.col(DELETED)
    same = pl.all_horizontal(there, *(pl.col(name).eq_missing(pl.col(_BEFORE + name)) for name in others))
    return both.filter(~same).select(delta.columns)


def superseded(first: pl.DataFrame, second: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return two successive deltas as one. For the same key, the row of the second delta wins."""
    return (
        second
        if first.is_empty()
        else pl.concat([first.join(second, on=list(keys), how="anti", nulls_equal=True), second])
    )
