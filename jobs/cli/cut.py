"""`tidemark cut`: every table's Delta version at a checkpoint or a point in time, and the lines that read it."""

from pathlib import Path

from rich.console import Console

from jobs.cli.errors import CommandError, ExitCode
from jobs.cli.render_cut import render_cut
from jobs.cli.reports import job_named, warehouse_folder
from jobs.reading import Cut, InvalidMomentError
from jobs.reading.cuts import Cuts
from jobs.reading.moments import LATEST, is_moment
from jobs.settings import Layer


def show_cut(words: tuple[str, str | None], default: str, given: Layer, out: Console) -> None:
    """Show how to read all tables at a cut: `[PIPELINE] [N|latest|TIMESTAMP]`, the newest if no moment is named.

    Raises what `found_cut` raises.
    """
    pipeline, moment = _pipeline_and_moment(words, default)
    root = warehouse_folder(given)
    out.print(render_cut(found_cut(root, pipeline, moment), root), soft_wrap=True)


def found_cut(root: Path, pipeline: str, moment: str) -> Cut:
    """Return the cut that a user means; raise CommandError for words that mean none, NeverRunError, NoSuchCutError."""
    cuts = Cuts(root, job_named(pipeline))
    try:
        return cuts.find(moment)
    except InvalidMomentError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error


def _pipeline_and_moment(words: tuple[str, str | None], default: str) -> tuple[str, str]:
    """Let the pipeline be left out: `cut 7` is `cut flights 7`."""
    first, second = words
    if second is not None:
        return first, second
    return (default, first) if is_moment(first) else (first, LATEST)
