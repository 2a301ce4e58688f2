"""The pictures in docs/ are those of the code, and the code moves as they say."""

from contextlib import suppress

import pytest

from checkpointing.commit import two_phase
from checkpointing.commit.two_phase import OFFERS, TRANSITIONS, CommitState, TwoPhaseCommit
from checkpointing.coordinator.pending import PHASES, PendingCheckpoint, PendingPhase, PhaseOrderError
from checkpointing.coordinator.plan import CheckpointPlan
from checkpointing.coordinator.properties import CHECKPOINT
from spec.diagrams import PAGE, page
from spec.simulator import simulate

DRAWN = {(state, reached) for (state, _), follow in {**OFFERS, **TRANSITIONS}.items() for reached in follow}
GIVEN_UP = {(state, CommitState.ENDED) for state in (CommitState.CHECKING,)}
"""The tick ends: what was offered and not sent is withdrawn, which no fact asks for."""
STAYS = {(CommitState.PUBLISHING, CommitState.PUBLISHING)}


DRAWN_PHASES = {(phase, reached) for phase, follow in PHASES.items() for reached in follow}


@pytest.fixture
def phases(monkeypatch):
    """Return every pair of phases between which a pending checkpoint moves while it is watched."""
    seen, real = set(), PendingCheckpoint.phase

    def put(pending, phase):
        with suppress(AttributeError):  # it begins, or is copied
            seen.add((real.__get__(pending), phase))
        real.__set__(pending, phase)

    monkeypatch.setattr(PendingCheckpoint, "phase", property(real.__get__, put))
    return seen


@pytest.fixture
def moves(monkeypatch):
    """Return every pair of states between which a commit door moves while it is watched."""
    seen = set()
    slot = "_watched_state"

    def put(door, state):
        before = getattr(door, slot, None)
        if before is not None:
            seen.add((before, state))
        setattr(door, slot, state)

    monkeypatch.setattr(TwoPhaseCommit, "_state", property(lambda door: getattr(door, slot), put), raising=False)
    return seen


def test_the_page_is_what_the_tables_say():
    """`python -m spec.diagrams` would write the very page that is there."""
    assert page() == PAGE.read_text()


def test_doors_at_work_move_as_the_table_says_and_every_move_is_met(moves):
    """Simulated commits, with savepoints, faults and blocks of ids that run out: no other move, and none unused."""
    for seed in (18, 97, *range(60)):  # the first two meet every move, as scenarios are drawn today
        simulate(seed, savepoints_max=2)
        if DRAWN - STAYS <= moves:
            break
    assert set() == moves - DRAWN - GIVEN_UP
    assert set() == DRAWN - STAYS - moves


def test_pending_checkpoints_move_as_the_table_says_and_every_move_is_met(phases):
    """From being located to being committed, whatever goes wrong meanwhile: no phase is passed over."""
    for seed in range(5):
        simulate(seed)
    assert DRAWN_PHASES == phases


def test_a_phase_that_does_not_follow_is_refused():
    """It is a fault of the coordinator: the checkpoint stays as it was."""
    plan = CheckpointPlan(to_trigger=(), to_acknowledge=(), to_commit=(), finished=(), vertices=())
    pending = PendingCheckpoint(id=1, request=None, properties=CHECKPOINT, plan=plan, triggered_ms=0, expires_ms=None)
    for phase in set(PendingPhase) - set(PHASES[PendingPhase.LOCATING]):
        with pytest.raises(PhaseOrderError, match=f"checkpoint 1 can't be {phase.value}: it is locating"):
            pending.advance(phase)
        assert pending.phase is PendingPhase.LOCATING


def test_a_picture_of_another_table_is_stale(monkeypatch):
    """A row that leaves either table changes the page."""
    monkeypatch.setattr("spec.diagrams.PHASES", {**PHASES, PendingPhase.TRIGGERING: ()})
    assert page() != PAGE.read_text()
    monkeypatch.setattr("spec.diagrams.PHASES", PHASES)
    fewer = dict(list(TRANSITIONS.items())[1:])
    monkeypatch.setattr("spec.diagrams.TRANSITIONS", fewer)
    assert page() != PAGE.read_text()
    assert two_phase.TRANSITIONS is TRANSITIONS
