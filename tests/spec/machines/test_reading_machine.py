"""The machine of the splits' turns."""

from spec.machines.reading import ReadersMachine


def test_splits_take_turns_within_their_limits(run_machine):
    """Splits answer, are idle, fail and end, with and without credit, in epochs of a few rows.

    The planted bugs that this machine finds are in `spec.mutants.reading`.
    """
    run_machine(ReadersMachine)
