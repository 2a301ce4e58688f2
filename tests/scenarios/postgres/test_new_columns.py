"""Tests a source that reads new columns of its tables, on a real server."""

from decimal import Decimal

from jobs.sources.postgres import staging
from tests.scenarios.postgres.reading import SPLIT, all_rows, polled, slices


def test_the_next_tick_reads_new_columns(bank):
    """Rows from the change on wait for a source with the columns. Rows that were staged before have null in them."""
    bank.sql("CREATE DOMAIN cents AS numeric(12, 2)")
    first = polled(bank.source(new_columns="evolve"))
    bank.sql("UPDATE giro SET balance = 1 WHERE id = 1")
    with bank.connection.transaction():
        bank.sql("INSERT INTO giro VALUES (11, 11)")
        bank.sql("ALTER TABLE giro ADD COLUMN tags text[], ADD COLUMN credit cents")
        bank.sql("INSERT INTO giro VALUES (12, 12, NULL, '{a,b}', 1.5)")
    bank.sql("ALTER TABLE savings ADD COLUMN rate real DEFAULT 0.5")
    bank.sql("UPDATE savings SET balance = 2 WHERE id = 2")
    now_running = bank.source(new_columns="evolve")
    assert None is polled(now_running, first.end)
    assert 4 == now_running.lag({SPLIT: first.end})[SPLIT].rows
    following = bank.source(new_columns="evolve")
    names = [name for name in following.schema().names if "__" in name]
    assert ["public_giro__tags", "public_giro__credit", "public_savings__rate"] == names
    rows = all_rows(following, first.end)
    assert [None, None, ["a", "b"], None] == rows["public_giro__tags"].to_list()
    assert [None, None, Decimal("1.50"), None] == rows["public_giro__credit"].to_list()
    assert [None, None, None, 0.5] == rows["public_savings__rate"].to_list()
    assert 24 == all_rows(bank.source(new_columns="fail")).height  # a column that is known stays
    end = list(slices(following, first.end))[-1].end
    bank.sql("ALTER TABLE giro DROP COLUMN tags")
    bank.sql("UPDATE giro SET credit = 7 WHERE id = 12")
    last = all_rows(following, end)
    assert [(None, Decimal("7.00"))] == last.select("public_giro__tags", "public_giro__credit").rows()


def test_a_large_pull_with_a_new_column_is_read_whole(bank, monkeypatch):
    """Rows that were staged before the source met the column are dropped and read again with the column."""
    monkeypatch.setattr(staging, "_MESSAGES_AT_ONCE", 3)
    first = polled(bank.source(new_columns="evolve"))
    for number in range(10):
        bank.sql("UPDATE giro SET balance = %s WHERE id = 1", number)
    bank.sql("ALTER TABLE giro ADD COLUMN tag text")
    bank.sql("UPDATE giro SET tag = 'x' WHERE id < 9")
    assert None is polled(bank.source(new_columns="evolve"), first.end)
    rows = all_rows(bank.source(new_columns="evolve"), first.end)
    assert [*range(20, 38)] == rows["_position"].to_list()
    assert [None] * 10 + ["x"] * 8 == rows["public_giro__tag"].to_list()
