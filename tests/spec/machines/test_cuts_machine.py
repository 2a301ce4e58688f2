"""The machine of splits that read cuts of other jobs."""

from spec.machines.cuts import CutGroupsMachine


def test_barriers_find_all_splits_at_one_cut(run_machine):
    """Splits are restored anywhere, find cuts and reach them in any order, and barriers come in between."""
    run_machine(CutGroupsMachine)
