"""Runs the commit's machine.

The real commit and recovery keep every rule, and each planted bug breaks the rule it names.
"""

import inspect
import re
from dataclasses import replace

import pytest

from checkpointing.commit import (
    cleanup,
    fencing,
    net_files,
    recovery,
    two_phase,
)
from checkpointing.commit.recovery import publications
from checkpointing.commit.two_phase import CheckpointCommitted, CommitState, TwoPhaseCommit
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.tick import door, messages
from spec.bugs.plant import bugs
from spec.machines import commit
from spec.machines.commit import CommitMachine
from spec.machines.judging import BrokenRuleError


def test_commit_and_recovery_keep_every_rule(run_machine):
    """There are three coordinators, zombies, lost replies and crashes at any effect.

    The tables always show one cut, once.
    """
    run_machine(CommitMachine)


def never_roll_forward(monkeypatch):
    real = door.decide_recovery

    def decide(seen, *, take_over):
        plan = real(seen, take_over=take_over)
        return plan if isinstance(plan, fencing.Refused) else replace(plan, roll_forward=None)

    monkeypatch.setattr(door, "decide_recovery", decide)


def delete_what_is_not_published_yet(monkeypatch):
    """Leftovers are deleted first, and nothing protects the files of the committed entry."""
    real = door.recovered

    def recovered(errand, terms, held):
        yield from door.asked(
            messages.DiscardLeftovers(held.claim.generation, cleanup.Referenced(), held.claim.first_id),
            messages.LeftoversDiscarded,
        )
        return (yield from real(errand, terms, held))

    monkeypatch.setattr(door, "recovered", recovered)


def publish_before_the_row_is_in(monkeypatch):
    real = TwoPhaseCommit._finalise

    def finalise(self, draft):
        effects = real(self, draft)
        early = publications(self._record)
        return (*(two_phase.PublishTable(draft.checkpoint, each) for each in early[:1]), *effects)

    monkeypatch.setattr(TwoPhaseCommit, "_finalise", finalise)
    step = TwoPhaseCommit.step
    monkeypatch.setattr(
        TwoPhaseCommit,
        "step",
        lambda self, fact, now_ms: (
            ()
            if isinstance(fact, two_phase.TablePublished | two_phase.PublishFailed)
            and self._state is CommitState.FINALISING
            else step(self, fact, now_ms)
        ),
    )


def take_lost_replies_for_failures(monkeypatch):
    real = TwoPhaseCommit._end

    def end(self, reason, message):
        if self._state is CommitState.FINALISING and "unknown" in message:
            checkpoint, self._record, self._state = self._record.checkpoint, None, CommitState.IDLE
            return (two_phase.Declined(checkpoint, reason, message), *self._start())
        return real(self, reason, message)

    monkeypatch.setattr(TwoPhaseCommit, "_end", end)


def publish_a_lost_row(monkeypatch):
    real = TwoPhaseCommit.step

    def step(self, fact, now_ms):
        if isinstance(fact, two_phase.RowUnknown):
            fact = two_phase.RowAppended(fact.nonce, self._at_version + 1)
        return real(self, fact, now_ms)

    monkeypatch.setattr(TwoPhaseCommit, "step", step)


def forget_what_was_declined(monkeypatch):
    real = net_files._appended

    def appended(record, table, since):
        newest = max((file.after for each in record.subtasks for file in each.staged), default=since)
        return (each for each in real(record, table, max(since, newest)))

    monkeypatch.setattr(net_files, "_appended", appended)


def take_what_is_published_again(monkeypatch):
    real = net_files._appended
    monkeypatch.setattr(net_files, "_appended", lambda record, table, since: real(record, table, CheckpointId(0)))


def give_ids_out_again(monkeypatch):
    real = fencing._after_silence

    def after_silence(held, generation, seen, now_ms, *, take_over):
        decision = real(held, generation, seen, now_ms, take_over=take_over)
        return decision if isinstance(decision, fencing.Refused) else replace(decision, first_id=CheckpointId(1))

    monkeypatch.setattr(fencing, "_after_silence", after_silence)


def begin_while_the_cut_is_missing(monkeypatch):
    real = TwoPhaseCommit._appended

    def appended(self, fact):
        effects = real(self, fact)
        if self._state is CommitState.PUBLISHING:
            self._record, self._state = None, CommitState.IDLE
            return self._start()
        return effects

    monkeypatch.setattr(TwoPhaseCommit, "_appended", appended)


def build_on_the_start(monkeypatch):
    real = TwoPhaseCommit._compose
    monkeypatch.setattr(
        TwoPhaseCommit,
        "_compose",
        lambda self, draft: real(self, draft).model_copy(update={"parent": CheckpointId(0)}),
    )


def tell_before_the_cut(monkeypatch):
    real = TwoPhaseCommit._record_cut
    monkeypatch.setattr(
        TwoPhaseCommit, "_record_cut", lambda self: (CheckpointCommitted(self._record, ()), *real(self))
    )


def commit_for_an_older_generation(monkeypatch):
    real = TwoPhaseCommit._compose
    monkeypatch.setattr(
        TwoPhaseCommit,
        "_compose",
        lambda self, draft: real(self, draft).model_copy(
            update={"generation": Generation(self._identity.generation - 1)}
        ),
    )


def commit_what_was_declined(monkeypatch):
    real = TwoPhaseCommit._checked

    def checked(self, fact):
        draft = self._waiting[0]
        effects = real(self, fact)
        return effects if not fact.problems or self._waiting else (*effects, *self.offer(draft, 0))

    monkeypatch.setattr(TwoPhaseCommit, "_checked", checked)


def refuse_for_ever(monkeypatch):
    real = fencing.decide_claim

    def decide(rows, seen, now_ms, *, take_over):
        newest = fencing.newest_claim(rows)
        if newest is not None and newest.generation > 2:
            return fencing.Refused(newest.holder, newest.generation, "it is too late")
        return real(rows, seen, now_ms, take_over=take_over)

    monkeypatch.setattr(recovery, "decide_claim", decide)


def check_no_table(monkeypatch):
    real = TwoPhaseCommit._checked
    monkeypatch.setattr(TwoPhaseCommit, "_checked", lambda self, fact: real(self, replace(fact, problems=())))


def build_on_the_version_behind_the_parents_cut(monkeypatch):
    real = net_files.net_tables

    def net_tables(graph, vertices, parent, versions, *args, **named):
        return real(
            graph, vertices, parent, {table: version + 1 for table, version in versions.items()}, *args, **named
        )

    monkeypatch.setattr(two_phase, "net_tables", net_tables)


BUGS = {
    "a committed row is not rolled forward": (never_roll_forward, {"published-in-order"}),
    "what is not published yet is deleted": (delete_what_is_not_published_yet, {"no-file-is-missed"}),
    "a table is published before the row is in": (
        publish_before_the_row_is_in,
        {"visible-after-commit", "no-file-is-missed"},
    ),
    "a lost reply is taken for a failure": (take_lost_replies_for_failures, {"no-commit-after-abort", "recovers"}),
    "a lost row is taken for a commit": (
        publish_a_lost_row,
        {"visible-after-commit", "told-truly", "one-generation", "no-file-is-missed"},
    ),
    "what an aborted epoch staged is lost": (forget_what_was_declined, {"exactly-once"}),
    "what was published is published again": (take_what_is_published_again, {"exactly-once"}),
    "ids are given out again": (give_ids_out_again, {"ids-rise", "no-commit-after-abort"}),
    "the next commit begins before the cut": (begin_while_the_cut_is_missing, {"published-in-order", "recovers"}),
    "a row builds on another": (build_on_the_start, {"parent-line"}),
    "completion is told before the cut": (tell_before_the_cut, {"told-truly"}),
    "an older generation commits": (commit_for_an_older_generation, {"one-generation"}),
    "what was declined is committed": (commit_what_was_declined, {"no-commit-after-abort"}),
    "a dead holder keeps the job": (refuse_for_ever, {"recovers"}),
    "what is wrong with a table is passed over": (check_no_table, {"tables-are-checked"}),
    "a table builds on the version behind the cut": (build_on_the_version_behind_the_parents_cut, {"tables-follow"}),
}


def test_every_rule_of_the_commit_can_be_broken():
    """The list above and `spec/bugs` have every rule. If nothing can break a rule, it is none."""
    text = "".join(map(inspect.getsource, (commit, commit, commit)))
    rules = set(re.findall(r'(?:expect\([^"]*|BrokenRuleError\(|_shows\([^"]*)"([a-z-]+)"', text))
    planted = {bug.rule for bug in bugs().values()}
    assert rules <= planted.union(*(found for _, found in BUGS.values()))


@pytest.mark.matrix
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_commit_is_found(bug, monkeypatch, hunt):
    """A planted bug breaks the rule that it names, within the ci profile."""
    plant, expected = BUGS[bug]
    plant(monkeypatch)
    with pytest.raises(BrokenRuleError) as broken:
        hunt(CommitMachine)
    assert broken.value.invariant in expected
