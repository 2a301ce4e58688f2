"""Other writers' commits at any moment of a tick: the tick goes on, undoes the commit, or stops and names the way out.

No row is doubled, and no table shows half a checkpoint. Once the user has followed the way out, the next tick goes on.
delta-rs plays the neighbour because it is quick. Spark plays the neighbour for what only Spark can do.
"""

import re
import threading
from collections import Counter
from contextlib import suppress

import polars as pl
import pytest
from deltalake import DeltaTable, Field, TableFeatures
from deltalake.schema import PrimitiveType

from checkpointing.messages import TickOutcome
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from tests.scenarios.processes import Dead, Mortal
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, LocalEngine, build, read_cut

PUBLICATION = "before:LogCommit:tables"
MOMENTS = {
    "between the check and the commit point": "before:AppendRow",
    "between the commit point and publishing": "after:AppendRow",
    "between looking at the table and publishing it": PUBLICATION,
    "between publishing and the cut": "before:RecordCut",
    "after the cut": "after:RecordCut",
}
BETWEEN_TICKS = "between two ticks"
SECOND = 2


def optimize(path):
    DeltaTable(path).optimize.compact()


def delete(path):
    DeltaTable(path).delete("key = 3")


def vacuum(path):
    """Delete the files that the table's log no longer lists, without any retention."""
    DeltaTable(path).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)


def add_column(path):
    DeltaTable(path).alter.add_columns([Field("remark", PrimitiveType("string"), nullable=True)])


def change_feed(path):
    table = DeltaTable(path)
    table.alter.add_feature(TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True)


class Tables:
    """A warehouse of the sequence pipeline, whose ticks run in this process, and the rows of its tables."""

    def __init__(self, root):
        self.root = root
        self.rows = {"a": 100, "b": 100}

    def tick(self, boundary=None, *, take_over=False):
        settings = RuntimeSettings(warehouse=self.root, take_over=take_over)
        return run_tick(build(self.rows), settings, engine=LocalEngine(), boundary=boundary)

    def more(self):
        self.rows = {"a": 150, "b": 150}

    def path(self, table):
        return str(self.root / table)

    def bronze(self):
        return pl.read_delta(self.path(BRONZE)).select("split", "n")

    def gold(self):
        return sorted(pl.read_delta(self.path(GOLD)).select("key", "rows", "total").rows())


@pytest.fixture
def tables(tmp_path):
    return Tables(tmp_path)


class Crossings:
    """Counts crossings of boundaries. In the logs of tables it counts only the commits of one table.

    It remembers which table each thread publishes, and so knows to which table a commit belongs.
    """

    def __init__(self, table):
        self._publishing = f"before:PublishTable:{table}"
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._counted = Counter()

    def count(self, met):
        if met.startswith("before:PublishTable:"):
            self._mine.publishes = met == self._publishing
        if met == PUBLICATION and not self._mine.publishes:
            return 0
        with self._lock:
            self._counted[met] += 1
            return self._counted[met]

    def least(self):
        return min(self._counted[name] for name in MOMENTS.values())


@pytest.fixture
def strike():
    """Return a function that makes a boundary. There a neighbour changes a table, once, in the second checkpoint."""

    def at(name, table, deed):
        crossings = Crossings(table)

        def cross(met):
            if crossings.count(met) == SECOND and met == name:
                deed()

        return cross

    return at


def expected_gold(rows):
    numbers = [n for count in rows.values() for n in range(count)]
    keys = {n % 7 for n in numbers}
    return sorted((key, sum(n % 7 == key for n in numbers), sum(n for n in numbers if n % 7 == key)) for key in keys)


def expected_bronze(rows):
    return {(split, n) for split, count in rows.items() for n in range(count)}


def run_through(tables, strike, moment, table, deed):
    """Run a tick, and let the neighbour act during it or after it. Then deliver rows and run a second tick."""
    boundary = None if moment == BETWEEN_TICKS else strike(MOMENTS[moment], table, deed)
    first = tables.tick(boundary)
    if moment == BETWEEN_TICKS:
        deed()
    tables.more()
    return first, tables.tick()


@pytest.mark.matrix
@pytest.mark.parametrize("moment", [*MOMENTS, BETWEEN_TICKS])
@pytest.mark.parametrize("deed", [optimize, vacuum, change_feed], ids=lambda deed: deed.__name__)
@pytest.mark.parametrize("table", [BRONZE, GOLD])
def test_what_keeps_the_rows_is_passed_over(tables, strike, moment, deed, table):
    """After OPTIMIZE, VACUUM or a harmless feature, both ticks end well, and no table loses or doubles a row."""
    first, second = run_through(tables, strike, moment, table, lambda: deed(tables.path(table)))
    assert ["", ""] == [first.message, second.message]
    assert [TickOutcome.CAUGHT_UP] * 2 == [first.outcome, second.outcome]
    assert len(tables.bronze()) == len(expected_bronze(tables.rows))
    assert expected_bronze(tables.rows) == set(tables.bronze().rows())
    assert expected_gold(tables.rows) == tables.gold()


@pytest.mark.matrix
@pytest.mark.parametrize("moment", [*MOMENTS, BETWEEN_TICKS])
def test_rows_that_a_neighbour_deletes_of_an_append_table_stay_deleted(tables, strike, moment):
    """The rows' owner deleted them, so they stay deleted. Later rows are there once, and gold is unchanged."""
    deleted = []

    def deed():
        before = set(tables.bronze().rows())
        delete(tables.path(BRONZE))
        deleted.extend(before - set(tables.bronze().rows()))

    first, second = run_through(tables, strike, moment, BRONZE, deed)
    assert ["", ""] == [first.message, second.message]
    assert deleted
    assert len(tables.bronze()) == len(expected_bronze(tables.rows)) - len(deleted)
    assert expected_bronze(tables.rows) - set(deleted) == set(tables.bronze().rows())
    assert expected_gold(tables.rows) == tables.gold()


@pytest.mark.matrix
@pytest.mark.parametrize("moment", [*MOMENTS, BETWEEN_TICKS])
def test_rows_that_a_neighbour_deletes_of_an_upsert_table_come_back_with_the_next_checkpoint(tables, strike, moment):
    """Publishing makes the checkpoint's files the table's only files again. This undoes the whole DELETE."""
    first, second = run_through(tables, strike, moment, GOLD, lambda: delete(tables.path(GOLD)))
    assert ["", ""] == [first.message, second.message]
    assert expected_gold(tables.rows) == tables.gold()
    assert expected_bronze(tables.rows) == set(tables.bronze().rows())


@pytest.mark.matrix
@pytest.mark.parametrize("moment", [*MOMENTS, BETWEEN_TICKS])
def test_a_new_column_of_an_append_table_is_null_in_what_comes(tables, strike, moment):
    first, second = run_through(tables, strike, moment, BRONZE, lambda: add_column(tables.path(BRONZE)))
    assert ["", ""] == [first.message, second.message]
    assert expected_bronze(tables.rows) == set(tables.bronze().rows())
    assert 300 == pl.read_delta(tables.path(BRONZE)).get_column("remark").null_count()
    assert expected_gold(tables.rows) == tables.gold()


@pytest.mark.matrix
@pytest.mark.parametrize("moment", [*MOMENTS, BETWEEN_TICKS])
def test_a_new_column_of_an_upsert_table_stops_by_name_until_it_is_taken_back(tables, strike, moment):
    """The column would be erased, so the tick ends and names table and column.

    After its removal, the next tick goes on.
    """
    path, before = tables.path(GOLD), []

    def deed():
        before.append(DeltaTable(path).version())
        add_column(path)

    _, second = run_through(tables, strike, moment, GOLD, deed)
    assert TickOutcome.FAILED is second.outcome
    assert f"table {GOLD} has a column remark" in second.message
    DeltaTable(path).restore(before[0])
    third = tables.tick()
    assert (TickOutcome.CAUGHT_UP, "") == (third.outcome, third.message)
    assert expected_bronze(tables.rows) == set(tables.bronze().rows())
    assert len(tables.bronze()) == len(expected_bronze(tables.rows))
    assert expected_gold(tables.rows) == tables.gold()


@pytest.mark.matrix
@pytest.mark.kill
@pytest.mark.parametrize("death", ["after:AppendRow", "after:LogCommit:tables", "before:RecordCut", "after:RecordCut"])
@pytest.mark.parametrize("deed", [optimize, vacuum, add_column], ids=lambda deed: deed.__name__)
def test_a_neighbour_between_a_death_and_its_recovery_makes_nothing_double(tables, death, deed):
    """A checkpoint that a dead tick published, wholly or partly, is not published again after a neighbour's commit."""
    with suppress(Dead):
        tables.tick(Mortal(death, SECOND))
    deed(tables.path(BRONZE))
    if deed is not add_column:
        deed(tables.path(GOLD))
    tables.more()
    report = tables.tick(take_over=True)
    assert (TickOutcome.CAUGHT_UP, "") == (report.outcome, report.message)
    assert len(tables.bronze()) == len(expected_bronze(tables.rows))
    assert expected_bronze(tables.rows) == set(tables.bronze().rows())
    assert expected_gold(tables.rows) == tables.gold()


@pytest.mark.parametrize("table", [BRONZE, GOLD])
def test_each_moment_is_met_by_a_second_checkpoint_of_a_tick(tables, table):
    """The tick crosses each boundary in a second checkpoint, so a neighbour that waits for this moment does act."""
    crossings = Crossings(table)
    tables.tick(crossings.count)
    assert crossings.least() == SECOND


# ---------------------------------------------------------------- with Spark: what stops a table by name


ENABLED = {
    "row tracking": "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableRowTracking'='true')",
    "deletion vectors": "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors'='true');"
    "DELETE FROM {} WHERE key = 3",
}


def _sql(spark, statements, path):
    for statement in statements.replace("{}", f"delta.`{path}`").split(";"):
        spark.sql(statement)


_WAY_OUT = re.compile(r"((?:ALTER|REORG) TABLE delta\.`[^`]+` .*?)(?: and (?=REORG)|, then|, or |; |$)", re.MULTILINE)


def _follow(spark, message):
    statements = sorted(dict.fromkeys(_WAY_OUT.findall(message)), key=lambda each: "domainMetadata" in each)
    for statement in statements:
        spark.sql(statement)
    return statements


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.parametrize("moment", ["between the commit point and publishing", BETWEEN_TICKS])
@pytest.mark.parametrize("table", [BRONZE, GOLD])
@pytest.mark.parametrize("feature", ["row tracking", "deletion vectors"])
def test_a_feature_that_forbids_publishing_stops_by_name_and_its_way_out_frees_the_job(
    tables, strike, neighbour, moment, table, feature
):
    """The tick ends and names table and feature. Nothing of the pending epoch is lost or doubled."""
    path = tables.path(table)
    first, second = run_through(tables, strike, moment, table, lambda: _sql(neighbour, ENABLED[feature], path))
    if (table, feature) == (BRONZE, "deletion vectors"):
        assert ["", ""] == [first.message, second.message]
    else:
        met = second if moment == BETWEEN_TICKS else first
        assert TickOutcome.FAILED is met.outcome
        assert str(table) in met.message
        assert TickOutcome.FAILED is second.outcome
        assert _follow(neighbour, second.message)
        third = tables.tick()
        assert (TickOutcome.CAUGHT_UP, "") == (third.outcome, third.message)
        assert expected_bronze(tables.rows) == set(tables.bronze().rows())
    assert expected_gold(tables.rows) == tables.gold()
    split_n = [(row.split, row.n) for row in neighbour.read.format("delta").load(tables.path(BRONZE)).collect()]
    assert len(set(split_n)) == len(split_n)
    assert set(split_n) <= expected_bronze(tables.rows)


def test_at_every_cut_the_tables_agree_although_a_neighbour_optimized_both(tables, strike):
    """A cut that is recorded after a neighbour's commits shows the same rows as an undisturbed cut."""

    def deed():
        for table in (BRONZE, GOLD):
            optimize(tables.path(table))

    run_through(tables, strike, "between looking at the table and publishing it", GOLD, deed)
    cut = read_cut(tables.root)
    assert expected_gold(tables.rows) == cut[str(GOLD)]
    assert expected_bronze(tables.rows) == {row[:2] for row in cut[str(BRONZE)]}
