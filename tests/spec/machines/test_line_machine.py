"""Runs the machine of the line of entries."""

from spec.machines.turning import LineMachine


def test_a_rollback_leaves_the_entries_of_its_line(run_machine):
    """Checkpoints complete, also after a savepoint that was triggered later. Users save, roll back, and dispose."""
    run_machine(LineMachine)
