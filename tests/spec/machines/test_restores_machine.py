"""The machine of restores."""

from spec.fitting import cases
from spec.machines.restoring import RestoresMachine


def test_a_cut_is_refused_exactly_if_something_would_get_lost(run_machine):
    """One cut is restored into many changed pipelines, with and without leave to leave state behind."""
    run_machine(RestoresMachine)


def test_some_pipelines_fit_and_some_do_not():
    """Each case has another name."""
    found = [*cases()]
    assert len(found) == len({case.what for case in found})
    assert min(sum(not case.why for case in found), sum(bool(case.why) for case in found)) > 15
