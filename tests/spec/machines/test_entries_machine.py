"""The machine of entries."""

from spec.false_entries import told
from spec.machines.entries import EntriesMachine


def test_an_entry_is_believed_exactly_if_tidemark_may_have_written_it(run_machine):
    """Each field of an entry gets values at the edge of what it may say, and fields that must agree contradict."""
    run_machine(EntriesMachine)


def test_true_and_false_entries_are_told():
    """Each has another name, and of both kinds there are many."""
    cases = [*told()]
    assert len(cases) == len({case.what for case in cases})
    assert min(sum(case.is_true for case in cases), sum(not case.is_true for case in cases)) > 20
