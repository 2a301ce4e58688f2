"""The pipeline of numbers with PostgreSQL sinks for both tables. Ticks run without Spark, and may be killed."""

from checkpointing.job.setup import TickLimits
from jobs.pipeline import Pipeline, count, sum_of
from jobs.pipeline.planning import plan
from jobs.sources.hybrid import SequenceSource
from jobs.tick.tick import run_tick
from jobs.tick.tick_settings import RuntimeSettings
from jobs.warehouse.boundaries import boundary_from_environment, cross_freely
from tests.scenarios.processes import killed
from tests.scenarios.runtime.sequence_job import BRONZE, CONFIG, GOLD, JOB, KEYS, ROWS, LocalEngine, read_cut
from tidemark import PostgresSink

URL = "TARGET_URL"
TARGETS = {BRONZE: "numbers", GOLD: "sums"}


def build(_data):
    return pipeline_of()


def two_phases(_data):
    return pipeline_of(two_phase=True)


def both(**how):
    return plan(pipeline_of(**how))


def pipeline_of(*, retained=2, appends=True, upserts=True, two_phase=False, tolerates=0):
    config = CONFIG.model_copy(update={"retained": retained, "tolerable_failures": tolerates})
    pipeline = Pipeline(JOB, config=config, parallelism=2)
    numbers = pipeline.source("numbers", SequenceSource(ROWS, keys=KEYS))
    sink = PostgresSink(f"env:{URL}", TARGETS[BRONZE], two_phase=two_phase) if appends else None
    numbers = numbers.table(BRONZE, id="bronze", sink=sink)
    sums = numbers.key_by("key").aggregate("by_key", rows=count(), total=sum_of("value"))
    sums.upsert(GOLD, sink=PostgresSink(f"env:{URL}", TARGETS[GOLD], two_phase=two_phase) if upserts else None)
    return pipeline


def tick(root, boundary=cross_freely, *, planned=None, **limits):
    settings = RuntimeSettings(warehouse=root, take_over=True, limits=TickLimits(**limits))
    return run_tick(planned or both(), settings, engine=LocalEngine(), boundary=boundary)


def killed_at(boundary, root, **how):
    killed(_mortal, root, how, kill_at=boundary)


def _mortal(root, how):
    tick(root, boundary_from_environment(), planned=both(**how))


def shown(root, bank, *tables):
    """Return the rows of the newest cut, and the rows of the targets."""
    named = {str(table): TARGETS[table] for table in tables or TARGETS}
    cut = {table: rows for table, rows in read_cut(root).items() if table in named}
    columns = {BRONZE: "split, n, key, value, _split, _position", GOLD: "key, rows, total"}
    there = {table: sorted(bank.sql(f"SELECT {columns[table]} FROM {target}")) for table, target in named.items()}
    return cut, there
