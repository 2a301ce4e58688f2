"""The machines of what entries change, of large entries, of small files, and of what is measured of each epoch."""

from spec.machines.compactions import CompactionsMachine
from spec.machines.manifests import ManifestsMachine
from spec.machines.measuring import MeasuringMachine
from spec.machines.netting import NetMachine


def test_an_entry_with_manifests_reads_as_it_was_appended(run_machine):
    """Files come and go, vertices too, and the job is rescaled and rolled back. Small changes write little."""
    run_machine(ManifestsMachine)


def test_a_compaction_changes_no_row(run_machine):
    """Another program deletes rows and merges files meanwhile."""
    run_machine(CompactionsMachine)


def test_an_entry_tells_what_was_measured_of_its_epoch(run_machine):
    """Checkpoints overtake each other, are aborted, and their barriers come late."""
    run_machine(MeasuringMachine)


def test_publishing_an_entry_makes_each_table_show_the_cut(run_machine):
    """Files and columns come and go, tables are renamed, and small files are compacted."""
    run_machine(NetMachine)
