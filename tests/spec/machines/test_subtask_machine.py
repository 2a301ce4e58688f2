"""Runs the machine of a subtask's door."""

from spec.machines.subtask import SubtaskMachine


def test_a_subtask_answers_as_its_table_says(run_machine):
    """Barriers, snapshots, aborts and completions come in any order. Their ids may be old, or far too early."""
    run_machine(SubtaskMachine)
