"""The pictures in docs/ show the tables of the code, and the code moves as the tables say."""

from contextlib import suppress

import pytest

from checkpointing.commit import two_phase
from checkpointing.commit.at_rest import Stamp
from checkpointing.commit.two_phase import OFFERS, TRANSITIONS, CommitState, TwoPhaseCommit, UnexpectedFactError
from checkpointing.coordinator.pending import PHASES, PendingCheckpoint, PendingPhase, PhaseOrderError
from checkpointing.coordinator.plan import CheckpointPlan
from checkpointing.coordinator.properties import CHECKPOINT
from checkpointing.job.tick_end import MOVES as ENDINGS
from checkpointing.job.tick_end import Ending, TickPhase
from checkpointing.messages import CutRecorded, RowAppended, TablePublished
from checkpointing.metadata.record import Holder
from checkpointing.tick.attempts import TICK, Terms
from checkpointing.tick.door import TickDoor
from checkpointing.tick.messages import AppendEntry, LookAtLogs, Observe, PublishAgain, ReadCut, Wait, Waited
from checkpointing.tick.transitions import MOVES
from spec.diagrams import PAGE, page
from spec.world.draw import Mishaps, Moves
from spec.world.simulator import simulate

DRAWN = {(state, reached) for (state, _), follow in {**OFFERS, **TRANSITIONS}.items() for reached in follow}
GIVEN_UP = {(state, CommitState.ENDED) for state in (CommitState.CHECKING,)}
"""When the tick ends, an offer that was not sent is withdrawn. No fact causes this transition."""
STAYS = {(CommitState.PUBLISHING, CommitState.PUBLISHING)}


DRAWN_PHASES = {(phase, reached) for phase, follow in PHASES.items() for reached in follow}


@pytest.fixture
def phases(monkeypatch):
    """Return a set that gets every pair of phases between which a pending checkpoint moves from now on."""
    seen, real = set(), PendingCheckpoint.phase

    def put(pending, phase):
        with suppress(AttributeError):  # the checkpoint begins, or is copied
            seen.add((real.__get__(pending), phase))
        real.__set__(pending, phase)

    monkeypatch.setattr(PendingCheckpoint, "phase", property(real.__get__, put))
    return seen


@pytest.fixture
def moves(monkeypatch):
    """Return a set that gets every pair of states between which a commit door moves from now on."""
    seen = set()
    slot = "_watched_state"

    def put(door, state):
        before = getattr(door, slot, None)
        if before is not None:
            seen.add((before, state))
        setattr(door, slot, state)

    monkeypatch.setattr(TwoPhaseCommit, "_state", property(lambda door: getattr(door, slot), put), raising=False)
    return seen


def test_the_page_shows_the_tables():
    """`python -m spec.diagrams` would write exactly the present page."""
    assert page() == PAGE.read_text()


def test_doors_at_work_move_as_the_table_says_and_every_move_is_met(moves):
    """The commits have savepoints, faults, and blocks of ids that run out.

    They make every transition of the table and no other.
    """
    for seed in (8, 201, 282, *range(60)):  # the first three make the rarest moves
        simulate(seed, moves=Moves(savepoints_max=2))
        if DRAWN - STAYS <= moves:
            break
    assert set() == moves - DRAWN - GIVEN_UP
    assert set() == DRAWN - STAYS - moves


def test_pending_checkpoints_move_as_the_table_says_and_every_move_is_met(phases):
    """From being located to being committed, no phase is skipped, whatever goes wrong in between."""
    for seed in range(5):
        simulate(seed)
    assert DRAWN_PHASES == phases


def test_ticks_end_as_the_table_says(monkeypatch):
    """The ticks have stops, limits, savepoints and faults.

    They make all frequent transitions, and none that is not drawn.
    """
    seen, slot = set(), "_watched_phase"

    def put(ending, phase):
        seen.add((getattr(ending, slot, TickPhase.RUNNING), phase))
        setattr(ending, slot, phase)

    monkeypatch.setattr(Ending, "phase", property(lambda ending: getattr(ending, slot), put), raising=False)
    for seed in range(30):
        simulate(seed, moves=Moves(savepoints_max=5))
    moved = {(before, after) for before, after in seen if before is not after}
    drawn = {(phase, reached) for (phase, _), reached in ENDINGS.items()}
    assert set() == moved - drawn
    assert {phase for phase, _ in drawn} - {TickPhase.SUSPENDING_OR_FINISHING} <= {phase for phase, _ in moved}


def test_the_tick_door_moves_as_the_table_says(monkeypatch):
    """The ticks have restarts, rollbacks, resets and mishaps. They make no transition that is not drawn."""
    seen, real = set(), TickDoor.step

    def step(door, fact, at):
        before = type(door.awaits)
        effects = real(door, fact, at)
        seen.add((before, type(fact), type(door.awaits)))
        return effects

    monkeypatch.setattr(TickDoor, "step", step)
    for seed in range(20):
        simulate(seed, moves=Moves(rollbacks_max=1, resets_max=1, mishaps=Mishaps(1, 1)))
    simulate(38, moves=Moves(savepoints_max=1, restarts=True))
    drawn = {(effect, fact, asked) for (effect, fact), follow in MOVES.items() for asked in follow}
    assert set() == seen - drawn
    met = {(PublishAgain, TablePublished, LookAtLogs), (AppendEntry, RowAppended, ReadCut), (Wait, Waited, Observe)}
    assert met <= seen


def test_an_answer_that_nobody_waits_for_is_refused():
    """The error names the tick door's state and the answer, and the door stays in that state."""
    door = TickDoor(TICK, Terms(holder=Holder(host="here", pid=1, started="")))
    door.start(Stamp(0, "a"))
    with pytest.raises(UnexpectedFactError, match="CutRecorded as the answer to Observe"):
        door.step(CutRecorded(1), Stamp(0, "b"))
    assert Observe() == door.awaits


def test_a_phase_that_does_not_follow_is_refused():
    """A wrong transition is a bug of the coordinator. The checkpoint stays in its phase."""
    plan = CheckpointPlan(to_trigger=(), tasks=(), vertices=())
    pending = PendingCheckpoint(id=1, request=None, properties=CHECKPOINT, plan=plan, triggered_ms=0, expires_ms=None)
    for phase in set(PendingPhase) - set(PHASES[PendingPhase.LOCATING]):
        with pytest.raises(PhaseOrderError, match=f"checkpoint 1 can't be {phase.value}: it is locating"):
            pending.advance(phase)
        assert pending.phase is PendingPhase.LOCATING


def test_a_picture_of_another_table_is_stale(monkeypatch):
    """A new row in either table of the code changes the page."""
    monkeypatch.setattr("spec.diagrams.PHASES", {**PHASES, PendingPhase.TRIGGERING: ()})
    assert page() != PAGE.read_text()
    monkeypatch.setattr("spec.diagrams.PHASES", PHASES)
    fewer = dict(list(TRANSITIONS.items())[1:])
    monkeypatch.setattr("spec.diagrams.TRANSITIONS", fewer)
    assert page() != PAGE.read_text()
    assert two_phase.TRANSITIONS is TRANSITIONS
    monkeypatch.setattr("spec.diagrams.TRANSITIONS", TRANSITIONS)
    monkeypatch.setattr("spec.diagrams.ENDINGS", dict(list(ENDINGS.items())[1:]))
    assert page() != PAGE.read_text()
