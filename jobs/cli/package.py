"""`tidemark package`: builds the archive that brings this environment to the workers of a cluster."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from jobs.cli.explain import prepared
from jobs.engine_paths import typed
from jobs.packing.archive import write_archive
from jobs.packing.contents import contents, must_hold_imported
from jobs.pipelines.registry import project_of
from jobs.settings import Layer
from jobs.showing.quantities import count, size
from jobs.sources.closing import closing


def package(reference: str, to: Path | None, given: Layer, out: Console) -> None:
    """Write the archive and say what to type next. Raises NotPackableError, and what `prepared` raises."""
    started = prepared(reference, given)
    with closing(started.plan.sources):
        project = project_of(reference)
        packed = contents(project.root if project else None)
        must_hold_imported(packed)
    made = write_archive(packed, to or Path(f"{started.plan.job}-workers.tar.gz"))
    out.print(f"{made.path}: {count(made.files)} files, {size(made.bytes)}", soft_wrap=True)
    out.print(
        f"each worker needs {made.python} on its PATH, on the same kind of machine, and no package", soft_wrap=True
    )
    run = f"tidemark run {reference} --spark-master spark://HOST:PORT --set spark_archive={typed(made.path)}"
    out.print(Text(f"go on with: {run}"), soft_wrap=True)
