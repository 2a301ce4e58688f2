"""Judges how a gate describes its state. The explorer treats two states as one if their descriptions are equal."""

from typing import Final

from checkpointing.channel_items import SourceSlice
from checkpointing.gate import GatePolicy, GateSnapshot
from checkpointing.gate.aligner import AlignerSnapshot, AlternatingSnapshot, Phase
from checkpointing.gate.channels import ChannelSnapshot
from checkpointing.gate.tracker import TrackerSnapshot
from spec.machines.gate_model import GateModel, Sent
from spec.machines.gate_telling import NEVER, Line
from spec.machines.judging import expect

STATE: Final = "gate-state"
"""A gate's description of its state follows from what it was sent and what it did."""


def state_agrees(state: GateSnapshot, model: GateModel) -> None:
    """Raise BrokenRuleError unless the gate's description agrees with the model."""
    _says("clock", state.clock_ms, model.now_ms)
    _says("open channels", set(state.open_channels), {c for c, sent in model.channels.items() if not sent.ended})
    for channel, known in zip(model.channels, state.channels.channels, strict=True):
        _channel_agrees(known, model.channels[channel], model.telling.lines[channel], model)
    _says("put aside", list(state.buffer.aside), model.aside)
    _says("replays", [list(each) for each in state.buffer.sequences], model.replays[::-1])
    if isinstance(state.handler, TrackerSnapshot):
        _counts_agree(state.handler, model)
    else:
        _alignment_agrees(state.handler, model)


def _says(what: str, said: object, due: object) -> None:
    expect(said == due, STATE, f"{what}: the gate says {said}, due is {due}")


def _channel_agrees(said: ChannelSnapshot, sent: Sent, line: Line, model: GateModel) -> None:
    _says("held", list(said.held), line.held)
    _says("stopped", said.stopped, line.is_stopped)
    _says("ended", said.ended, sent.is_over)
    _says("newest barrier", said.newest_barrier, line.newest)
    records = model.in_flight if model.in_flight is not None else NEVER
    _says("records for", said.recording_for, records)
    if model.config.policy is not GatePolicy.ALIGNED_BUFFERING:
        segments = [item for item in (*said.waiting, *said.held) if isinstance(item, SourceSlice)]
        _says("segments", segments, sent.segments()[len(sent.delivered) :])
    for checkpoint, overtaken in said.overtakers:
        expect(overtaken <= len(said.waiting), STATE, f"{checkpoint} overtook {overtaken} of {said.waiting}")


def _alignment_agrees(said: AlignerSnapshot, model: GateModel) -> None:
    book, pending = said.alignment, model.telling.pending
    _says("open channels", book.open_channels, sum(not sent.ended for sent in model.channels.values()))
    _says("blocked", set(said.blocked), {c for c, line in model.telling.lines.items() if line.is_blocked})
    _says("current", book.current, model.telling.newest)
    _says("settled", book.current == book.settled, not pending)
    if pending:
        _says("barrier", book.barrier and book.barrier.checkpoint, pending[0])
        reached = {c for c, sent in model.channels.items() if sent.received == pending[0]}
        expect(
            reached <= book.aligned, STATE, f"{reached} have passed barrier {pending[0]}, aligned are {book.aligned}"
        )
        ended = {c for c, sent in model.channels.items() if sent.ended}
        expect(book.aligned <= reached | ended, STATE, f"{book.aligned} are aligned, {reached} and {ended} are")
        expect(len(book.aligned) < book.target <= len(model.channels), STATE, f"{book} should be over")
    else:
        _says("aligned", (book.aligned, book.barrier, book.started_ms, book.processed), (frozenset(), None, None, 0))
    if not pending and book.current in model.telling.aborted:
        _says("cost", (book.duration_ms, book.bytes_processed), (0, 0))
    ends = any(sent.ended for sent in model.channels.values())
    if pending and not ends:
        started = model.started.get(pending[0])
        _says("start", book.started_ms, None if started is None else started[0])
        _says("processed", book.processed, 0 if started is None else model.bytes_delivered() - started[1])
    if isinstance(said, AlternatingSnapshot):
        _phase_agrees(said, model)


def _phase_agrees(said: AlternatingSnapshot, model: GateModel) -> None:
    pending = model.telling.pending
    if not pending:
        _says("phase", (said.phase, said.announced, said.timer_ms), (Phase.WAITING, (), None))
        return
    for channel, checkpoint in said.announced:
        waits = model.channels[channel].received != checkpoint
        expect(checkpoint == pending[0] and waits, STATE, f"{checkpoint} is announced, pending is {pending}")
    _says("overtaking", said.phase is Phase.COLLECTING_UNALIGNED, model.in_flight is not None)


def _counts_agree(said: TrackerSnapshot, model: GateModel) -> None:
    _says("open channels", said.open_channels, sum(not sent.ended for sent in model.channels.values()))
    _says("latest", said.latest, model.telling.newest)
    _says("counted", tuple(count.checkpoint for count in said.counts), model.telling.pending)
    for count in said.counts:
        _says(f"aborted {count.checkpoint}", count.aborted, count.checkpoint in model.telling.aborted)
        if count.barrier is None:
            continue
        started_ms, delivered = model.started[count.checkpoint]
        _says("barrier", count.barrier.checkpoint, count.checkpoint)
        _says("start", count.started_ms, started_ms)
        _says("processed", count.bytes_processed, model.bytes_delivered() - delivered)
        expect(len(count.aligned) < count.target <= len(model.channels), STATE, f"{count} should be over")
        answered = {c for c, sent in model.channels.items() if sent.has_answered(count.checkpoint, exactly=True)}
        expect(count.aligned <= answered, STATE, f"{count.aligned} are aligned for it, {answered} have answered")
