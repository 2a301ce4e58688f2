"""Runs the machine of a tick's attempts."""

from spec.machines.attempts import AttemptsMachine


def test_attempts_follow_as_strategy_and_limits_say(run_machine):
    """Jobs fail, fill their traces, catch up and are stopped. Another process claims the job in between.

    The planted bugs that this machine finds are in `spec.mutants.attempting`.
    """
    run_machine(AttemptsMachine)
