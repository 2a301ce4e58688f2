"""The pipeline: a name, its sources, and how to checkpoint it unless a run overrides this."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Final, Protocol

from pydantic import JsonValue

from checkpointing.config import CheckpointConfig
from checkpointing.identifiers import CheckpointId, HookName, hook_name, job_name, vertex_id
from jobs.pipeline.columns import InvalidPipelineError, former_id, require_shallow, require_unique
from jobs.pipeline.streams import Stream
from jobs.pipeline.vertices import Declarations, Declared, SourceVertex
from jobs.sources.port import Source, introduce, read_schema, upstream_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from jobs.reading.cut import Cut


# ------------------------------------------------------------------
# The ports of a user's code that a tick calls: checkpoint listeners (F2), reports and master hooks (A8).


DEFAULT_TIMEOUT_S: Final = 30.0


class CheckpointListener(Protocol):
    """A user's code that is called when a checkpoint completes or fails (Flink: `CheckpointListener`).

    See `Pipeline.listen`.
    """

    def notify_checkpoint_complete(self, checkpoint: CheckpointId) -> None:
        """React to a completed checkpoint: every table shows it.

        This method is called at least once. After a crash or a restart, the tick calls it again for the checkpoint that
        the tick restored. A call covers all older checkpoints too: an older checkpoint may have no call of its own.
        """
        ...

    def notify_checkpoint_aborted(self, checkpoint: CheckpointId, reason: str) -> None:
        """React to a failed checkpoint. Its rows belong to a later one. Called at most once for each checkpoint."""
        ...


class Report(Protocol):
    """A function of the newest cut that returns a text, or anything else that Rich can print. See `Pipeline.report`."""

    def __call__(self, cut: "Cut", /) -> "RenderableType":
        """Return the text or renderable to show."""
        ...


class MasterHook(ABC):
    """A user's code that is asked for its state at each checkpoint (Flink: `MasterTriggerRestoreHook`).

    Declare it with `Pipeline.hook`. It runs in the tick's process, in a thread of its own, one call at a time. Each
    call must end within the hook's time limit.
    """

    @abstractmethod
    def trigger_checkpoint(self, checkpoint: CheckpointId, timestamp_ms: int) -> JsonValue:
        """Return the state that belongs to a checkpoint which begins now; None keeps nothing.

        The state is JSON: None, texts, numbers, bools, lists, and dicts with text keys; at most 1 MiB of it. The
        barriers are sent once every hook has answered. If the hook raises an error, exceeds its time limit, or returns
        anything else, the checkpoint fails and the job goes on, as `tolerable_failures` allows. A checkpoint whose
        hooks have answered may still fail. So the hook must not make a change elsewhere that would then be wrong.
        """
        ...

    @abstractmethod
    def restore_checkpoint(self, checkpoint: CheckpointId, state: JsonValue) -> None:
        """Restore a checkpoint.

        `state` is what this hook returned for it, or None if the checkpoint has no state of the hook.

        Tidemark calls this method whenever an attempt of a tick begins from a checkpoint, before it reads any row. If
        the method raises an error or exceeds its time limit, the attempt fails.
        """
        ...

    def reset(self) -> None:  # noqa: B027 - a hook may do without
        """Restore the initial state. Called instead of `restore_checkpoint` as long as there is no checkpoint."""

    def close(self) -> None:  # noqa: B027 - a hook may do without
        """Release the resources that the hook has opened. Called at the end of each attempt."""


@dataclass(frozen=True, slots=True)
class DeclaredHook:
    """A master hook, its name, and how long each of its calls may take, in ms."""

    name: HookName
    hook: MasterHook
    timeout_ms: int


def declared_hook(name: str, hook: MasterHook, timeout_s: float) -> DeclaredHook:
    """Return the declared hook. Raise InvalidNameError, or InvalidPipelineError naming the hook."""
    if not isinstance(hook, MasterHook):
        raise InvalidPipelineError(f"hook {name}: {hook!r} is no MasterHook; derive its class from tidemark.MasterHook")
    if not isfinite(timeout_s) or timeout_s < 1 / 1000:
        raise InvalidPipelineError(f"hook {name}: timeout_s is {timeout_s}, it must be at least 0.001 and finite")
    return DeclaredHook(hook_name(name), hook, round(timeout_s * 1000))


class Pipeline:
    """A pipeline: sources, computations and tables.

    `config`, `parallelism` (subtasks of every keyed vertex) and `hold` are the pipeline's own defaults. A run may
    override them. With `hold`, each checkpoint waits until somebody approves it. As long as old checkpoints must be
    restorable, keep the ids of vertices and the names of tables, or give the old ones with `renamed_from=` (G2).
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

        `rows_per_epoch` limits how many rows the source sends between two barriers, so that sources of unequal size
        advance together. `renamed_from` is the id that the source had before. The source continues from that id's
        positions. Raises InvalidNameError for an id, InvalidPipelineError if the id is taken or the limit is below 1.
        """
        name = vertex_id(id)
        if rows_per_epoch is not None and rows_per_epoch < 1:
            raise InvalidPipelineError(f"source {id}: rows_per_epoch is {rows_per_epoch}, it must be at least 1")
        if rows_per_epoch is not None and upstream_of(source) is not None:
            raise InvalidPipelineError(
                f"source {id}: it reads whole cuts, which no rows_per_epoch can cap: leave that out"
            )
        rows = read_schema(source)
        require_unique(f"source {id}", rows.names)
        require_shallow(f"source {id}", rows)
        self._declarations.add(SourceVertex(name, source, rows, rows_per_epoch, former_id(renamed_from)))
        introduce(source, self.name, name)
        return Stream(self._declarations, name, (), rows)

    def listen(self, listener: CheckpointListener) -> "Pipeline":
        """Call the listener for each checkpoint, after the listeners declared before. Return the pipeline.

        The listener runs in the tick's process, in a thread of its own. If it raises an error, the tick logs and shows
        the error and goes on. The checkpoint stays complete.
        """
        self.listeners = (*self.listeners, listener)
        return self

    def report(self, report: Report) -> "Pipeline":
        """Show the report after each tick that did not fail, after the reports declared before. Return the pipeline.

        The report's function gets the newest cut, and returns a text or anything else that Rich can print. `tidemark
        run` prints the result, and Dagster logs it. An error in the function is shown, and does not fail the tick.
        """
        self.reports = (*self.reports, report)
        return self

    def hook(self, name: str, hook: MasterHook, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> "Pipeline":
        """Make the hook's state a part of each checkpoint, under this name. Return the pipeline (A8).

        Each call of the hook may take `timeout_s` seconds. Hooks are called at the same time. Do not change the name as
        long as these checkpoints must be restorable (G2). Raises InvalidNameError for the name, InvalidPipelineError if
        the name is taken, for a hook that is no MasterHook, and for an invalid time limit.
        """
        declared = declared_hook(name, hook, timeout_s)
        require_unique(f"hooks of pipeline {self.name}", [*(each.name for each in self.hooks), declared.name])
        self.hooks = (*self.hooks, declared)
        return self

    def vertices(self) -> tuple[Declared, ...]:
        """Return the declared vertices, in topological order."""
        return self._declarations.vertices()
