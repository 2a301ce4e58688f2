"""An operator's state at a cut is what the operator itself would load: one row per key, for every reader."""

import duckdb
import pytest

from jobs.reading import Cuts, NoSuchOperatorError
from jobs.state.backend import FullBackend, MemoryBackend
from tests.scenarios.reading.keyed_job import INCREMENTAL, JOB, OPERATOR, KeyedJob, a_life, ordered

BACKENDS = {"memory": MemoryBackend(1_000_000), "full": FullBackend(), "incremental": INCREMENTAL}


@pytest.mark.parametrize(
    ("backend", "seed"), [("memory", 1), ("full", 2), ("incremental", 3), ("incremental", 4), ("incremental", 5)]
)
def test_every_cut_shows_the_state_as_it_was(tmp_path, backend, seed):
    """Bases, deltas and tombstones of every backend, through changes of parallelism: Polars and DuckDB say the same."""
    job = a_life(KeyedJob(tmp_path, BACKENDS[backend]), seed)
    cuts = Cuts(tmp_path, JOB).all()
    duck = duckdb.connect()
    assert list(job.model) == [cut.checkpoint for cut in cuts]
    for cut in cuts:
        state = cut.state(OPERATOR)
        assert job.model[cut.checkpoint] == ordered(state.polars().collect().rows())
        assert job.model[cut.checkpoint] == ordered(duck.sql(state.sql("duckdb")).fetchall())
        assert job.model[cut.checkpoint] == ordered(tuple(row.values()) for row in state.arrow().to_pylist())
        assert ["place", "day", "rows", "seen"] == state.arrow().schema.names


def test_a_key_that_a_narrower_base_dropped_does_not_come_back(tmp_path):
    """After a rescale, the old and wider base still counts for other ranges.

    Its row of a deleted key must not be the newest.
    """
    job = KeyedJob(tmp_path, FullBackend(), parallelism=1)
    job.epoch({("a", day): (day, []) for day in range(8)})
    job.parallelism = 2
    gone = next(("a", day) for day in range(8) if (day * 3 + 1) % 8 < 4)  # of the lower range
    job.epoch({gone: None})
    state = Cuts(tmp_path, JOB).latest().state(OPERATOR)
    assert 2 == state.files
    assert 7 == state.polars().collect().height == len(job.state)
    assert 7 == len(duckdb.connect().sql(state.sql("duckdb")).fetchall())


def test_the_query_needs_nothing_from_the_network(tmp_path):
    """DuckDB answers without loading an extension, wherever the warehouse lies."""
    root = tmp_path / "it's a warehouse"
    root.mkdir()
    job = a_life(KeyedJob(root), seed=4)
    connection = duckdb.connect(config={"autoinstall_known_extensions": False, "autoload_known_extensions": False})
    state = Cuts(root, JOB).latest().state(OPERATOR)
    assert job.model[job.checkpoint] == ordered(connection.sql(state.sql("duckdb")).fetchall())


@pytest.mark.spark
def test_sparks_query_reads_the_state_of_a_cut(spark, tmp_path):
    """Plain SQL on the state table at its version gives the newest row of each key, though newer checkpoints exist."""
    job = a_life(KeyedJob(tmp_path, INCREMENTAL), seed=5, epochs=6)
    cut = Cuts(tmp_path, JOB).latest()
    job.epoch({("a", 0): (99, [])})
    assert cut.arrow(job.table).num_rows == cut.spark(spark, job.table).count()
    shown = cut.state(OPERATOR).spark(spark)
    assert ["place", "day", "rows", "seen"] == shown.columns
    assert job.model[cut.checkpoint] == ordered(tuple(row) for row in shown.collect())


def test_a_state_without_rows_has_its_columns(tmp_path):
    """An operator without keys has an empty state with columns, however it is read."""
    job = KeyedJob(tmp_path)
    job.epoch({})
    state = Cuts(tmp_path, JOB).latest().state(OPERATOR)
    assert (0, ["place", "day", "rows", "seen"]) == (state.polars().collect().height, state.arrow().schema.names)
    found = duckdb.connect().sql(state.sql("duckdb"))
    assert (["place", "day", "rows", "seen"], []) == (found.columns, found.fetchall())
    assert ["VARCHAR", "BIGINT", "BIGINT", "BIGINT[]"] == [str(kind) for kind in found.types]


def test_rows_in_flight_are_counted_and_not_mixed_in(tmp_path):
    """An unaligned checkpoint's rows belong to the cut, and to no key's state yet."""
    job = KeyedJob(tmp_path, parallelism=2)
    job.epoch({("a", 1): (1, [])}, on_their_way=1_200)
    state = Cuts(tmp_path, JOB).latest().state(OPERATOR)
    assert 1_200 == state.rows_on_their_way
    assert [("a", 1, 1, [])] == state.polars().collect().rows()


def test_a_cut_in_hand_keeps_its_state_while_its_row_is_subsumed(tmp_path):
    """While the next checkpoint is committed and not recorded, the state is still the cut's."""
    job = a_life(KeyedJob(tmp_path, retained=1), seed=6, epochs=3)
    cuts = Cuts(tmp_path, JOB)
    before = cuts.latest()
    job.commit({("a", 1): (77, [])})  # subsumes the row of cut 3, whose tables readers still get
    between = cuts.latest()
    job.publish()
    assert 3 == before.checkpoint == between.checkpoint
    assert job.model[3] == ordered(before.state(OPERATOR).polars().collect().rows())
    assert job.model[3] == ordered(between.state(OPERATOR).polars().collect().rows())
    assert job.model[4] == ordered(cuts.latest().state(OPERATOR).polars().collect().rows())


def test_an_unknown_operator_is_answered_with_those_that_there_are(tmp_path):
    """The message names them."""
    KeyedJob(tmp_path).epoch({})
    with pytest.raises(
        NoSuchOperatorError, match="cut 1 of counts has no state of an operator 'nope': there is only by_key"
    ):
        Cuts(tmp_path, JOB).latest().state("nope")
