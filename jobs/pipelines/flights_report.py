"""The demo's report: the ten worst routes, and where every flight is. It reads one cut, as any program can."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

if TYPE_CHECKING:  # it imports delta-rs, which explaining a pipeline does not need
    from jobs.reading.cut import Cut

ROUTES_SHOWN: Final = 10
FLIGHTS_MIN: Final = 52
"""Routes with fewer flights, about one a week, are left out."""


@dataclass(frozen=True, slots=True)
class Accounting:
    """The rows of bronze/flights, and the four places in which each of them may be."""

    bronze: int
    silver: int
    quarantine: int
    late: int
    waiting: int

    @property
    def balanced(self) -> bool:
        """Return whether the counts of all places add up to all flights."""
        return self.bronze == self.silver + self.quarantine + self.late + self.waiting


def report(cut: "Cut") -> RenderableType:
    """Return the worst routes and the accounting at a cut."""
    return Group(
        Text(f"gold/delays_by_route: the worst routes from New York, of those flown at least {FLIGHTS_MIN} times"),
        shown_routes(worst_routes(cut.polars("gold/delays_by_route"))),
        shown_accounting(accounting(cut)),
    )


def accounting(cut: "Cut") -> Accounting:
    """Count the flights at a cut: in the tables, and in the state of the join where they wait for the weather."""
    waiting = cut.state("silver_flights").polars().filter(pl.col("_left").is_not_null(), ~pl.col("_matched"))
    late = cut.polars("late/flights").filter(pl.col("late_side") == "left")
    bronze, silver, quarantine = (cut.polars(f"{layer}/flights") for layer in ("bronze", "silver", "quarantine"))
    places = (bronze, silver, quarantine, late, waiting)
    return Accounting(*(rows.select(pl.len()).collect().item() for rows in places))


def worst_routes(gold: pl.LazyFrame) -> pl.DataFrame:
    """Return the routes with the greatest mean arrival delay, the worst first. Equal routes are ordered by name."""
    return (
        gold.filter(pl.col("flights") >= FLIGHTS_MIN)
        .select("carrier", "dest", "flights", pl.col("arr_delay_sum") / pl.col("flights"), "arr_delay_max")
        .sort(["arr_delay_sum", "carrier", "dest"], descending=[True, False, False])
        .head(ROUTES_SHOWN)
        .collect()
    )


def shown_routes(routes: pl.DataFrame) -> RenderableType:
    """Return these routes as a table."""
    grid = Grid("carrier", "to", "flights", "mean delay", "longest")
    for column in grid.columns[2:]:
        column.justify = "right"
    for carrier, to, flights, mean, longest in routes.iter_rows():
        grid.add_row(carrier, to, f"{flights:,}", f"{mean:.1f} min", f"{longest:,} min")
    return grid


def shown_accounting(found: Accounting) -> RenderableType:
    """Return the equation that must hold at every cut, and whether it does."""
    parts = (
        f"bronze {found.bronze:,} = silver {found.silver:,}",
        f"quarantine {found.quarantine:,}",
        f"late {found.late:,}",
        f"waiting for weather {found.waiting:,}",
    )
    verdict = ("  holds", "green") if found.balanced else ("  DOES NOT HOLD: please report this", "bold red")
    return Text.assemble(("flights: ", "bold"), " + ".join(parts), verdict)
