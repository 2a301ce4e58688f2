"""Rules about what entries and publications say besides the rows, on histories that are right and on false ones."""

from dataclasses import replace

from checkpointing.commit.fencing import Lease
from checkpointing.identifiers import Generation
from checkpointing.messages import CompactFiles
from spec.at_doors import badly_driven
from spec.key_ranges import foreign_files
from spec.moves import Moves
from spec.politeness import UnseenRefused, impolite
from spec.simulator import simulate
from tests.spec.at_doors_falsified import say_nothing_of_what_changed

SEEDS = range(1, 12)


def test_a_subtask_has_no_file_of_other_key_groups():
    """With twice as many key groups, the files of a vertex with several subtasks lie in other ranges."""
    histories = [simulate(seed).history for seed in SEEDS]
    assert not [what for history in histories for what in foreign_files(history)]
    false = [replace(history, max_parallelism=2 * history.max_parallelism) for history in histories]
    found = [what for history in false for what in foreign_files(history)]
    assert "holds key groups" in found[0]


def test_a_publication_says_what_changed_since_the_parents_cut():
    """Without it, the store would compare all files of the table."""
    histories = [simulate(seed).history for seed in SEEDS]
    assert not [what for history in histories for what in badly_driven(history, "changes-said")]
    false = map(say_nothing_of_what_changed, histories)
    found = [what for history in false for what in badly_driven(history, "changes-said")]
    assert "nothing is said of what changed" in found[0]


def test_a_tick_begins_with_a_look_for_small_files():
    """The same history is judged as one whose first slices asked for nothing, and as one that asked for too much."""
    history = simulate(0, moves=Moves(compacts=2)).history
    assert not list(badly_driven(history, "compacts-first"))
    for change in (lambda _: (), lambda effect: (replace(effect, tables=(*effect.tables, "more")),)):
        assert list(badly_driven(_compacting(history, change), "compacts-first"))


def _compacting(history, change):
    steps = {
        generation: [
            replace(
                step,
                effects=tuple(
                    made
                    for each in step.effects
                    for made in (change(each) if isinstance(each, CompactFiles) else (each,))
                ),
            )
            for step in taken
        ]
        for generation, taken in history.steps.items()
    }
    return replace(history, steps=steps)


def test_a_process_that_is_refused_leaves_the_unseen_holder_with_a_lease():
    """Otherwise nobody could ever take over from a holder that is dead."""
    history = simulate(1).history
    lease = Lease(Generation(3), 500)
    assert not list(impolite(replace(history, events=[UnseenRefused(Generation(3), lease)])))
    for wrong in (None, Lease(Generation(2), 500)):
        assert list(impolite(replace(history, events=[UnseenRefused(Generation(3), wrong)])))
