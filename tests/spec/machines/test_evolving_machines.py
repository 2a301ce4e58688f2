"""Runs the machines of changed state and of changed tables."""

from spec.machines.changing_tables import ChangingTablesMachine
from spec.machines.evolving import EvolvingMachine
from spec.machines.meanings import MeaningsMachine


def test_old_state_serves_only_if_it_means_the_same(run_machine):
    """The pipeline gives its columns other names, functions and versions."""
    run_machine(MeaningsMachine)


def test_types_become_wider_and_nothing_else(run_machine):
    """Columns of a state get other types, also deep inside structs, arrays and maps."""
    run_machine(EvolvingMachine)


def test_each_change_of_a_table_is_said(run_machine):
    """Tables of all modes get other columns."""
    run_machine(ChangingTablesMachine)
