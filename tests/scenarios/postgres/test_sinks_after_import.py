"""A restore into another warehouse says what happens to each outside sink, and refuses rows twice or never."""

import pytest

from checkpointing.metadata.paths import ProtocolPaths
from jobs.doctor.job_health import sink_sections
from jobs.tick.at_rest.import_entry import Import, find_origin, import_row, sinks_after
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores, state_of
from jobs.warehouse.outside_publishing import SinkRefusedError
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.postgres.both_sinks import JOB, URL, both, shown, tick
from tests.scenarios.runtime.rollback_job import newest
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def roots(tmp_path, bank, monkeypatch):
    """Return a warehouse of two checkpoints that has published them, and the folder of another one."""
    monkeypatch.setenv(URL, bank.server.url(bank.name))
    for _ in range(2):
        tick(tmp_path / "one", checkpoints=1)
    return tmp_path / "one", tmp_path / "two"


def wanted(roots, checkpoint, **how):
    """Return the import of a checkpoint of the first warehouse into the other one."""
    origin = find_origin(f"{roots[0]}@{checkpoint}", roots[1], JOB)
    return Import(origin=origin, root=roots[1], plan=both(), **how)


def findings(root):
    """Return what the doctor finds in the sinks."""
    warehouse = Warehouse(root, ProtocolPaths(JOB))
    rows = JobStores(warehouse, cross_freely).rows()
    sections = sink_sections(warehouse, lambda: both().sinks, state_of(warehouse, rows), rows)
    return [each.what for section in sections for each in section.findings]


def test_the_newest_checkpoint_goes_on_where_the_sinks_are(roots, bank):
    """The doctor finds nothing before and after, and that the sinks wait in between."""
    assert [] == findings(roots[0])
    last = newest(roots[0]).checkpoint
    said = sinks_after(wanted(roots, last))
    assert said[0].endswith(f"has checkpoint {last}, and goes on from there")
    assert f"table {GOLD}" in said[1]
    assert "shows the whole table with the next checkpoint" in said[1]
    import_row(wanted(roots, last))
    bronze, gold = findings(roots[1])
    assert f"has checkpoint {last}, and the newest one of this warehouse" in bronze
    assert f"shows checkpoint {last}, and the table shows" in gold
    tick(roots[1])
    cut, there = shown(roots[1], bank)
    assert (cut, []) == (there, findings(roots[1]))


def test_an_older_checkpoint_would_give_rows_twice(roots, bank):
    """It is refused before anything is copied. The way out is true: a new target, or the rows twice if you say so."""
    first = newest(roots[0]).parent
    with pytest.raises(
        SinkRefusedError, match=rf"table {BRONZE} .*later than checkpoint {first}: .*a second time; noth"
    ):
        import_row(wanted(roots, first))
    assert not roots[1].exists()
    (bronze, gold) = sinks_after(wanted(roots, first, allow_non_restored_state=True))
    assert "a second time" in bronze
    assert GOLD in gold
    bank.sql("ALTER TABLE numbers RENAME TO former")
    bank.sql("DELETE FROM tidemark_published WHERE sink = 'bronze/numbers'")
    assert "none of those that the table has already" in sinks_after(wanted(roots, first))[0]


def test_another_warehouse_with_higher_numbers_is_noticed(tmp_path, bank, monkeypatch):
    """Each warehouse knows its own targets, also after an import, which moves them. Emptied ones may be taken."""
    monkeypatch.setenv(URL, bank.server.url(bank.name))
    mine, other = tmp_path / "mine", tmp_path / "other"
    tick(other, checkpoints=1, planned=both(appends=False, upserts=False))
    tick(mine, checkpoints=1)
    before = shown(mine, bank)
    with pytest.raises(
        SinkRefusedError, match=r"has rows of another warehouse, up to checkpoint 1: name that warehouse"
    ):
        tick(other)
    assert before == shown(mine, bank)
    tick(mine, checkpoints=1)
    moved = (mine, tmp_path / "moved")
    import_row(wanted(moved, newest(mine).checkpoint))
    tick(moved[1], checkpoints=1)
    with pytest.raises(SinkRefusedError, match="another warehouse"):
        tick(mine)
    bank.sql("TRUNCATE numbers, sums")
    tick(other)
    cut, there = shown(other, bank, GOLD)
    assert cut == there
