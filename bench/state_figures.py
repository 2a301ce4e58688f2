"""Computes what a checkpoint, an epoch and a restore cost by the size of the state."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.measures import middle, spread
from bench.plan import WARM_UP, Extent
from bench.programs import Result

Results = Mapping[str, Sequence[Result]]
Figures = Mapping[str, Any]

SMALL_KEYS: Final = 10_000
MIDDLE_KEYS: Final = 1_000_000


def one_percent(extent: Extent) -> tuple[str, ...]:
    """Return the programs that touch one key in a hundred."""
    return tuple(_state(keys, keys // 100) for keys in (SMALL_KEYS, MIDDLE_KEYS, extent.large_keys))


def same_touched(extent: Extent) -> tuple[str, ...]:
    """Return the programs that touch the same keys of a middle and of a large state."""
    return tuple(_state(keys, extent.large_keys // 100) for keys in (MIDDLE_KEYS, extent.large_keys))


def checkpoint_durations(results: Results, extent: Extent) -> Figures:
    """Return the time of a checkpoint at each size, and of its parts."""
    by_keys = {name: middle(results[name][0]["commits_ms"][WARM_UP:]) / 1000 for name in one_percent(extent)}
    parts = {
        part: {name: middle(results[name][0][part][WARM_UP:]) for name in one_percent(extent)}
        for part in ("append_ms", "publish_ms", "cut_ms")
    }
    return {"ours_s": max(by_keys.values()), "spread_s": spread(list(by_keys.values())), "by_state": by_keys} | parts


def large_epochs(results: Results, extent: Extent) -> Figures:
    """Return the time of an epoch of the large state, compared with the middle one."""
    names = same_touched(extent)
    small, large = (middle(results[name][0]["seconds"][WARM_UP:]) for name in names)
    peak = results[names[-1]][0]["peak_memory_bytes"]
    return {"ratio": large / small, "ours_s": large, "peer_s": small, "peak_memory_bytes": peak}


def restores(results: Results, extent: Extent) -> Figures:
    """Return the time of a restore of the largest state, compared with the smallest."""
    names = one_percent(extent)
    small, large = (middle(results[name][0]["restore_s"]) for name in (names[0], names[-1]))
    return {"ratio": large / small, "ours_s": large, "peer_s": small}


def _state(keys: int, touched: int) -> str:
    return f"state:{keys}:{touched}"
