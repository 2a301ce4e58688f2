"""Lists the programs and the size of their work, for a full and for a quick run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import flights
from bench.changelog_workload import lay_out_changelog
from bench.kafka_workload import lay_out_topic
from bench.nexmark import generate
from bench.programs import Program, module
from bench.timed_workload import first_files, lay_out_sides, lay_out_times
from bench.workload import Workload, lay_out

ROOT: Final = Path(__file__).resolve().parents[1] / ".bench"
DATA: Final = ROOT / "data"
FLINK_PYTHON: Final = ROOT / "flink" / "bin" / "python"
PATHWAY_PYTHON: Final = ROOT / "pathway" / "bin" / "python"
_PATHWAY: Final = {"PATHWAY_THREADS": "2"}
_LARGE_HEAP: Final = {"JVM_ARGS": "-Xmx12g"}
_FILL_THE_HEAP: Final = ("q4", "q7", "q9", "q18", "q19", "q20", "q23")
"""Queries whose state in memory, over 10M events, fills Java's default heap, which is a quarter of 24 GB."""
_HEAP_EVENTS: Final = 3_000_000
"""Up to this many events, the state of every query fits into Java's default heap."""

_FLIGHTS: Final = {"ours": "bench.ours.flights_medallion", "peer": "bench.peers.foreach_batch_flights"}
_KAFKA: Final = {"ours": "bench.ours.kafka_sums", "peer": "bench.peers.kafka_foreach_batch"}
_SINKS: Final = {"ours": "bench.ours.outside_sinks", "peer": "bench.peers.spark_writers"}
_UPSERTS: Final = {"ours": "bench.ours.upserts", "peer": "bench.peers.merged_upserts"}
_HISTORY: Final = {"ours": "bench.ours.bank_history", "peer": "bench.peers.merged_history"}
_FRESHNESS: Final = {"ours": "bench.ours.kafka_freshness", "peer": "bench.peers.kafka_freshness"}
_TIMED: Final = {"ours": "bench.ours.timed_rows", "streaming": "bench.peers.structured_streaming"}
_ROWS: Final = 500_000
_KEYS: Final = 1_000_000
WARM_UP: Final = 3
"""How many of a program's first epochs or batches do not count."""
WARM_UP_FLIGHTS: Final = 4
WARM_UP_PRICE: Final = 3
WARM_UP_SINKS: Final = 2
WARM_UP_UPSERTS: Final = 3
WARM_UP_CLUSTER: Final = 2
"""How many of the first epochs on a cluster do not count."""
_OF_EPOCHS: Final = {
    "dagster": ("bench.ours.dagster_epochs", "--by"),
    "reporters": ("bench.ours.reported_epochs", "--reporters"),
}
_ONCE: Final = (
    "price",
    "state",
    "tiny",
    "core",
    "live",
    "postgres",
    "store",
    "cluster",
    "upserts",
    "history",
    "many",
    "nexmark",
    "open",
    "expired",
)
"""Programs that take enough measurements in one round, so that later rounds leave them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The size of a measurement. `files` have 500,000 rows each. In each of the `rounds`, all programs run in turn."""

    files: int
    rounds: int
    checkpoints: int
    """Checkpoints of the tiny job (P9), and of the job whose files are counted (P21)."""
    large_keys: int
    """Keys of the largest state (P6 to P8)."""
    transactions: int
    """Transactions of the bank (P19)."""
    changes: int
    """Changes of orders and customers (P22)."""
    history_changes: int
    """Changes of the bank's accounts (P23)."""
    kafka_rows: int
    """Records of the Kafka topic (P17)."""
    freshness_s: int
    """Seconds for which records are measured (P18, P47)."""
    sink_files: int
    """Files of 500,000 rows that go to a server outside (P24)."""
    nexmark_events: int
    """Events of Nexmark (P40 to P46)."""
    store_checkpoints: Mapping[str, int]
    """Checkpoints on an object store: measured (P12, `commits`), and before a measured tick (P16, `starts`)."""


FULL: Final = Extent(
    files=16,
    rounds=2,
    checkpoints=2_000,
    large_keys=10_000_000,
    transactions=250_000,
    changes=4_000_000,
    history_changes=600_000,
    kafka_rows=8_000_000,
    freshness_s=120,
    sink_files=8,
    nexmark_events=10_000_000,
    store_checkpoints={"commits": 30, "starts": 1_000},
)
QUICK: Final = Extent(
    files=8,
    rounds=1,
    checkpoints=400,
    large_keys=4_000_000,
    transactions=100_000,
    changes=2_000_000,
    history_changes=300_000,
    kafka_rows=2_000_000,
    freshness_s=30,
    sink_files=5,
    nexmark_events=1_000_000,
    store_checkpoints={"commits": 12, "starts": 300},
)


def program(name: str, extent: Extent) -> Program:
    """Return the program with this name, after writing its input. Raise KeyError for an unknown name."""
    scratch = ROOT / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    command = (*_command(name, extent), "--scratch", str(scratch))
    return Program(name, command, name.startswith(_ONCE), _environment(name, extent))


def _environment(name: str, extent: Extent) -> Mapping[str, str]:
    match name.split(":"):
        case ["pathway"]:
            return _PATHWAY
        case ["nexmark", "flink", "hashmap", _, query] if query in _FILL_THE_HEAP:
            return _LARGE_HEAP if extent.nexmark_events > _HEAP_EVENTS else {}
        case _:
            return {}


def _command(name: str, extent: Extent) -> tuple[str, ...]:  # noqa: C901, PLR0912, PLR0915 - a branch for each kind
    match name.split(":"):
        case ["ours", *settings]:
            flags = (word for setting in settings for word in f"--{setting}".split("="))
            command = module("bench.ours.keyed_sums", str(_events(extent)), *flags)
        case ["streaming", provider]:
            command = module("bench.peers.structured_streaming", str(_events(extent)), "--provider", provider)
        case ["flink" | "pathway", *_]:
            command = _in_its_own_environment(name, extent)
        case ["changelog"]:
            command = module("bench.ours.changelog_sums", str(lay_out_changelog(extent.changes, DATA)))
        case ["timed", by, work]:
            command = module(_TIMED[by], str(_timed(work, extent)), "--work", work)
        case ["expired", days]:
            command = module("bench.ours.expired_state", "--days", days)
        case ["open", windows]:
            command = module("bench.ours.open_windows", "--open", windows)
        case ["price", "sums"]:
            command = module("bench.ours.epoch_price", "sums", str(_events(extent)))
        case ["price", "flights"]:
            command = module("bench.ours.epoch_price", "flights", str(ROOT.parent / "data"))
        case ["flights", by]:
            command = module(_FLIGHTS[by], str(flights.lay_out(DATA)))
        case ["state", keys, touched]:
            command = module("bench.ours.state_size", "--keys", keys, "--touched", touched, "--data", str(DATA))
        case ["kafka", by]:
            command = module(_KAFKA[by], str(lay_out_topic(extent.kafka_rows, DATA)))
        case ["freshness", by]:
            command = module(_FRESHNESS[by], "--seconds", str(extent.freshness_s))
        case ["sink", by, target]:
            command = module(_SINKS[by], str(_files(extent.sink_files)), "--to", target)
        case ["upserts", by, which]:
            command = module(_UPSERTS[by], "--keys", str(extent.large_keys), "--which", which, "--data", str(DATA))
        case ["history", by]:
            command = module(_HISTORY[by], "--changes", str(extent.history_changes), "--data", str(DATA))
        case ["nexmark", "fresh", *words]:
            command = _of_live_nexmark(words, extent)
        case ["nexmark", *words]:
            command = _of_nexmark(words, extent)
        case ["tiny"]:
            command = module("bench.ours.tiny_commits", "--checkpoints", str(extent.checkpoints))
        case ["many"]:
            command = module("bench.ours.many_files", "--checkpoints", str(extent.checkpoints))
        case ["store", part]:
            command = module(f"bench.ours.store_{part}", "--checkpoints", str(extent.store_checkpoints[part]))
        case ["cluster", workers]:
            command = module("bench.ours.cluster_sums", str(_events(extent)), "--workers", workers)
        case ["core"]:
            command = module("bench.ours.core_acknowledgements")
        case ["core", subtasks]:
            command = module("bench.ours.core_acknowledgements", "--subtasks", subtasks, "--checkpoints", "20")
        case ["live", files]:
            command = module("bench.ours.live_files", "--live", files)
        case ["dagster" | "reporters" as of, which]:
            command = module(*_OF_EPOCHS[of], which)
        case ["postgres"]:
            command = module("bench.ours.postgres_changes", "--transactions", str(extent.transactions))
        case _:
            raise KeyError(name)
    return command


def _of_nexmark(words: list[str], extent: Extent) -> tuple[str, ...]:
    """Return the command for a query, or for all of them in DuckDB."""
    laid_out = generate.lay_out(generate.Extent(events=extent.nexmark_events), DATA)
    data = str(laid_out)
    match words:
        case ["ours", query]:
            return module("bench.ours.nexmark", data, "--query", query)
        case ["streaming", query]:
            return module("bench.peers.nexmark_streaming", data, "--query", query)
        case ["duckdb"]:
            return module("bench.peers.nexmark_duckdb", data)
        case ["flink", backend, plan, query]:
            first = str(generate.first_files(laid_out))
            how = ("--warm-up", first, "--backend", backend, *(("--mini-batch",) if plan == "mini-batch" else ()))
            return (str(FLINK_PYTHON), _peer("nexmark_flink"), data, "--query", query, *how)
        case _:
            raise KeyError(words)


def _of_live_nexmark(words: list[str], extent: Extent) -> tuple[str, ...]:
    """Return the command that measures how fresh the answer of a query is."""
    live = ("--seconds", str(extent.freshness_s), "--data", str(DATA))
    match words:
        case ["ours", query]:
            return module("bench.ours.nexmark_freshness", "--query", query, *live)
        case ["streaming"]:
            return module("bench.peers.nexmark_freshness", *live)
        case ["flink", backend, query]:
            return module("bench.peers.nexmark_flink_freshness", "--query", query, "--backend", backend, *live)
        case _:
            raise KeyError(words)


def _in_its_own_environment(name: str, extent: Extent) -> tuple[str, ...]:
    """Return the command of a peer with a Python of its own. It reads CSV."""
    match name.split(":"):
        case ["flink", "changelog", backend]:
            folder = lay_out_changelog(extent.changes, DATA, csv=True)
            command = (str(FLINK_PYTHON), _peer("flink_changelog"), str(folder), "--backend", backend)
        case ["flink", "timed", work, backend]:
            rows = _timed(work, extent, csv=True)
            first = str(first_files(rows))
            how = (str(rows), "--work", work, "--backend", backend, "--warm-up", first)
            command = (str(FLINK_PYTHON), _peer("flink_sql"), *how)
        case ["flink", backend]:
            command = (str(FLINK_PYTHON), _peer("flink_sql"), str(_events(extent, csv=True)), "--backend", backend)
        case ["pathway"]:
            command = (str(PATHWAY_PYTHON), _peer("pathway_sums"), str(_events(extent, csv=True)))
        case _:
            raise KeyError(name)
    return command


def _peer(name: str) -> str:
    return str(Path(__file__).parent / "peers" / f"{name}.py")


def _events(extent: Extent, *, csv: bool = False) -> Path:
    return _files(extent.files, csv=csv)


def _timed(work: str, extent: Extent, *, csv: bool = False) -> Path:
    if work == "joined":
        return lay_out_sides(extent.files // 2, DATA, csv=csv)
    return lay_out_times(extent.files, DATA, csv=csv)


def _files(files: int, *, csv: bool = False) -> Path:
    return lay_out(Workload(rows=_ROWS, files=files, keys=_KEYS), DATA, csv=csv)
