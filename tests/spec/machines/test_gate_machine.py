"""Runs the gate's machine. The real gate keeps every rule, and each planted bug breaks the rule that it names."""

import inspect
import re

import pytest

from checkpointing.channel_items import Barrier
from checkpointing.failures import CheckpointFailureReason
from checkpointing.gate import UNLIMITED, GatePolicy, InputGate, TriggerCheckpoint
from checkpointing.gate.aligner import Aligner, AlternatingAligner
from checkpointing.gate.channels import AlignmentBuffer, Channel, Channels
from checkpointing.gate.tracker import BarrierTracker
from spec.bugs.plant import bugs
from spec.machines import gate, gate_model
from spec.machines.gate import GATE_MACHINES, TrackingGateMachine
from spec.machines.judging import BrokenRuleError, expect


@pytest.mark.matrix
@pytest.mark.parametrize("policy", GatePolicy)
def test_the_gate_keeps_every_rule(policy, run_machine):
    """The senders may do anything, in any order."""
    run_machine(GATE_MACHINES[policy])


def test_an_end_completes_a_barrier_that_its_channel_skipped():
    """A fixed list of choices: a channel skips barrier 1 and ends.

    A tracker counts the end before it hears of the barrier.
    """
    machine = TrackingGateMachine()
    machine.open(channels=3, limit=UNLIMITED, ends_count=True)
    for number, skip in ((2, 0), (1, 1), (0, 0)):
        machine._send_barrier(number, skip, None)
        machine.holds()
    machine.teardown()
    assert machine.model.channels[machine.channels[1]].ended


def never_block(monkeypatch):
    monkeypatch.setattr(Channels, "_admit_barrier", lambda self, channel, barrier: channel.wait(barrier))


def trigger_one_barrier_early(monkeypatch):
    from checkpointing.gate.aligner import Alignment

    complete = property(lambda self: len(self._aligned) >= max(1, self.target - 1))
    monkeypatch.setattr(Alignment, "complete", complete)


def forget_to_record_what_comes(monkeypatch):
    def wait(self, item):
        self.waiting.append(item)
        if isinstance(item, Barrier):
            self._note_barrier(item.checkpoint)

    monkeypatch.setattr(Channel, "wait", wait)


def let_the_end_keep_its_channel_blocked(monkeypatch):
    def release(self):
        for channel in self._blocked:
            self._inputs.resume(channel)
        return []

    monkeypatch.setattr(Aligner, "_release", release)


def read_on_at_once(monkeypatch):
    real = Aligner._block

    def block(self, channel):
        self._inputs.resume(channel)
        return real(self, channel)

    monkeypatch.setattr(Aligner, "_block", block)


def resume_nobody(monkeypatch):
    monkeypatch.setattr(Channels, "resume", lambda self, name: None)


def ignore_the_timer(monkeypatch):
    monkeypatch.setattr(AlternatingAligner, "time_advanced", lambda self, now_ms: [])


def turn_savepoints_unaligned(monkeypatch):
    real = InputGate._admissible

    def admissible(self, channel, item):
        from checkpointing.gate.aligner import as_unaligned

        if isinstance(item, Barrier) and self.config.policy is GatePolicy.UNALIGNED:
            return as_unaligned(item)
        return real(self, channel, item)

    monkeypatch.setattr(InputGate, "_admissible", admissible)


def abort_twice(monkeypatch):
    real = Aligner._abort
    monkeypatch.setattr(Aligner, "_abort", lambda self, n, reason: [*real(self, n, reason), real(self, n, reason)[-1]])


def never_forget_a_barrier(monkeypatch):
    from checkpointing.gate import tracker

    monkeypatch.setattr(tracker, "MAX_CHECKPOINTS_TO_TRACK", 10_000)


def replay_the_newest_first(monkeypatch):
    real = AlignmentBuffer.put_aside

    def put_aside(self, channel, item):
        real(self, channel, item)
        self._aside.items.rotate(1)

    monkeypatch.setattr(AlignmentBuffer, "put_aside", put_aside)


def read_on_in_another_order(monkeypatch):
    real = Channels.resume

    def resume(self, name):
        self._channels[name].held.rotate(1)
        real(self, name)

    monkeypatch.setattr(Channels, "resume", resume)


def forget_the_limit(monkeypatch):
    monkeypatch.setattr(AlignmentBuffer, "over_limit", property(lambda self: False))


def count_held_bytes_double(monkeypatch):
    real = Channel.hold

    def hold(self, item):
        real(self, item)
        self.held_bytes += getattr(item, "bytes", 0)

    monkeypatch.setattr(Channel, "hold", hold)


def block_what_is_counted(monkeypatch):
    monkeypatch.setattr(
        BarrierTracker, "blocked", lambda self: frozenset(c for n in self._counts.values() for c in n.aligned)
    )


def do_not_say_that_it_blocks(monkeypatch):
    monkeypatch.setattr(Aligner, "blocked", lambda self: frozenset(list(self._blocked)[1:]))


def end_aborts_as_if_over_limit(monkeypatch):
    real = Aligner.abort_pending
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED

    def end(self, channel, now_ms):
        self.alignment.close_channel()
        return real(self, reason)

    monkeypatch.setattr(Aligner, "end", end)


def trigger_unaligned_in_any_policy(monkeypatch):
    real = Aligner._trigger_and_release

    def trigger(self, barrier):
        first, *rest = real(self, barrier)
        return [TriggerCheckpoint(first.barrier, unaligned=True), *rest]

    monkeypatch.setattr(Aligner, "_trigger_and_release", trigger)


def move_the_clock_in_an_idle_poll(monkeypatch):
    real = InputGate._poll

    def poll(self):
        self._clock_ms += 0 if self.has_deliverable() else 1
        return real(self)

    monkeypatch.setattr(InputGate, "_poll", poll)


def replay_the_oldest_first(monkeypatch):
    def resume(self, name):
        if self._aside.items:
            self._pushed_back.append(self._aside)
            self._pushed_back_bytes += self._aside.bytes
            self._aside = type(self._aside)()
        if not self._replay.items and self._pushed_back:
            self._replay = self._pushed_back.popleft()
            self._pushed_back_bytes -= self._replay.bytes

    monkeypatch.setattr(AlignmentBuffer, "resume", resume)


def count_what_is_replayed(monkeypatch):
    real = AlignmentBuffer.held_bytes
    monkeypatch.setattr(AlignmentBuffer, "held_bytes", lambda self: real(self) + self._replay.bytes)


def record_for_ever(monkeypatch):
    monkeypatch.setattr(Channel, "stop_recording", lambda self, checkpoint: tuple(self.recorded))


def turn_savepoints_by_the_timer_before(monkeypatch):
    real = AlternatingAligner._release

    def release(self):
        timer_ms = self._timer_ms
        effects = real(self)
        self._timer_ms = timer_ms
        return effects

    monkeypatch.setattr(AlternatingAligner, "_release", release)


ROOMS = (gate, gate_model, gate_model, gate_model)
BLOCKING, BUFFERING, TRACKING, UNALIGNED, ALTERNATING = GatePolicy
BUGS = {
    "a barrier stops nothing": (never_block, BLOCKING, {"alignment", "costs"}),
    "a channel is read on behind its barrier": (read_on_at_once, BLOCKING, {"alignment", "costs"}),
    "the gate does not wait for the last barrier": (trigger_one_barrier_early, BUFFERING, {"alignment"}),
    "what comes after the trigger is not in flight": (forget_to_record_what_comes, UNALIGNED, {"alignment"}),
    "blocks outlive their alignment": (let_the_end_keep_its_channel_blocked, BLOCKING, {"released", "no-deadlock"}),
    "a channel is never read on": (resume_nobody, ALTERNATING, {"no-deadlock"}),
    "the timer does nothing": (ignore_the_timer, ALTERNATING, {"timer"}),
    "a savepoint turns unaligned": (turn_savepoints_unaligned, UNALIGNED, {"policy"}),
    "an aligned policy triggers unaligned": (trigger_unaligned_in_any_policy, BLOCKING, {"policy"}),
    "a checkpoint is aborted twice": (abort_twice, UNALIGNED, {"ends-once"}),
    "the tracker forgets nothing": (never_forget_a_barrier, TRACKING, {"bounded", "alignment"}),
    "the replay is in another order": (replay_the_newest_first, BUFFERING, {"replay"}),
    "what was held comes in another order": (read_on_in_another_order, BLOCKING, {"fifo", "alignment"}),
    "the byte limit is forgotten": (forget_the_limit, BUFFERING, {"bounded"}),
    "held bytes are counted twice": (count_held_bytes_double, BLOCKING, {"costs"}),
    "an old replay comes before a new one": (replay_the_oldest_first, BUFFERING, {"replay"}),
    "a replay counts as held": (count_what_is_replayed, BUFFERING, {"limit", "costs"}),
    "a recording never ends": (record_for_ever, UNALIGNED, {"bounded", "alignment"}),
    "a timer outlives its alignment": (turn_savepoints_by_the_timer_before, ALTERNATING, {"timer", "policy"}),
    "at least once blocks": (block_what_is_counted, TRACKING, {"policy", "released"}),
    "a block is not told": (do_not_say_that_it_blocks, BLOCKING, {"blocked"}),
    "an idle poll changes the gate": (move_the_clock_in_an_idle_poll, BLOCKING, {"idle-poll"}),
    "an end aborts for a limit that is none": (end_aborts_as_if_over_limit, BLOCKING, {"policy"}),
}


def test_every_rule_of_the_gate_can_be_broken():
    """The list above and `spec/bugs` have every rule. If nothing can break a rule, it is none."""
    text = "".join(map(inspect.getsource, ROOMS))
    rules = set(re.findall(r'(?:expect\([^"]*|BrokenRuleError\()"([a-z-]+)"', text))
    rules |= {gate_model.TELLS, gate_model.ABORTS, gate_model.PENDING, gate_model.STATE}
    planted = {bug.rule for bug in bugs().values()}
    assert rules <= planted.union(*(found for _, _, found in BUGS.values()))


@pytest.mark.matrix
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_gate_is_found(bug, monkeypatch, hunt):
    """A planted bug breaks the rule that it names, within the ci profile. The other rules are not asked."""
    plant, policy, expected = BUGS[bug]
    plant(monkeypatch)

    def asked(holds, invariant, what=""):
        expect(holds or invariant not in expected, invariant, what)

    for module in ROOMS:
        monkeypatch.setattr(module, "expect", asked)
    with pytest.raises(BrokenRuleError) as broken:
        hunt(GATE_MACHINES[policy])
    assert broken.value.invariant in expected
