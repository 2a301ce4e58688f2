"""`tidemark explain`: shows what a tick of the pipeline would run, without running anything."""

from rich.console import Console

from jobs.cli.errors import CommandError, ExitCode, with_story
from jobs.launch import Launch, launch
from jobs.pipeline import InvalidPipelineError
from jobs.pipelines.registry import BrokenPipelineError
from jobs.settings import Layer
from jobs.showing.graph import render_graph
from jobs.sources.port import SourceError, closing


def explain(reference: str, given: Layer, out: Console) -> None:
    """Show the pipeline's vertices, channels and tables. A source that has no input yet is shown without splits."""
    plan = prepared(reference, given).plan
    try:
        with closing(plan.sources):
            plan = plan.with_discovered_splits()
    except (SourceError, InvalidPipelineError):
        out.print("the input is not there yet, so the number of splits is not known")
    out.print(render_graph(plan), soft_wrap=True)


def prepared(reference: str, given: Layer) -> Launch:
    """Return the planned pipeline; raise WrongInputError, UnknownPipelineError, CommandError if the code is wrong."""
    try:
        return launch(reference, given)
    except BrokenPipelineError as error:
        raise with_story(str(error)) from error
    except InvalidPipelineError as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
