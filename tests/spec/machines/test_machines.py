"""Runs the machines of a tick's attempts and of lost answers."""

import subprocess
import sys

import pytest
from hypothesis import settings

from spec.machines import __main__ as command
from spec.machines import judging
from spec.machines.attempts import AttemptsMachine, LostAnswersMachine, PauseMachine
from spec.machines.claims import ClaimsMachine, LineMachine, RacesMachine
from spec.machines.clean_up import CleanupMachine, CompactionsMachine, KeepingMachine
from spec.machines.columns import AppendedColumnsMachine, ChangingTablesMachine
from spec.machines.entries import EntriesMachine, told
from spec.machines.measures import MeasuringMachine, TraceMachine
from spec.machines.net_files import ManifestsMachine, NetMachine
from spec.machines.plans import GraphsMachine, PlanMachine, SettingsMachine
from spec.machines.renames import NamesMachine, RenamesMachine
from spec.machines.repair import RecoveringMachine, RepairMachine, RollingForwardMachine
from spec.machines.restores import RestoresMachine, SpreadingMachine, cases
from spec.machines.sinks import NotifyingMachine, OutsideTransactionMachine
from spec.machines.state_changes import EvolvingMachine, MeaningsMachine
from spec.machines.subtask import SubtaskMachine
from spec.machines.tick_end import CompactsMachine, EndingMachine, SavepointsMachine
from spec.machines.vertex import CutGroupsMachine, FirstPartMachine, ReadersMachine, RunsMachine, SplitsMachine


def test_attempts_follow_as_strategy_and_limits_say(run_machine):
    """Jobs fail, fill their traces, catch up and are stopped. Another process claims the job in between."""
    run_machine(AttemptsMachine)


def test_an_append_whose_answer_is_lost_is_asked_again(run_machine):
    """Answers to claims and to entries of savepoints at rest are lost, up to all of them."""
    run_machine(LostAnswersMachine)


# ------------------------------------------------------------------
# Runs the machine of an append table's columns.


def test_every_file_is_readable_under_the_columns_of_its_table(run_machine):
    """The pipeline renames, drops and adds columns, others append rows, and users roll back."""
    run_machine(AppendedColumnsMachine)


# ------------------------------------------------------------------
# Runs the machines of claims, of races for a job, of a holder's first steps, and of what a cut tells.


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


# ------------------------------------------------------------------
# Runs the clean-up's machines. The real decisions keep reserved and needed files, and delete all others.


def test_reserved_files_stay_and_all_others_are_deleted(run_machine):
    """Checkpoints, ticks, clean-ups and readers act in any order. Readers renew, leave and are killed."""
    run_machine(CleanupMachine)


def test_needed_files_stay_and_all_others_are_deleted(run_machine):
    """There are entries, abandoned savepoints, rollbacks, foreign writers, dead ticks, readers without reservations."""
    run_machine(KeepingMachine)


# ------------------------------------------------------------------
# The machine of splits that read cuts of other jobs.


def test_barriers_find_all_splits_at_one_cut(run_machine):
    """Splits are restored anywhere, find cuts and reach them in any order, and barriers come in between."""
    run_machine(CutGroupsMachine)


# ------------------------------------------------------------------
# The machine of entries.


def test_an_entry_is_believed_exactly_if_tidemark_may_have_written_it(run_machine):
    """Each field of an entry gets values at the edge of what it may say, and fields that must agree contradict."""
    run_machine(EntriesMachine)


def test_true_and_false_entries_are_told():
    """Each has another name, and of both kinds there are many."""
    cases = [*told()]
    assert len(cases) == len({case.what for case in cases})
    assert min(sum(case.is_true for case in cases), sum(not case.is_true for case in cases)) > 20


# ------------------------------------------------------------------
# Runs the machines of changed state and of changed tables.


def test_old_state_serves_only_if_it_means_the_same(run_machine):
    """The pipeline gives its columns other names, functions and versions."""
    run_machine(MeaningsMachine)


def test_types_become_wider_and_nothing_else(run_machine):
    """Columns of a state get other types, also deep inside structs, arrays and maps."""
    run_machine(EvolvingMachine)


def test_each_change_of_a_table_is_said(run_machine):
    """Tables of all modes get other columns."""
    run_machine(ChangingTablesMachine)


# ------------------------------------------------------------------
# The machines of what entries change, of large entries, of small files, and of what is measured of each epoch.


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


# ------------------------------------------------------------------
# Runs the machine of the line of entries.


def test_a_rollback_leaves_the_entries_of_its_line(run_machine):
    """Checkpoints complete, also after a savepoint that was triggered later. Users save, roll back, and dispose."""
    run_machine(LineMachine)


# ------------------------------------------------------------------
# Tests the command that runs all machines, their profiles, and which modules may import Hypothesis.


def test_the_reference_and_the_invariants_need_no_test_library():
    """The modules that judge real runs load no Hypothesis."""
    program = (
        "import sys, spec.reference.pipeline, spec.rules.invariants, spec.traces; sys.exit('hypothesis' in sys.modules)"
    )
    assert 0 == subprocess.run([sys.executable, "-c", program], check=False).returncode


def test_there_are_three_profiles():
    """Each profile searches harder than the one before. Only the nightly one draws at random."""
    found = [settings.get_profile(name) for name in judging.NAMES]
    effort = [each.max_examples * each.stateful_step_count for each in found]
    assert sorted(effort) == effort
    assert [True, True, False] == [each.derandomize for each in found]
    assert [True, True, False] == [each.database is None for each in found]
    assert effort[-1] * len(command.MACHINES) >= 1_000_000


DRAWS = """
import hashlib
from hypothesis import given, settings, strategies as st
from spec.machines import judging as profiles
profiles.register()
drawn = []
@settings(settings.get_profile("ci"))
@given(st.lists(st.integers()), st.text())
def draw(numbers, text):
    drawn.append((numbers, text))
draw()
print(hashlib.sha256(repr(drawn).encode()).hexdigest())
"""


def test_other_loaded_tests_do_not_change_the_examples():
    """Otherwise, a bug would be found on some days only."""
    programs = (DRAWS, f"import spec.flink.vectors, spec.bugs.judges, jobs.settings\n{DRAWS}")
    printed = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for program in programs
    }
    assert 1 == len(printed)
    assert 65 == len(printed.pop())


def test_the_command_counts_steps(capsys):
    """`python -m spec.machines` prints the steps of each machine, and ends with the number that passed."""
    assert 0 == command.main(["--profile", "dev", "--only", "CommitMachine"])
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("1 of 1 CommitMachine: ")
    assert int(said[0].split()[4]) > 500
    assert "1 passed, 0 failed" == said[-1]


def test_a_seed_has_its_own_examples(capsys):
    """A seed has the same examples in every run, with any number of processes. Another seed has others."""
    steps = []
    for number, processes in (("7", "1"), ("7", "2"), ("8", "1")):
        options = ["--profile", "dev", "--only", "PauseMachine", "--seed", number, "--processes", processes]
        assert 0 == command.main(options)
        steps.append(capsys.readouterr().out.split()[4])
    assert steps[0] == steps[1]
    assert steps[0] != steps[2]


@pytest.mark.dear
def test_the_command_shows_the_broken_rule(capsys, monkeypatch):
    """It prints the rule and the shortest story that breaks it. The exit code is 1."""
    from spec.machines.commit import CommitWorld

    monkeypatch.setattr(CommitWorld, "record_cut", lambda self, checkpoint, versions, retained=(): None)
    assert 1 == command.main(["--profile", "dev", "--only", "CommitMachine"])
    said = capsys.readouterr().out
    assert "CommitMachine: BrokenRuleError: " in said
    assert "state = CommitMachine()" in said
    assert said.endswith("0 passed, 1 failed\n")


# ------------------------------------------------------------------
# The machines of names, parts, renames, splits, a vertex at work, and of a tick's savepoints, compactions and end.


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


# ------------------------------------------------------------------
# Runs the machine of publications into a target with transactions.


def test_a_target_with_transactions_gets_each_checkpoint_once(run_machine):
    """Processes publish the same checkpoint, die, wake up late, and lose requests and replies."""
    run_machine(OutsideTransactionMachine)


# ------------------------------------------------------------------
# The machine of the pause after failures.


def test_a_pause_lasts_as_long_as_the_failures_in_a_row_say(run_machine):
    """Requests of the tick and of users succeed and fail in any order, and time passes in between."""
    run_machine(PauseMachine)


# ------------------------------------------------------------------
# The machine of plans, of the store of completed checkpoints, of the periodic timer, and of restores.


def test_what_a_coordinator_works_out_at_once_is_right(run_machine):
    """Cases are drawn one after the other."""
    run_machine(PlanMachine)


# ------------------------------------------------------------------
# The machine of the splits' turns.


def test_splits_take_turns_within_their_limits(run_machine):
    """Splits answer, are idle, fail and end, with and without credit, in epochs of a few rows."""
    run_machine(ReadersMachine)


# ------------------------------------------------------------------
# The machine of damaged tables.


def test_a_start_repairs_what_was_lost_and_nothing_else(run_machine):
    """Logs lose their newest entries, cuts are lost, ticks die in the middle of a commit, entries leave."""
    run_machine(RepairMachine)


# ------------------------------------------------------------------
# The machine of restores.


def test_a_cut_is_refused_exactly_if_something_would_get_lost(run_machine):
    """One cut is restored into many changed pipelines, with and without leave to leave state behind."""
    run_machine(RestoresMachine)


def test_some_pipelines_fit_and_some_do_not():
    """Each case has another name."""
    found = [*cases()]
    assert len(found) == len({case.what for case in found})
    assert min(sum(not case.why for case in found), sum(bool(case.why) for case in found)) > 15


# ------------------------------------------------------------------
# Runs the machine of the roll-forward.


def test_an_entry_that_a_dead_holder_has_left_is_published(run_machine):
    """Cuts lack tables, others have recorded the cut, and tables refuse."""
    run_machine(RollingForwardMachine)


# ------------------------------------------------------------------
# The machine of settings.


def test_each_setting_arrives_where_it_is_used(run_machine):
    """Numbers that differ are given to each strategy and to the coordinator. Contradictions are refused."""
    run_machine(SettingsMachine)


# ------------------------------------------------------------------
# The machines of what is spread over subtasks, and of graphs.


def test_key_groups_and_state_are_spread_over_subtasks(run_machine):
    """At any parallelism, each key group has one subtask, and no element of state is lost."""
    run_machine(SpreadingMachine)


def test_a_graph_is_refused_exactly_if_it_is_none(run_machine):
    """Graphs of any parts are made. Those that hold answer what follows from their parts."""
    run_machine(GraphsMachine)


# ------------------------------------------------------------------
# Runs the machine of a subtask's door.


def test_a_subtask_answers_as_its_table_says(run_machine):
    """Barriers, snapshots, aborts and completions come in any order. Their ids may be old, or far too early."""
    run_machine(SubtaskMachine)


# ------------------------------------------------------------------
# Runs the machine of traces.


def test_each_line_of_a_trace_comes_back(run_machine):
    """Files come, stay and go, lines name them by number, and damaged lines are refused."""
    run_machine(TraceMachine)
