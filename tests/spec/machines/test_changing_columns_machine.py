"""Runs the machine of an append table's columns."""

from spec.machines.changing_columns import AppendedColumnsMachine


def test_every_file_is_readable_under_the_columns_of_its_table(run_machine):
    """The pipeline renames, drops and adds columns, others append rows, and users roll back."""
    run_machine(AppendedColumnsMachine)
