"""Computes how fast checkpoints are written to PostgreSQL and Kafka, compared with Spark's own writers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.measures import middle, spread, steady
from bench.plan import WARM_UP, WARM_UP_SINKS, WARM_UP_UPSERTS, Extent
from bench.programs import Result
from bench.targets import KINDS
from bench.upsert_workload import RANDOM, RECENT

Results = Mapping[str, Sequence[Result]]
Figures = Mapping[str, Any]

PROGRAMS: Final = tuple(f"sink:{by}:{kind}" for kind in KINDS for by in ("ours", "peer"))
_ROWS: Final = 500_000


def into_targets(results: Results, extent: Extent) -> Figures:
    """Return the figures for PostgreSQL, and beside them the figures for Kafka."""
    del extent
    postgres, kafka = (_into(results[f"sink:ours:{kind}"], results[f"sink:peer:{kind}"]) for kind in KINDS)
    return {**postgres, "kafka": kafka}


def _into(ours: Sequence[Result], peer: Sequence[Result]) -> Figures:
    mine, theirs = _batch(ours, "seconds"), _batch(peer, "seconds")
    my_cpu, their_cpu = _batch(ours, "cpu_seconds"), _batch(peer, "cpu_seconds")
    return {
        "ratio": theirs / mine,
        "ours_s": mine,
        "peer_s": theirs,
        "ours_rows_a_second": _ROWS / mine,
        "peer_rows_a_second": _ROWS / theirs,
        "cpu_ratio": their_cpu / my_cpu,
        "ours_cpu_s": my_cpu,
        "peer_cpu_s": their_cpu,
    }


def _batch(results: Sequence[Result], figure: str) -> float:
    """Return the median of all rounds' medians. All files have the same size, so the last batch counts too."""
    return middle([middle(steady(result[figure], WARM_UP_SINKS)) for result in results])


# ------------------------------------------------------------------
# Computes what an upsert of a large table costs, compared with a MERGE.


UPSERTS: Final = tuple(f"upserts:{by}:{which}" for which in (RANDOM, RECENT) for by in ("ours", "peer"))


def upserted(results: Results, extent: Extent) -> Figures:
    """Return the figures for random keys, and beside them the figures for keys that changed last."""
    del extent
    return {**_of(results, RANDOM), "recent": _of(results, RECENT)}


def _of(results: Results, which: str) -> Figures:
    (ours,), (peer,) = (results[f"upserts:{by}:{which}"] for by in ("ours", "peer"))
    mine, theirs = (middle(steady(each["seconds"], WARM_UP_UPSERTS)) for each in (ours, peer))
    my_cpu, their_cpu = (middle(steady(each["cpu_seconds"], WARM_UP_UPSERTS)) for each in (ours, peer))
    return {
        "ratio": theirs / mine,
        "ours_s": mine,
        "peer_s": theirs,
        "cpu_ratio": their_cpu / my_cpu,
        "ours_cpu_s": my_cpu,
        "peer_cpu_s": their_cpu,
        "peak_memory_bytes": ours["peak_memory_bytes"],
    }


# ------------------------------------------------------------------
# Computes how many times longer Flink SQL takes for a whole job, with its state on disk and in memory.


_BACKENDS: Final = ("rocksdb", "hashmap")
CHANGELOG: Final = ("changelog", *(f"flink:changelog:{backend}" for backend in _BACKENDS))


def flink_sums(results: Results, extent: Extent) -> Figures:
    """Return the figures of the keyed sums with RocksDB, and beside them the figures with hashmap."""
    del extent
    ours = middle([result["work_s"] for result in results["ours"]])
    whole = middle([result["process_s"] for result in results["ours"]])
    by_backend = {
        backend: {
            "ratio": middle([one["total_s"] for one in results[f"flink:{backend}"]]) / ours,
            "peer_s": middle([one["total_s"] for one in results[f"flink:{backend}"]]),
            "whole_process_ratio": middle([one["process_s"] for one in results[f"flink:{backend}"]]) / whole,
            "whole_process_peer_s": middle([one["process_s"] for one in results[f"flink:{backend}"]]),
        }
        for backend in _BACKENDS
    }
    rocksdb = by_backend["rocksdb"]
    return {
        "ratio": rocksdb["ratio"],
        "ours_s": ours,
        "peer_s": rocksdb["peer_s"],
        "whole_process_ours_s": whole,
        "rocksdb": rocksdb,
        "hashmap": by_backend["hashmap"],
    }


def flink_changelog(results: Results, extent: Extent) -> Figures:
    """Return the figures of the joined changes with RocksDB, and beside them the figures with hashmap."""
    del extent
    ours, rocksdb, hashmap = (middle([one["total_s"] for one in results[name]]) for name in CHANGELOG)
    return {
        "ratio": rocksdb / ours,
        "ours_s": ours,
        "peer_s": rocksdb,
        "ours_cpu_s": middle([one["total_cpu_s"] for one in results[CHANGELOG[0]]]),
        "hashmap": {"ratio": hashmap / ours, "peer_s": hashmap},
    }


# ------------------------------------------------------------------
# Computes what a checkpoint, an epoch and a restore cost at different sizes of the state.


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


def open_windows(extent: Extent) -> tuple[str, str]:
    """Return the programs with few and with many open windows."""
    return f"open:{extent.large_keys // 100}", f"open:{extent.large_keys}"


def many_open(results: Results, extent: Extent) -> Figures:
    """Return the time of an epoch with many open windows, compared with few."""
    names = open_windows(extent)
    (small, large), (small_cpu, large_cpu) = (
        [middle(results[name][0][figure][WARM_UP:]) for name in names] for figure in ("seconds", "cpu_seconds")
    )
    peak = results[names[-1]][0]["peak_memory_bytes"]
    return {
        "ratio": large / small,
        "ours_s": large,
        "peer_s": small,
        "cpu_ratio": large_cpu / small_cpu,
        "peak_memory_bytes": peak,
    }


def _state(keys: int, touched: int) -> str:
    return f"state:{keys}:{touched}"


# ------------------------------------------------------------------
# Computes what checkpoints and starts cost on an object store.


def commits_on_a_store(results: Results, extent: Extent) -> Figures:
    """Return the time of a checkpoint, and how many requests go one after the other."""
    del extent
    (result,) = results["store:commits"]
    parts = {part: middle(result[part][WARM_UP:]) for part in ("check_ms", "append_ms", "publish_ms", "cut_ms")}
    return {
        "sequential": middle(result["sequential"][WARM_UP:]),
        "ours_s": middle(result["commits_ms"][WARM_UP:]) / 1000,
        "requests": result["requests"],
        "server": result["server"],
    } | parts


def starts_on_a_store(results: Results, extent: Extent) -> Figures:
    """Return the time to the first micro-batch, and how many requests go one after the other."""
    del extent
    (result,) = results["store:starts"]
    return {
        "sequential": middle(result["sequential"]),
        "ours_s": middle(result["start_s"]),
        "requests": result["requests"],
        "server": result["server"],
    }
