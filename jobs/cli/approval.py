"""`tidemark approve` and `tidemark reject`: settle the cut that waits for a person."""

from rich.console import Console
from rich.text import Text

from jobs.at_rest.approval import approve, reject
from jobs.cli.errors import ExitCode, naming_pipeline, needing_rest
from jobs.cli.naming import sinks_of, warehouse_of
from jobs.settings import Layer
from jobs.showing.quantities import plural


def approve_cut(pipeline: str, given: Layer, out: Console) -> ExitCode:
    """Publish the cut of a job that waits for approval."""
    warehouse = warehouse_of(pipeline, given)
    with naming_pipeline(pipeline, warehouse.paths.job), needing_rest("an approval", pipeline):
        done = approve(warehouse, sinks=sinks_of(pipeline, given))
    job, record = (str(warehouse.paths.job), "bold"), done.record
    said = f": cut {done.held.checkpoint} is approved, as checkpoint {record.checkpoint}"
    out.print(Text.assemble(job, f"{said}; {plural(len(record.tables), 'table')} published"), soft_wrap=True)
    for note in done.published.notes:
        out.print(note, soft_wrap=True)
    out.print(f"go on with: tidemark run {pipeline}", soft_wrap=True)
    return ExitCode.DONE


def reject_cut(pipeline: str, given: Layer, out: Console) -> ExitCode:
    """Discard the cut of a job that waits for approval."""
    warehouse = warehouse_of(pipeline, given)
    with naming_pipeline(pipeline, warehouse.paths.job), needing_rest("a rejection", pipeline):
        held = reject(warehouse)
    said = f": cut {held.checkpoint} is rejected. No table shows anything of it, and the next tick reads its rows again"
    out.print(Text.assemble((str(warehouse.paths.job), "bold"), said), soft_wrap=True)
    return ExitCode.DONE
