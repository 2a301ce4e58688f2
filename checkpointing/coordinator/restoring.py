"""What a restore hands to whom, and what refuses it (G1 to G3; Flink: `StateAssignmentOperation`, `MasterHooks`).

Pure: the checkpoint and the job in, effects out, or RestoreRefusedError and nothing has happened.
"""

from collections.abc import Iterator, Mapping, Sequence

from checkpointing.coordinator.completed import CompletedCheckpoint, FinishedState
from checkpointing.coordinator.messages import (
    AssignState,
    CoordinatorEffect,
    ResetHook,
    ResetOperatorCoordinator,
    RestoreHook,
)
from checkpointing.coordinator.plan import EdgePattern, Topology


class RestoreRefusedError(RuntimeError):
    """A checkpoint that does not fit the job: names the operator and the way out."""


def assign(checkpoint: CompletedCheckpoint, topology: Topology, *, allow_non_restored: bool) -> Iterator[AssignState]:
    """Yield every task's own state; raise RestoreRefusedError for state without a taker or changed key groups.

    The parallelism must be that of the checkpoint: redistribution is planned over key groups, where the files are
    known (`checkpointing.job.restoring`).
    """
    _check_takers(checkpoint, topology, allow_non_restored=allow_non_restored)
    _check_key_groups(checkpoint, topology)
    return (AssignState(task, checkpoint.id, checkpoint.states.get(task)) for task in topology.tasks())


def _check_takers(checkpoint: CompletedCheckpoint, topology: Topology, *, allow_non_restored: bool) -> None:
    known = {vertex.name for vertex in topology.vertices}
    for vertex in checkpoint.vertices:
        if vertex.name not in known and not allow_non_restored:
            raise RestoreRefusedError(
                f"checkpoint {checkpoint.id} holds state of operator {vertex.name!r}, which the job no longer has; "
                "put the operator back, or allow non-restored state to lose it"
            )


def _check_key_groups(checkpoint: CompletedCheckpoint, topology: Topology) -> None:
    stored = {vertex.name: vertex for vertex in checkpoint.vertices}
    for vertex in topology.vertices:
        was = stored.get(vertex.name)
        if was is None:
            continue
        if vertex.max_parallelism_set and was.max_parallelism != vertex.max_parallelism:
            raise RestoreRefusedError(
                f"operator {vertex.name!r} has max parallelism {vertex.max_parallelism}, but checkpoint "
                f"{checkpoint.id} was taken with {was.max_parallelism}; set it back to {was.max_parallelism}"
            )


def check_finished(checkpoint: CompletedCheckpoint, topology: Topology) -> None:
    """Raise RestoreRefusedError if an operator that had finished now has an input that had not.

    Flink: `VertexFinishedStateChecker`. A fully finished operator needs fully finished inputs; a
    partially finished one at least those that feed all its subtasks.
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
    checkpoint: CompletedCheckpoint, hooks: Sequence[str], *, allow_non_restored: bool
) -> Iterator[RestoreHook]:
    """Yield every hook's state, None for one without; raise RestoreRefusedError for state without a hook (A8)."""
    orphans = sorted(set(checkpoint.master_states) - set(hooks))
    if orphans and not allow_non_restored:
        raise RestoreRefusedError(
            f"checkpoint {checkpoint.id} holds state of master hook {orphans[0]!r}, which is not registered; "
            "register it, or allow non-restored state"
        )
    return (RestoreHook(hook, checkpoint.id, checkpoint.master_states.get(hook)) for hook in hooks)


def restore_coordinators(
    checkpoint: CompletedCheckpoint | None, coordinators: Sequence[str]
) -> Iterator[ResetOperatorCoordinator]:
    """Yield what each operator coordinator goes back to; without a checkpoint to nothing."""
    states: Mapping[str, str | None] = {} if checkpoint is None else checkpoint.coordinator_states
    at = None if checkpoint is None else checkpoint.id
    return (ResetOperatorCoordinator(name, at, states.get(name)) for name in coordinators)


def reset_hooks(hooks: Sequence[str]) -> Iterator[CoordinatorEffect]:
    """Yield the reset of every hook: the job restarts without a checkpoint."""
    return (ResetHook(hook) for hook in hooks)
