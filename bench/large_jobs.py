"""Computes the figures of P14 (many live files) and P15 (many subtasks)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.measures import middle
from bench.plan import WARM_UP, Extent
from bench.programs import Result

LARGE_CORE: Final = "core:100000"
LIVE: Final = ("live:1000", "live:100000")
PHASES: Final = ("compose_s", "append_s", "publish_s", "cut_s")
"""The figures that `bench.ours.live_files` prints for each checkpoint, in seconds."""


def many_acknowledgements(results: Mapping[str, Sequence[Result]], extent: Extent) -> dict[str, Any]:
    """Return the acknowledgements per second, without and with the time of Python's garbage collector."""
    del extent
    (result,) = results[LARGE_CORE]
    rates = result["without_collector_per_second"]
    third = len(rates) // 3
    return {
        "per_second": middle(rates),
        "with_collector_per_second": middle(result["per_second"]),
        "ours_s": result["subtasks"] / middle(rates),
        "ratio": middle(rates[:third]) / middle(rates[-third:]),
        "peak_memory_bytes": result["peak_memory_bytes"],
    }


def live_files(results: Mapping[str, Sequence[Result]], extent: Extent) -> dict[str, Any]:
    """Compare the times of whole checkpoints: compose, append, publish, record the cut."""
    del extent
    (few,), (many,) = (results[name] for name in LIVE)
    seconds = [
        middle([sum(of_one) for of_one in zip(*(result[name] for name in PHASES), strict=True)][WARM_UP:])
        for result in (few, many)
    ]
    sizes = [middle(result["bytes"][WARM_UP:]) for result in (few, many)]
    return {
        "ratio": seconds[1] / seconds[0],
        "ours_s": seconds[1],
        "peer_s": seconds[0],
        "bytes_ratio": sizes[1] / sizes[0],
        "bytes": sizes[1],
        "bytes_first": many["bytes"][0],
        **{name: [middle(result[name][WARM_UP:]) for result in (few, many)] for name in PHASES},
        "peak_memory_bytes": many["peak_memory_bytes"],
    }
