"""Runs the machines of claims, of races for a job, of a holder's first steps, and of what a cut tells."""

from spec.machines.claiming import ClaimsMachine
from spec.machines.notifying import NotifyingMachine
from spec.machines.racing import RacesMachine
from spec.machines.recovering import RecoveringMachine


def test_holders_that_live_are_left_alone(run_machine):
    """Processes find claims, releases and leases in any combination."""
    run_machine(ClaimsMachine)


def test_a_cut_tells_how_far_its_rows_are_in(run_machine):
    """Slices are in flight in any combination, also those that a reset leaves behind."""
    run_machine(NotifyingMachine)


def test_several_processes_race_for_a_job(run_machine):
    """Each looks, asks its questions and claims in steps of its own, and others write in between."""
    run_machine(RacesMachine)


def test_a_holder_takes_its_first_steps_in_order(run_machine):
    """It meets entries, tables and cuts in any state, and does its errand."""
    run_machine(RecoveringMachine)
