"""Computes what an upsert of a large table costs, against a MERGE."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.measures import middle, steady
from bench.plan import WARM_UP_UPSERTS, Extent
from bench.programs import Result
from bench.upsert_workload import RANDOM, RECENT

Results = Mapping[str, Sequence[Result]]
Figures = Mapping[str, Any]

UPSERTS: Final = tuple(f"upserts:{by}:{which}" for which in (RANDOM, RECENT) for by in ("ours", "peer"))


def upserted(results: Results, extent: Extent) -> Figures:
    """Return the figures for random keys, with those for keys that changed last beside them."""
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
