"""A truncate adds a deletion to a key's changes only if there is a row to delete."""

import polars as pl
import pytest

from jobs.operators.applied_changes import uncovered


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ("1+ 5-", "1+ 5-"),
        ("5-", ""),
        ("5- 7-", ""),
        ("5- 6+ 7-", "6+ 7-"),
        ("1+ 3- 5-", "1+ 3-"),
        ("1+ 3- 5- 7-", "1+ 3-"),
        ("1+ 5- 7-", "1+ 5-"),
        ("1+ 5- 6+ 7-", "1+ 5- 6+ 7-"),
        ("1+ 3- 4- 5- 9-", "1+ 3- 4- 9-"),
        ("1+ 2+ 5- 9+", "1+ 2+ 5- 9+"),
        ("3- 5- 6+", "3- 6+"),
    ],
)
def test_a_truncate_leaves_no_deletion_where_nothing_is(changes, left):
    """Truncates are at 5 and 7. Another key beside it, with a row that stays, makes no difference."""
    rows = [(key, int(each[:-1]), each[-1] == "-") for key in ("a", "b") for each in changes.split()]
    rows = [("0", 9, False), *rows, ("c", 1, False)]
    ordered = pl.DataFrame(rows, schema={"k": pl.String, "at": pl.Int64, "deletes": pl.Boolean}, orient="row")
    found = uncovered(ordered, pl.DataFrame({"at": [5, 7]}), ["k"], "at", "deletes")
    for key in ("a", "b"):
        of_key = found.filter(pl.col("k") == key).select("at", "deletes").rows()
        assert left == " ".join(f"{at}{'-' if deletes else '+'}" for at, deletes in of_key)
    assert 2 == found.filter(pl.col("k").is_in(["0", "c"])).height
