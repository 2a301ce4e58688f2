"""The job's machine on real Delta: delta-rs in a folder keeps all rules that the simulator's stores keep."""

from shutil import rmtree

import pytest

from checkpointing.gate import GatePolicy
from checkpointing.messages import EndTick
from checkpointing.metadata.record import RowKind
from jobs.warehouse import checkpoints
from spec.history import CutWritten, JobClaimed, RowCommitted, TableChanged
from spec.machines.job import LONGEST_MS, SPLITS
from spec.machines.judging import BrokenRuleError
from spec.reference.contents import line_of, positions, read_on
from spec.rules.invariants import violations
from spec.rules.rollbacks import goes_back
from spec.world.entry_texts import LOW
from tests.conformance.frame_engine import numbered_names
from tests.conformance.machine import MACHINES, RealStoresMachine, run
from tests.conformance.planted import BUGS, BUGS_OF_MANIFESTS, FORGET_WHAT_IS_PINNED, LEAVE_IN_WHAT_A_ROLLBACK_TAKES_OUT

NEVER = 999
MANY = 10
"""The entries of some warehouse name more manifests than this."""
ITS_ROW_IS_IN = 4
"""How many effects a reset carries out that dies between its entry and its cut."""
ONE_TABLE_SHOWS_IT = 5
"""How many effects a rollback carries out that dies after the first table: claim, lease, clean-up, entry, table."""


def test_real_stores_keep_every_rule():
    """There are deaths at any boundary, zombies, lost replies and neighbours.

    Readers see one cut, and each row once.
    """
    run(RealStoresMachine, examples=4, steps=15)


@pytest.mark.dear
@pytest.mark.parametrize("policy", MACHINES)
def test_real_stores_keep_every_rule_in_every_mode(policy):
    """This runs over more warehouses, in at-least-once mode and with rows in flight too."""
    run(MACHINES[policy], examples=12, steps=25)


@pytest.mark.dear
@pytest.mark.parametrize("policy", [RealStoresMachine.policy, GatePolicy.UNALIGNED])
def test_real_stores_keep_every_rule_with_manifests(policy, monkeypatch):
    """Here even a small entry has several manifests."""
    monkeypatch.setattr(checkpoints, "SIZES", LOW)
    seen = []

    class CountingManifests(MACHINES[policy]):
        def teardown(self):
            try:
                super().teardown()
            finally:
                seen.append(self.driven.world.witness.manifests)

    run(CountingManifests, examples=8, steps=20)
    assert max(seen) > MANY


@pytest.mark.dear
@pytest.mark.parametrize("name", BUGS_OF_MANIFESTS)
def test_a_bug_planted_in_manifests_breaks_its_rule(name, monkeypatch):
    monkeypatch.setattr(checkpoints, "SIZES", LOW)
    hunt(BUGS_OF_MANIFESTS[name], monkeypatch)


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if bug.soon])
def test_a_bug_planted_in_the_stores_breaks_its_rule(name, monkeypatch):
    """The machine's error names the invariant that this very bug breaks."""
    hunt(BUGS[name], monkeypatch)


@pytest.mark.dear
@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if not bug.soon])
def test_a_bug_that_hides_breaks_its_rule(name, monkeypatch):
    """These bugs need a rarer combination of a death, a zombie and a neighbour."""
    hunt(BUGS[name], monkeypatch)


@pytest.mark.parametrize("planted", [True, False])
def test_a_death_over_a_savepoint_shows_who_forgets_what_is_pinned(planted, monkeypatch):
    """In this fixed sequence, only a planted bug deletes files that a savepoint alone names."""
    with numbered_names():
        machine = RealStoresMachine()
        machine.open(tolerable=100, slice_rows=2, retained=1, concurrent=1, timeout_ms=LONGEST_MS)
        machine.answer_in_order(8)
        if not planted:
            machine.die_over_a_savepoint("after:LogCommit", parallelism=1, split=SPLITS[0])
            machine.teardown()
            return
        FORGET_WHAT_IS_PINNED.plant(monkeypatch)
        with pytest.raises(BrokenRuleError) as found:
            machine.die_over_a_savepoint("after:LogCommit", parallelism=1, split=SPLITS[0])
        rmtree(machine.root)
    assert found.value.invariant in FORGET_WHAT_IS_PINNED.breaks


@pytest.mark.parametrize("planted", [True, False])
def test_a_rollback_over_real_stores_goes_back_in_every_table(planted, monkeypatch):
    """The rollback dies when one table shows its result, and the next tick finishes it. A planted bug is found."""
    if planted:
        LEAVE_IN_WHAT_A_ROLLBACK_TAKES_OUT.plant(monkeypatch)
    with numbered_names():
        machine = RealStoresMachine()
        machine.open(tolerable=100, slice_rows=2, retained=2, concurrent=1, timeout_ms=LONGEST_MS)
        machine.work(EndTick)
        machine.start(parallelism=2, split=SPLITS[0])
        machine.work(EndTick)
        history = machine.driven.world.history
        if planted:
            with pytest.raises(BrokenRuleError):
                machine.roll_back(really=True, pick=0, effects=NEVER, parallelism=1)
            rmtree(machine.root)
        else:
            machine.roll_back(really=True, pick=0, effects=ONE_TABLE_SHOWS_IT, parallelism=1)
            machine.teardown()
    broken = {violation.invariant for violation in violations(history)}
    assert broken == (LEAVE_IN_WHAT_A_ROLLBACK_TAKES_OUT.breaks if planted else set())
    (row,) = (event.record for event in history.events if isinstance(event, RowCommitted) and goes_back(event.record))
    shown = [
        event for event in history.events if isinstance(event, TableChanged) and event.checkpoint == row.checkpoint
    ]
    assert len(row.tables) == len(shown)


@pytest.mark.parametrize("effects", [ITS_ROW_IS_IN, NEVER])
def test_a_reset_over_real_stores_moves_one_source(effects):
    """Split a is read once more. If the reset died after its entry, the next tick records the cut."""
    with numbered_names():
        machine = RealStoresMachine()
        machine.open(tolerable=100, slice_rows=2, retained=2, concurrent=1, timeout_ms=LONGEST_MS)
        machine.work(EndTick)
        history = machine.driven.world.history
        machine.reset(pick=0, effects=effects, splits=SPLITS[:1], parallelism=1)
        machine.teardown()
    assert () == violations(history)
    rows = [event.record for event in history.events if isinstance(event, RowCommitted)]
    (place,) = (at for at, row in enumerate(rows) if row.kind is RowKind.RESET)
    dies = isinstance(history.events[place_of_the_next(history, rows[place])], JobClaimed)
    assert (effects == ITS_ROW_IS_IN) is dies
    assert {"a": 0, "b": 4, "c": 4} == positions(rows[place])
    assert {"a": [(0, 4), (0, 10)], "b": [(0, 4), (4, 4)], "c": [(0, 4), (4, 4)]} == read_on(line_of(history, rows[-1]))


def place_of_the_next(history, row):
    events = history.events
    begun = next(at for at, each in enumerate(events) if isinstance(each, RowCommitted) and each.record == row)
    return next(at for at in range(begun, len(events)) if isinstance(events[at], JobClaimed | CutWritten))


def hunt(bug, monkeypatch):
    bug.plant(monkeypatch)
    with pytest.raises(BrokenRuleError) as found:
        run(type(RealStoresMachine.__name__, (RealStoresMachine,), {"judged_by": bug.breaks}), examples=40, steps=25)
    assert found.value.invariant in bug.breaks
