"""`tidemark explain`: what a pipeline's tick would run, without running anything."""

from rich.console import Console

from jobs.cli.render_graph import render_graph
from jobs.cli.run import prepared
from jobs.settings import Layer
from jobs.sources.port import SourceError


def explain(reference: str, given: Layer, out: Console) -> None:
    """Show the pipeline's vertices, channels and tables; sources without input yet are shown without splits."""
    found = prepared(reference, given).plan
    try:
        graph = found.with_discovered_splits().graph
    except SourceError:
        graph = found.graph
    out.print(render_graph(found.job, graph))
