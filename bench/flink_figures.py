"""Computes how many times longer Flink SQL takes for a whole job, with its state on disk and in memory."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.measures import middle
from bench.plan import Extent
from bench.programs import Result

Results = Mapping[str, Sequence[Result]]
Figures = Mapping[str, Any]

_BACKENDS: Final = ("rocksdb", "hashmap")
CHANGELOG: Final = ("changelog", *(f"flink:changelog:{backend}" for backend in _BACKENDS))


def flink_sums(results: Results, extent: Extent) -> Figures:
    """Return the figures of the keyed sums with RocksDB, with those of hashmap beside them."""
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
    """Return the figures of the joined changes with RocksDB, with those of hashmap beside them."""
    del extent
    ours, rocksdb, hashmap = (middle([one["total_s"] for one in results[name]]) for name in CHANGELOG)
    return {
        "ratio": rocksdb / ours,
        "ours_s": ours,
        "peer_s": rocksdb,
        "ours_cpu_s": middle([one["total_cpu_s"] for one in results[CHANGELOG[0]]]),
        "hashmap": {"ratio": hashmap / ours, "peer_s": hashmap},
    }
