"""Computes how fast checkpoints get into PostgreSQL and Kafka, against Spark's own writers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.measures import middle, steady
from bench.plan import WARM_UP_SINKS, Extent
from bench.programs import Result
from bench.targets import KINDS

Results = Mapping[str, Sequence[Result]]
Figures = Mapping[str, Any]

PROGRAMS: Final = tuple(f"sink:{by}:{kind}" for kind in KINDS for by in ("ours", "peer"))
_ROWS: Final = 500_000


def into_targets(results: Results, extent: Extent) -> Figures:
    """Return the figures for PostgreSQL, with those for Kafka beside them."""
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
