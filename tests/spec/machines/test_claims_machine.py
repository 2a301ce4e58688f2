"""Runs the machine of claims, and that of what a cut tells."""

from spec.machines.claiming import ClaimsMachine
from spec.machines.notifying import NotifyingMachine


def test_holders_that_live_are_left_alone(run_machine):
    """Processes find claims, releases and leases in any combination.

    The planted bugs that this machine finds are in `spec.mutants.claims`.
    """
    run_machine(ClaimsMachine)


def test_a_cut_tells_how_far_its_rows_are_in(run_machine):
    """Slices are in flight in any combination, also those that a reset leaves behind.

    The planted bugs that this machine finds are in `spec.mutants.claims`.
    """
    run_machine(NotifyingMachine)
