"""Decides, as a pure function, in which order a process publishes into a target with transactions."""

import pytest

from checkpointing.commit.outside_transaction import (
    STEPS,
    TRIES,
    ReadNewest,
    TakeOverTarget,
    TargetDone,
    TargetHas,
    TargetLost,
    TargetRefused,
    WriteInTransaction,
    published_once,
)
from checkpointing.commit.two_phase import UnexpectedFactError

LOST, REFUSED = TargetLost("no reply"), TargetRefused("too large")


def told(checkpoint, *answers):
    """Return the steps that these answers lead to, and the result, or `...` if the process goes on."""
    steps = published_once(checkpoint)
    taken = [next(steps)]
    for answer in answers:
        try:
            taken.append(steps.send(answer))
        except StopIteration as end:
            return taken, end.value
    return taken, ...


def test_a_checkpoint_is_written_after_the_target_is_taken_over_and_read():
    """The first look may miss a commit that is on its way. The second one waits for it.

    Changes are those since the second look.
    """
    order = [ReadNewest(settled=False), TakeOverTarget(), ReadNewest(settled=True), WriteInTransaction(3)]
    assert (order, None) == told(4, TargetHas(2), TargetDone(), TargetHas(3), TargetDone())


@pytest.mark.parametrize("has", [4, 5])
def test_a_checkpoint_that_the_target_has_is_passed_over(has):
    """A late process shuts nobody out. One that took over writes nothing."""
    assert ([*STEPS[:1]], None) == told(4, TargetHas(has))
    assert ([*STEPS[:3]], None) == told(4, TargetHas(3), TargetDone(), TargetHas(has))


def test_a_lost_reply_leads_back_to_the_first_look():
    """There, a commit that is in is found. After some tries the process gives up, and says why."""
    found = told(4, TargetHas(3), TargetDone(), TargetHas(3), LOST, TargetHas(4))
    assert ([*STEPS, WriteInTransaction(3), STEPS[0]], None) == found
    assert ([STEPS[0]] * TRIES, LOST) == told(4, *[LOST] * TRIES)


def test_a_refusal_ends_it():
    """Another try would be refused too."""
    assert ([*STEPS[:2]], REFUSED) == told(4, TargetHas(3), REFUSED)


def test_an_answer_to_another_question_is_an_error():
    """A question about the number is not answered by a confirmation."""
    with pytest.raises(UnexpectedFactError):
        told(4, TargetDone())
