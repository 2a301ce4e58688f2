"""Runs the clean-up's machines. The real decisions keep reserved and needed files, and delete all others."""

from spec.machines.cleanup import CleanupMachine
from spec.machines.keeping import KeepingMachine


def test_reserved_files_stay_and_all_others_are_deleted(run_machine):
    """Checkpoints, ticks, clean-ups and readers act in any order. Readers renew, leave and are killed."""
    run_machine(CleanupMachine)


def test_needed_files_stay_and_all_others_are_deleted(run_machine):
    """There are entries, abandoned savepoints, rollbacks, foreign writers, dead ticks, readers without reservations."""
    run_machine(KeepingMachine)
