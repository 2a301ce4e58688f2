"""Exhaustive exploration: the small world holds to its end, planted bugs are met, branches are independent."""

from copy import deepcopy

import pytest

from checkpointing.commit import recovery
from checkpointing.commit.two_phase import TwoPhaseCommit
from checkpointing.gate.channels import Channels
from checkpointing.job.readers import SourceReaders
from spec import explore
from spec.explore import WORLDS
from spec.explore_branching import branch, digest
from spec.explore_job import DrivenJob
from spec.machines import commit


@pytest.mark.dear
def test_the_small_world_holds_to_its_end():
    """Every order of answers, a timer and a crash: each path ends caught up, two checkpoints are in flight at times."""
    found = explore.explore(WORLDS["small"])
    assert [] == found.violations
    assert found.complete
    assert found.in_flight == 2
    assert found.states > 3_000
    assert found.ended > 50


def test_a_branch_is_a_deep_copy():
    """A branch and a deep copy go on alike, and the original stays as it was."""
    driven = DrivenJob(WORLDS["medium"].job())
    driven.start()
    for _ in range(12):
        before = driven.door.snapshot()
        copies = [branch(driven), deepcopy(driven)]
        for copy in copies:
            copy.answer(0)
        assert copies[0].door.snapshot() == copies[1].door.snapshot()
        assert digest([copies[0].world]) == digest([copies[1].world])
        assert before == driven.door.snapshot()
        driven.answer(len(driven.outstanding) - 1)


def test_a_path_can_be_told_again():
    """The path that led to a finding leads there again, step by step."""
    driven = explore.replay(WORLDS["small"], ("answer 0", "answer 0", "fire", "crash 0"))
    assert 2 == driven.generation
    assert driven.end is None


def never_roll_forward(monkeypatch):
    from dataclasses import replace

    from spec import explore_job

    real = recovery.decide_recovery
    monkeypatch.setattr(
        explore_job,
        "decide_recovery",
        lambda seen, take_over: replace(real(seen, take_over=take_over), roll_forward=None),
    )


def resume_nobody(monkeypatch):
    monkeypatch.setattr(Channels, "resume", lambda self, name: None)


def end_without_a_commit(monkeypatch):
    monkeypatch.setattr(SourceReaders, "all_idle", property(lambda self: True))
    monkeypatch.setattr(SourceReaders, "polling", property(lambda self: False))


def publish_before_the_row_is_in(monkeypatch):
    real = TwoPhaseCommit._finalise

    def finalise(self, draft):
        effects = real(self, draft)
        early = recovery.publications(self._record)
        return (*(commit.PublishTable(draft.checkpoint, each) for each in early), *effects)

    monkeypatch.setattr(TwoPhaseCommit, "_finalise", finalise)


BUGS = {
    "a committed row is not rolled forward": (never_roll_forward, {"doors-hold", "published-in-order", "no-deadlock"}),
    "a channel is never read on": (resume_nobody, {"no-deadlock", "caught-up-is-committed"}),
    "a tick ends too early": (end_without_a_commit, {"caught-up-is-committed", "triggers-end"}),
    "tables are published before the row is in": (publish_before_the_row_is_in, {"visible-after-commit", "doors-hold"}),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_met_in_the_small_world(bug, monkeypatch):
    """The exploration meets a planted bug, and says by which path."""
    plant, expected = BUGS[bug]
    plant(monkeypatch)
    found = explore.explore(WORLDS["small"])
    assert expected & {broken.invariant for broken, _ in found.violations}
    assert found.violations[0][1]


def test_the_command_ends_with_the_counts(capsys):
    """`python -m spec.explore` says how many states and transitions there were, and whether that was all."""
    assert 0 == explore.main(["--world", "unaligned", "--states", "40"])
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("unaligned: 40 states, ")
    assert said.endswith("not explored to the end")
