"""Says that a door was built from something else: then what it did was wrong. By the invariant that this breaks."""

from dataclasses import replace

from checkpointing.channel_items import SourceSlice
from checkpointing.messages import MicroBatchFinished, PollFailed, RunMicroBatch, SourceIdle
from spec.history import History


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
    """The last answer of each split before such an end was that it cannot be read."""

    def failed(step):
        told = step.told
        return replace(step, told=PollFailed(told.source, told.split, "?")) if isinstance(told, SourceIdle) else step

    steps = {generation: [failed(step) for step in taken] for generation, taken in history.steps.items()}
    return replace(history, steps=steps)


def run_slices_from_a_row_later(history):
    def effects(step):
        return tuple(_later(each) if isinstance(each, RunMicroBatch) else each for each in step.effects)

    steps = {
        generation: [replace(step, effects=effects(step)) for step in taken]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def _later(effect):
    """Return a micro-batch whose slices begin elsewhere than they were offered."""
    inputs = [replace(entry, segments=tuple(_moved(segment) for segment in entry.segments)) for entry in effect.inputs]
    return replace(effect, inputs=tuple(inputs))


def _moved(segment):
    return replace(segment, start=f"{segment.start}1") if isinstance(segment, SourceSlice) else segment


FALSIFIED_AT_DOORS = {
    "credit": let_a_byte_fill_a_channel,
    "splits-fail-alone": let_a_tick_catch_up_with_a_split_that_failed,
    "paced": let_a_slice_have_no_row,
    "not-too-early": leave_idle_splits_alone,
    "slices-whole": run_slices_from_a_row_later,
    "measured": take_longer_for_each_micro_batch,
    "not-too-late": trigger_each_millisecond,
}
