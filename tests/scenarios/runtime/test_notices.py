"""Who is told of a complete checkpoint (F1, F2): a pipeline's listeners, and sources that commit positions."""

from contextlib import suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable

from checkpointing.commit.fencing import newest_checkpoint
from checkpointing.commit.recovery import completion
from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import TickOutcome
from checkpointing.metadata.paths import ProtocolPaths
from jobs.pipeline import Pipeline, count, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.committed_positions import CommitsToFile, committed_in
from jobs.sources.hybrid import SequenceSource
from jobs.tick.listener import NoticeFailed, TickListener
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.runtime.conftest import FIRST_TICKS_BOUNDARIES, Dead, Mortal
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, GOLD, JOB, KEYS, ROWS, build, read_cut


def listening(*listeners, source=None, config=CONFIG):
    """Return the numbers pipeline with these listeners and this source."""
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    numbers = pipeline.source("numbers", source or SequenceSource(ROWS, keys=KEYS)).table(BRONZE, id="bronze")
    numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value")).upsert(GOLD)
    for listener in listeners:
        assert pipeline.listen(listener) is pipeline
    return plan(pipeline)


class Hears:
    """A checkpoint listener that writes down its notices."""

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
    """What the tick shows of notices that failed."""

    def __init__(self) -> None:
        self.heard: list[NoticeFailed] = []

    def progress(self, progress) -> None:
        if isinstance(progress, NoticeFailed):
            self.heard.append(progress)


class Committing(CommitsToFile):
    """A source that commits to a file, and remembers each time that it was told."""

    def __init__(self, file: Path) -> None:
        super().__init__(SequenceSource(ROWS, keys=KEYS), file)
        self.told: list[tuple[int, dict[str, str]]] = []

    def notify_checkpoint_complete(self, checkpoint, positions) -> None:
        self.told.append((checkpoint, dict(positions)))
        super().notify_checkpoint_complete(checkpoint, positions)


def all_published(root: Path):
    """Return the checkpoints that are committed and published, by id."""
    seen = JobStores(Warehouse(root, ProtocolPaths(JOB)), cross_freely).observe()
    return {row.checkpoint: row for row in seen.rows if getattr(row, "checkpoint", None) in seen.cuts}


def published(root: Path):
    """Return the newest checkpoint that is committed and published, None if there is none."""
    return newest_checkpoint(tuple(all_published(root).values()))


def test_a_listener_hears_each_completion_once_and_in_order(tick):
    """The listener hears the id of each completed checkpoint of a tick. None was aborted."""
    first, second = Hears(), Hears()
    report = tick(plan=listening(first, second))
    ids = [record.checkpoint for record in report.completed]
    assert [1, 2, 3] == ids == first.complete == second.complete
    assert [] == first.aborted


def test_the_next_tick_tells_the_restored_checkpoint_again(tick):
    """A tick that died may not have told it, so every tick tells it again. A notice comes at least once."""
    listener = Hears()
    tick(plan=listening())
    tick(plan=listening(listener))
    assert [3] == listener.complete


def test_a_listener_that_raises_stops_no_other_and_not_the_tick(tick, tmp_path, undisturbed):
    """The next listener hears everything, and the tick is not disturbed.

    Each failure is shown with the listener's name.
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


def test_an_aborted_checkpoint_is_told_with_its_reason(tick, tmp_path):
    """A table forbids the checkpoint. The listener hears that it was aborted and why, and never that it is complete."""
    listener = Hears()
    tick(plan=build(rows={"a": 50, "b": 50}))
    before = published(tmp_path).checkpoint

    def forbid(name: str) -> None:
        if name == "before:CheckTables":
            DeltaTable(str(tmp_path / GOLD)).alter.set_table_properties({"delta.appendOnly": "true"})

    report = tick(plan=listening(listener), boundary=forbid)
    assert CheckpointFailureReason.TABLE_CHANGED is report.reason
    assert [before] == listener.complete
    aborted, why = listener.aborted[0]
    assert before < aborted
    assert str(GOLD) in why


def test_a_source_is_told_its_own_positions_at_the_cut(tick, tmp_path):
    """The source hears the entry's position of each split. In the end these are all rows that were read."""
    source = Committing(tmp_path / "committed.json")
    tick(plan=listening(source=source))
    assert [1, 2, 3] == [checkpoint for checkpoint, _ in source.told]
    assert {"a": "150", "b": "150"} == source.told[-1][1]
    record = published(tmp_path)
    assert source.told[-1] == (record.checkpoint, {split: at for _, split, at in completion(record).positions})


def test_a_source_that_cannot_commit_is_shown_and_fails_nothing(tick, tmp_path, undisturbed):
    """The tables go on; the next tick tells again, and a repaired file catches up."""
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
    assert (4, {"a": "40"}) == (
        (found := committed_in(tmp_path / "committed.json")).checkpoint,
        found.positions,
    )


def _committed(file):
    """Return what was committed outside, as a source was told it."""
    found = committed_in(file)
    return None if found is None else (found.checkpoint, dict(found.positions))


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "occurrence"), FIRST_TICKS_BOUNDARIES)
def test_positions_outside_are_never_ahead_of_the_tables(tick, tmp_path, name, occurrence):
    """Wherever a tick dies, the positions committed outside are those of a published checkpoint."""
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
