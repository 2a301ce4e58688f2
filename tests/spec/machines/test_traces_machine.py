"""Runs the machine of traces."""

from spec.machines.tracing import TraceMachine


def test_each_line_of_a_trace_comes_back(run_machine):
    """Files come, stay and go, lines name them by number, and damaged lines are refused."""
    run_machine(TraceMachine)
