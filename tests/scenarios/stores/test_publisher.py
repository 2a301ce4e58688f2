"""Tests that a checkpoint is published once and no row twice, after any crash and beside any other writer."""

import pytest
from deltalake import DeltaTable

from checkpointing.graph import TableMode
from checkpointing.identifiers import CheckpointId, Generation
from checkpointing.messages import Publication, PublishFailed, TablePublished
from jobs.warehouse.delta_log import CommitMoment
from jobs.warehouse.publisher import TRIES, Publisher
from jobs.warehouse.tables import TableLogs

MODES = (TableMode.APPEND, TableMode.UPSERT)


def _content(tables, table):
    data = DeltaTable(str(tables.warehouse.path(table))).to_pyarrow_table()
    return sorted(zip(data["k"].to_pylist(), data["v"].to_pylist(), strict=True))


def _publication(mode, table, *files):
    return Publication(table, mode, adds=files, files=files)


def _publish(tables, publication, checkpoint):
    return tables.publisher.publish(publication, CheckpointId(checkpoint))


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_visible_before_publishing_and_everything_after(tables, silver, schema, mode):
    """Staged files show no rows until they are published (F3)."""
    tables.output.ensure(silver, schema, mode)
    file = tables.stage(silver, {"a": 1})
    assert [] == _content(tables, silver)
    assert TablePublished(CheckpointId(1), silver, 1) == _publish(tables, _publication(mode, silver, file), 1)
    assert [("a", 1)] == _content(tables, silver)


@pytest.mark.parametrize("mode", MODES)
def test_publishing_again_changes_nothing_and_answers_the_same_version(tables, another, silver, schema, mode):
    """This holds in this process and in another, and after later checkpoints and foreign commits."""
    tables.output.ensure(silver, schema, mode)
    first = _publication(mode, silver, tables.stage(silver, {"a": 1}))
    expected = _publish(tables, first, 1)
    assert expected == _publish(tables, first, 1) == _publish(another(), first, 1)
    assert 1 == DeltaTable(str(tables.warehouse.path(silver))).version()
    _publish(tables, _publication(mode, silver, tables.stage(silver, {"b": 2})), 2)
    DeltaTable(str(tables.warehouse.path(silver))).alter.set_table_properties({"delta.checkpointInterval": "20"})
    before = _content(tables, silver)
    assert expected == _publish(another(), first, 1)
    assert before == _content(tables, silver)


def test_an_append_adds_and_an_upsert_becomes_exactly_its_files(tables, another, silver, schema):
    """Publishing adds files to an append table. An upsert table shows exactly the published files."""
    tables.output.ensure(silver, schema, TableMode.UPSERT)
    kept, old, new = (tables.stage(silver, {name: number}) for number, name in enumerate("abc"))
    _publish(tables, _publication(TableMode.UPSERT, silver, kept, old), 1)
    _publish(another(), _publication(TableMode.UPSERT, silver, kept, new), 2)
    assert [("a", 0), ("c", 2)] == _content(tables, silver)
    _publish(tables, _publication(TableMode.UPSERT, silver), 3)
    assert [] == _content(tables, silver)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moment", CommitMoment)
def test_a_lost_reply_or_request_publishes_once(warehouse, tables, silver, schema, mode, moment):
    """After an error before or after the commit, the publisher looks again."""
    tables.output.ensure(silver, schema, mode)
    publication = _publication(mode, silver, tables.stage(silver, {"a": 1}))
    struck = []

    def hook(now):
        if now is moment and not struck:
            struck.append(now)
            raise OSError("the reply is lost")

    publisher = Publisher(warehouse, TableLogs(warehouse, hook=hook))
    assert TablePublished(CheckpointId(1), silver, 1) == publisher.publish(publication, CheckpointId(1))
    assert [("a", 1)] == _content(tables, silver)
    assert [moment] == struck


def test_a_publisher_gives_up_on_a_log_that_always_fails(warehouse, tables, silver, schema):
    """It tries a bounded number of times. The answer names the table, and says that nothing is lost."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    struck = []

    def hook(now):
        if now is CommitMoment.BEFORE:
            struck.append(now)
            raise OSError("disk full")

    publisher = Publisher(warehouse, TableLogs(warehouse, hook=hook))
    publication = _publication(TableMode.APPEND, silver, tables.stage(silver, {"a": 1}))
    result = publisher.publish(publication, CheckpointId(1))
    assert isinstance(result, PublishFailed)
    assert "table silver/flights: its log refuses the commit (disk full)" in result.error
    assert TRIES == len(struck)


@pytest.mark.parametrize("mode", MODES)
def test_two_publishers_of_one_checkpoint_enter_it_once(warehouse, tables, another, silver, schema, mode):
    """A zombie and its successor publish the same entry at the same moment."""
    tables.output.ensure(silver, schema, mode)
    publication = _publication(mode, silver, tables.stage(silver, {"a": 1}))
    rival, met = another(), []

    def hook(now):
        if now is CommitMoment.BEFORE and not met:
            met.append(_publish(rival, publication, 1))

    ours = Publisher(warehouse, TableLogs(warehouse, hook=hook)).publish(publication, CheckpointId(1))
    assert [ours] == met
    assert [("a", 1)] == _content(tables, silver)


def test_a_tick_that_was_overtaken_publishes_nothing_and_misses_no_file(warehouse, tables, another, silver, schema):
    """Its successor has published a newer checkpoint, and has deleted the older one's file. The table is left alone."""
    tables.output.ensure(silver, schema, TableMode.UPSERT)
    older = _publication(TableMode.UPSERT, silver, tables.stage(silver, {"a": 1}))
    newer = _publication(TableMode.UPSERT, silver, tables.stage(silver, {"b": 2}))
    assert () == tables.output.check([silver])
    _publish(another(), newer, 2)
    warehouse.path(older.files[0].path).unlink()
    result = tables.publisher.publish(older, CheckpointId(1), by=Generation(1))
    assert TablePublished(CheckpointId(1), silver, 1) == result
    assert [("b", 2)] == _content(tables, silver)


def _insert(path):
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(path, pa.table({"k": ["foreign"], "v": [99]}), mode="append")


FOREIGN = {
    "INSERT": _insert,
    "OPTIMIZE": lambda path: DeltaTable(path).optimize.compact(),
    "DELETE": lambda path: DeltaTable(path).delete("k = 'a'"),
    "UPDATE": lambda path: DeltaTable(path).update({"v": "7"}, predicate="k = 'a'"),
    "VACUUM": lambda path: DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True),
    "PROPERTIES": lambda path: DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "20"}),
}
APPEND_EXPECTED = {
    "INSERT": [("a", 1), ("b", 2), ("c", 3), ("foreign", 99)],
    "DELETE": [("b", 2), ("c", 3)],
    "UPDATE": [("a", 7), ("b", 2), ("c", 3)],
}


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("between", [True, False], ids=["during", "before"])
@pytest.mark.parametrize("mode", MODES)
def test_a_foreign_commit_at_any_step_doubles_nothing(tables, silver, schema, mode, foreign, between):
    """An append publishes after it.

    An upsert sets the table back to its files, and the note names the foreign commit.
    """
    warehouse = tables.warehouse
    path = str(warehouse.path(silver))
    tables.output.ensure(silver, schema, mode)
    first, second = tables.stage(silver, {"a": 1}), tables.stage(silver, {"b": 2})
    _publish(tables, _publication(mode, silver, first, second), 1)
    third = tables.stage(silver, {"c": 3})
    files = (third,) if mode is TableMode.APPEND else (first, second, third)
    struck = []

    def hook(now):
        if now is CommitMoment.BEFORE and not struck:
            struck.append(now)
            FOREIGN[foreign](path)

    if not between:
        hook(CommitMoment.BEFORE)
    result = Publisher(warehouse, TableLogs(warehouse, hook=hook)).publish(
        _publication(mode, silver, *files), CheckpointId(2)
    )
    assert isinstance(result, TablePublished)
    exact = [("a", 1), ("b", 2), ("c", 3)]
    assert (APPEND_EXPECTED.get(foreign, exact) if mode is TableMode.APPEND else exact) == _content(tables, silver)
    if mode is TableMode.UPSERT and foreign not in ("VACUUM", "PROPERTIES"):
        assert "foreign" in result.note
        assert "at version 2" in result.note


def test_a_vacuum_without_retention_deletes_no_staged_file(warehouse, tables, silver, schema):
    """Staged files survive a VACUUM that deletes other files."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    file = tables.stage(silver, {"a": 1})
    FOREIGN["VACUUM"](str(warehouse.path(silver)))
    assert isinstance(_publish(tables, _publication(TableMode.APPEND, silver, file), 1), TablePublished)
    assert [("a", 1)] == _content(tables, silver)


def test_a_missing_or_short_staged_file_is_named_and_nothing_is_published(warehouse, tables, silver, schema):
    """No reader finds a table whose file is missing."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    whole, broken = tables.stage(silver, {"a": 1}), tables.stage(silver, {"b": 1})
    warehouse.path(broken.path).write_bytes(b"PAR1")
    result = _publish(tables, _publication(TableMode.APPEND, silver, whole, broken), 1)
    assert isinstance(result, PublishFailed)
    assert f"staged file {broken.path} of checkpoint 1 has 4 bytes instead of {broken.bytes}" in result.error
    warehouse.path(broken.path).unlink()
    result = _publish(tables, _publication(TableMode.APPEND, silver, whole, broken), 1)
    assert "is missing" in result.error
    assert [] == _content(tables, silver)


def test_a_file_of_another_table_is_refused(tables, silver, schema):
    """A table's log names no file outside its folder."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    foreign = tables.stage("gold/routes", {"a": 1})
    result = _publish(tables, _publication(TableMode.APPEND, silver, foreign), 1)
    assert "does not lie in the table's folder" in result.error


def test_a_missing_table_is_a_failure_by_name(tables, silver):
    """delta-rs does not panic."""
    result = _publish(tables, _publication(TableMode.APPEND, silver), 1)
    assert isinstance(result, PublishFailed)
    assert "table silver/flights: its log cannot be used" in result.error


@pytest.mark.kill
@pytest.mark.parametrize("mode", MODES)
def test_a_publisher_killed_on_either_side_of_the_commit_is_rolled_forward(racers, tables, silver, schema, mode):
    """After SIGKILL the next tick publishes the same entry, and the table shows it once."""
    tables.output.ensure(silver, schema, mode)
    for number, (racer, moment) in enumerate(zip(racers(2), ("before", "after"), strict=True), start=1):
        files = tuple(tables.stage(silver, {f"k{number}": number}) for _ in range(1))
        plain = [[file.path, file.rows, file.bytes, file.crc32, file.stats] for file in files]
        racer.tell("publish", moment, number, mode.value, silver, plain)
        assert -9 == racer.end()
        assert TablePublished(CheckpointId(number), silver, number) == _publish(
            tables, _publication(mode, silver, *files), number
        )
    expected = [("k1", 1), ("k2", 2)] if mode is TableMode.APPEND else [("k2", 2)]
    assert expected == _content(tables, silver)


def test_a_log_checkpoint_keeps_opening_cheap_and_removes_no_version(warehouse, tables, silver, schema):
    """Maintenance of an output table writes a Delta log checkpoint, and every version stays readable."""
    tables.output.ensure(silver, schema, TableMode.APPEND)
    for number in range(1, 61):
        file = tables.stage(silver, {f"k{number}": number})
        _publish(tables, _publication(TableMode.APPEND, silver, file), number)
        tables.publisher.maintain(silver)
    log = warehouse.path(silver) / "_delta_log"
    assert 1 == len(list(log.glob("*.checkpoint.parquet")))
    assert 61 == len(list(log.glob("*.json")))
    assert 1 == DeltaTable(str(warehouse.path(silver)), version=1).to_pyarrow_table().num_rows
