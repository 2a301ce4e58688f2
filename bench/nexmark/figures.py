"""Computes the figures of Nexmark against Flink SQL, Structured Streaming and DuckDB, as rows, a table and a picture.

Flink runs each query with two plans, with and without mini-batches. For each query, the faster plan counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log, log2
from typing import Any, Final

from bench.nexmark.answers import QUERIES
from bench.plan import Extent
from bench.programs import Result

Results = Mapping[str, Sequence[Result]]
Figures = Mapping[str, Any]
ByQuery = dict[str, dict[str, dict[str, float]]]

NAMES: Final = tuple(QUERIES)
IN_FLINK: Final = tuple(name for name in NAMES if name != "q6")
"""Flink's OVER takes no updates (FLINK-19059), so it has no q6."""
STREAMED: Final = ("q0", "q1", "q2", "q3", "q8", "q10", "q11", "q13", "q14", "q20", "q21", "q22", "q23")
"""The queries that Structured Streaming can run.

`bench.peers.nexmark_streaming` explains why it cannot run the others.
"""
ROW, MINI_BATCH = "row", "mini-batch"
ROCKSDB, HASHMAP, STREAMING, OURS = "rocksdb", "hashmap", "streaming", "ours"
TITLES: Final = {
    ROCKSDB: ("Flink SQL, RocksDB", "#5b7db1"),
    HASHMAP: ("Flink SQL, hashmap", "#a9bcd9"),
    STREAMING: ("Structured Streaming, RocksDB", "#d9a441"),
}
_BOTH_UP_TO: Final = 3_000_000
"""Up to this many events, Flink runs each query with both plans.

With more events, it runs the plan that was faster there.
"""
_ROW_BY_ROW: Final = {
    ROCKSDB: ("q1", "q2", "q7", "q10", "q16", "q18", "q20", "q21"),
    HASHMAP: ("q4", "q7", "q8", "q9", "q13", "q15", "q16", "q20", "q21", "q22"),
}
"""The queries for which the plan without mini-batches was faster over 3M events."""
LIVE: Final = ("q1", "q5", "q7", "q9")
"""The queries whose freshness is measured."""
ON_DISK: Final = ("q9", "q20")
DUCKDB: Final = "nexmark:duckdb"


def ours(names: Sequence[str] = NAMES) -> tuple[str, ...]:
    """Return the programs that run these queries in Tidemark."""
    return tuple(f"nexmark:ours:{name}" for name in names)


def in_flink(backend: str, events: int) -> tuple[str, ...]:
    """Return the programs that run the queries over this many events in Flink."""
    return tuple(
        f"nexmark:flink:{backend}:{plan}:{name}"
        for name in IN_FLINK
        for plan in (ROW, MINI_BATCH)
        if events <= _BOTH_UP_TO or (plan == ROW) == (name in _ROW_BY_ROW[backend])
    )


def streamed() -> tuple[str, ...]:
    """Return the programs that run queries in Structured Streaming."""
    return tuple(f"nexmark:streaming:{name}" for name in STREAMED)


def by_query(results: Results) -> ByQuery:
    """Return seconds, CPU seconds and memory of each query in each system that has run it."""
    found: ByQuery = {}
    for name in NAMES:
        candidates = {
            OURS: [f"nexmark:ours:{name}"],
            **{
                each: [f"nexmark:flink:{each}:{plan}:{name}" for plan in (ROW, MINI_BATCH)]
                for each in (ROCKSDB, HASHMAP)
            },
            STREAMING: [f"nexmark:streaming:{name}"],
        }
        for system, programs in candidates.items():
            ran = [results[program][0] for program in programs if results.get(program)]
            if ran:
                best = min(ran, key=lambda result: float(result["total_s"]))
                said = {figure: best[figure] for figure in ("total_s", "cpu_s", "peak_memory_bytes")}
                found.setdefault(name, {})[system] = said
    return found


def against(peer: str, names: Sequence[str], *, worst: bool = False) -> Callable[[Results, Extent], Figures]:
    """Return the figures of these queries against a peer: the geometric mean of the ratios, or the worst one."""

    def figures(results: Results, extent: Extent) -> Figures:
        queries = by_query(results)
        both = {name: each for name in names if {OURS, peer} <= (each := queries.get(name, {})).keys()}
        ratios = {name: each[peer]["total_s"] / each[OURS]["total_s"] for name, each in both.items()}
        slowest = min(ratios, key=lambda name: ratios[name])
        mean = exp(sum(map(log, ratios.values())) / len(ratios))
        return {
            "ratio": ratios[slowest] if worst else mean,
            "ours_s": sum(each[OURS]["total_s"] for each in both.values()),
            "peer_s": sum(each[peer]["total_s"] for each in both.values()),
            "worst": slowest,
            "lacking": [name for name in names if name not in both],
            "events": extent.nexmark_events,
            "by_query": queries,
        }

    return figures


def memory(results: Results, extent: Extent) -> Figures:
    """Return the memory of our worst query, divided by the memory of Flink with RocksDB in its own worst query."""
    del extent
    queries = by_query(results)
    mine, theirs = (
        {name: each[system]["peak_memory_bytes"] for name, each in queries.items() if system in each}
        for system in (OURS, ROCKSDB)
    )
    return {
        "ratio": max(mine.values()) / max(theirs.values()),
        "worst": max(mine, key=lambda name: mine[name]),
        "peak_memory_bytes": max(mine.values()),
        "peer_memory_bytes": max(theirs.values()),
        "lacking": [*(name for name in NAMES if name not in mine), *(name for name in IN_FLINK if name not in theirs)],
    }


def disk(results: Results, extent: Extent) -> Figures:
    """Return the warehouse's bytes, divided by the Parquet bytes of input and answer, for the worst query."""
    del extent
    answers = results[DUCKDB][0]["by_query"]
    ran = {
        name: results[program][0] for name, program in zip(ON_DISK, ours(ON_DISK), strict=True) if program in results
    }
    ratios = {
        name: result["disk_bytes"] / (result["input_bytes"] + answers[name]["bytes"]) for name, result in ran.items()
    }
    return {"ratio": max(ratios.values()), "ratios": ratios, "lacking": [name for name in ON_DISK if name not in ran]}


def cpu_over_batch(results: Results, extent: Extent) -> Figures:
    """Return the CPU seconds of all queries, divided by the CPU seconds of DuckDB's batch answers."""
    del extent
    queries, batch = by_query(results), results[DUCKDB][0]["by_query"]
    ran = [name for name in NAMES if OURS in queries.get(name, {})]
    mine, theirs = (
        sum(each) for each in zip(*((queries[n][OURS]["cpu_s"], batch[n]["cpu_s"]) for n in ran), strict=True)
    )
    return {
        "ratio": mine / theirs,
        "ours_s": mine,
        "peer_s": theirs,
        "lacking": [name for name in NAMES if name not in ran],
    }


def fresh() -> tuple[str, ...]:
    """Return the programs that measure how fresh answers are."""
    mine = (f"nexmark:fresh:ours:{name}" for name in LIVE)
    flinks = (f"nexmark:fresh:flink:{backend}:{name}" for backend in (ROCKSDB, HASHMAP) for name in LIVE)
    return (*mine, *flinks, "nexmark:fresh:streaming")


def freshness(results: Results, extent: Extent) -> Figures:
    """Return the seconds until a bid is in a cut, for each query and system.

    A system that does not keep up has no figure.

    The ratio is our p50 divided by Flink's, for the worst query.
    """
    del extent
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in LIVE}
    programs = {
        (name, system): program
        for name in LIVE
        for system, program in (
            (OURS, f"nexmark:fresh:ours:{name}"),
            *((backend, f"nexmark:fresh:flink:{backend}:{name}") for backend in (ROCKSDB, HASHMAP)),
        )
    } | {("q1", STREAMING): "nexmark:fresh:streaming"}
    for (name, system), program in programs.items():
        if results.get(program):
            of_one = results[program][0]
            found[name][system] = {} if of_one.get("behind") else {share: of_one[share] for share in ("p50_s", "p99_s")}
    ratios = {
        name: ran[OURS]["p50_s"] / min(ran[each]["p50_s"] for each in (ROCKSDB, HASHMAP) if ran.get(each))
        for name, ran in found.items()
        if ran.get(OURS) and (ran.get(ROCKSDB) or ran.get(HASHMAP))
    }
    return {
        "ratio": max(ratios.values()),
        "fresh": found,
        "lacking": [name for name in LIVE if name not in ratios],
    }


# ------------------------------------------------------------------
# Shows the figures of each query.


def markdown(figures: Figures) -> list[str]:
    """Return the lines of a table: seconds, CPU seconds and memory for each query and system."""
    systems = {OURS: "Tidemark", **{name: TITLES[name][0] for name in _that_ran(figures)}}
    cells = " | ".join(f"{title}: s | CPU s | MB" for title in systems.values())
    lines = [
        "## Nexmark",
        "",
        f"Each query over {figures['events']:,} events, without start-up. Of Flink's settings the better one counts.",
        "Tidemark and Structured Streaming write Delta tables. Flink writes Parquet files, and answers that change go",
        "into a black hole.",
        "",
        f"| query | {cells} |",
        f"|---|{'---|' * 3 * len(systems)}",
    ]
    for name, ran in figures["by_query"].items():
        lines.append(f"| {name} | " + " | ".join(_cells(ran.get(system)) for system in systems) + " |")
    return [*lines, ""]


def _that_ran(figures: Figures) -> list[str]:
    """Return the systems that ran at least one query, beside Tidemark."""
    return [name for name in TITLES if any(name in ran for ran in figures["by_query"].values())]


def _cells(ran: Mapping[str, float] | None) -> str:
    if ran is None:
        return " | | "
    return f"{ran['total_s']:.1f} | {ran['cpu_s']:.1f} | {ran['peak_memory_bytes'] / 2**20:,.0f}"


def of_freshness(figures: Figures) -> list[str]:
    """Return the lines of a table: p50 and p99 in seconds until a bid is in a cut, for each query and system."""
    systems = {OURS: "Tidemark", **{name: title for name, (title, _) in TITLES.items()}}
    cells = " | ".join(f"{title}: p50 | p99" for title in systems.values())
    lines = [
        "## Nexmark: seconds until a bid is in a cut",
        "",
        "At 50,000 events a second, with a checkpoint every 200 ms. A system that does not keep up is behind.",
        "",
        f"| query | {cells} |",
        f"|---|{'---|' * 2 * len(systems)}",
    ]
    for name, ran in figures["fresh"].items():
        shown = (_shown_fresh(ran.get(each)) for each in systems)
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return [*lines, ""]


def _shown_fresh(measured: Mapping[str, float] | None) -> str:
    if measured is None:
        return " | "
    return f"{measured['p50_s']:.2f} | {measured['p99_s']:.2f}" if measured else "behind | behind"


_WIDTH: Final = 860
_LEFT: Final = 60
_LINE: Final = 11
_GAP: Final = 8
_TOP: Final = 76
_LEAST, _MOST = 0.5, 64.0


def picture(figures: Figures) -> str:
    """Return a picture (SVG) of how many times longer each system takes for each query, on a logarithmic scale."""
    bars, y = [], float(_TOP)
    for name, ran in figures["by_query"].items():
        peers = [system for system in TITLES if system in ran and OURS in ran]
        if not peers:
            continue
        bars.append(f'<text x="{_LEFT - 10}" y="{y + len(peers) * _LINE / 2 + 5:.0f}" text-anchor="end">{name}</text>')
        for system in peers:
            bars += _bar(ran[system]["total_s"] / ran[OURS]["total_s"], y, TITLES[system][1])
            y += _LINE
        y += _GAP
    height = round(y) + 10
    size = f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="13"'
    title = "Nexmark: how many times longer the others take than Tidemark, on the same two cores"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="20" y="24" font-weight="bold">{title}</text>',
        *_legend(_that_ran(figures)),
        *_scale(y),
        *bars,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _x(ratio: float) -> float:
    """Return the position of a ratio in the picture. A ratio beyond the scale is at its end."""
    share = log2(min(max(ratio, _LEAST), _MOST) / _LEAST) / log2(_MOST / _LEAST)
    return _LEFT + share * (_WIDTH - _LEFT - 60)


def _bar(ratio: float, y: float, colour: str) -> list[str]:
    one, end = _x(1), _x(ratio)
    left, width = min(one, end), abs(end - one)
    place = max(one, end) + 4
    return [
        f'<rect x="{left:.1f}" y="{y:.0f}" width="{width:.1f}" height="{_LINE - 2}" fill="{colour}"/>',
        f'<text x="{place:.1f}" y="{y + _LINE - 2:.0f}" font-size="10" fill="#444">{ratio:.1f}</text>',
    ]


def _legend(systems: Sequence[str]) -> Iterator[str]:
    for number, (title, colour) in enumerate(TITLES[name] for name in systems):
        x = _LEFT + number * 230
        yield f'<rect x="{x}" y="36" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="47">{title}</text>'


def _scale(bottom: float) -> Iterator[str]:
    ratio = _LEAST
    while ratio <= _MOST:
        x, colour = _x(ratio), "#444" if ratio == 1 else "#ddd"
        yield f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom:.0f}" stroke="{colour}"/>'
        yield f'<text x="{x:.1f}" y="{_TOP - 8}" font-size="10" text-anchor="middle" fill="#444">{ratio:g}</text>'
        ratio *= 2
