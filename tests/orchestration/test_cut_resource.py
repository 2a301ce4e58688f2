"""A downstream asset reads one cut of a pipeline's tables, whatever ticks and clean-ups do while its run lasts."""

from functools import partial

import dagster as dg
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame as SparkFrame

from checkpointing.metadata.paths import ProtocolPaths
from jobs.reading import Cuts
from jobs.reading.frames import UnknownFrameError, read_as
from jobs.tick.cleaning import clean_up
from jobs.tick.tick import run_tick
from jobs.warehouse.warehouse import Warehouse
from orchestration.cut_resource import CutResource
from orchestration.pipelines import build_definitions
from tests.orchestration.conftest import NUMBERS
from tests.orchestration.test_tick import GOLD_KEY, failure
from tests.scenarios.runtime.savepoint_job import run
from tests.scenarios.runtime.sequence_job import BRONZE, GOLD, JOB, LocalEngine

BRONZE_IN = dg.AssetIn(key=BRONZE.split("/"))
GOLD_IN = dg.AssetIn(key=GOLD.split("/"))


@pytest.fixture
def root(tmp_path):
    """Return a warehouse at checkpoint 1 of the tiny pipeline, with more rows to come."""
    run(tmp_path / "warehouse", 1)
    return tmp_path / "warehouse"


def moved_on(root):
    """Complete two more checkpoints, subsume the first one, and clean up without grace."""
    run(root)
    clean_up(Warehouse(root, ProtocolPaths(JOB)), 0)


def executed(root, instance, *assets, prefix=()):
    """Materialize these downstream assets in one run of a project with the pipeline."""
    built = build_definitions(
        NUMBERS, warehouse=root, key_prefix=prefix, runner=partial(run_tick, engine=LocalEngine())
    )
    job = dg.define_asset_job("downstream", dg.AssetSelection.assets(*assets))
    merged = dg.Definitions.merge(dg.Definitions(assets=list(assets), jobs=[job]), built)
    return merged.resolve_job_def("downstream").execute_in_process(instance=instance, raise_on_error=False)


def told(result, name):
    """Return the metadata that the asset was materialized with."""
    (event,) = result.asset_materializations_for_node(name)
    return {key: value.value for key, value in event.metadata.items()}


def test_all_steps_of_a_run_read_one_cut_while_a_tick_and_a_clean_up_run(root, instance):
    """The second step begins after the first cut was subsumed and cleaned up, and reads it all the same."""

    @dg.asset(deps=[dg.AssetKey(BRONZE.split("/"))])
    def first(numbers_cut: CutResource) -> None:
        assert 100 == numbers_cut.cut().polars(BRONZE).collect().height
        moved_on(root)

    @dg.asset(deps=[first, GOLD_KEY])
    def second(numbers_cut: CutResource) -> None:
        assert 100 == numbers_cut.read(BRONZE, pl.DataFrame).height
        assert 100 == numbers_cut.read(GOLD, pl.DataFrame)["rows"].sum()

    done = executed(root, instance, first, second)
    assert done.success
    assert 1 == told(done, "first")["numbers_checkpoint"] == told(done, "second")["numbers_checkpoint"]
    assert 300 == Cuts(root, JOB).latest().polars(BRONZE).collect().height


@pytest.mark.parametrize("prefix", [(), ("lake", "eu")])
def test_tables_come_as_arguments_of_one_cut_and_of_the_annotated_class(root, instance, prefix):
    """Two arguments of two classes are two tables of one cut; the materialization says of which."""
    ins = {"rows": dg.AssetIn(key=[*prefix, *BRONZE.split("/")]), "totals": dg.AssetIn(key=[*prefix, *GOLD.split("/")])}

    @dg.asset(ins=ins)
    def report(rows: pd.DataFrame, totals: pa.Table) -> None:
        assert len(rows) == sum(totals.column("rows").to_pylist()) == 100

    done = executed(root, instance, report, prefix=prefix)
    assert done.success
    assert 1 == told(done, "report")["numbers_checkpoint"]


def test_an_argument_without_annotation_is_lazy(root, instance):
    """Polars reads nothing until it is collected."""

    @dg.asset(ins={"rows": BRONZE_IN})
    def report(rows) -> None:
        assert isinstance(rows, pl.LazyFrame)
        assert 100 == rows.collect().height

    assert executed(root, instance, report).success


def test_a_run_after_that_reads_the_newest_cut(root, instance):
    """The cut is the run's, not the resource's."""

    @dg.asset
    def report(numbers_cut: CutResource) -> None:
        numbers_cut.cut()

    assert 1 == told(executed(root, instance, report), "report")["numbers_checkpoint"]
    moved_on(root)
    newest = Cuts(root, JOB).latest().checkpoint
    assert 1 < newest == told(executed(root, instance, report), "report")["numbers_checkpoint"]


def test_a_tick_downstream_and_all_in_one_run_reads_what_the_tick_wrote(root, instance):
    """A job of the pipeline and a downstream asset together: the asset reads the cut that the tick completed."""

    @dg.asset(ins={"totals": GOLD_IN})
    def report(totals: pl.DataFrame) -> None:
        assert 300 == totals["rows"].sum()

    built = build_definitions(NUMBERS, warehouse=root, runner=partial(run_tick, engine=LocalEngine()))
    job = dg.define_asset_job("all", dg.AssetSelection.all(), executor_def=dg.in_process_executor)
    merged = dg.Definitions.merge(dg.Definitions(assets=[report], jobs=[job]), built)
    done = merged.resolve_job_def("all").execute_in_process(instance=instance)
    assert Cuts(root, JOB).latest().checkpoint == told(done, "report")["numbers_checkpoint"]


def test_a_class_that_no_table_is_read_as_is_refused_by_name(root):
    """The error names the class, and those that there are."""
    with pytest.raises(UnknownFrameError, match=r"bronze/numbers cannot be read as builtins\.dict: ask for polars"):
        read_as(Cuts(root, JOB).latest(), BRONZE, dict)


def test_an_asset_that_would_be_written_by_the_reader_is_told_what_to_do(root, instance):
    """Only ticks write a pipeline's tables; the message names the asset and the way out."""

    @dg.asset(io_manager_key="numbers_tables")
    def report() -> int:
        return 1

    assert "report cannot be written" in failure(executed(root, instance, report))


@pytest.mark.spark
def test_spark_reads_the_same_cut(root, spark):
    """A Spark frame of a cut holds the rows of that cut, and no newer ones."""
    with Cuts(root, JOB).reserved() as cut:
        moved_on(root)
        assert 100 == read_as(cut, BRONZE, SparkFrame).count()
