"""Gives master hooks, operator coordinators and finished operators their part of a checkpoint back.

It takes the checkpoint and the job, and returns effects or raises RestoreRefusedError (Flink: `MasterHooks`,
`VertexFinishedStateChecker`). No run reaches the part for finished operators (B4): a job's tasks finish together.
`checkpointing.job.restoring` gives subtasks their state.
"""

from collections.abc import Iterator, Mapping, Sequence

from checkpointing.coordinator.completed import CompletedCheckpoint, FinishedState
from checkpointing.coordinator.messages import (
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.coordinator.plan import EdgePattern, Topology
from checkpointing.identifiers import CheckpointId


class RestoreRefusedError(RuntimeError):
    """A checkpoint does not fit the job. The message names the operator and the way out."""


def check_finished(checkpoint: CompletedCheckpoint, topology: Topology) -> None:
    """Raise RestoreRefusedError if an operator that had finished now has an input that had not.

    Flink: `VertexFinishedStateChecker`. A fully finished operator needs fully finished inputs. A partially finished one
    needs at least fully finished inputs of the edges that feed all its subtasks.
    """
    states = {vertex.name: vertex.finished for vertex in checkpoint.vertices}
    for edge in topology.edges:
        downstream = states.get(edge.downstream, FinishedState.RUNNING)
        upstream = states.get(edge.upstream, FinishedState.RUNNING)
        feeds_all = edge.pattern is EdgePattern.ALL_TO_ALL
        needs_finished = downstream is FinishedState.FULLY_FINISHED or (
            downstream is FinishedState.PARTIALLY_FINISHED and feeds_all
        )
        if needs_finished and upstream is not FinishedState.FULLY_FINISHED:
            raise RestoreRefusedError(
                f"operator {edge.downstream!r} had {downstream.value.replace('_', ' ')} in checkpoint {checkpoint.id}, "
                f"but its input {edge.upstream!r} had not; don't put a running operator before a finished one"
            )


def restore_hooks(
    checkpoint: CheckpointId, states: Mapping[str, str], hooks: Sequence[str], *, allow_non_restored: bool
) -> Iterator[RestoreHook]:
    """Yield every hook's state, or None for a hook without one.

    Raise RestoreRefusedError for state without a hook (A8).
    """
    orphans = sorted(set(states) - set(hooks))
    if orphans and not allow_non_restored:
        raise RestoreRefusedError(
            f"checkpoint {checkpoint} holds state of master hook {orphans[0]!r}, which is not registered; "
            "register it, or allow non-restored state"
        )
    return (RestoreHook(hook, checkpoint, states.get(hook)) for hook in hooks)


def restore_coordinators(
    checkpoint: CheckpointId | None, states: Mapping[str, str | None], coordinators: Sequence[str]
) -> Iterator[ResetOperatorCoordinator]:
    """Yield the state for each operator coordinator. One that the checkpoint does not know is reset to its empty state.

    So is each one without a checkpoint (A7).
    """
    for name in coordinators:
        yield ResetOperatorCoordinator(name, checkpoint if name in states else None, states.get(name))


def reset_hooks(hooks: Sequence[str]) -> Iterator[ResetHook]:
    """Yield the reset of every hook, because the job restarts without a checkpoint."""
    return (ResetHook(hook) for hook in hooks)
