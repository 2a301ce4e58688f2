"""The model of changes holds for the functions of the product, and a cut without earlier changes is not restored."""

import pytest

from spec.applying import broken_by_applied_changes
from spec.applying_a_database import broken_by_changes_of_a_database
from spec.changing import changes_add_up, cuts_hold_all_changes
from spec.joining import joins_add_up
from spec.top_rows import top_rows_add_up


@pytest.mark.parametrize("seed", range(3))
def test_changes_add_up_to_the_batch_at_each_cut(seed):
    """Two aggregates with a filter between them, over random micro-batches (rule `changes-add-up`)."""
    assert changes_add_up(seed)


@pytest.mark.parametrize("seed", range(5))
def test_joins_add_up_to_the_batch(seed):
    """Joins of all types over rows that come and go, some with a null as key (rule `joins-add-up`)."""
    assert joins_add_up(seed)


@pytest.mark.parametrize("seed", range(6))
def test_top_rows_add_up_to_the_first_rows(seed):
    """First rows of rows that only come, and of rows that come and go (rule `top-rows-add-up`)."""
    assert top_rows_add_up(seed)


@pytest.mark.parametrize("seed", range(5))
def test_applied_changes_add_up_to_the_table(seed):
    """Tables of types 1 and 2, from changes that come in any order (rule `applied-changes-add-up`).

    Deletions are forgotten, and only those that may be (rule `deletions-are-forgotten`).
    """
    assert not broken_by_applied_changes(seed)


@pytest.mark.parametrize("seed", range(5))
def test_changes_of_a_database_add_up_to_the_table(seed):
    """Rows get another key, and some large values are not sent (rule `applied-changes-add-up`)."""
    assert not broken_by_changes_of_a_database(seed)


def test_a_vertex_that_takes_changes_begins_with_its_upstream():
    """Cuts with the state of one of both, or without a column, are refused (rule `changes-begin-together`)."""
    assert cuts_hold_all_changes()
