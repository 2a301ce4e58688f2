"""Tests that recording a cut drops no cut on which an entry rests that has none of its own."""

import pytest

from checkpointing.graph import Table, TableMode
from checkpointing.identifiers import CheckpointId
from checkpointing.messages import Publication
from jobs.warehouse.boundaries import cross_freely
from jobs.warehouse.job_stores import JobStores

ONE, STOP, BACK, NEXT = (CheckpointId(number) for number in (1, 2, 3, 4))


@pytest.fixture
def stores(warehouse, silver, schema):
    """Return the stores of a job with one append table."""
    stores = JobStores(warehouse, cross_freely)
    stores.ensure([Table(silver, TableMode.APPEND)], {silver: schema})
    return stores


def test_a_savepoint_whose_cut_was_lost_keeps_the_cut_before_it(stores, rows, tables, silver):
    """The cut of a stop's savepoint was lost, and a user rolled back. Later the entry before it is subsumed.

    The savepoint's tables follow from the cut of that entry, so somebody who goes back to it needs this cut.
    """

    def commits(number, cut=True, **changes):
        entry = rows.checkpoint(number, pinned=number == STOP)
        entry = entry.model_copy(update={"parent": min(entry.parent, ONE)})
        stores.append(entry, number - 1, **changes)
        publication = Publication(silver, TableMode.APPEND, adds=(tables.stage(silver, {f"k{number}": number}),))
        version = stores.publish(publication, number).version
        if cut:
            stores.record_cut(number, [(silver, version)])

    commits(ONE)
    commits(STOP, cut=False)
    commits(BACK, marks={STOP: True})
    commits(NEXT, subsumed=[ONE, BACK])
    assert {ONE, NEXT} == set(stores.recorded_cuts())
