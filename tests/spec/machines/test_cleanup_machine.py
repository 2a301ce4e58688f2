"""The clean-up's machine: the real decisions keep what readers have reserved, and delete everything else."""

from spec.machines.cleanup import CleanupMachine
from spec.machines.keeping import KeepingMachine


def test_what_is_reserved_stays_and_everything_else_goes(run_machine):
    """Checkpoints, ticks' own deletions, clean-ups, readers that renew, leave and are killed, in any order.

    The planted bugs that this machine finds are in `spec.mutants.reservations`.
    """
    run_machine(CleanupMachine)


def test_what_somebody_needs_stays_and_the_rest_goes(run_machine):
    """Entries, abandoned savepoints, rollbacks, neighbours, dead ticks, and readers who have reserved nothing.

    The planted bugs that this machine finds are in `spec.mutants.needing`.
    """
    run_machine(KeepingMachine)
