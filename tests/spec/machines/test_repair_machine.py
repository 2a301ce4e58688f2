"""The machine of damaged tables."""

from spec.machines.repairing import RepairMachine


def test_a_start_repairs_what_was_lost_and_nothing_else(run_machine):
    """Logs lose their newest entries, cuts are lost, ticks die in the middle of a commit, entries leave."""
    run_machine(RepairMachine)
