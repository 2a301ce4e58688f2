"""Runs the whole job's machine.

The real door keeps every invariant, and each planted bug breaks the invariant it names.
"""

import pytest

from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.gate import GatePolicy
from checkpointing.identifiers import CheckpointId
from checkpointing.job import door as job_door
from checkpointing.job.operator_run import LiveFiles, OperatorRun
from checkpointing.messages import SavepointKind
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing
from spec.machines.job import JOB_MACHINES, RESETTING_MACHINES, SPLITS, HookedJobMachine
from spec.machines.judging import BrokenRuleError


@pytest.mark.matrix
@pytest.mark.parametrize("policy", JOB_MACHINES)
def test_the_job_keeps_every_invariant(policy, run_machine):
    """Answers, timers, faults, crashes and ghosts come in any order. The last tick catches up."""
    run_machine(JOB_MACHINES[policy])


@pytest.mark.matrix
def test_the_job_keeps_every_invariant_with_master_hooks(run_machine):
    """The hooks answer in any order, fail, or are late."""
    run_machine(HookedJobMachine)


@pytest.mark.matrix
@pytest.mark.parametrize("machine", RESETTING_MACHINES)
def test_the_job_keeps_every_invariant_after_resets(machine, run_machine):
    """Resets come after ticks that have ended."""
    run_machine(machine)


def test_a_start_that_rolls_a_dead_rollback_forward_keeps_the_cuts_of_entries():
    """A rollback dies after its entry.

    The next start records the cut of the rollback, and drops no cut that is needed.
    """
    machine = JOB_MACHINES[GatePolicy.UNALIGNED]()
    machine.open(tolerable=100, slice_rows=2, retained=2, concurrent=1, timeout_ms=150)
    machine.answer(picks=[0])
    machine.fire(times=1)
    machine.answer_in_order(steps=40)
    driven = machine.driven
    (behind,) = driven.others()
    driven.crash()
    driven.roll_back(behind, effects_max=3)
    waiting = driven.world.checkpoints()[-1].checkpoint
    assert waiting not in driven.world.cuts
    driven.start()
    assert {behind, waiting} <= driven.world.cuts.keys()


def test_periodic_triggering_is_due_an_interval_after_a_stop_has_failed():
    """The savepoint of a drain expires without any time passing for the door. Before that, nothing was due."""
    machine = JOB_MACHINES[GatePolicy.ALIGNED_BLOCKING]()
    machine.open(retained=1, concurrent=2, slice_rows=2, timeout_ms=150, tolerable=0)
    machine.answer_in_order(steps=10)
    machine.answer(picks=[26, 13, 29, 1, 22, 27, 2])
    machine.fire(times=2)
    machine.start(parallelism=2, split=SPLITS[0])
    machine.fire(times=2)
    machine.answer(picks=[12, 14, 2, 26, 30, 28])
    machine.answer_in_order(steps=30)
    machine.ask(kind=SavepointKind.DRAIN)
    machine.crash(come_true=15, later=True, parallelism=1, really=True, split=SPLITS[2])
    machine.fire(times=5)
    machine.start(parallelism=1, split=SPLITS[2])
    machine.answer_in_order(steps=38)
    machine.ask(kind=SavepointKind.DRAIN)
    machine.fire(times=3)


def forget_staged_at_abort(monkeypatch):
    real = SubtaskCheckpointing._abort

    def abort(self, checkpoint, latest):
        self._staged = ()
        return real(self, checkpoint, latest)

    monkeypatch.setattr(SubtaskCheckpointing, "_abort", abort)


def keep_only_the_newest_state_file(monkeypatch):
    real = LiveFiles.take

    def take(self, output):
        dead = real(self, output)
        self.state = self.state[-1:]
        return dead

    monkeypatch.setattr(LiveFiles, "take", take)


def forget_what_is_in_flight(monkeypatch):
    monkeypatch.setattr(job_door, "in_flight", lambda record: ())


def take_the_snapshot_before_the_barrier(monkeypatch):
    real = OperatorRun.take_snapshot

    def take_snapshot(self, checkpoint):
        self.live = [LiveFiles(own.state[:-1], own.ranges) for own in self.live]
        return real(self, checkpoint)

    monkeypatch.setattr(OperatorRun, "take_snapshot", take_snapshot)


def never_wake_the_coordinator(monkeypatch):
    monkeypatch.setattr(TwoPhaseCommit, "_recorded", lambda self: ())


def tag_nothing_with_its_epoch(monkeypatch):
    from dataclasses import replace

    real = OperatorRun.staged
    monkeypatch.setattr(
        OperatorRun,
        "staged",
        lambda self, output: tuple(replace(file, after=CheckpointId(0)) for file in real(self, output)),
    )


BLOCKING, UNALIGNED = GatePolicy.ALIGNED_BLOCKING, GatePolicy.UNALIGNED
BUGS = {
    "an abort drops the staged files": (forget_staged_at_abort, BLOCKING, ("cut-is-exact",)),
    "only the newest state file is live": (keep_only_the_newest_state_file, BLOCKING, ("state-is-exact", "fifo")),
    "a restore forgets the rows in flight": (forget_what_is_in_flight, UNALIGNED, ("cut-is-exact", "alignment")),
    "a snapshot lacks the last file": (take_the_snapshot_before_the_barrier, BLOCKING, ("state-is-exact", "fifo")),
    "files of an aborted epoch get lost": (tag_nothing_with_its_epoch, BLOCKING, ("cut-is-exact",)),
}


@pytest.mark.parametrize(("bug", "invariant"), [(bug, each) for bug, (_, _, judges) in BUGS.items() for each in judges])
@pytest.mark.dear
def test_a_bug_in_the_job_is_found(bug, invariant, monkeypatch, hunt):
    """Each planted bug breaks exactly the invariant that it names, within the ci profile."""
    plant, policy, _ = BUGS[bug]
    plant(monkeypatch)
    machine = JOB_MACHINES[policy]
    with pytest.raises(BrokenRuleError) as broken:
        hunt(type(machine.__name__, (machine,), {"judged_by": frozenset({invariant})}))
    assert invariant == broken.value.invariant


@pytest.mark.dear
def test_a_commit_that_never_ends_is_found(monkeypatch, hunt):
    """The tick stands still, or its door says that it waits for nothing, within the ci profile."""
    never_wake_the_coordinator(monkeypatch)
    machine, judges = JOB_MACHINES[BLOCKING], {"no-deadlock", "doors-hold"}
    with pytest.raises(BrokenRuleError) as broken:
        hunt(type(machine.__name__, (machine,), {"judged_by": frozenset(judges)}))
    assert broken.value.invariant in judges
