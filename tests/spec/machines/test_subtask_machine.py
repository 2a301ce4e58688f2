"""The machine of one subtask's door."""

from spec.machines.subtask import SubtaskMachine


def test_a_subtask_answers_as_its_table_says(run_machine):
    """Barriers, snapshots, aborts and completions in any order, also of ids that were seen or come far too early.

    The planted bugs that this machine finds are in `spec.mutants.subtasks`.
    """
    run_machine(SubtaskMachine)
