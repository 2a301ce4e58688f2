"""The machines of what is spread over subtasks, and of graphs."""

from spec.machines.graphs import GraphsMachine
from spec.machines.spreading import SpreadingMachine


def test_key_groups_and_state_are_spread_over_subtasks(run_machine):
    """At any parallelism, each key group has one subtask, and no element of state is lost."""
    run_machine(SpreadingMachine)


def test_a_graph_is_refused_exactly_if_it_is_none(run_machine):
    """Graphs of any parts are made. Those that hold answer what follows from their parts."""
    run_machine(GraphsMachine)
