"""Computes what an epoch costs, and how a whole run compares with Pathway."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.measures import middle, steady
from bench.plan import WARM_UP_PRICE, Extent
from bench.programs import Result

Results = Mapping[str, Sequence[Result]]
Figures = Mapping[str, Any]


def against_pathway(results: Results, extent: Extent) -> Figures:
    """Return how many times longer than ours Pathway takes for all rows."""
    del extent
    ours, peer = (
        middle([result[figure] for result in results[name]])
        for name, figure in (("ours", "work_s"), ("pathway", "total_s"))
    )
    return {"ratio": peer / ours, "ours_s": ours, "peer_s": peer}


def price(results: Results, name: str, rows: int) -> Figures:
    """Return what an epoch of this many rows costs. The last epoch may be short, so it does not count."""
    (found,) = results[name]
    by_kind = {kind: middle(steady(each[:-1], WARM_UP_PRICE)) for kind, each in found["cpu_by_kind"].items()}
    return {
        "ours_s": middle(steady(found["seconds"][:-1], WARM_UP_PRICE)),
        "cpu_s": sum(by_kind.values()),
        "cpu_s_per_million_rows": sum(by_kind.values()) / rows * 1_000_000,
        "cpu_s_by_kind": by_kind,
        "jobs": sum(found["jobs"]) / len(found["jobs"]),
        "moved_bytes_per_row": middle(steady(found["moved_bytes"][:-1], WARM_UP_PRICE)) / rows,
    }
