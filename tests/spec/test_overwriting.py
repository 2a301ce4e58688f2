"""The rules about overwrite tables can fail, and judge only what they say."""

from dataclasses import replace

import pytest

from checkpointing.channel_items import RangeFiles, SubtaskSnapshot
from checkpointing.graph import TableMode
from checkpointing.handles import FileHandle, KeyedFile, KeyedFileKind, Version
from checkpointing.metadata.record import CheckpointRecord, RowKind, Statistics, TableKeys, VertexRecord
from spec.history import RowCommitted
from spec.invariants import violations
from spec.moves import Moves
from spec.overwriting import fallen_back
from spec.pipeline import NEWEST_TABLE, delivery_of
from spec.simulator import simulate

SEED = 0
"""A run with several cuts, restores and numbers of one digit and of two."""


@pytest.fixture(scope="module")
def healthy():
    """Return the history of a run with an overwrite table. It breaks nothing."""
    outcome = simulate(SEED, moves=Moves(overwrites=True))
    assert () == outcome.violations
    return outcome.history


def broken(history, rows):
    """Return the rules that the history breaks if the files of the overwrite table have other rows."""

    def read(path):
        return rows(history.rows(path)) if path.startswith(f"{NEWEST_TABLE}/") else history.rows(path)

    return {violation.invariant for violation in violations(replace(history, rows=read, events=[*history.events]))}


@pytest.mark.parametrize(
    "rows",
    [
        lambda rows: rows[1:],
        lambda rows: rows * 2,
        lambda rows: tuple((row + 4 * 2 * 100,) for (row,) in rows),
        lambda rows: (*rows, (0,)),
    ],
    ids=["a row is lost", "each row comes twice", "other rows", "a row of an older delivery"],
)
def test_a_cut_with_other_rows_than_the_newest_is_found(healthy, rows):
    """Only the rule about the newest rows judges them, and each difference is found."""
    assert {"overwrites-show-newest"} == broken(healthy, rows)


def test_the_run_has_deliveries_of_one_digit_and_of_two(healthy):
    """Otherwise the rule could not tell numbers from texts."""
    files = [file for event in healthy.events if isinstance(event, RowCommitted) for file in named(event.record)]
    written = [delivery_of(row) for path in files for (row,) in healthy.rows(path)]
    assert min(written) < 10 <= max(written)


def named(record):
    """Return the paths that an entry names for the overwrite table."""
    ranges = (own for was in record.vertices for subtask in was.subtasks for own in subtask.ranges)
    return [keyed.file.path for own in ranges if own.table == NEWEST_TABLE for keyed in own.files]


def entry(checkpoint, *folders, kind=RowKind.CHECKPOINT):
    """Return an entry whose overwrite table has a file in each of these folders."""
    files = (
        FileHandle(f"o/t/_data/1/{folder}/newest-{checkpoint}-{place:032x}.parquet", 1, 1, 0)
        for place, folder in enumerate(folders)
    )
    keyed = tuple(KeyedFile(file, KeyedFileKind.BASE, 0, 0, Version(1, checkpoint)) for file in files)
    was = VertexRecord(
        vertex="newest",
        micro_batch=checkpoint,
        subtasks=(SubtaskSnapshot(ranges=(RangeFiles("o/t", keyed),)),),
        table_keys=(TableKeys(table="o/t", columns=("v",), mode=TableMode.OVERWRITE),),
    )
    record = CheckpointRecord(
        job="job",
        kind=kind,
        checkpoint=checkpoint,
        parent=checkpoint - 1,
        generation=1,
        nonce="n",
        max_parallelism=4,
        vertices=(was,),
        tables=(),
        statistics=Statistics(triggered_ms=0, committed_ms=0, rows=0),
    )
    return RowCommitted(record, ())


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([entry(1, "version.number.9"), entry(2, "version.number.10")], None),
        ([entry(1, "version.number.10"), entry(2, "version.number.9")], "smaller version"),
        ([entry(1, "version.number.-1"), entry(2, "version.number.-2")], "smaller version"),
        ([entry(1, "version.date.2024-05-01"), entry(2, "version.date.2024-04-30")], "smaller version"),
        ([entry(1, "version.text.9"), entry(2, "version.text.10")], "smaller version"),
        ([entry(1, "version.number.1", "version.number.2")], "has versions"),
        ([entry(1, "d=1/version.number.1", "d=2/version.number.2")], None),
        ([entry(1, "d=1/version.number.1"), entry(2, "d=2/version.number.1")], "smaller version"),
        ([entry(1, "version.number.2"), entry(2, "version.number.1", kind=RowKind.ROLLBACK)], None),
        ([entry(1, "version.number.2"), entry(2, "version.number.1", kind=RowKind.RESET)], "smaller version"),
    ],
)
def test_an_entry_with_two_versions_or_a_smaller_one_is_found(healthy, entries, told):
    """Numbers and texts are compared by their kind. Each partition is judged alone, and only rollbacks go back."""
    found = list(fallen_back(replace(healthy, events=entries)))
    assert bool(told) == bool(found)
    assert all(told in each for each in found)
