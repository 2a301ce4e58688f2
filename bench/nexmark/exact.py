"""Runs the queries of Nexmark in many small epochs, kills them on the way, and compares their tables row by row.

    make nexmark                                        # or NEXMARK='--only q5,q7 --events 200_000'

Each query is a pipeline of its own, at parallelism 1 and 4. It is killed twice (SIGKILL), each time at another
boundary, and goes on after each kill. At the end, its table must have exactly the rows of DuckDB's answer over all
input (`answers.py`). In another run, each query reads rows out of order and late. Then the late table must have the
rows that came too late, and the answer must be that of all other rows.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from bench.nexmark.answers import QUERIES as ANSWERS
from bench.nexmark.answers import answer
from bench.nexmark.generate import Extent, lay_out
from bench.nexmark.queries import IN_TIME, QUERIES, declared, epochs_of
from tidemark import Cut, Pipeline
from tidemark.testing import Trial

NAMES: Final = "NEXMARK_QUERIES"
"""The environment variable with the queries of the pipeline, so that another process declares the same queries."""
ROOT: Final = Path(__file__).resolve().parents[2] / ".bench"
DELAY_MS: Final = 4_000
LONGEST_WINDOW_MS: Final = 10_000
MEANS_DIFFER_BY: Final = 1e-9
"""The tolerance for means of doubles, which depend on the order of additions."""
_KILLS: Final = (
    ("after:RunMicroBatch#5", "after:AppendRow#2"),
    ("before:AppendRow#3", "after:RunMicroBatch#7"),
    ("after:AppendRow#2", "before:RecordCut#3"),
    ("before:RecordCut#2", "before:AppendRow#2"),
)
_LATE_COLUMNS: Final = {
    "q5": ("late/q5", {"auction": "auction", "dateTime": "dateTime"}),
    "q7": ("late/q7", {name: name for name in ("auction", "price", "bidder", "dateTime", "extra")}),
    "q11": ("late/q11", {"bidder": "bidder", "dateTime": "dateTime"}),
    **{
        name: (
            f"late/{name}_joined",
            {"auction": "auction", "bidder": "bidder", "price": "price", "dateTime": "bid_dateTime"},
        )
        for name in ("q4", "q6", "q9")
    },
}
"""The late table of a query whose late rows are bids, and the columns of a bid there."""


class InexactError(AssertionError):
    """A table has other rows than the answer. The message has the query, and the first row of each kind."""


def asked(data: Path) -> Pipeline:
    """Return the pipeline with the queries that the environment names. The data ends."""
    return declared(data, os.environ[NAMES].split(","), ends=True)


# ------------------------------------------------------------------
# Compares a table with the answer.


def require_exact(name: str, wanted: pa.Table, found: pa.Table) -> None:
    """Raise InexactError unless both have the same columns and rows, in any order."""
    ours, theirs = _plain(found), _plain(wanted)
    if ours.schema != theirs.schema:
        raise InexactError(f"{name}: its columns are {ours.schema}, and those of the answer {theirs.schema}")
    means = [column for column, kind in ours.schema.items() if kind.is_float()]
    whole = [column for column in ours.columns if column not in means]
    if not ours.select(whole).equals(theirs.select(whole)):
        missing, beyond = (_without(one.select(whole), other.select(whole)) for one, other in _turns(theirs, ours))
        raise InexactError(
            f"{name}: {len(missing)} rows are missing, and {len(beyond)} are too many. "
            f"The first ones: {missing.head(1).to_dicts()} {beyond.head(1).to_dicts()}"
        )
    for column in means:
        apart = (ours[column] - theirs[column]).abs() > MEANS_DIFFER_BY * theirs[column].abs()
        if apart.any() or ours[column].null_count() != theirs[column].null_count():
            raise InexactError(f"{name}: {column} differs: {ours.filter(apart).head(1).to_dicts()}")


def _plain(table: pa.Table) -> pl.DataFrame:
    """Return the rows sorted, with columns in a fixed order. Types that differ only between engines are made equal."""
    frame = pl.DataFrame(pl.from_arrow(table))
    frame = frame.with_columns(
        pl.col(pl.Datetime).dt.replace_time_zone(None).dt.cast_time_unit("us"),
        pl.col(pl.Int32).cast(pl.Int64),
        pl.col(pl.Decimal).cast(pl.String),
    )
    by = sorted(frame.columns, key=lambda name: (frame.schema[name].is_float(), name))
    return frame.select(by).sort(by)


def _without(rows: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    columns, nth = rows.columns, pl.int_range(pl.len()).over(rows.columns).alias("\0nth")
    on = [*columns, "\0nth"]
    return rows.with_columns(nth).join(others.with_columns(nth), on=on, how="anti", nulls_equal=True).drop("\0nth")


def _turns(one: pl.DataFrame, other: pl.DataFrame) -> tuple[tuple[pl.DataFrame, pl.DataFrame], ...]:
    return (one, other), (other, one)


def judge(name: str, cut: Cut, data: Path) -> int:
    """Compare the table of a query with its answer, and return its number of rows. Raises InexactError.

    Bids in its late table are left out of the answer. They must be exactly the bids that came too late.
    """
    found = pa.table(cut.arrow(f"nexmark/{name}"))
    rows = int(found.num_rows)
    late = _late_bids(name, cut)
    with duckdb.connect() as db:
        if late is not None:
            bids = _delivered(data)
            rest, too_late = _split(bids, late)
            _require_late(name, bids, too_late)
            db.register("bid_on_time", rest.select(pl.exclude("file", "before", "before_file")).to_arrow())
        wanted = answer(data, ANSWERS[name], db, bids="" if late is None else "bid_on_time")
        if name in ("q5", "q11") and late is not None:
            wanted, found = (_without_doubt(name, table, rest) for table in (wanted, found))
    require_exact(name, wanted, _by_bidder(found) if name == "q12" else found)
    return rows


def _by_bidder(windows: pa.Table) -> pa.Table:
    """Return the sums of the counts of q12 by bidder, since the window of a bid depends on when the bid was read."""
    counted = pl.DataFrame(pl.from_arrow(windows)).group_by("bidder").agg(pl.col("bid_count").sum())
    return counted.cast(pl.Int64).to_arrow()


def _without_doubt(name: str, rows: pa.Table, bids: pl.DataFrame) -> pa.Table:
    """Leave out the rows of q5 and q11 near a bid that came later than the delay allows, while a window was still open.

    Such a bid counts only in the hops that were still open. If its bidder's earlier session had already closed, the bid
    begins a new session.
    """
    frame = pl.DataFrame(pl.from_arrow(rows)).with_columns(_micros(pl.col("starts", "ends")))
    doubtful = bids.filter(pl.col("dateTime") <= pl.col("before") - pl.duration(milliseconds=DELAY_MS))
    ten = pl.duration(milliseconds=LONGEST_WINDOW_MS)
    if name == "q5":
        times = doubtful.select(pl.col("dateTime").alias("at")).unique()
        beside = frame.join_where(times, pl.col("starts") <= pl.col("at"), pl.col("ends") > pl.col("at"))
    else:
        times = doubtful.select("bidder", pl.col("dateTime").alias("at")).unique()
        near = (pl.col("starts") <= pl.col("at") + ten) & (pl.col("ends") >= pl.col("at"))
        beside = frame.join(times, on="bidder").filter(near)
    return frame.join(beside.select(frame.columns).unique(), on=frame.columns, how="anti").to_arrow()


def _late_bids(name: str, cut: Cut) -> pl.DataFrame | None:
    """Return the late bids of a query, with the columns that the query has read. Return None if no bid was late."""
    if name not in _LATE_COLUMNS:
        return None
    table, columns = _LATE_COLUMNS[name]
    if table not in cut.tables:
        return None
    rows = pl.DataFrame(pl.from_arrow(pa.table(cut.arrow(table))))
    if "late_side" in rows.columns:
        rows = rows.filter(pl.col("late_side") == "right").with_columns(pl.col("id").alias("auction"))
    late = rows.select(pl.col(there).alias(here) for here, there in columns.items())
    return None if late.is_empty() else late.with_columns(_micros(pl.col("dateTime")))


def _micros(time: pl.Expr) -> pl.Expr:
    return time.dt.replace_time_zone(None).dt.cast_time_unit("us")


def _delivered(data: Path) -> pl.DataFrame:
    """Return the bids as delivered, each with the greatest time before it, and before the file before its own."""
    files = sorted((data / "bid").glob("*.parquet"))
    parts = [pl.read_parquet(file).with_columns(pl.lit(number).alias("file")) for number, file in enumerate(files)]
    bids = pl.concat(parts).with_columns(_micros(pl.col("dateTime")))
    last = bids.group_by("file").agg(pl.col("dateTime").max().alias("last")).sort("file")
    last = last.select("file", pl.col("last").cum_max().shift(2).alias("before_file"))
    before = pl.col("dateTime").cum_max().shift(1).alias("before")
    return bids.with_columns(before).join(last, on="file", how="left", maintain_order="left")


def _split(bids: pl.DataFrame, late: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the bids that are not late, and the late bids. Raise InexactError for a late row that is no bid."""
    on, nth = late.columns, pl.int_range(pl.len())
    # Of bids that are equal in these columns, the ones that were delivered last are taken for late.
    marked = bids.with_columns(nth.reverse().over(on).alias("\0nth"))
    known = late.group_by(on).agg(pl.len().alias("\0late"))
    both = marked.join(known, on=on, how="left", maintain_order="left").with_columns(pl.col("\0late").fill_null(0))
    is_late = pl.col("\0nth") < pl.col("\0late")
    found = both.filter(is_late)
    if len(found) != len(late):
        raise InexactError(f"{len(late)} rows are in the late table, and only {len(found)} of them are bids")
    return both.filter(~is_late).drop("\0nth", "\0late"), found


def _require_late(name: str, bids: pl.DataFrame, late: pl.DataFrame) -> None:
    """Raise InexactError if a bid within the delay is in the late table, or a certainly late bid is not.

    A bid may be late if the time of a bid before it is more than the delay after its own time. It is certainly late if
    even the longest window of its time was closed by bids more than a file before it. In between, it depends on where
    epochs ended. This holds if no epoch is longer than a file. For q11 missing bids are no error, since a session stays
    open as long as its bidder goes on.
    """
    delay, window = pl.duration(milliseconds=DELAY_MS), pl.duration(milliseconds=LONGEST_WINDOW_MS)
    early = late.filter(pl.col("before").is_null() | (pl.col("dateTime") > pl.col("before") - delay))
    must = bids.filter(pl.col("dateTime") + window < pl.col("before_file") - delay)
    missing = _without(must.select(late.columns[:7]), late.select(late.columns[:7]))
    if len(early):
        raise InexactError(f"{name}: {len(early)} bids within the delay are late, such as {early.row(0, named=True)}")
    if len(missing) and name != "q11":
        raise InexactError(f"{name}: {len(missing)} late bids are not in the late table, such as {missing.row(0)}")


# ------------------------------------------------------------------
# Runs queries.


@dataclass(frozen=True, slots=True)
class Run:
    """A query that is to be run: over which data, at which parallelism, with which kills."""

    names: tuple[str, ...]
    data: Path
    parallelism: int
    every_bids: int
    kills: tuple[str, ...] = ()
    how: str = "in order"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run. Without a `wrong`, all tables are exact."""

    run: Run
    rows: int
    epochs: int
    seconds: float
    wrong: str = ""


def played(run: Run, folder: Path) -> Cut:
    """Run the queries to the end of their data. Each kill ends one tick. Return the last cut.

    Raises NotKilledError, TickFailedError.
    """
    os.environ[NAMES] = ",".join(run.names)
    trial = Trial("bench.nexmark.exact:asked", folder)
    trial.data = run.data
    settings = {"parallelism": run.parallelism, "spark_cores": 2} | epochs_of(run.names, run.every_bids)
    for at in run.kills:
        trial.kill(at, **settings)
    return trial.run(**settings)


def outcome(run: Run, scratch: Path) -> Outcome:
    """Run the queries, and compare their tables with the answers."""
    started = time.monotonic()
    shutil.rmtree(scratch, ignore_errors=True)
    rows, epochs, wrong = 0, 0, ""
    try:
        cut = played(run, scratch)
        epochs = cut.checkpoint
        rows = sum(judge(name, cut, run.data) for name in run.names)
    except Exception as error:  # noqa: BLE001 - the other queries are run too, and the table shows it
        wrong = f"{type(error).__name__}: {error}"
    return Outcome(run, rows, epochs, time.monotonic() - started, wrong)


def runs(names: Sequence[str], extent: Extent, data: Path, *, kills: bool = True) -> Iterator[Run]:
    """Yield the runs of these queries: at both parallelisms in order, and once out of order and late."""
    late = replace(extent, disorder_ms=3_500, late=0.01)
    in_order, disordered = lay_out(extent, data), lay_out(late, data)
    every = max(extent.events // 25, 1)
    for number, name in enumerate(names):
        for turn, parallelism in enumerate((1, 4)):
            places = _KILLS[(number + turn) % len(_KILLS)] if kills else ()
            yield Run((name,), in_order, parallelism, every, places)
        yield Run((name,), disordered, 4, every, (), "out of order, late" if name in IN_TIME else "out of order")


def in_flink(names: Sequence[str], data: Path, scratch: Path) -> Iterator[Outcome]:
    """Run the queries in Flink SQL (`bench.peers.nexmark_flink`), and check its rows. `make bench` sets Flink up."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    program = Path(__file__).parents[1] / "peers" / "nexmark_flink.py"
    command = [str(ROOT / "flink" / "bin" / "python"), str(program), str(data), "--query", ",".join(names)]
    started = time.monotonic()
    said = subprocess.run([*command, "--answers", str(scratch)], check=False, capture_output=True, text=True)  # noqa: S603
    seconds = time.monotonic() - started
    for name in names:
        rows, wrong = 0, ""
        try:
            found = pq.read_table(scratch / f"{name}.parquet")
            rows = found.num_rows
            require_exact(name, answer(data, ANSWERS[name]), _by_bidder(found) if name == "q12" else found)
        except OSError:
            wrong = f"{name}: Flink gave no rows: {said.stderr.splitlines()[-1:]}"
        except InexactError as error:
            wrong = str(error)
        yield Outcome(Run((name,), data, 2, 0, how="in Flink"), rows, 0, seconds / len(names), wrong)
    shutil.rmtree(scratch)


def main(
    only: Annotated[str, typer.Option(help="Queries to run, as in q5,q7; all of them if left out.")] = "",
    events: Annotated[str, typer.Option(help="How many events there are.")] = "1_000_000",
    *,
    kills: Annotated[bool, typer.Option(help="Kill each query twice.")] = True,
    flink: Annotated[bool, typer.Option(help="Compare the rows of Flink SQL instead, over few events.")] = False,
) -> None:
    """Run the queries, and print for each whether its table is exact."""
    console = Console()
    names = [name for name in QUERIES if not only or name in only.split(",")]
    extent = Extent(events=int(events.replace("_", "")))
    scratch = ROOT / "scratch-nexmark"
    done: list[Outcome] = []
    if flink:
        names = [name for name in names if name != "q6"]
        data = lay_out(replace(extent, rate=max(extent.events // 120, 60)), ROOT / "data")
        done = list(in_flink(names, data, scratch))
        console.print(_shown(done))
        sys.exit(any(each.wrong for each in done))
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    ) as progress:
        work = progress.add_task("generate", total=3 * len(names))
        for run in runs(names, extent, ROOT / "data", kills=kills):
            progress.update(work, description=f"{run.names[0]} at parallelism {run.parallelism}, {run.how}")
            done.append(outcome(run, scratch))
            progress.advance(work)
    shutil.rmtree(scratch, ignore_errors=True)
    console.print(_shown(done))
    sys.exit(any(each.wrong for each in done))


def _shown(done: Sequence[Outcome]) -> Group:
    """Return the table of all runs, and below it the errors."""
    table = Table(title="Nexmark")
    for column in ("query", "rows are", "parallelism", "rows", "epochs", "kills", "seconds", "exact"):
        table.add_column(column, justify="left" if column in ("query", "rows are", "exact") else "right")
    for each in done:
        exact = "[red]no[/]" if each.wrong else "[green]yes[/]"
        numbers = (str(each.run.parallelism), f"{each.rows:,}", str(each.epochs), str(len(each.run.kills)))
        table.add_row(",".join(each.run.names), each.run.how, *numbers, f"{each.seconds:.1f}", exact)
    return Group(table, *(Text(each.wrong, style="red") for each in done if each.wrong))


if __name__ == "__main__":
    typer.run(main)
