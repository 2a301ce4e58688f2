"""Runs the machine of publications into a target with transactions."""

from spec.machines.outside_transaction import OutsideTransactionMachine


def test_a_target_with_transactions_gets_each_checkpoint_once(run_machine):
    """Processes publish the same checkpoint, die, wake up late, and lose requests and replies."""
    run_machine(OutsideTransactionMachine)
