"""The model of partitioned tables holds for the functions of the product."""

import pytest

from spec.laying_out import files_keep_their_partition, layouts_stay, modes_stay


@pytest.mark.parametrize("seed", range(30))
def test_files_keep_the_values_of_their_partition(seed):
    """Their folders say the values, also after a rename, and partitions lie apart (rule `partitions-are-kept`)."""
    assert files_keep_their_partition(seed)


def test_a_cut_of_another_layout_is_not_restored():
    """Staged files, ranges and an entry's own files are looked at (rule `layout-stays`)."""
    assert layouts_stay()


def test_a_cut_of_another_mode_is_not_restored():
    """The mode of a table stays, and the version column of an overwrite table (rule `mode-stays`)."""
    assert modes_stay()
