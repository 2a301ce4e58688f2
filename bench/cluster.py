"""Computes the figures of P13: keyed sums on a cluster of two workers, against one worker."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.measures import middle, steady
from bench.plan import WARM_UP_CLUSTER, Extent
from bench.programs import Result

ONE: Final = "cluster:1"
TWO: Final = "cluster:2"


def two_workers(results: Mapping[str, Sequence[Result]], extent: Extent) -> dict[str, Any]:
    """Compare the times of an epoch. `cpu_s` has the CPU seconds of each part, with one worker and with two."""
    del extent
    (one,), (two,) = results[ONE], results[TWO]
    alone, together = (middle(_epochs(result["seconds"])) for result in (one, two))
    parts = {name: [middle(_epochs(result["parts"][name])) for result in (one, two)] for name in two["parts"]}
    return {"ratio": alone / together, "ours_s": together, "peer_s": alone, "cpu_s": parts}


def _epochs(series: Sequence[float]) -> list[float]:
    """Return the figures that count, without the last epoch, which may be short."""
    return steady(series[:-1], WARM_UP_CLUSTER)
