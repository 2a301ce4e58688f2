"""Falsifies histories by changing what a door was told, so that its behaviour breaks an invariant.

Keyed by invariant.
"""

from dataclasses import replace
from itertools import chain

from checkpointing.channel_items import SourceSlice
from checkpointing.failures import CheckpointFailureReason
from checkpointing.messages import (
    EndTick,
    MicroBatchFinished,
    PollFailed,
    PublishTable,
    RecordCut,
    RivalSeen,
    RunMicroBatch,
    SavepointFailed,
    SliceOffered,
    SourceIdle,
    StopKind,
    StopRequested,
    TickOutcome,
)
from spec.history import History
from spec.pipeline import ORDERS, PAYMENTS


def _built_from(history: History, **changes) -> History:
    steps = {}
    for generation, (begun, *others) in history.steps.items():
        steps[generation] = [replace(begun, told=replace(begun.told, setup=replace(begun.told.setup, **changes)))]
        steps[generation] += others
    return replace(history, steps=steps)


def _configured(history: History, **changes) -> History:
    (begun, *_) = next(iter(history.steps.values()))
    return _built_from(history, config=begun.told.setup.config.model_copy(update=changes))


def let_a_byte_fill_a_channel(history):
    return _built_from(history, credit_bytes=1)


def let_a_slice_have_no_row(history):
    return _configured(history, slice_rows_max=0)


def leave_idle_splits_alone(history):
    return _built_from(history, idle_poll_ms=10**9)


def trigger_each_millisecond(history):
    return _configured(history, interval_ms=1)


def take_longer_for_each_micro_batch(history):
    def slower(step):
        told = step.told
        return (
            replace(step, told=replace(told, duration_ms=told.duration_ms + 1))
            if isinstance(told, MicroBatchFinished)
            else step
        )

    steps = {generation: [slower(step) for step in taken] for generation, taken in history.steps.items()}
    return replace(history, steps=steps)


def let_a_tick_catch_up_with_a_split_that_failed(history):
    """For each split, the last poll before the end of such a tick failed."""

    def failed(step):
        told = step.told
        return replace(step, told=PollFailed(told.source, told.split, "?")) if isinstance(told, SourceIdle) else step

    steps = {generation: [failed(step) for step in taken] for generation, taken in history.steps.items()}
    return replace(history, steps=steps)


def say_that_the_job_has_finished(history):
    """The tick that caught up ends as finished, although its sources have no end."""

    def finished(effect):
        caught_up = isinstance(effect, EndTick) and effect.outcome is TickOutcome.CAUGHT_UP
        return EndTick(TickOutcome.FINISHED) if caught_up else effect

    steps = {
        generation: [replace(step, effects=tuple(map(finished, step.effects))) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def run_slices_from_a_row_later(history):
    def later(segment):
        return replace(segment, start=f"{segment.start}1") if isinstance(segment, SourceSlice) else segment

    def effects(step):
        return tuple(_run_otherwise(each, later) for each in step.effects)

    steps = {
        generation: [replace(step, effects=effects(step)) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def _run_otherwise(effect, changed):
    """Return a micro-batch over changed segments."""
    if not isinstance(effect, RunMicroBatch):
        return effect
    inputs = [replace(entry, segments=tuple(changed(segment) for segment in entry.segments)) for entry in effect.inputs]
    return replace(effect, inputs=tuple(inputs))


def let_every_slice_reach_a_cut(history):
    """Every slice says that it reaches a cut, when it is offered and when a micro-batch runs it."""

    def at_cut(segment):
        return replace(segment, cut="1", at_cut=True) if isinstance(segment, SourceSlice) else segment

    def reached(step):
        told = step.told
        told = replace(told, slice=at_cut(told.slice)) if isinstance(told, SliceOffered) else told
        return replace(step, told=told, effects=tuple(_run_otherwise(each, at_cut) for each in step.effects))

    grouped = _built_from(history, cut_groups={ORDERS: "shop", PAYMENTS: "shop"})
    steps = {generation: [reached(step) for step in taken] for generation, taken in grouped.steps.items()}
    return replace(grouped, steps=steps)


def let_another_process_claim_the_job(history):
    """The door hears of the claim, and goes on."""
    ((generation, (begun, *others)), *rest) = history.steps.items()
    claim = begun.told.setup.claim.model_copy(update={"generation": generation + 1})
    seen = replace(begun, told=RivalSeen(claim), effects=())
    return replace(history, steps={generation: [begun, seen, *others], **dict(rest)})


def publish_nothing(history):
    """Each checkpoint completes as it did. Until then its door seems to wait for nothing."""
    unasked = {
        generation: [
            replace(
                step, effects=tuple(each for each in step.effects if not isinstance(each, PublishTable | RecordCut))
            )
            for step in taken
        ]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=unasked)


def give_up_a_savepoint_at_the_end(history):
    """The tick that caught up had taken a request, and answers it only because it ends."""
    failed = SavepointFailed("request", CheckpointFailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN, "over")

    def gives_up(effect):
        caught_up = isinstance(effect, EndTick) and effect.outcome is TickOutcome.CAUGHT_UP
        return (failed, effect) if caught_up else (effect,)

    steps = {
        generation: [replace(step, effects=tuple(chain(*map(gives_up, step.effects)))) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def ask_every_tick_to_stop_at_once(history):
    """Every door hears so before its first fact, and goes on as it did."""
    stop = StopRequested(StopKind.NOW)
    steps = {
        generation: [begun, replace(begun, told=stop, effects=()), *others]
        for generation, (begun, *others) in history.steps.items()
    }
    return replace(history, steps=steps)


def say_nothing_of_what_changed(history):
    """Return the history with publications that do not say what changed."""

    def silent(effect):
        if isinstance(effect, PublishTable):
            return replace(effect, publication=replace(effect.publication, changes=None))
        return effect

    steps = {
        generation: [replace(step, effects=tuple(map(silent, step.effects))) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


FALSIFIED_AT_DOORS = {
    "ends-soon": ask_every_tick_to_stop_at_once,
    "savepoints-waited-for": give_up_a_savepoint_at_the_end,
    "cut-announced": let_every_slice_reach_a_cut,
    "checkpoints-go-on": publish_nothing,
    "gives-way": let_another_process_claim_the_job,
    "credit": let_a_byte_fill_a_channel,
    "splits-fail-alone": let_a_tick_catch_up_with_a_split_that_failed,
    "paced": let_a_slice_have_no_row,
    "not-too-early": leave_idle_splits_alone,
    "slices-whole": run_slices_from_a_row_later,
    "measured": take_longer_for_each_micro_batch,
    "inputs-end": say_that_the_job_has_finished,
    "not-too-late": trigger_each_millisecond,
}
