"""The demo's report: the ten worst routes and where every flight is."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from jobs.cli.flights_report import FLIGHTS_MIN, Accounting, Route
from jobs.showing.quantities import count


def render_routes(routes: Sequence[Route]) -> RenderableType:
    """Return the worst routes as gold/delays_by_route tells them, the worst first."""
    title = f"gold/delays_by_route: the worst routes from New York, of those flown at least {FLIGHTS_MIN} times"
    grid = Grid("carrier", "to", "flights", "mean delay", "longest")
    for column in grid.columns[2:]:
        column.justify = "right"
    for route in routes:
        delays = (f"{route.delay_mean:.1f} min", f"{count(route.delay_max)} min")
        grid.add_row(route.carrier, route.dest, count(route.flights), *delays)
    return Group(Text(title, style="bold"), grid)


def render_accounting(found: Accounting) -> RenderableType:
    """Return the equation that must hold at every cut, and whether it does."""
    parts = (
        f"bronze {count(found.bronze)} = silver {count(found.silver)}",
        f"quarantine {count(found.quarantine)}",
        f"waiting for weather {count(found.waiting)}",
    )
    verdict = ("  holds", "green") if found.balanced else ("  DOES NOT HOLD: please report this", "bold red")
    return Text.assemble(("flights: ", "bold"), " + ".join(parts), verdict)
