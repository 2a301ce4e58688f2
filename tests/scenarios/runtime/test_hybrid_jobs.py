"""A job that reads history first and then live rows: real ticks on real Delta tables, without Spark."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from checkpointing.job.restoring import CutDoesNotFitError
from checkpointing.messages import TickOutcome
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import HybridSource, SequenceSource
from jobs.sources.port import SourceError
from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.source_reset import Reset, reset
from jobs.tick.discovery import discover
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import newest_restorable
from tests.scenarios.processes import killed
from tests.scenarios.runtime.sequence_job import (
    BRONZE,
    CONFIG,
    HISTORY,
    KEYS,
    LocalEngine,
    at,
    build,
    hybrid,
    over,
    read_cut,
)

DUE = {"1.a": 150, "1.b": 110, "2.live": 90}
IN_MAKE_TEST = "before:AppendRow#3"
KILLS = (
    "after:PollSource#8",
    "after:RunMicroBatch#5",
    "after:AppendRow#2",
    "after:RecordCut#2",
    IN_MAKE_TEST,
    "after:AppendRow#3",
    "after:PublishTable#6",
    "after:RecordCut#3",
    "before:NotifyComplete#3",
)


def tick(root: Path, planned=None):
    return run_tick(planned or hybrid(), RuntimeSettings(warehouse=root), engine=LocalEngine())


class Elsewhere(SequenceSource):
    """A source that does not know the positions of a `SequenceSource`."""

    def __init__(self, rows):
        super().__init__(rows, keys=KEYS, bounded=True)

    def named(self, split, position):
        raise SourceError(f"{position} is no position of {split}")


def discovered(root: Path, planned):
    (found,) = discover(planned.sources, newest_restorable(at(root))).values()
    return found


def rows(root: Path) -> Counter[str]:
    shown = [(split, place) for *_, split, place in read_cut(root)["bronze/numbers"]]
    assert len(shown) == len(set(shown))
    return Counter(split for split, _ in shown)


def cuts(root: Path) -> list[Counter[str]]:
    store = CutStore(at(root))
    versions = [store.read(cut)[BRONZE] for cut in sorted(store.recorded())]
    tables = [pl.read_delta(str(root / BRONZE), version=version) for version in versions]
    return [Counter(table["_split"].to_list()) for table in tables]


def test_history_is_read_first_and_live_rows_follow_in_the_same_tick(tmp_path):
    """The entry records that each split of the first part has ended. The next tick reads new live rows."""
    assert TickOutcome.CAUGHT_UP is tick(tmp_path).outcome
    assert DUE == rows(tmp_path)
    (source, *_) = newest_restorable(at(tmp_path)).vertices
    assert (("1.a", "1.b", "2.live"), [True, True, False]) == (
        source.splits,
        [each.finished for each in source.subtasks],
    )
    tick(tmp_path, hybrid({"live": 100}))
    assert {**DUE, "2.live": 100} == rows(tmp_path)


@pytest.mark.parametrize(
    "boundary", [each if each == IN_MAKE_TEST else pytest.param(each, marks=pytest.mark.dear) for each in KILLS]
)
def test_a_job_that_is_killed_around_the_switch_reads_every_row_once(tmp_path, boundary):
    killed(tick, tmp_path, kill_at=boundary)
    assert TickOutcome.CAUGHT_UP is tick(tmp_path).outcome
    assert DUE == rows(tmp_path)
    assert sum(DUE.values()) == sum(count for _, count, _ in read_cut(tmp_path)["gold/by_key"])
    for shown in cuts(tmp_path):
        assert not shown["2.live"] or HISTORY == {"a": shown["1.a"], "b": shown["1.b"]}


def test_a_hybrid_source_whose_last_part_ends_finishes_the_job(tmp_path):
    """If a part is added later, the job goes on with this part."""
    assert TickOutcome.FINISHED is tick(tmp_path, hybrid(bounded=True)).outcome
    assert DUE == rows(tmp_path)
    (source,) = hybrid(bounded=True).sources.values()
    longer = plan(over(source.then(SequenceSource({"more": 20}, keys=KEYS)), CONFIG))
    assert TickOutcome.CAUGHT_UP is tick(tmp_path, longer).outcome
    assert {**DUE, "3.more": 20} == rows(tmp_path)


def test_a_reset_of_history_reads_it_again_and_then_goes_on_with_live_rows(tmp_path):
    """The second part keeps its position."""
    tick(tmp_path)
    reset(at(tmp_path), hybrid().sources, Reset("numbers", "140", "1.a"))
    tick(tmp_path, hybrid({"live": 95}))
    assert {**DUE, "1.a": 160, "2.live": 95} == Counter(row[-2] for row in read_cut(tmp_path)["bronze/numbers"])


def numbers(root: Path) -> Counter[tuple[str, int]]:
    return Counter((row[0].removeprefix("1."), row[1]) for row in read_cut(root)[BRONZE])


WHOLE = {(split, n) for split, rows in {**HISTORY, "2.live": 90}.items() for n in range(rows)}
PART_OF_HISTORY = {"a": 60, "b": 40}


@pytest.mark.parametrize(
    "boundary", [each if each == IN_MAKE_TEST else pytest.param(each, marks=pytest.mark.dear) for each in KILLS]
)
def test_a_job_that_read_one_source_alone_goes_on_with_it_as_the_first_part(tmp_path, boundary):
    """The rest of history is read under its new names, then the live rows. A kill loses nothing and doubles nothing."""
    tick(tmp_path, build(PART_OF_HISTORY))
    killed(tick, tmp_path, kill_at=boundary)
    assert TickOutcome.CAUGHT_UP is tick(tmp_path).outcome
    assert numbers(tmp_path) == Counter(WHOLE)
    assert {**PART_OF_HISTORY, "1.a": 90, "1.b": 70, "2.live": 90} == rows(tmp_path)
    assert len(WHOLE) == sum(count for _, count, _ in read_cut(tmp_path)["gold/by_key"])
    (source, *_) = newest_restorable(at(tmp_path)).vertices
    assert ("1.a", "1.b", "2.live") == source.splits


def test_a_finished_job_goes_on_with_a_new_part_behind_its_source(tmp_path):
    assert TickOutcome.FINISHED is tick(tmp_path, build(HISTORY, bounded=True)).outcome
    assert [0, 0, 90] == [offer.lag.rows for offer in discovered(tmp_path, hybrid()).splits.values()]
    tick(tmp_path)
    assert {**HISTORY, "2.live": 90} == rows(tmp_path)


@pytest.mark.dear
def test_a_rollback_to_the_time_before_the_parts_reads_the_same_rows_again(tmp_path):
    """The older entry has the splits' old names. The next tick renames the splits of the first part again."""
    tick(tmp_path, build(PART_OF_HISTORY, config=CONFIG.model_copy(update={"retained": 10})))
    before = newest_restorable(at(tmp_path)).checkpoint
    tick(tmp_path)
    row = roll_back(at(tmp_path), before)
    assert ("a", "b") == newest_restorable(at(tmp_path)).vertices[0].splits, row
    tick(tmp_path)
    assert numbers(tmp_path) == Counter(WHOLE)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (SequenceSource({"x": 5}, bounded=True), "has no split '1.a'"),
        (Elsewhere({"a": 150, "b": 150}), "does not know the position of split '1.a'"),
    ],
)
def test_a_first_part_that_is_not_the_source_of_before_is_refused_by_name(tmp_path, first, why):
    """A later part would read the same rows again. The tick does not claim the job, and the old pipeline can go on."""
    tick(tmp_path, build())
    entry = newest_restorable(at(tmp_path))
    turned = plan(over(HybridSource(first, SequenceSource({"a": 150, "b": 150}, keys=KEYS)), CONFIG))
    told = f"checkpoint {entry.checkpoint} holds positions of source 'numbers', which has several parts now. "
    with pytest.raises(CutDoesNotFitError) as refused:
        tick(tmp_path, turned)
    assert str(refused.value).startswith(told)
    assert why in str(refused.value)
    assert entry == newest_restorable(at(tmp_path))
    assert TickOutcome.CAUGHT_UP is tick(tmp_path, build()).outcome
