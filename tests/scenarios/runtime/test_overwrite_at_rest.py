"""Overwrite tables beside the commands that act on a job at rest: a held cut, a restored savepoint, a clean-up."""

import pytest

from jobs.reading import Cuts
from jobs.tick.at_rest.held_cut import approve, reject
from jobs.tick.at_rest.import_entry import Import, find_origin, import_row
from jobs.tick.at_rest.take_savepoint import savepoint_at_rest
from tests.scenarios.runtime.newest_job import JOB, TABLE, at, build, expected, shown, tick


@pytest.mark.parametrize("approves", [True, False])
def test_a_held_cut_of_an_overwrite_table_waits_for_a_person(tmp_path, approves):
    """The table shows the versions of before until somebody approves. A rejected cut leaves no trace."""
    tick(tmp_path, 23)
    tick(tmp_path, 41, hold=True)
    assert expected(23) == shown(tmp_path)
    pending = Cuts(tmp_path, JOB).pending()
    held = sorted(pending.polars(TABLE).collect().select("key", "n").rows())
    assert expected(41) == held
    if approves:
        approve(at(tmp_path))
        assert expected(41) == shown(tmp_path)
    else:
        reject(at(tmp_path))
        assert expected(23) == shown(tmp_path)
    tick(tmp_path, 55)
    assert expected(55) == shown(tmp_path)


def test_a_savepoint_of_an_overwrite_table_begins_another_warehouse(tmp_path):
    """Its files are copied, and newer versions take their place there. The first warehouse is left alone."""
    here, there = tmp_path / "here", tmp_path / "there"
    tick(here, 23)
    saved = savepoint_at_rest(at(here))
    tick(here, 35)
    import_row(Import(origin=find_origin(f"{here}@{saved.checkpoint}", there, JOB), root=there, plan=build(23)))
    tick(there, 23)
    assert (expected(35), expected(23)) == (shown(here), shown(there))
    tick(there, 47)
    assert (expected(35), expected(47)) == (shown(here), shown(there))
