"""Runs the programs in turn, and writes the figures: `python -m bench [--only P1,P6] [--quick]`."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.machine import machine, versions
from bench.plan import FLINK_PYTHON, FULL, PATHWAY_PYTHON, QUICK, ROOT, Extent, program
from bench.programs import Measured, ProgramFailedError, Result, run
from bench.report import reached, write
from bench.rows import ROWS, Figures, Row

NEXMARK: Final = "NEXMARK"
"""The word in `--only` for the rows that are measured apart."""


def main(
    only: Annotated[str, typer.Option(help="Rows to measure, as in P1,P6 or nexmark; else all but those.")] = "",
    events: Annotated[int, typer.Option(help="Events of Nexmark, if not 10M, or 1M with --quick.")] = 0,
    *,
    quick: Annotated[bool, typer.Option(help="Less of everything: minutes, and coarser figures.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on with a run that was cut.")] = False,
) -> None:
    """Measure the rows, print them, and write bench/results.json and bench/results.md."""
    console, extent = Console(stderr=True), QUICK if quick else FULL
    extent = replace(extent, nexmark_events=events or extent.nexmark_events)
    rows = _chosen(only)
    about = {
        "versions": versions({"apache-flink": FLINK_PYTHON, "pathway": PATHWAY_PYTHON}),
        "machine": machine() | {"extent": "quick" if quick else "full"},
    }
    try:
        results = _run_all(console, rows, extent, resume=resume)
    finally:
        shutil.rmtree(ROOT / "scratch", ignore_errors=True)
    found, lacking = _figures(rows, results, extent)
    write(Path(__file__).parent, ROWS, found, about)
    console.print(_table(rows, found))
    for row, name in lacking:
        console.print(f"{row.id} was not measured, or in part: {name} gave no figures", highlight=False)
    if lacking:
        sys.exit(1)


def _chosen(only: str) -> tuple[Row, ...]:
    said = {name.strip().upper() for name in only.split(",") if name.strip()}
    wanted = said - {NEXMARK} | ({row.id for row in ROWS if row.apart} if NEXMARK in said else set())
    unknown = sorted(wanted - {row.id for row in ROWS})
    if unknown:
        raise typer.BadParameter(f"there is no row {unknown[0]}, only {', '.join(row.id for row in ROWS)}")
    return tuple(row for row in ROWS if row.id in wanted or not (wanted or row.apart))


def _run_all(console: Console, rows: Sequence[Row], extent: Extent, *, resume: bool) -> dict[str, list[Result]]:
    """Run every program that a row needs, all of them once in each round. A failed program is left out from then on."""
    results: dict[str, list[Result]] = {}
    failed: set[str] = set()
    with _progress(console) as progress:
        names = tuple(dict.fromkeys(name for row in rows for name in row.programs(extent)))
        work = progress.add_task("lay out", total=extent.rounds * len(names))
        for number in range(1, extent.rounds + 1):
            for name in names:
                progress.update(work, description=f"round {number}: {name}")
                if name not in failed and not _run_one(console, name, extent, results, number, resume=resume):
                    failed.add(name)
                progress.advance(work)
    return {name: found for name, found in results.items() if name not in failed}


def _run_one(
    console: Console, name: str, extent: Extent, results: dict[str, list[Result]], number: int, *, resume: bool
) -> bool:
    """Run a program in a round, unless one round of it is enough. Return True if the program gave a result."""
    asked, measured = program(name, extent), Measured(ROOT / "measured")
    if asked.once and name in results:
        return True
    kept = measured.find(asked, number) if resume else None
    try:
        found = kept or run(asked)
        results.setdefault(name, []).append(found)
        measured.keep(asked, found, number)
    except (ProgramFailedError, OSError) as error:
        console.print(f"[red]{name}[/]: {error}", highlight=False)
        return False
    return True


def _figures(
    rows: Iterable[Row], results: dict[str, list[Result]], extent: Extent
) -> tuple[dict[str, Figures], list[tuple[Row, str]]]:
    """Return the figures of every row whose programs all gave results, and the programs without a result."""
    found: dict[str, Figures] = {}
    lacking: list[tuple[Row, str]] = []
    for row in rows:
        missing = [name for name in row.programs(extent) if name not in results]
        if missing:
            lacking.append((row, missing[0]))
        if not missing or row.apart:
            with suppress(*((KeyError, ValueError) if missing else ())):  # too few programs gave a result
                found[row.id] = row.figures(results, extent)
    return found, lacking


def _table(rows: Iterable[Row], found: dict[str, Figures]) -> Table:
    table = Table("row", "work", "bar", "ratio", "ours", "peer", "reached", title="bench")
    for row in rows:
        if row.id not in found:
            continue
        figures = found[row.id]
        cells = (f"{figures[name]:.3f}" if name in figures else "" for name in ("ratio", "ours_s", "peer_s"))
        table.add_row(row.id, row.work, row.bar, *cells, reached(row, figures).strip("*"))
    return table


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


if __name__ == "__main__":
    typer.run(main)
