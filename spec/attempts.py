"""What must be true of a process and its attempts: restarts are counted, limits hold for all of them together (G4)."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import NO_CHECKPOINT, CheckpointId, Generation
from checkpointing.messages import EndTick, TickOutcome
from checkpointing.metadata.record import Claim
from checkpointing.tick.attempts import FixedDelay, NoRestart
from spec.attempt_events import AttemptBegan, ProcessBegan, ProcessOver, RestartTold
from spec.history import CheckpointEnded, CutWritten, History, JobClaimed, RowCommitted, TickOver

_ENDS_FOR_GOOD: Final = (Reason.QUALITY, Reason.TABLE_CHANGED, Reason.FENCED)


@dataclass(slots=True)
class _Process:
    """One process, its generations, and the entries that they have committed."""

    began: ProcessBegan
    generations: set[Generation] = field(default_factory=set)
    committed: int = 0
    restarts: int = 0
    ended: EndTick | None = None
    """How the job of its last attempt ended. None: that attempt has failed before its job began, or goes on."""
    is_alone: bool = True
    """Nobody else has claimed the job since its first attempt, and no store left an answer open. So it has told its own
    entries as complete itself."""


def wrongly_repeated(history: History) -> Iterator[str]:  # noqa: PLR0912 - one case an event
    """Yield every restart that is counted or comes wrongly, and every attempt whose limits are not what is left."""
    processes: dict[int, _Process] = {}
    recorded = set[CheckpointId]()
    unheard: dict[Generation, CheckpointId] = {}
    """By generation, the entry that it has not told as complete."""
    for event in history.without_flow:
        match event:
            case ProcessBegan():
                processes[event.process] = _Process(event)
            case JobClaimed(claim):
                _claimed(processes, claim)
            case CutWritten(checkpoint):
                recorded.add(checkpoint)
            case CheckpointEnded(generation, _, None):
                unheard.pop(generation, None)
            case RowCommitted(record, _) if record.commits:
                unheard[record.generation] = record.checkpoint
                for known in processes.values():
                    known.committed += record.generation in known.generations
            case AttemptBegan():
                yield from _of_limits(event, processes[event.process])
            case RestartTold():
                _broken_off(processes[event.process], unheard, recorded)
                yield from _of_restart(event, processes[event.process])
            case TickOver(generation, end):
                for known in processes.values():
                    if generation in known.generations:
                        known.ended = end
                        known.is_alone &= unheard.get(generation, NO_CHECKPOINT) not in recorded
            case ProcessOver():
                yield from _of_end(event, processes[event.process])
            case _:
                pass


def _claimed(processes: Mapping[int, _Process], claim: Claim) -> None:
    for number, known in processes.items():
        if number == claim.holder.pid:
            known.generations.add(claim.generation)
            known.ended = None
        elif known.generations:
            known.is_alone = False


def _broken_off(
    known: _Process, unheard: Mapping[Generation, CheckpointId], recorded: Collection[CheckpointId]
) -> None:
    """Note that an attempt that failed while it recovered may have recorded a cut, and not heard of that."""
    entries = (unheard.get(each, NO_CHECKPOINT) for each in known.generations)
    if known.ended is None and any(entry in recorded for entry in entries):
        known.is_alone = False


def _of_limits(event: AttemptBegan, known: _Process) -> Iterator[str]:
    given, left = known.began.limits, event.limits
    where = f"generation {event.generation} of process {event.process}"
    if given.checkpoints is not None:
        due = max(0, given.checkpoints - known.committed)
        right = left.checkpoints is not None and left.checkpoints >= due
        if not right or (known.is_alone and left.checkpoints != due):
            yield f"{where} may take {left.checkpoints} checkpoints, {due} are left"
    if given.duration_ms is not None:
        due = given.duration_ms - (event.at_ms - known.began.at_ms) if known.restarts else given.duration_ms
        if left.duration_ms != max(0, due):
            yield f"{where} may take {left.duration_ms} ms, {due} are left"


def _of_restart(event: RestartTold, known: _Process) -> Iterator[str]:
    known.restarts += 1
    strategy, where = known.began.strategy, f"restart {event.restart} of process {event.process}"
    if event.restart != known.restarts:
        yield f"{where} is its {known.restarts}."
    if event.after.outcome is not TickOutcome.FAILED:
        yield f"{where} follows on {event.after}"
    if event.after.reason in _ENDS_FOR_GOOD:
        yield f"{where} follows on {event.after.reason}"
    match strategy:
        case NoRestart():
            yield f"{where}: nothing is to be restarted"
        case FixedDelay(attempts, delay_ms):
            if known.restarts > attempts or event.delay_ms != delay_ms:
                yield f"{where} comes after {event.delay_ms} ms, the strategy says {strategy}"
        case _:
            pass


def _of_end(event: ProcessOver, known: _Process) -> Iterator[str]:
    """No simulated process is asked to stop between two attempts, so a failure alone says whether one more is due."""
    if event.restarts != known.restarts:
        yield f"process {event.process} has restarted {known.restarts} times, and says {event.restarts}"
    strategy, end = known.began.strategy, known.ended
    failed = end is not None and end.outcome is TickOutcome.FAILED and end.reason not in _ENDS_FOR_GOOD
    may = isinstance(strategy, FixedDelay) and known.restarts < strategy.attempts
    failed = failed and not event.is_finished
    if failed and may and known.is_alone and known.began.limits.duration_ms is None:
        yield f"process {event.process} is over after {known.restarts} restarts, {strategy} allows more"
