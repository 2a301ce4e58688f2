"""The pipeline: a name, its sources, and how it is checkpointed unless a run says otherwise."""

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import job_name, vertex_id
from jobs.pipeline.columns import require_shallow, require_unique
from jobs.pipeline.declarations import Declarations
from jobs.pipeline.failures import InvalidPipelineError
from jobs.pipeline.former_names import former_id
from jobs.pipeline.ports import DEFAULT_TIMEOUT_S, CheckpointListener, DeclaredHook, MasterHook, Report, declared_hook
from jobs.pipeline.streams import Stream
from jobs.pipeline.vertices import Declared, SourceVertex
from jobs.sources.belonging import introduce
from jobs.sources.port import Source, read_schema, source_of_cuts


class Pipeline:
    """What is computed from which sources into which tables.

    `config`, `parallelism` (subtasks of every keyed vertex) and `hold` are the pipeline's own defaults; a run may
    override them. With `hold`, each checkpoint waits until somebody approves it. As long as old checkpoints must be
    restorable, ids of vertices and names of tables stay what they are, or say with `renamed_from=` what they were
    before (G2).
    """

    def __init__(
        self, name: str, *, config: CheckpointConfig | None = None, parallelism: int = 1, hold: bool = False
    ) -> None:
        """Raise InvalidNameError if the name cannot be a folder, InvalidPipelineError if the parallelism is below 1."""
        self.name = job_name(name)
        if parallelism < 1:
            raise InvalidPipelineError(f"pipeline {name}: parallelism is {parallelism}, it must be at least 1")
        self.config = config or CheckpointConfig()
        self.parallelism = parallelism
        self.hold = hold
        self.listeners: tuple[CheckpointListener, ...] = ()
        self.reports: tuple[Report, ...] = ()
        self.hooks: tuple[DeclaredHook, ...] = ()
        self._declarations = Declarations(name)

    def source(
        self,
        id: str,  # noqa: A002 - its name
        source: Source,
        *,
        rows_per_epoch: int | None = None,
        renamed_from: str | None = None,
    ) -> Stream:
        """Return the rows of a source, `_split` and `_position` included.

        `rows_per_epoch` caps what it sends between two barriers, so that sources of unequal size advance
        together. `renamed_from` is the id that the source had before: it reads on from there. Raises InvalidNameError
        for an id, InvalidPipelineError if the id is taken or the cap is below 1.
        """
        name = vertex_id(id)
        if rows_per_epoch is not None and rows_per_epoch < 1:
            raise InvalidPipelineError(f"source {id}: rows_per_epoch is {rows_per_epoch}, it must be at least 1")
        if rows_per_epoch is not None and source_of_cuts(source) is not None:
            raise InvalidPipelineError(
                f"source {id}: it reads whole cuts of another job, which no rows_per_epoch can cap: leave that out"
            )
        rows = read_schema(source)
        require_unique(f"source {id}", rows.names)
        require_shallow(f"source {id}", rows)
        self._declarations.add(SourceVertex(name, source, rows, rows_per_epoch, former_id(renamed_from)))
        introduce(source, self.name, name)
        return Stream(self._declarations, name, (), rows)

    def listen(self, listener: CheckpointListener) -> "Pipeline":
        """Call the listener for each checkpoint, after the listeners declared before; return the pipeline.

        It runs in the tick's process, in a thread of its own. If it raises, the tick logs and shows the error and
        goes on, and the checkpoint stays complete.
        """
        self.listeners = (*self.listeners, listener)
        return self

    def report(self, report: Report) -> "Pipeline":
        """Show the report after each tick that did not fail, after those declared before; return the pipeline.

        It is given the newest cut, and returns a text or anything else that Rich can print. `tidemark run` prints it,
        and Dagster logs it. What it raises is shown, and does not fail the tick.
        """
        self.reports = (*self.reports, report)
        return self

    def hook(self, name: str, hook: MasterHook, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> "Pipeline":
        """Make the hook's state a part of each checkpoint, under this name; return the pipeline (A8).

        Each call of the hook may take `timeout_s` seconds. Hooks are called at the same time. The name must stay what
        it is for as long as the checkpoints are to be restored (G2). Raises InvalidNameError for the name,
        InvalidPipelineError if it is taken, for a hook that is no MasterHook and for a time limit that is none.
        """
        declared = declared_hook(name, hook, timeout_s)
        require_unique(f"hooks of pipeline {self.name}", [*(each.name for each in self.hooks), declared.name])
        self.hooks = (*self.hooks, declared)
        return self

    def vertices(self) -> tuple[Declared, ...]:
        """Return what was declared, in topological order."""
        return self._declarations.vertices()
