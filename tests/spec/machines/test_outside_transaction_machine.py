"""Runs the machine of publications into a target with transactions."""

from spec.machines.outside_transaction import OutsideTransactionMachine


def test_a_target_with_transactions_gets_each_checkpoint_once(run_machine):
    """Processes publish the same checkpoint, die, wake up late, and lose requests and replies.

    The planted bugs that this machine finds are in `spec.mutants.outside_transactions`.
    """
    run_machine(OutsideTransactionMachine)
