"""Compares operators over odd values with Spark SQL over all rows at once: a fixed share of what nights draw."""

import pytest

from tests.values import __main__ as nights
from tests.values.judge import Judge
from tests.values.operators import OPERATORS
from tests.values.ways import WAYS

SEED = 3
HELD = [name for name in OPERATORS if name != "rename"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def test_tables_show_what_spark_sql_shows_of_all_rows_at_once(spark, tmp_path):
    """Each operator, over odd values of each type, read in each way and cut anywhere, agrees with one query."""
    judge = Judge(spark, tmp_path)
    nights.drawn(SEED, judge.judge, list(WAYS), HELD, odd_names=False)
    said = nights.report(judge.judgement)
    print(said)
    assert [] == [each.written() for each in judge.judgement.differences], said
    assert judge.judgement.cases >= 15, said
