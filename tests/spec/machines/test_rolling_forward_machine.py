"""Runs the machine of the roll-forward."""

from spec.machines.rolling_forward import RollingForwardMachine


def test_an_entry_that_a_dead_holder_has_left_is_published(run_machine):
    """Cuts lack tables, others have recorded the cut, and tables refuse."""
    run_machine(RollingForwardMachine)
