"""The machines of names, parts, renames, splits, a vertex at work, and of a tick's savepoints, compactions and end."""

from spec.machines.compacting_asks import CompactsMachine
from spec.machines.ending import EndingMachine
from spec.machines.naming import NamesMachine
from spec.machines.parting import FirstPartMachine
from spec.machines.renames import RenamesMachine
from spec.machines.running import RunsMachine
from spec.machines.savepoints import SavepointsMachine
from spec.machines.splits import SplitsMachine


def test_a_path_tells_whose_file_it_is(run_machine):
    """Files of every kind of table, partition and version get names, and wrong names are made."""
    run_machine(NamesMachine)


def test_a_source_goes_on_as_the_first_part(run_machine):
    """Sources had parts at the cut, or none, and have some now. Slices of theirs wait at another vertex."""
    run_machine(FirstPartMachine)


def test_a_renamed_thing_keeps_what_it_has(run_machine):
    """Vertices and tables swap their names, take names that were used before, and the tick starts again."""
    run_machine(RenamesMachine)


def test_everybody_hears_of_his_savepoint_and_its_files_stay(run_machine):
    """Users ask for savepoints of all kinds, which are taken, fail, or outlive the tick."""
    run_machine(SavepointsMachine)


def test_a_tick_ends_when_it_must_and_says_why(run_machine):
    """Failures, stops, savepoints and limits come in any order."""
    run_machine(EndingMachine)


def test_each_row_runs_once_and_only_dead_files_go(run_machine):
    """Rows, ends and barriers come in any order, some micro-batches cannot be staged, and ranges keep files."""
    run_machine(RunsMachine)


def test_splits_are_asked_as_their_epoch_has_room(run_machine):
    """Splits send rows, are idle, fail and end. Credit, caps and parts hold them back."""
    run_machine(SplitsMachine)


def test_compactions_have_turns(run_machine):
    """Tables get files, compactions find some and fail, and checkpoints that take them are declined or committed."""
    run_machine(CompactsMachine)
