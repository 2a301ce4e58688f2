"""The machine of the splits' turns."""

from spec.machines.reading import ReadersMachine


def test_splits_take_turns_within_their_limits(run_machine):
    """Splits answer, are idle, fail and end, with and without credit, in epochs of a few rows."""
    run_machine(ReadersMachine)
