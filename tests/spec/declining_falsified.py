"""Falsifies histories of checkpoints that fail, and of rows that could not be written."""

from dataclasses import replace

from checkpointing.failures import CheckpointFailureReason as Reason
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import EndTick, TickOutcome
from spec.attempt_events import ProcessBegan, ProcessOver
from spec.history import CheckpointEnded, DoorStarted, SegmentsRun, SegmentsTakenBack, TickOver


def fail_for_no_reason(events):
    """A checkpoint fails because of a snapshot that could not be taken, but no subtask has said so."""
    return [*events, CheckpointEnded(Generation(1), CheckpointId(777), Reason.CHECKPOINT_ASYNC_EXCEPTION)]


def fail_before_anything_failed(events):
    """A tick ends because of an expired checkpoint, but none has expired."""
    *_, last = (event for event in events if isinstance(event, TickOver))
    end = EndTick(TickOutcome.FAILED, Reason.CHECKPOINT_EXPIRED)
    return [*events, replace(last, generation=Generation(1), end=end)]


def restart_uncounted(events):
    """A process says at its end that it has restarted the job seven times, but it never did."""
    began = next(event for event in events if isinstance(event, ProcessBegan))
    return [*events, ProcessOver(began.process, 7)]


def try_again_at_once(events):
    """A vertex whose rows could not be written begins again although no barrier came in between."""
    place = next(at for at, event in enumerate(events) if isinstance(event, DoorStarted))
    run = SegmentsRun(events[place].generation, "nobody", 1, ())
    back = SegmentsTakenBack(run.generation, "nobody", 1)
    return [*events[: place + 1], run, back, replace(run, micro_batch=2), *events[place + 1 :]]
