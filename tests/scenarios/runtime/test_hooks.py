"""Master hooks in real ticks (A8): a row holds their state, a restore gives it back, none of their failures hides."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import InvalidNameError
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.cli.options import console
from jobs.pipeline import InvalidPipelineError
from jobs.pipeline.pipeline import MasterHook
from jobs.warehouse.boundaries import KILL_VARIABLE, boundary_names, cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse
from spec.traces import judge
from tests.scenarios.runtime import hook_job
from tests.scenarios.runtime.hook_job import Notebook, hooked, notes, with_hooks
from tests.scenarios.runtime.sequence_job import CONFIG, JOB, build, declared, read_cut

GOES_ON = {"tolerable_failures": 9}


def tolerant(**changes):
    """Return the configuration with these changes."""
    return type(CONFIG)(**(CONFIG.model_dump() | GOES_ON | changes))


def rows_at(root):
    """Return the checkpoints of the warehouse, oldest first."""
    rows = JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely).rows()
    return sorted((row for row in rows if isinstance(row, CheckpointRecord)), key=lambda row: row.checkpoint)


def states(root):
    """Return what the newest row holds of its hooks."""
    return {held.hook: json.loads(held.state) for held in rows_at(root)[-1].hooks}


def traces_hold(root):
    """Replay the ticks' traces on the core; a tick that was killed early has written nothing of its own."""
    traces = Warehouse(root, ProtocolPaths(JOB)).path(ProtocolPaths(JOB).traces).glob("*.ndjson")
    for trace in (each for each in traces if each.stat().st_size):
        with trace.open("rb") as lines:
            assert [] == judge(lines).problems


@pytest.fixture
def notebook(tmp_path_factory):
    """Return where a hook keeps its notes: outside the warehouse."""
    return tmp_path_factory.mktemp("outside") / "notes.ndjson"


def test_a_hooks_state_is_in_each_row_and_given_back_to_the_next_tick(tick, tmp_path, notebook):
    """The hook is reset, asked for each checkpoint, and closed. The next tick restores it to the newest checkpoint."""
    report = tick(plan=hooked(("notebook", Notebook(notebook))))
    assert TickOutcome.CAUGHT_UP is report.outcome
    asked = [["trigger", number, number] for number in (1, 2, 3)]
    assert [["reset", None, None], *asked, ["close", None, None]] == notes(notebook)
    assert {"notebook": {"asked": 3}} == states(tmp_path)
    tick(plan=hooked(("notebook", Notebook(notebook))))
    assert [["restore", 3, {"asked": 3}], ["close", None, None]] == notes(notebook)[5:]
    traces_hold(tmp_path)


class Answers(MasterHook):
    """Answers with what a function returns, and remembers what it is restored with."""

    def __init__(self, answer) -> None:
        self._answer, self.restored = answer, []

    def trigger_checkpoint(self, checkpoint, timestamp_ms):
        return self._answer(checkpoint)

    def restore_checkpoint(self, checkpoint, state):
        self.restored.append((checkpoint, state))


def fails_first(checkpoint):
    """Raise at the first checkpoint, and be well afterwards."""
    if checkpoint == 1:
        raise OSError("no ink")
    return checkpoint


def is_late_first(checkpoint):
    """Take too long for the first checkpoint."""
    if checkpoint == 1:
        time.sleep(1.0)
    return checkpoint


def test_a_hook_that_fails_fails_its_checkpoint_and_the_job_goes_on(tick, tmp_path, undisturbed):
    """The checkpoint's rows belong to the next one. If no failure is tolerated, the tick fails and names the hook."""
    report = tick(plan=hooked(("ink", Answers(fails_first)), config=tolerant()))
    assert TickOutcome.CAUGHT_UP is report.outcome
    assert 1 not in [row.checkpoint for row in rows_at(tmp_path)]
    assert undisturbed == read_cut(tmp_path)
    traces_hold(tmp_path)


def test_without_tolerated_failures_the_tick_fails_and_names_hook_and_line(tick):
    """tolerable_failures is 0. The message says which error the hook raised, and where."""
    report = tick(plan=hooked(("ink", Answers(fails_first))))
    assert (TickOutcome.FAILED, CheckpointFailureReason.CHECKPOINT_DECLINED) == (report.outcome, report.reason)
    assert "master hook 'ink' failed at checkpoint 1: OSError: no ink (in fails_first" in report.message


def test_a_hook_that_is_late_fails_its_checkpoint_by_name(tick, tmp_path, undisturbed):
    """Its time limit is part of its declaration. No entry has what it answers later."""
    planned = hooked(("slow", Answers(is_late_first)), timeout_s=0.3)
    report = tick(plan=planned)
    assert (TickOutcome.FAILED, CheckpointFailureReason.CHECKPOINT_EXPIRED) == (report.outcome, report.reason)
    assert "master hook 'slow' did not answer within 0.3 s" in report.message
    tick(plan=hooked(("slow", Answers(lambda checkpoint: checkpoint))))
    assert undisturbed == read_cut(tmp_path)
    traces_hold(tmp_path)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({1, 2}, "its state is no JSON: Object of type set"),
        (float("nan"), "its state is no JSON: Out of range float values"),
        ({1: "one"}, "its state would come back from JSON as another one"),
        ((1, 2), "its state would come back from JSON as another one"),
        ("x" * 2_000_000, "the state of master hook 'odd' is 2,000,002 characters of JSON"),
    ],
)
def test_a_state_that_json_cannot_hold_is_refused_by_name(tick, state, says):
    """Nothing of it is committed: what comes back at a restore is what was returned, or there is no checkpoint."""
    report = tick(plan=hooked(("odd", Answers(lambda _: state))))
    assert TickOutcome.FAILED is report.outcome
    assert says in report.message
    assert "odd" in report.message


def test_a_hook_that_cannot_be_restored_fails_the_tick_and_nothing_is_read(tick, tmp_path):
    """The message names the hook; the next tick begins at the same checkpoint."""

    def broken(checkpoint, state):
        raise ValueError("torn page")

    tick(plan=hooked(("odd", Answers(lambda _: 1))))
    before, hook = rows_at(tmp_path), Answers(lambda _: 1)
    hook.restore_checkpoint = broken
    report = tick(plan=hooked(("odd", hook)))
    assert TickOutcome.FAILED is report.outcome
    assert "master hook 'odd' could not be restored: ValueError: torn page" in report.message
    assert before == rows_at(tmp_path)


def test_state_without_its_hook_is_refused_and_a_new_hook_is_told_that_it_has_none(tick, tmp_path):
    """Refused before anything is claimed; the flag leaves the state behind, and the next rows do not have it."""
    tick(plan=hooked(("old", Answers(lambda _: [1]))), limits=TickLimits(checkpoints=1))
    with pytest.raises(CutDoesNotFitError, match="holds state of master hook 'old', which the pipeline no longer has"):
        tick(plan=build())
    new = Answers(lambda _: [2])
    tick(plan=hooked(("new", new)), allow_non_restored_state=True)
    assert [(1, None)] == new.restored
    assert {"new": [2]} == states(tmp_path)


def test_a_dry_run_and_a_checkpoint_show_the_hooks(tick, tmp_path, capsys):
    """Before a restore: which hook gets what, and which state stays behind; `checkpoints show` shows what is held."""
    from jobs.showing.checkpoints import render_timeline
    from jobs.showing.plans import left_behind, render_restore
    from jobs.sources.position_words import PositionWords

    tick(plan=hooked(("old", Answers(lambda _: {"a": 1})), ("kept", Answers(lambda _: "x" * 300))))
    record = rows_at(tmp_path)[-1]
    plan = hooked(("kept", Answers(str)), ("new", Answers(str))).with_discovered_splits(record)
    assert ("the state of master hook old",) == left_behind(plan.graph, record)
    console().print(render_restore("it", plan, record))
    restored = capsys.readouterr().out
    assert [True, True] == [hook in restored for hook in ("│ kept ", "│ new  ")]
    assert "none in this checkpoint" in restored
    assert "left behind: the state of master hook old" in restored
    console().print(render_timeline(record, None, {}, PositionWords({})))
    said = capsys.readouterr().out
    assert "(302 characters)" in said
    assert '{"a": 1}' in said


@pytest.mark.parametrize(
    ("name", "hook", "timeout_s", "error"),
    [
        ("../x", Answers(str), 1.0, InvalidNameError),
        ("same", Answers(str), 1.0, InvalidPipelineError),
        ("ink", object(), 1.0, InvalidPipelineError),
        ("ink", Answers(str), 0.0, InvalidPipelineError),
        ("ink", Answers(str), float("inf"), InvalidPipelineError),
    ],
)
def test_a_hook_that_cannot_be_declared_is_refused_on_its_line(name, hook, timeout_s, error):
    """A name that is none or is taken, an object that is no hook, a time limit that is none."""
    pipeline = with_hooks(declared(), ("same", Answers(str)))
    with pytest.raises(error):
        pipeline.hook(name, hook, timeout_s=timeout_s)


# ------------------------------------------------------------------ processes that die, or hang


def program(root: Path, notebook: Path, *more: str, kill: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tick in a process of its own, killed at a boundary if one is named."""
    environment = os.environ | ({KILL_VARIABLE: kill} if kill else {})
    command = [sys.executable, "-m", hook_job.__name__, str(root), str(notebook), *more]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


HOOK_BOUNDARIES = [
    name for name in boundary_names(hooked(("notebook", Answers(str))).graph) if name.endswith("Hook:notebook")
]


@pytest.mark.matrix
@pytest.mark.parametrize("name", HOOK_BOUNDARIES)
def test_a_tick_that_is_killed_at_a_hook_loses_nothing(tmp_path, notebook, undisturbed, name):
    """The next tick restores the hook to the newest row, whatever the dead one had told it; its count is exact."""
    root = tmp_path / "warehouse"
    if "RestoreHook" in name:
        assert 0 == program(root, notebook, kill=None).returncode
    killed = program(root, notebook, kill=name)
    assert -signal.SIGKILL == killed.returncode, killed.stderr
    rows = rows_at(root)
    newest = rows[-1] if rows else None
    before = len(notes(notebook))
    done = program(root, notebook)
    assert "caught_up" == json.loads(done.stdout)["outcome"], done.stderr
    begins = ["reset", None, None] if newest is None else ["restore", newest.checkpoint, states_of(newest)]
    assert begins == notes(notebook)[before]
    assert len(rows_at(root)) <= CONFIG.retained
    triggers = [line for line in notes(notebook)[before:] if line[0] == "trigger"]
    known = 0 if newest is None else states_of(newest)["asked"]
    assert list(range(known + 1, known + 1 + len(triggers))) == [line[2] for line in triggers]
    assert undisturbed == read_cut(root)
    traces_hold(root)


def states_of(row):
    """Return the notebook's state in a row."""
    return json.loads(row.hooks[0].state)


def test_a_hook_that_hangs_keeps_no_process_from_ending(tmp_path, notebook):
    """The tick fails with the hook's name after its time limit, and the process ends although the call never does."""
    begun = time.monotonic()
    done = program(tmp_path / "warehouse", notebook, "--hang")
    assert "did not answer within 0.2 s" in json.loads(done.stdout.splitlines()[-1])["message"], done.stderr
    assert time.monotonic() - begun < hook_job.LONG_S / 10
