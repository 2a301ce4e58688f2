"""Runs the machines of a tick's attempts and of lost answers."""

from spec.machines.asking import LostAnswersMachine
from spec.machines.attempts import AttemptsMachine


def test_attempts_follow_as_strategy_and_limits_say(run_machine):
    """Jobs fail, fill their traces, catch up and are stopped. Another process claims the job in between."""
    run_machine(AttemptsMachine)


def test_an_append_whose_answer_is_lost_is_asked_again(run_machine):
    """Answers to claims and to entries of savepoints at rest are lost, up to all of them."""
    run_machine(LostAnswersMachine)
