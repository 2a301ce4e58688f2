"""The machine of the pause after failures."""

from spec.machines.pausing import PauseMachine


def test_a_pause_lasts_as_long_as_the_failures_in_a_row_say(run_machine):
    """Requests of the tick and of users succeed and fail in any order, and time passes in between."""
    run_machine(PauseMachine)
