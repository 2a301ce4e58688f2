"""`tidemark cut`: shows each table's Delta version at a checkpoint or a time, and the lines that read it."""

from rich.console import Console

from jobs.cli.errors import CommandError, ExitCode
from jobs.cli.naming import warehouse_of
from jobs.reading import Cut, InvalidMomentError
from jobs.reading.cuts import Cuts
from jobs.settings import Layer
from jobs.showing.cut import render_cut
from jobs.stores.warehouse import Warehouse


def show_cut(pipeline: str, moment: str, given: Layer, out: Console) -> None:
    """Show how to read all tables at a cut; raise what `found_cut` raises."""
    warehouse = warehouse_of(pipeline, given)
    out.print(render_cut(found_cut(warehouse, moment), warehouse.root), soft_wrap=True)


def found_cut(warehouse: Warehouse, moment: str) -> Cut:
    """Return the cut that a user names; raise CommandError for other words, NeverRunError, NoSuchCutError."""
    try:
        return Cuts(warehouse.root, warehouse.paths.job).find(moment)
    except InvalidMomentError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
