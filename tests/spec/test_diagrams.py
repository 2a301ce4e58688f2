"""The pictures in docs/ are those of the code, and the code moves as they say."""

import pytest

from checkpointing.commit import two_phase
from checkpointing.commit.two_phase import OFFERS, TRANSITIONS, CommitState, TwoPhaseCommit
from spec.diagrams import PAGE, page
from spec.simulator import simulate

DRAWN = {(state, reached) for (state, _), follow in {**OFFERS, **TRANSITIONS}.items() for reached in follow}
GIVEN_UP = {(state, CommitState.ENDED) for state in (CommitState.CHECKING,)}
"""The tick ends: what was offered and not sent is withdrawn, which no fact asks for."""
STAYS = {(CommitState.PUBLISHING, CommitState.PUBLISHING)}


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
    for seed in (11, 18, *range(60)):  # the first two meet every move, as scenarios are drawn today
        simulate(seed, savepoints_max=2)
        if DRAWN - STAYS <= moves:
            break
    assert set() == moves - DRAWN - GIVEN_UP
    assert set() == DRAWN - STAYS - moves


def test_a_picture_of_another_table_is_stale(monkeypatch):
    """A row that leaves the table changes the page."""
    fewer = dict(list(TRANSITIONS.items())[1:])
    monkeypatch.setattr("spec.diagrams.TRANSITIONS", fewer)
    assert page() != PAGE.read_text()
    assert two_phase.TRANSITIONS is TRANSITIONS
