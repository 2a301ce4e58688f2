"""Computes what checkpoints and starts cost on an object store."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.measures import middle
from bench.plan import WARM_UP, Extent
from bench.programs import Result

Results = Mapping[str, Sequence[Result]]
Figures = Mapping[str, Any]


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
