"""Defines all rows: what each compares, the bar that it must reach, and how its figure is computed.

A figure is a ratio. For most rows it tells how many times faster our program is: the peer's time divided by ours. For
P5, it is the share of the throughput that remains. For P7, P8, P9, P11, P29 and P30, it is the cost of the larger case
divided by the cost of the smaller one. For P18, it is the age of our records divided by the age of the peer's records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.cluster import ONE, TWO, two_workers
from bench.figures import (
    CHANGELOG,
    PROGRAMS,
    UPSERTS,
    checkpoint_durations,
    commits_on_a_store,
    flink_changelog,
    flink_sums,
    into_targets,
    large_epochs,
    many_open,
    one_percent,
    open_windows,
    restores,
    same_touched,
    starts_on_a_store,
    upserted,
)
from bench.large_jobs import LARGE_CORE, LIVE, live_files, many_acknowledgements
from bench.measures import middle, steady
from bench.nexmark import figures as nexmark
from bench.plan import WARM_UP, WARM_UP_FLIGHTS, Extent
from bench.price import against_pathway, price
from bench.programs import Result

Results = Mapping[str, Sequence[Result]]
"""Maps each program to its results, one for each round."""

Figures = Mapping[str, Any]

_ROWS: Final = 500_000
_FLIGHTS_OF_AN_EPOCH: Final = 13_000
_SAME_BATCHES: Final = "ours:every-rows=100000000:micro-batch-rows=500000"
_SINGLE: Final = (
    _SAME_BATCHES,
    "ours:every-rows=100000000:micro-batch-rows=1000000",
    "ours:every-rows=100000000:micro-batch-rows=4000000",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `reached` judges the figures. `programs` depend on the extent of the measurement.

    A row `apart` is measured only if it is named, as its programs take hours. It has the figures of the programs that
    gave a result. Its bar is reached only if no program is `lacking`.
    """

    id: str
    work: str
    bar: str
    programs: Callable[[Extent], tuple[str, ...]]
    figures: Callable[[Results, Extent], Figures]
    reached: Callable[[Figures], bool]
    apart: bool = False


# ---------------------------------------------------------------- our batches compared with a peer's


def _batches(results: Sequence[Result], figure: str, warm_up: int) -> float:
    """Return the median of all rounds' medians. The last batch of a tick does not count, because it may be short."""
    return middle([middle(steady(result[figure][:-1], warm_up)) for result in results])


def _against(ours: str, peer: str, warm_up: int) -> Callable[[Results, Extent], Figures]:
    def figures(results: Results, extent: Extent) -> Figures:
        del extent
        mine, theirs = (_batches(results[name], "seconds", warm_up) for name in (ours, peer))
        my_cpu, their_cpu = (_batches(results[name], "cpu_seconds", warm_up) for name in (ours, peer))
        return {
            "ratio": theirs / mine,
            "ours_s": mine,
            "peer_s": theirs,
            "cpu_ratio": their_cpu / my_cpu,
            "ours_cpu_s": my_cpu,
            "peer_cpu_s": their_cpu,
            "ratios_by_round": [
                middle(steady(other["seconds"][:-1], warm_up)) / middle(steady(own["seconds"][:-1], warm_up))
                for own, other in zip(results[ours], results[peer], strict=True)
            ],
        }

    return figures


def _often(results: Results, extent: Extent) -> Figures:
    del extent
    often = middle([result["work_s"] for result in results["ours"]])
    single = {name: middle([result["work_s"] for result in results[name]]) for name in _SINGLE}
    best = min(single, key=lambda name: single[name])
    same = single[_SAME_BATCHES]
    return {
        "ratio": same / often,
        "ours_s": often,
        "peer_s": same,
        "any_size": {"ratio": single[best] / often, "peer_s": single[best], "single_checkpoint": best},
    }


# ---------------------------------------------------------------- the rest


def _many_commits(results: Results, extent: Extent) -> Figures:
    del extent
    (result,) = results["tiny"]
    first, last = middle(result["first_s"]), middle(result["last_s"])
    return {"ratio": last / first, "ours_s": last, "peer_s": first, "disk": result["disk"]}


def _many_files(results: Results, extent: Extent) -> Figures:
    """Return the figures of the reader whose time our files increase most."""
    del extent
    (result,) = results["many"]
    ratios = {how: found["ours_s"] / found["once_s"] for how, found in result["reads"].items()}
    worst = max(ratios, key=lambda how: ratios[how])
    return {
        "ratio": ratios[worst],
        "ours_s": result["reads"][worst]["ours_s"],
        "peer_s": result["reads"][worst]["once_s"],
        "reader": worst,
        "ratios": ratios,
        "files_max": max(result["files_max"].values()),
        "files": result["files"],
    }


def _acknowledgements(results: Results, extent: Extent) -> Figures:
    del extent
    (result,) = results["core"]
    rates = result["per_second"]
    third = len(rates) // 3
    return {
        "per_second": middle(rates),
        "ours_s": result["subtasks"] / middle(rates),
        "ratio": middle(rates[:third]) / middle(rates[-third:]),
    }


def _dagster(results: Results, extent: Extent) -> Figures:
    del extent
    by_dagster, by_command = (
        middle([result["epoch_s"] for result in results[name]]) for name in ("dagster:dagster", "dagster:command")
    )
    return {"ours_s": by_dagster, "peer_s": by_command, "more_s": by_dagster - by_command}


def _reported(results: Results, extent: Extent) -> Figures:
    del extent
    reported, alone = (
        middle([result["epoch_s"] for result in results[name]]) for name in ("reporters:all", "reporters:none")
    )
    cpu, cpu_alone = (
        middle([result["cpu_s"] for result in results[name]]) for name in ("reporters:all", "reporters:none")
    )
    end_s = middle([result["end_s"] for result in results["reporters:all"]])
    more = {"more_s": reported - alone, "cpu_more_s": cpu - cpu_alone}
    return {"ours_s": reported, "peer_s": alone, "end_s": end_s, **more}


def _freshness(results: Results, extent: Extent) -> Figures:
    del extent
    ours, peer = (
        middle([result["p50_s"] for result in results[name]]) for name in ("freshness:ours", "freshness:peer")
    )
    late = {name: middle([one["p99_s"] for one in results[f"freshness:{name}"]]) for name in ("ours", "peer")}
    return {
        "ratio": ours / peer,
        "ours_s": ours,
        "peer_s": peer,
        "p99_ours_s": late["ours"],
        "p99_peer_s": late["peer"],
    }


def _changes(results: Results, extent: Extent) -> Figures:
    del extent
    (result,) = results["postgres"]
    return {
        "per_second": result["per_second"],
        "ours_s": result["work_s"],
        "peer_s": result["rows"] / result["server_per_second"],
        "server_per_second": result["server_per_second"],
    }


def _timed(work: str) -> Callable[[Results, Extent], Figures]:
    """Return the figures of work in event time against Structured Streaming, and the figures against Flink."""
    ours = f"timed:ours:{work}"
    against = _against(ours, f"timed:streaming:{work}", WARM_UP)

    def figures(results: Results, extent: Extent) -> Figures:
        mine = middle([result["total_s"] for result in results[ours]])
        theirs = middle([result["total_s"] for result in results[f"flink:timed:{work}:rocksdb"]])
        return {**against(results, extent), "flink": {"ratio": theirs / mine, "ours_s": mine, "peer_s": theirs}}

    return figures


def _programs_in_time(work: str) -> tuple[str, ...]:
    return f"timed:ours:{work}", f"timed:streaming:{work}", f"flink:timed:{work}:rocksdb"


_DAYS: Final = ("expired:1", "expired:365")


def _expired(results: Results, extent: Extent) -> Figures:
    del extent
    day, year = (results[name][0]["state_bytes"] for name in _DAYS)
    return {"ratio": year / day, "state_bytes": year, "state_bytes_of_a_day": day}


ROWS: Final = (
    Row(
        id="P1",
        work="keyed count and sum, a checkpoint per 500k rows, against Structured Streaming with RocksDB",
        bar=">= 12x",
        programs=lambda _: ("ours", "streaming:rocksdb"),
        figures=_against("ours", "streaming:rocksdb", WARM_UP),
        reached=lambda found: found["ratio"] >= 12,  # noqa: PLR2004 - the bar, as in the rows below
    ),
    Row(
        id="P2",
        work="the same against Structured Streaming with its default state store",
        bar=">= 6x",
        programs=lambda _: ("ours", "streaming:hdfs"),
        figures=_against("ours", "streaming:hdfs", WARM_UP),
        reached=lambda found: found["ratio"] >= 6,  # noqa: PLR2004
    ),
    Row(
        id="P3",
        work="the same against Flink SQL with RocksDB / hashmap, without start-up",
        bar=">= 5x / >= 2.5x",
        programs=lambda _: ("ours", "flink:rocksdb", "flink:hashmap"),
        figures=flink_sums,
        reached=lambda found: found["ratio"] >= 5 and found["hashmap"]["ratio"] >= 2.5,  # noqa: PLR2004
    ),
    Row(
        id="P4",
        work="bronze, silver and gold of 14k flights, against one foreachBatch",
        bar=">= 8x",
        programs=lambda _: ("flights:ours", "flights:peer"),
        figures=_against("flights:ours", "flights:peer", WARM_UP_FLIGHTS),
        reached=lambda found: found["ratio"] >= 8,  # noqa: PLR2004
    ),
    Row(
        id="P5",
        work="throughput with a checkpoint per 500k rows, of that with a single one at the end: "
        "with the same micro-batches / with micro-batches of any size",
        bar=">= 0.97 / >= 0.80",
        programs=lambda _: ("ours", *_SINGLE),
        figures=_often,
        reached=lambda found: found["ratio"] >= 0.97 and found["any_size"]["ratio"] >= 0.80,  # noqa: PLR2004
    ),
    Row(
        id="P6",
        work="a checkpoint after its last micro-batch, at 10^4, 10^6, 10^7 keys, 1 % of them touched",
        bar="median <= 0.150 s, spread <= 0.020 s",
        programs=one_percent,
        figures=checkpoint_durations,
        reached=lambda found: found["ours_s"] <= 0.150 and found["spread_s"] <= 0.020,  # noqa: PLR2004
    ),
    Row(
        id="P7",
        work="an epoch at 10^7 keys over one at 10^6, the same rows touched",
        bar="<= 1.5x",
        programs=same_touched,
        figures=large_epochs,
        reached=lambda found: found["ratio"] <= 1.5,  # noqa: PLR2004
    ),
    Row(
        id="P8",
        work="a restore to its first micro-batch, at 10^7 keys over 10^4",
        bar="<= 1.2x, <= 1 s",
        programs=one_percent,
        figures=restores,
        reached=lambda found: found["ratio"] <= 1.2 and found["ours_s"] <= 1,  # noqa: PLR2004
    ),
    Row(
        id="P9",
        work="a tiny job's checkpoint: the last 200 of 2,000 over another job's first 200, taken in turn",
        bar="<= 1.2x",
        programs=lambda _: ("tiny",),
        figures=_many_commits,
        reached=lambda found: found["ratio"] <= 1.2,  # noqa: PLR2004
    ),
    Row(
        id="P10",
        work="the core alone: acknowledgements a second, 10,000 subtasks",
        bar=">= 100,000/s",
        programs=lambda _: ("core",),
        figures=_acknowledgements,
        reached=lambda found: found["per_second"] >= 100_000,  # noqa: PLR2004
    ),
    Row(
        id="P11",
        work="an epoch of a Dagster tick of 100, over one of `tidemark run`",
        bar="<= 0.030 s more",
        programs=lambda _: ("dagster:dagster", "dagster:command"),
        figures=_dagster,
        reached=lambda found: found["more_s"] <= 0.030,  # noqa: PLR2004
    ),
    Row(
        id="P50",
        work="an epoch of a tick of 100 with all reporters and a catalog, one of them hanging, over one without",
        bar="<= 0.020 s more",
        programs=lambda _: ("reporters:all", "reporters:none"),
        figures=_reported,
        reached=lambda found: found["more_s"] <= 0.020,  # noqa: PLR2004
    ),
    Row(
        id="P12",
        work="a checkpoint after its last micro-batch, on a store that takes 30 ms a request, nine tables",
        bar="<= 6 requests one after the other, median <= 0.250 s",
        programs=lambda _: ("store:commits",),
        figures=commits_on_a_store,
        reached=lambda found: found["sequential"] <= 6 and found["ours_s"] <= 0.250,  # noqa: PLR2004
    ),
    Row(
        id="P13",
        work="keyed sums on a standalone cluster, input and tables on S3: two workers of one core against one",
        bar=">= 1.7x",
        programs=lambda _: (ONE, TWO),
        figures=two_workers,
        reached=lambda found: found["ratio"] >= 1.7,  # noqa: PLR2004
    ),
    Row(
        id="P14",
        work="a checkpoint with 100,000 live state files over one with 1,000, the same 1,000 changed: time, bytes",
        bar="<= 1.5x each",
        programs=lambda _: LIVE,
        figures=live_files,
        reached=lambda found: found["ratio"] <= 1.5 and found["bytes_ratio"] <= 1.5,  # noqa: PLR2004
    ),
    Row(
        id="P15",
        work="the core alone: acknowledgements a second, 100,000 subtasks, and their growth over 20 checkpoints",
        bar=">= 100,000/s, flat",
        programs=lambda _: (LARGE_CORE,),
        figures=many_acknowledgements,
        reached=lambda found: found["per_second"] >= 100_000 and found["ratio"] <= 1.1,  # noqa: PLR2004
    ),
    Row(
        id="P16",
        work="a tick on such a store, from its start to its first micro-batch, after 1,000 checkpoints",
        bar="<= 2 s",
        programs=lambda _: ("store:starts",),
        figures=starts_on_a_store,
        reached=lambda found: found["ours_s"] <= 2,  # noqa: PLR2004
    ),
    Row(
        id="P17",
        work="8M Kafka records in 4 partitions to a table and keyed sums, against one foreachBatch",
        bar=">= 4x",
        programs=lambda _: ("kafka:ours", "kafka:peer"),
        figures=_against("kafka:ours", "kafka:peer", 1),
        reached=lambda found: found["ratio"] >= 4,  # noqa: PLR2004
    ),
    Row(
        id="P18",
        work="a record every 10 ms: until it is in a cut of three tables, over one table of Structured Streaming",
        bar="p50 <= 0.5x",
        programs=lambda _: ("freshness:ours", "freshness:peer"),
        figures=_freshness,
        reached=lambda found: found["ratio"] <= 0.5,  # noqa: PLR2004
    ),
    Row(
        id="P19",
        work="PostgreSQL changes into bronze and upserted silver, rows a second, beside the server's own rate",
        bar=">= 20,000/s",
        programs=lambda _: ("postgres",),
        figures=_changes,
        reached=lambda found: found["per_second"] >= 20_000,  # noqa: PLR2004
    ),
    Row(
        id="P20",
        work="1 % of 10^7 rows upserted, keys random / the 2 % that changed last: against MERGE in foreachBatch",
        bar=">= 3x / >= 10x",
        programs=lambda _: UPSERTS,
        figures=upserted,
        reached=lambda found: found["ratio"] >= 3 and found["recent"]["ratio"] >= 10,  # noqa: PLR2004
    ),
    Row(
        id="P21",
        work="2,000 checkpoints of a small pipeline: files per table, reading a table whole over one written once",
        bar="<= 40 files, <= 1.5x",
        programs=lambda _: ("many",),
        figures=_many_files,
        reached=lambda found: found["files_max"] <= 40 and found["ratio"] <= 1.5,  # noqa: PLR2004
    ),
    Row(
        id="P22",
        work="4M changes of orders and customers, joined and summed, against Flink SQL with RocksDB / hashmap",
        bar=">= 1.5x each",
        programs=lambda _: CHANGELOG,
        figures=flink_changelog,
        reached=lambda found: found["ratio"] >= 1.5 and found["hashmap"]["ratio"] >= 1.5,  # noqa: PLR2004
    ),
    Row(
        id="P23",
        work="50k PostgreSQL changes into bronze, all versions (SCD 2) and an aggregate, against two MERGEs on files",
        bar=">= 4x",
        programs=lambda _: ("history:ours", "history:peer"),
        figures=_against("history:ours", "history:peer", WARM_UP),
        reached=lambda found: found["ratio"] >= 4,  # noqa: PLR2004
    ),
    Row(
        id="P24",
        work="500,000 rows of a checkpoint into PostgreSQL / Kafka, exactly once, against Spark's own writers",
        bar=">= 1x each",
        programs=lambda _: PROGRAMS,
        figures=into_targets,
        reached=lambda found: found["ratio"] >= 1 and found["kafka"]["ratio"] >= 1,
    ),
    Row(
        id="P31",
        work="8M rows, sixteen published checkpoints, against Pathway's one batch with persistence, without start-up",
        bar=">= 1.3x",
        programs=lambda _: ("ours", "pathway"),
        figures=against_pathway,
        reached=lambda found: found["ratio"] >= 1.3,  # noqa: PLR2004
    ),
    Row(
        id="P32",
        work="an epoch of the demo's flights, 13,000 rows in six vertices: seconds and Spark jobs",
        bar="<= 0.35 s, <= 2 jobs",
        programs=lambda _: ("price:flights",),
        figures=lambda results, _: price(results, "price:flights", _FLIGHTS_OF_AN_EPOCH),
        reached=lambda found: found["ours_s"] <= 0.35 and found["jobs"] <= 2,  # noqa: PLR2004
    ),
    Row(
        id="P25",
        work="count and sum by key and hour, 100k keys, against Structured Streaming / Flink SQL with RocksDB",
        bar=">= 8x / >= 3x",
        programs=lambda _: _programs_in_time("hourly"),
        figures=_timed("hourly"),
        reached=lambda found: found["ratio"] >= 8 and found["flink"]["ratio"] >= 3,  # noqa: PLR2004
    ),
    Row(
        id="P26",
        work="the same in sessions",
        bar=">= 5x / >= 4x",
        programs=lambda _: _programs_in_time("sessions"),
        figures=_timed("sessions"),
        reached=lambda found: found["ratio"] >= 5 and found["flink"]["ratio"] >= 4,  # noqa: PLR2004
    ),
    Row(
        id="P27",
        work="two streams of rows joined by key within five minutes, half of the rows each, against the same two",
        bar=">= 5x / >= 2x",
        programs=lambda _: _programs_in_time("joined"),
        figures=_timed("joined"),
        reached=lambda found: found["ratio"] >= 5 and found["flink"]["ratio"] >= 2,  # noqa: PLR2004
    ),
    Row(
        id="P28",
        work="the first row of each id within an hour, 5 % doubles, against Structured Streaming with RocksDB",
        bar=">= 8x",
        programs=lambda _: ("timed:ours:doubles", "timed:streaming:doubles"),
        figures=_against("timed:ours:doubles", "timed:streaming:doubles", WARM_UP),
        reached=lambda found: found["ratio"] >= 8,  # noqa: PLR2004
    ),
    Row(
        id="P29",
        work="an epoch that closes 1,000 windows, and opens as many, with 10^7 open over one with 10^5 open",
        bar="<= 1.5x",
        programs=open_windows,
        figures=many_open,
        reached=lambda found: found["ratio"] <= 1.5,  # noqa: PLR2004
    ),
    Row(
        id="P30",
        work="bytes of state after a year of event time with a time to live of a day, and a drain, over those of a day",
        bar="<= 2x",
        programs=lambda _: _DAYS,
        figures=_expired,
        reached=lambda found: found["ratio"] <= 2,  # noqa: PLR2004
    ),
    Row(
        id="P33",
        work="keyed sums: CPU seconds for a million rows, by process, and bytes that Spark moves for a row",
        bar="<= 1.4 CPU s",
        programs=lambda _: ("price:sums",),
        figures=lambda results, _: price(results, "price:sums", _ROWS),
        reached=lambda found: found["cpu_s_per_million_rows"] <= 1.4,  # noqa: PLR2004
    ),
    Row(
        id="P40",
        work="Nexmark: geometric mean over all queries that Flink runs, against Flink SQL with RocksDB",
        bar=">= 3x",
        programs=lambda extent: (*nexmark.ours(), *nexmark.in_flink(nexmark.ROCKSDB, extent.nexmark_events)),
        figures=nexmark.against(nexmark.ROCKSDB, nexmark.IN_FLINK),
        reached=lambda found: found["ratio"] >= 3 and not found["lacking"],  # noqa: PLR2004
        apart=True,
    ),
    Row(
        id="P41",
        work="the same against Flink SQL with hashmap",
        bar=">= 1.5x",
        programs=lambda extent: (*nexmark.ours(), *nexmark.in_flink(nexmark.HASHMAP, extent.nexmark_events)),
        figures=nexmark.against(nexmark.HASHMAP, nexmark.IN_FLINK),
        reached=lambda found: found["ratio"] >= 1.5 and not found["lacking"],  # noqa: PLR2004
        apart=True,
    ),
    Row(
        id="P42",
        work="Nexmark: the slowest query against Flink SQL with RocksDB",
        bar=">= 1x",
        programs=lambda extent: (*nexmark.ours(), *nexmark.in_flink(nexmark.ROCKSDB, extent.nexmark_events)),
        figures=nexmark.against(nexmark.ROCKSDB, nexmark.IN_FLINK, worst=True),
        reached=lambda found: found["ratio"] >= 1 and not found["lacking"],
        apart=True,
    ),
    Row(
        id="P43",
        work="Nexmark: geometric mean over the queries that Structured Streaming runs, with RocksDB",
        bar=">= 5x",
        programs=lambda _: (*nexmark.ours(), *nexmark.streamed()),
        figures=nexmark.against(nexmark.STREAMING, nexmark.STREAMED),
        reached=lambda found: found["ratio"] >= 5 and not found["lacking"],  # noqa: PLR2004
        apart=True,
    ),
    Row(
        id="P44",
        work="Nexmark: memory of the whole process tree in the worst query, over Flink's",
        bar="<= 1x",
        programs=lambda extent: (*nexmark.ours(), *nexmark.in_flink(nexmark.ROCKSDB, extent.nexmark_events)),
        figures=nexmark.memory,
        reached=lambda found: found["ratio"] <= 1 and not found["lacking"],
        apart=True,
    ),
    Row(
        id="P45",
        work="Nexmark: bytes on disk after q9 and q20, over those of the rows as Parquet",
        bar="<= 1.5x",
        programs=lambda _: (*nexmark.ours(nexmark.ON_DISK), nexmark.DUCKDB),
        figures=nexmark.disk,
        reached=lambda found: found["ratio"] <= 1.5 and not found["lacking"],  # noqa: PLR2004
        apart=True,
    ),
    Row(
        id="P46",
        work="Nexmark: CPU seconds of all queries over those of DuckDB's batch answers",
        bar="<= 4x",
        programs=lambda _: (*nexmark.ours(), nexmark.DUCKDB),
        figures=nexmark.cpu_over_batch,
        reached=lambda found: found["ratio"] <= 4 and not found["lacking"],  # noqa: PLR2004
        apart=True,
    ),
    Row(
        id="P47",
        work="Nexmark at 50,000 events a second, a checkpoint every 200 ms: until a bid is in a cut, over Flink",
        bar="p50 <= 1x",
        programs=lambda _: nexmark.fresh(),
        figures=nexmark.freshness,
        reached=lambda found: found["ratio"] <= 1 and not found["lacking"],
        apart=True,
    ),
)
