"""The judges compute some facts by themselves. These agree with the product's, on simulated entries of every kind."""

from checkpointing.commit.live_files import live_files
from checkpointing.commit.recovery import publications
from checkpointing.key_groups import key_group_ranges
from checkpointing.metadata.files import files_of
from spec.entries_say import files_of_table, key_groups_of, publishes
from spec.history import RowCommitted
from spec.moves import Moves
from spec.named_files import named_files
from spec.pipeline import graph_of
from spec.simulator import simulate


def test_files_and_publications_are_those_of_the_product():
    """The entries include savepoints, rollbacks and renames."""
    moves = Moves(savepoints_max=3, rollbacks_max=2, releases=True)
    rows = [each.record for seed in range(12) for each in _committed(simulate(seed, moves=moves).history)]
    for row in rows:
        assert files_of(row) == named_files(row)
        assert all(publishes(row, each) for each in publications(row))
        vertices = {each.vertex: each for each in row.vertices}
        for vertex in graph_of(row).operators():
            for table in vertex.tables:
                assert {file.path for file in live_files(table, vertices[vertex.id])} == files_of_table(
                    table, vertices[vertex.id]
                )
    assert len(rows) > 20


def test_key_groups_are_those_of_the_product():
    """This is compared for every subtask of every small parallelism."""
    for most in range(1, 12):
        for parallelism in range(1, most + 1):
            for index, own in enumerate(key_group_ranges(parallelism=parallelism, max_parallelism=most)):
                assert set(range(own.first, own.last + 1)) == key_groups_of(index, parallelism, most)


def _committed(history):
    return (event for event in history.events if isinstance(event, RowCommitted))
