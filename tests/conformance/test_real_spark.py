"""A handful of the machine's examples on real Spark: the same tick, stores and judges, Spark's micro-batches."""

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from checkpointing.messages import AppendRow, EndTick, PublishTable, SavepointKind
from jobs.spark.session import SparkConfig
from jobs.tick.engine import SparkEngine
from jobs.tick.listener import TickListener
from spec.machines.job import LONGEST_MS, SPLITS
from spec.reference.pipeline import KEYS, MAX_PARALLELISM, key_group
from spec.world.faults import Faults
from tests.conformance.frame_engine import numbered_names
from tests.conformance.machine import RealStoresMachine
from tests.conformance.pipeline import LABELS

pytestmark = pytest.mark.spark


@pytest.fixture
def machine(spark):
    """Return a machine whose micro-batches run on Spark, with its first tick begun. Tests must tear it down."""

    class SparkMachine(RealStoresMachine):
        engine = SparkEngine(SparkConfig(), TickListener(), spark)

    with numbered_names():
        machine = SparkMachine()
        machine.open(tolerable=100, slice_rows=5, retained=2, concurrent=1, timeout_ms=LONGEST_MS)
        yield machine


def test_labels_lie_in_the_key_groups_of_the_reference(spark):
    """Spark's own hash sends every key to its key group in the reference, so that the reference's judges can judge."""
    rows = spark.createDataFrame([(label,) for label in LABELS], "key bigint")
    groups = [row[0] for row in rows.select(F.pmod(F.hash("key"), F.lit(MAX_PARALLELISM))).collect()]
    assert [key_group(key) for key in range(KEYS)] == groups


@pytest.mark.dear
def test_a_rescaled_restart_and_a_zombie_on_spark_show_one_cut(machine):
    """A tick dies while it publishes, the next one has two subtasks, and a third one takes over. Nothing is lost."""
    machine.die(PublishTable, pick=4, moment="after:LogCommit", parallelism=2, split=SPLITS[0])
    machine.be_believed_dead(AppendRow, parallelism=3, split=SPLITS[2])
    machine.go_on_as_a_zombie([0] * 3)
    machine.teardown()
    assert 2 == len(machine.driven.world.witness.committed)


def test_doubt_and_a_drain_on_spark_show_one_cut(machine):
    """An append has an unknown outcome. Then a stop ends the input, and every order is emitted once."""
    machine.work(AppendRow)
    machine.be_left_in_doubt(Faults(reply_lost=1.0))
    machine.offer(SPLITS[1], 2)
    machine.start(parallelism=2, split=SPLITS[0])
    machine.ask(SavepointKind.DRAIN)
    machine.work(EndTick)
    machine.meddle("silver/joined", vacuums=True)
    machine.teardown()
    assert 3 == len(machine.driven.world.witness.committed)
