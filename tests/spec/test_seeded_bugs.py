"""Bugs planted in the core are found: each breaks the invariant that is there for it."""

from dataclasses import replace

import pytest

from checkpointing.commit.recovery import publications
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.gate import GatePolicy
from checkpointing.identifiers import CheckpointId
from checkpointing.job import door as job_door
from checkpointing.job import restoring, wiring
from checkpointing.job.ids import CheckpointIds
from checkpointing.job.operator_run import LiveFiles, OperatorRun
from checkpointing.job.readers import SourceReaders
from checkpointing.messages import PublishTable
from checkpointing.task.subtask_checkpointing import SubtaskCheckpointing
from spec.simulator import simulate as run


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


def never_tag_staged_files(monkeypatch):
    real = OperatorRun.staged
    monkeypatch.setattr(
        OperatorRun,
        "staged",
        lambda self, output: tuple(replace(file, after=CheckpointId(10_000)) for file in real(self, output)),
    )


def restore_at_the_start(monkeypatch):
    real = job_door.Wiring.__init__

    def build(self, setup):
        real(self, setup)
        splits = self.readers._splits
        for name, split in splits.items():
            splits[name] = replace(split, position=None)

    monkeypatch.setattr(job_door.Wiring, "__init__", build)


def forget_what_is_in_flight(monkeypatch):
    monkeypatch.setattr(job_door, "in_flight", lambda record: ())


def mix_up_old_and_new_state(monkeypatch):
    real = restoring._in_range

    def in_range(was, own):
        found = real(was, own)
        return LiveFiles(tuple(reversed(found.state)), found.ranges)

    monkeypatch.setattr(restoring, "_in_range", in_range)


def discard_what_a_snapshot_carries(monkeypatch):
    real = OperatorRun.take_snapshot

    def take_snapshot(self, checkpoint):
        unsnapshotted = set(self.unsnapshotted)
        snapshots = real(self, checkpoint)
        self.unsnapshotted |= unsnapshotted
        return snapshots

    monkeypatch.setattr(OperatorRun, "take_snapshot", take_snapshot)


def publish_before_the_row_is_in(monkeypatch):
    real = TwoPhaseCommit._checked

    def checked(self, fact):
        effects = real(self, fact)
        record = self._record
        if record is None:
            return effects
        early = tuple(PublishTable(record.checkpoint, each) for each in publications(record))
        return (*early, *effects)

    monkeypatch.setattr(TwoPhaseCommit, "_checked", checked)


def use_ids_again(monkeypatch):
    real = CheckpointIds.take

    def take(self):
        taken = real(self)
        if self.next_id > self._claim.first_id + 1:
            self.next_id = self._claim.first_id
        return taken

    monkeypatch.setattr(CheckpointIds, "take", take)


def call_everything_idle(monkeypatch):
    monkeypatch.setattr(SourceReaders, "all_idle", property(lambda self: True))
    monkeypatch.setattr(SourceReaders, "polling", property(lambda self: False))


def never_ask_to_be_woken(monkeypatch):
    monkeypatch.setattr(job_door.JobDoor, "_tell_wake", lambda self: None)


def let_rows_pass_behind_a_barrier(monkeypatch):
    real = wiring.gate_config
    monkeypatch.setattr(wiring, "gate_config", lambda config: replace(real(config), policy=GatePolicy.AT_LEAST_ONCE))


def count_the_micro_batch_before(monkeypatch):
    real = OperatorRun.take_snapshot

    def take_snapshot(self, checkpoint):
        snapshots = real(self, checkpoint)
        self.micro_batch = max(0, self.micro_batch - 1)
        return snapshots

    monkeypatch.setattr(OperatorRun, "take_snapshot", take_snapshot)


BUGS = {
    "rows pass behind a barrier": (let_rows_pass_behind_a_barrier, "alignment"),
    "a micro-batch's number is used again": (count_the_micro_batch_before, "alignment"),
    "an abort drops what was staged": (forget_staged_at_abort, "cut-is-exact"),
    "only the newest state file is live": (keep_only_the_newest_state_file, "state-is-exact"),
    "a staged file belongs to every later epoch": (never_tag_staged_files, "cut-is-exact"),
    "a restore begins at the start": (restore_at_the_start, "cut-is-exact"),
    "a restore forgets what is in flight": (forget_what_is_in_flight, "cut-is-exact"),
    "a restore mixes up old and new state files": (mix_up_old_and_new_state, "state-is-exact"),
    "a file that a snapshot carries is discarded": (discard_what_a_snapshot_carries, "no-file-is-missed"),
    "tables are published before the row is in": (publish_before_the_row_is_in, "visible-after-commit"),
    "a tick ends before everything is read": (call_everything_idle, "caught-up-is-committed"),
    "an id is used again": (use_ids_again, "ids-rise"),
    "nobody is woken": (never_ask_to_be_woken, "no-deadlock"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_core_is_found(bug, monkeypatch):
    """A seeded bug breaks the invariant that is there for it, within a few dozen seeds."""
    plant, expected = BUGS[bug]
    plant(monkeypatch)
    # the first ones are known to meet the rarer bugs; should scenarios be drawn otherwise, the others will
    for seed in (18, 55, *range(60)):
        if expected in {violation.invariant for violation in run(seed).violations}:
            return
    pytest.fail(f"{expected} held in every seed")
