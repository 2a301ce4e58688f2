"""Runs the machine of a sink that commits in two phases."""

from spec.machines.two_phase_sink import TwoPhaseSinkMachine


def test_each_row_is_committed_with_its_checkpoint(run_machine):
    """The sink writes, pre-commits, commits late, dies, and is restored.

    The planted bugs that this machine finds are in `spec.mutants.two_phase_sinks`.
    """
    run_machine(TwoPhaseSinkMachine)
