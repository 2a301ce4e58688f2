"""Output rows of an upsert table must have keys of their own subtask."""

import polars as pl
import pytest

from jobs.operators.process import ForeignKeyError, require_own_keys

OWN = pl.DataFrame({"region": ["north", None, "south"], "day": [1, 2, 3], "_key_group": [5, 6, 7]})


def test_rows_under_keys_of_the_input_pass():
    """Any number of rows in any order passes, also with a null key, and also none at all."""
    output = pl.DataFrame({"n": [1, 2, 3], "day": [2, 1, 2], "region": [None, "north", None]})
    require_own_keys("sums", "gold/sums", ("region", "day"), output, OWN)
    require_own_keys("sums", "gold/sums", ("region", "day"), output.clear(), OWN)


@pytest.mark.parametrize(
    ("region", "day", "named"), [("all", 1, "region=all, day=1"), ("north", 2, "region=north, day=2")]
)
def test_a_row_under_another_key_is_refused_by_name(region, day, named):
    """All key columns are compared together. The error names vertex, table, key and the way out."""
    output = pl.DataFrame({"region": ["north", region], "day": [1, day], "n": [1, 2]})
    with pytest.raises(ForeignKeyError) as refused:
        require_own_keys("sums", "gold/sums", ("region", "day"), output, OWN)
    said = str(refused.value)
    assert said.startswith(f"vertex sums: its function emitted a row with the key {named}, and no row with that key")
    assert "upsert table gold/sums" in said
    assert "key the stream by the table's keys" in said
