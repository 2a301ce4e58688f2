"""A complete checkpoint is notified to a pipeline's listeners, and to sources that commit positions (F1, F2)."""

import json
import threading
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import completion
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, InvalidNameError
from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.job.setup import TickLimits
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import CheckpointRecord
from jobs.cli.options import console
from jobs.pipeline import InvalidPipelineError, Pipeline, count, sum_of
from jobs.pipeline.pipeline import MasterHook
from jobs.pipeline.planning import plan
from jobs.quality.expectation import Expectation
from jobs.quality.judge import Judge, JudgementCancelledError
from jobs.quality.verdict import Verdict
from jobs.reading import Cut
from jobs.sources.committed_positions import CommitsToFile, committed_in
from jobs.sources.hybrid import SequenceSource
from jobs.sources.port import WrappedSource
from jobs.tick.listener import NoticeFailed, TickListener
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import boundary_names, cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse
from spec.traces import judge
from spec.traces import judge as judge_trace
from tests.scenarios.processes import Dead, Mortal, Running, killed
from tests.scenarios.runtime import hook_job
from tests.scenarios.runtime.conftest import FIRST_TICKS_BOUNDARIES
from tests.scenarios.runtime.hook_job import Notebook, hooked, notes, with_hooks
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    CONFIG,
    GOLD,
    JOB,
    KEYS,
    ROWS,
    LocalEngine,
    as_pipeline,
    build,
    declared,
    read_cut,
)


def listening(*listeners, source=None, config=CONFIG):
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    numbers = pipeline.source("numbers", source or SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD)
    for listener in listeners:
        assert pipeline.listen(listener) is pipeline
    return plan(pipeline)


class Hears:
    """A checkpoint listener that records its notices."""

    def __init__(self) -> None:
        self.complete: list[int] = []
        self.aborted: list[tuple[int, str]] = []

    def notify_checkpoint_complete(self, checkpoint) -> None:
        self.complete.append(checkpoint)

    def notify_checkpoint_aborted(self, checkpoint, reason) -> None:
        self.aborted.append((checkpoint, reason))


class Throws(Hears):
    """A checkpoint listener that raises at every notice."""

    def notify_checkpoint_complete(self, checkpoint) -> None:
        super().notify_checkpoint_complete(checkpoint)
        raise RuntimeError("nobody listens to me")


class Shown(TickListener):
    """Records the failed notices that the tick reports."""

    def __init__(self) -> None:
        self.heard: list[NoticeFailed] = []

    def progress(self, progress) -> None:
        if isinstance(progress, NoticeFailed):
            self.heard.append(progress)


class Committing(CommitsToFile):
    """A source that commits to a file, and records each notice."""

    def __init__(self, file: Path) -> None:
        super().__init__(SequenceSource(ROWS, keys=KEYS), file)
        self.told: list[tuple[int, dict[str, str]]] = []

    def notify_checkpoint_complete(self, checkpoint, positions) -> None:
        self.told.append((checkpoint, dict(positions)))
        super().notify_checkpoint_complete(checkpoint, positions)


def all_published(root: Path):
    seen = JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely).observe()
    return {row.checkpoint: row for row in seen.rows if getattr(row, "checkpoint", None) in seen.cuts}


def published(root: Path):
    return newest_checkpoint(tuple(all_published(root).values()))


def test_a_listener_hears_each_completion_once_and_in_order(tick):
    first, second = Hears(), Hears()
    report = tick(plan=listening(first, second))
    ids = [record.checkpoint for record in report.completed]
    assert [1, 2, 3] == ids == first.complete == second.complete
    assert [] == first.aborted
    again = Hears()
    tick(plan=listening(again))
    assert [3] == again.complete  # the first tick may have died before it told the listeners


def test_a_listener_that_raises_stops_no_other_and_not_the_tick(tick, tmp_path, undisturbed):
    """The next listener gets every notice, and the tick is not disturbed.

    The tick reports each failure with the listener's name.
    """
    throws, hears, shown = Throws(), Hears(), Shown()
    report = tick(plan=listening(throws, hears), listener=shown)
    assert TickOutcome.CAUGHT_UP is report.outcome
    assert [1, 2, 3] == throws.complete == hears.complete
    assert [("listener Throws", number) for number in (1, 2, 3)] == [
        (each.told, each.checkpoint) for each in shown.heard
    ]
    told = f"RuntimeError: nobody listens to me (in notify_checkpoint_complete, {__file__}, line "
    assert all(each.error.startswith(told) for each in shown.heard)
    assert all('raise RuntimeError("nobody listens to me")' in each.error.partition("\n")[2] for each in shown.heard)
    assert undisturbed == read_cut(tmp_path)


class HearingSource(WrappedSource):
    """A source that records which checkpoints failed, and raises."""

    def __init__(self) -> None:
        super().__init__(SequenceSource(ROWS, keys=KEYS))
        self.aborted: list[tuple[int, str]] = []

    def notify_checkpoint_aborted(self, checkpoint, reason) -> None:
        self.aborted.append((checkpoint, reason))
        raise RuntimeError("nobody listens to me")


def test_an_aborted_checkpoint_is_told_with_its_reason(tick, tmp_path):
    """A table forbids the checkpoint. Source and listener are notified that it was aborted, and why.

    No notice says that the checkpoint is complete.

    The source raises, and the listener gets its notice all the same.
    """
    listener, source = Hears(), HearingSource()
    tick(plan=build(rows={"a": 50, "b": 50}))
    before = published(tmp_path).checkpoint

    def forbid(name: str) -> None:
        if name == "before:CheckTables":
            DeltaTable(str(tmp_path / GOLD)).alter.set_table_properties({"delta.appendOnly": "true"})

    report = tick(plan=listening(listener, source=source), boundary=forbid)
    assert CheckpointFailureReason.TABLE_CHANGED is report.reason
    assert [before] == listener.complete
    aborted, why = listener.aborted[0]
    assert before < aborted
    assert str(GOLD) in why
    assert listener.aborted == source.aborted


def test_a_source_is_told_its_own_positions_at_the_cut(tick, tmp_path):
    """The notice has the entry's position of each split. The last positions are behind all rows."""
    source = Committing(tmp_path / "committed.json")
    tick(plan=listening(source=source))
    assert [1, 2, 3] == [checkpoint for checkpoint, _ in source.told]
    assert {"a": "150", "b": "150"} == source.told[-1][1]
    record = published(tmp_path)
    assert source.told[-1] == (record.checkpoint, {split: at for _, split, at in completion(record).positions})


def test_a_source_that_cannot_commit_is_shown_and_fails_nothing(tick, tmp_path, undisturbed):
    """The tables are written all the same. The next tick notifies again, and a repaired file catches up."""
    file, shown = tmp_path / "committed.json", Shown()
    file.write_text("something else")
    report = tick(plan=listening(source=Committing(file)), listener=shown)
    assert TickOutcome.CAUGHT_UP is report.outcome
    assert 3 == len(shown.heard)
    assert "delete it" in shown.heard[0].error
    file.unlink()
    tick(plan=listening(source=Committing(file)))
    assert 3 == committed_in(file).checkpoint
    assert undisturbed == read_cut(tmp_path)


def test_positions_outside_never_go_back(tmp_path):
    """A late or repeated notice of a completion changes nothing."""
    source = CommitsToFile(SequenceSource(ROWS), tmp_path / "committed.json")
    source.notify_checkpoint_complete(CheckpointId(4), {"a": "40"})
    source.notify_checkpoint_complete(CheckpointId(3), {"a": "30"})
    source.notify_checkpoint_complete(CheckpointId(4), {"a": "10"})
    assert (4, {"a": "40"}) == ((found := committed_in(tmp_path / "committed.json")).checkpoint, found.positions)


def _committed(file):
    found = committed_in(file)
    return None if found is None else (found.checkpoint, dict(found.positions))


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "occurrence"), FIRST_TICKS_BOUNDARIES)
def test_a_death_at_any_boundary_is_made_up_for(tick, tmp_path, undisturbed, name, occurrence):
    """Committed positions are never ahead of the tables. The next tick ends with each row once and no leftover."""
    file, mortal = tmp_path / "committed.json", Mortal(name, occurrence)
    told = Committing(file)
    with suppress(Dead):
        tick(plan=listening(source=told), boundary=mortal)
    assert mortal.dead
    shown = all_published(tmp_path)
    positions = {n: {split: at for _, split, at in completion(row).positions} for n, row in shown.items()}
    older = min(shown, default=0)
    assert [] == [(n, at) for n, at in told.told if n >= older and positions.get(n) != at]
    assert (told.told[-1] if told.told else None) == _committed(file)
    tick(plan=listening(source=Committing(file)), take_over=True)
    assert {"a": "150", "b": "150"} == committed_in(file).positions
    assert published(tmp_path).checkpoint == committed_in(file).checkpoint
    assert undisturbed == read_cut(tmp_path)
    shown = pa.table(DeltaTable(str(tmp_path / BRONZE)).get_add_actions()).column("path").to_pylist()
    assert set(shown) == {
        str(path.relative_to(tmp_path / BRONZE)) for path in (tmp_path / BRONZE / "_data").rglob("*.parquet")
    }


# ------------------------------------------------------------------
# Suites are judged beside the loop of a real tick. The judgement of an expired checkpoint is cancelled, and has no
# effect (J3, B2).


TIMEOUT_MS = 1_000


def judged(timeout_ms=TIMEOUT_MS):
    config = type(CONFIG)(**(CONFIG.model_dump() | {"timeout_ms": timeout_ms, "tolerable_failures": 9}))
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    numbers.expect(Expectation("expect_column_values_to_not_be_null", {"column": "n"}), suite="numbers")
    numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD)
    return plan(pipeline)


class Failed(TickListener):
    """Records which checkpoints failed."""

    def __init__(self):
        self.checkpoints = []
        self.messages = []

    def failed(self, checkpoint, reason, message, *, ends_tick):
        self.checkpoints.append((checkpoint, reason.name))
        self.messages.append(message)


class SlowFirst:
    """A judge that never ends its first suite unless it is cancelled, and judges the later ones at once."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.judged = 0

    def judge(self, suite, files, is_cancelled):
        self.judged += 1
        if self.judged == 1:
            until = time.monotonic() + 60
            while not is_cancelled():
                assert time.monotonic() < until
                time.sleep(0.01)
            self.ended.set()
            raise JudgementCancelledError
        rows = sum(file.rows for file in files)
        return Verdict(suite=suite.name, table=suite.table, passed=True, rows=rows, expectations=())


def run_judged(tmp_path, monkeypatch, timeout_ms=TIMEOUT_MS, **how):
    slow, failed = SlowFirst(), Failed()
    monkeypatch.setattr(Judge, "judge", slow.judge)
    report = run_tick(judged(timeout_ms), RuntimeSettings(warehouse=tmp_path), failed, **how)
    assert TickOutcome.CAUGHT_UP is report.outcome, report.message
    assert slow.ended.is_set()
    assert {"CHECKPOINT_EXPIRED"} == {reason for _, reason in failed.checkpoints}
    rows = JobStores(Warehouse(tmp_path, ProtocolPaths(JOB)), cross_freely).entries.rows()
    entries = [row for row in rows if isinstance(row, CheckpointRecord)]
    assert not {row.checkpoint for row in entries} & {checkpoint for checkpoint, _ in failed.checkpoints}
    told = [verdict for row in entries for report in row.statistics.verdicts for verdict in json.loads(report)]
    assert {True} == {verdict["passed"] for verdict in told}
    with report.trace.open("rb") as lines:
        assert [] == judge_trace(lines).problems
    assert '"CancelJudgement"' in report.trace.read_text()


def test_an_expired_checkpoint_ends_its_judgement_and_the_tick_catches_up(tmp_path, monkeypatch, undisturbed):
    """The next checkpoint has the expired one's rows. Without Spark, the tables are those of an undisturbed run."""
    run_judged(tmp_path, monkeypatch, engine=LocalEngine())
    assert undisturbed == read_cut(tmp_path)


def test_a_judgement_that_nobody_waits_for_ends_at_its_next_step(tmp_path):
    """Once it is cancelled, the real judge reads no file and waits for no other judgement."""
    suite = next(iter(judged().suites.values()))

    class Unread:
        rows, path = 1, "nowhere"

    with pytest.raises(JudgementCancelledError):
        Judge(tmp_path).judge(suite, [Unread()], lambda: True)


class Hidden:
    """Moves bronze's staged files away while the first suite is judged. No micro-batch runs meanwhile."""

    def __init__(self, root):
        self._staged, self._aside = root / BRONZE / "_data", root / BRONZE / "_aside"
        self.there = threading.Lock()
        self.times = 0

    def __call__(self, name):
        if name == "before:JudgeSuites":
            self.times += 1
            if self.times == 1:
                self.there.acquire()
                self._staged.rename(self._aside)
        elif name == "after:JudgeSuites" and self.times == 1 and self._aside.exists():
            self._aside.rename(self._staged)
            self.there.release()


class PatientEngine(LocalEngine):
    """Runs a micro-batch only while no file is hidden."""

    def __init__(self, there):
        super().__init__()
        self._there = there

    def run(self, *args):
        with self._there:
            return super().run(*args)


@pytest.mark.timeout(120)
def test_a_file_that_cannot_be_read_declines_the_checkpoint_and_the_job_goes_on(tmp_path, undisturbed):
    """With the real judge, the checkpoint fails with suite, table and cause. The next one judges the same rows."""
    failed = Failed()
    hidden = Hidden(tmp_path)
    report = run_tick(
        judged(60_000), RuntimeSettings(warehouse=tmp_path), failed, engine=PatientEngine(hidden.there), boundary=hidden
    )
    assert TickOutcome.CAUGHT_UP is report.outcome, report.message
    assert [(1, "CHECKPOINT_ASYNC_EXCEPTION")] == failed.checkpoints
    (said,) = failed.messages
    assert said.startswith(f"suite numbers of table {BRONZE} could not be judged")
    assert "FileNotFoundError" in said
    assert undisturbed == read_cut(tmp_path)
    with report.trace.open("rb") as lines:
        assert [] == judge_trace(lines).problems


# ------------------------------------------------------------------
# A pipeline's own reports are made from the newest cut and shown after a tick. A report that raises does not fail the
# tick.


HERE = "tests.scenarios.runtime.test_notices"


def with_reports(data) -> Pipeline:
    return as_pipeline(data).report(total).report(broken)


def total(cut: Cut) -> str:
    return f"cut {cut.checkpoint}: {cut.polars(GOLD).collect()['rows'].sum()} rows [counted]"


def broken(_cut: Cut) -> str:
    raise KeyError("no such column")


@pytest.fixture
def run(typed, tmp_path):
    """Return a function that runs a tick with the reports, and returns exit code, stdout and stderr."""
    return lambda *words: typed("run", f"{HERE}:with_reports", "--warehouse", tmp_path / "warehouse", *words)


def test_each_tick_ends_with_the_reports_of_its_newest_cut(run):
    """A tick that stops early reports on its own cut, and a tick without new rows on the newest cut.

    Brackets in a report are printed unchanged.
    """
    code, out, _ = run("--checkpoints", "1")
    assert (0, True) == (code, "cut 1: 100 rows [counted]" in out)
    for _ in range(2):
        code, out, _ = run()
        assert (0, True) == (code, ": 300 rows [counted]" in out)


def test_a_report_that_raises_is_named_and_the_tick_is_well(run):
    """The report's error is a sentence with file and line. The exit code is that of the tick."""
    code, out, _ = run()
    assert 0 == code
    said = " ".join(out.split())
    assert "a report of numbers failed, and nothing else did: KeyError: 'no such column' (in broken, " in said
    assert "numbers is caught up: 300 rows" in out


# ------------------------------------------------------------------
# Master hooks in real ticks (A8): an entry holds their state, a restore gives it back, and each failure is reported.


GOES_ON = {"tolerable_failures": 9}


def tolerant(**changes):
    return type(CONFIG)(**(CONFIG.model_dump() | GOES_ON | changes))


def rows_at(root):
    rows = JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely).entries.rows()
    return sorted((row for row in rows if isinstance(row, CheckpointRecord)), key=lambda row: row.checkpoint)


def states(root):
    return {held.hook: json.loads(held.state) for held in rows_at(root)[-1].hooks}


def traces_hold(root):
    """Replay the ticks' traces on the core. The trace of a tick that was killed early may be empty."""
    traces = Warehouse(root, ProtocolPaths(JOB)).path(ProtocolPaths(JOB).traces).glob("*.ndjson")
    for trace in (each for each in traces if each.stat().st_size):
        with trace.open("rb") as lines:
            assert [] == judge(lines).problems


@pytest.fixture
def notebook(tmp_path_factory):
    return tmp_path_factory.mktemp("outside") / "notes.ndjson"


def test_a_hooks_state_is_in_each_row_and_given_back_to_the_next_tick(tick, tmp_path, notebook):
    report = tick(plan=hooked(("notebook", Notebook(notebook))))
    assert TickOutcome.CAUGHT_UP is report.outcome
    asked = [["trigger", number, number] for number in (1, 2, 3)]
    assert [["reset", None, None], *asked, ["close", None, None]] == notes(notebook)
    assert {"notebook": {"asked": 3}} == states(tmp_path)
    tick(plan=hooked(("notebook", Notebook(notebook))))
    assert [["restore", 3, {"asked": 3}], ["close", None, None]] == notes(notebook)[5:]
    traces_hold(tmp_path)


class Answers(MasterHook):
    """A hook whose state is what a function returns. It records the states with which it is restored."""

    def __init__(self, answer) -> None:
        self._answer, self.restored = answer, []

    def trigger_checkpoint(self, checkpoint, timestamp_ms):
        return self._answer(checkpoint)

    def restore_checkpoint(self, checkpoint, state):
        self.restored.append((checkpoint, state))


def fails_first(checkpoint):
    if checkpoint == 1:
        raise OSError("no ink")
    return checkpoint


def is_late_first(checkpoint):
    if checkpoint == 1:
        time.sleep(1.0)
    return checkpoint


def test_a_hook_that_fails_fails_its_checkpoint_and_the_job_goes_on(tick, tmp_path, undisturbed):
    """The next checkpoint has the failed one's rows.

    If no failure is tolerated, the tick fails and names the hook.
    """
    report = tick(plan=hooked(("ink", Answers(fails_first)), config=tolerant()))
    assert TickOutcome.CAUGHT_UP is report.outcome
    assert 1 not in [row.checkpoint for row in rows_at(tmp_path)]
    assert undisturbed == read_cut(tmp_path)
    traces_hold(tmp_path)


def test_a_hook_that_is_late_fails_its_checkpoint_by_name(tick, tmp_path, undisturbed):
    """The time limit is part of the hook's declaration. No entry contains a late answer."""
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
    """A restore must give back exactly the state that the hook returned, so nothing of such a state is committed."""
    report = tick(plan=hooked(("odd", Answers(lambda _: state))))
    assert TickOutcome.FAILED is report.outcome
    assert says in report.message
    assert "odd" in report.message


def test_a_hook_that_cannot_be_restored_fails_the_tick_and_nothing_is_read(tick, tmp_path):
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
    """The tick is refused before its claim. With the flag, it leaves the state behind, and later entries lack it."""
    tick(plan=hooked(("old", Answers(lambda _: [1]))), limits=TickLimits(checkpoints=1))
    with pytest.raises(CutDoesNotFitError, match="holds state of master hook 'old', which the pipeline no longer has"):
        tick(plan=build())
    new = Answers(lambda _: [2])
    tick(plan=hooked(("new", new)), allow_non_restored_state=True)
    assert [(1, None)] == new.restored
    assert {"new": [2]} == states(tmp_path)


def test_a_dry_run_and_a_checkpoint_show_the_hooks(tick, tmp_path, capsys):
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
    """The name is invalid or taken, the object is no hook, or the time limit is invalid."""
    pipeline = with_hooks(declared(), ("same", Answers(str)))
    with pytest.raises(error):
        pipeline.hook(name, hook, timeout_s=timeout_s)


# ------------------------------------------------------------------ processes that die, or hang


HOOK_BOUNDARIES = [
    name for name in boundary_names(hooked(("notebook", Answers(str))).graph) if name.endswith("Hook:notebook")
]


@pytest.mark.matrix
@pytest.mark.parametrize("name", HOOK_BOUNDARIES)
def test_a_tick_that_is_killed_at_a_hook_loses_nothing(tmp_path, notebook, undisturbed, name):
    """The next tick restores the hook to the newest entry, whatever the dead tick did. The hook's count is exact."""
    root = tmp_path / "warehouse"
    if "RestoreHook" in name:
        hook_job.tick(root, notebook)
    killed(hook_job.tick, root, notebook, kill_at=name)
    rows = rows_at(root)
    newest = rows[-1] if rows else None
    before = len(notes(notebook))
    assert TickOutcome.CAUGHT_UP is hook_job.tick(root, notebook).outcome
    begins = ["reset", None, None] if newest is None else ["restore", newest.checkpoint, states_of(newest)]
    assert begins == notes(notebook)[before]
    assert len(rows_at(root)) <= CONFIG.retained
    triggers = [line for line in notes(notebook)[before:] if line[0] == "trigger"]
    known = 0 if newest is None else states_of(newest)["asked"]
    assert list(range(known + 1, known + 1 + len(triggers))) == [line[2] for line in triggers]
    assert undisturbed == read_cut(root)
    traces_hold(root)


def states_of(row):
    return json.loads(row.hooks[0].state)


def test_a_hook_that_hangs_keeps_no_process_from_ending(tmp_path, notebook):
    """After the time limit, the tick fails with the hook's name. The process ends, although the call never returns."""
    begun = time.monotonic()
    said = Running(hook_job.tick, tmp_path / "warehouse", notebook, hangs=True).wait().said
    assert "did not answer within 0.2 s" in said["message"]
    assert time.monotonic() - begun < hook_job.LONG_S / 10
