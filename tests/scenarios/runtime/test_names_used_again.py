"""Rollbacks and renames of an append table whose files have another column of the same name (D6, G2)."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from jobs.tick.at_rest.roll_back import roll_back
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from jobs.warehouse.rollback_tables import TableNotRolledBackError
from tests.scenarios.runtime.kept_job import (
    RENAMED,
    TABLE,
    Version,
    at,
    columns,
    foreign,
    laid_out,
    newest,
    numbers,
    shown,
    tick,
)

HALF = 20
"""Rows of the first tick."""


def test_no_column_gets_a_name_under_which_others_have_values_that_nobody_sees(tmp_path):
    """A rollback took the column `sum` out of the table, but a file of others still has it.

    A renamed column would show these values as its own.
    """
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1, Version(("n", "key", "value", "sum")))
    row = {"n": [100], "key": [1], "value": [100], "sum": [7]}
    write_deltalake(str(tmp_path / TABLE), pa.table(row), mode="append")
    roll_back(at(tmp_path), first)
    assert numbers([*range(HALF), 100]) == shown(tmp_path, "n", "value")
    tick(tmp_path, HALF + 1, Version(("n", "key", "value", "amount")))
    with pytest.raises(AssertionError, match="with a column sum, which the table does not show"):
        tick(tmp_path, HALF + 2, Version(("n", "key", "value", "sum"), {"sum": "amount"}))
    assert ["n", "key", "value", "amount"] == columns(tmp_path)


def test_a_rollback_is_refused_if_rows_of_others_have_another_column_of_that_name(tmp_path):
    """In the cut, `amount` is the renamed `value`. Since then it has become a column of its own."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    foreign(tmp_path, 100)
    tick(tmp_path, HALF + 1, RENAMED)
    savepoint = savepoint_at_rest(at(tmp_path)).checkpoint
    roll_back(at(tmp_path), first)
    tick(tmp_path, HALF + 2, Version(("n", "key", "amount"), drop=("value",)))
    before = newest(tmp_path)
    with pytest.raises(TableNotRolledBackError, match="amount was another column then, which began as value"):
        roll_back(at(tmp_path), savepoint)
    assert before == newest(tmp_path)


def test_files_that_come_back_keep_the_names_of_their_cut(tmp_path):
    """In the cut, `amount` is the renamed `value`, and `value` is a new column. The files have them as they are."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1, RENAMED)
    tick(tmp_path, HALF + 2, Version(("n", "key", "amount")))
    tick(tmp_path, HALF + 3, Version())
    due = [*((n, n, None) for n in range(HALF + 2)), (HALF + 2, None, HALF + 2)]
    assert due == shown(tmp_path, "n", "amount", "value")
    savepoint = savepoint_at_rest(at(tmp_path)).checkpoint
    roll_back(at(tmp_path), first)
    assert ["n", "key", "value"] == columns(tmp_path)
    roll_back(at(tmp_path), savepoint)
    assert due == shown(tmp_path, "n", "amount", "value")


def test_a_rollback_is_refused_if_rows_of_others_may_have_a_column_under_another_name(tmp_path):
    """On a line that was left, `sum` became `amount`, and others wrote that. The present line knows neither of them."""
    laid_out(tmp_path, HALF)
    first = newest(tmp_path).checkpoint
    tick(tmp_path, HALF + 1, Version(("n", "key", "value", "sum")))
    savepoint = savepoint_at_rest(at(tmp_path)).checkpoint
    tick(tmp_path, HALF + 2, Version(("n", "key", "value", "amount"), {"amount": "sum"}))
    row = {"n": [100], "key": [1], "value": [100], "amount": [7]}
    write_deltalake(str(tmp_path / TABLE), pa.table(row), mode="append")
    roll_back(at(tmp_path), first)
    with pytest.raises(TableNotRolledBackError, match=r"sum may have another name there \(amount\)"):
        roll_back(at(tmp_path), savepoint)
    assert ["n", "key", "value"] == columns(tmp_path)
