"""Runs one tick of a job.

The tick door (`checkpointing.tick`) decides the order of the steps, and `TickCarrier` carries them out. Every tick
takes the same steps in the same order, so every start is a recovery. A tick that may not start is refused before its
claim, and has changed nothing. After its claim, a tick releases the job, however the tick ends. If its process dies
instead, the next tick finds that the holder is dead.
"""

from contextlib import ExitStack

from pyspark.sql import SparkSession

from checkpointing.messages import StopKind, StopRequested
from jobs.pipeline.job_plan import JobPlan
from jobs.sources.port import with_needed_jars
from jobs.spark.programs import must_start_spark
from jobs.spark.session import is_local, with_store
from jobs.tick.driver import Inbox, collecting_less_often
from jobs.tick.engine import Engine, SparkEngine, fetch_missing_jars
from jobs.tick.interrupts import stopping_on_interrupt
from jobs.tick.listener import Listeners, OrderedListener, TickListener
from jobs.tick.reporters.reporting import Reporting, reporters_of
from jobs.tick.tick_carrier import TickCarrier
from jobs.tick.tick_settings import RuntimeSettings, TickReport
from jobs.warehouse.boundaries import Boundary, boundary_from_environment


def run_tick(
    plan: JobPlan,
    settings: RuntimeSettings,
    listener: TickListener | None = None,
    *,
    spark: SparkSession | None = None,
    engine: Engine | None = None,
    inbox: Inbox | None = None,
    boundary: Boundary | None = None,
) -> TickReport:
    """Run one tick of the job. Call it from the main thread, so that Ctrl-C and SIGTERM end the tick in order.

    With `spark`, the tick uses this session and does not stop it. With `engine`, micro-batches run in this engine
    instead of Spark, and the tick closes it at the end. Another thread may put a StopRequested into `inbox`. If the job
    fails, the tick restarts it as the plan's configuration says. The limits in `settings` hold for all attempts
    together.

    Raises these errors, having changed nothing:

    | error                                  | if                                                                |
    |----------------------------------------|-------------------------------------------------------------------|
    | UnfitProgramError                      | Spark cannot start on this machine                                |
    | JarsError                              | jars that a source or S3 needs cannot be fetched                  |
    | UnusableWarehouseError                 | the warehouse cannot be written                                   |
    | JobHeldError                           | another process holds the job, or may hold it                     |
    | ClaimUnsettledError                    | it cannot be told which entries the job has                       |
    | TablesAheadError                       | a table shows a newer checkpoint than the newest entry            |
    | DamagedCheckpointError                 | files of the checkpoint to restore are missing or damaged         |
    | CutDoesNotFitError                     | the newest checkpoint cannot be restored into this pipeline       |
    | UnusableReporterError                  | a reporter is unknown, or does not know where to report to        |
    | UnusableCatalogError                   | the same of a catalog, or two tables would have one name there    |
    | SourceError, InvalidPipelineError      | splits cannot be listed                                           |
    | what the codec raises                  | an entry of `checkpoints` has another version                     |

    Raises DoorFailedError for a bug of the protocol.
    """
    inbox = inbox or Inbox()
    with ExitStack() as stack:
        stack.enter_context(collecting_less_often())
        stack.enter_context(stopping_on_interrupt(lambda: inbox.put(StopRequested(StopKind.NOW))))
        ordered = OrderedListener(listener or TickListener())
        stack.callback(ordered.close)
        reporting = Reporting(plan, str(settings.warehouse), reporters_of(settings.reporters, plan, settings.warehouse))
        told = Listeners((ordered, reporting))
        carrier = TickCarrier(plan, settings, told, inbox, boundary or boundary_from_environment())
        config = with_store(with_needed_jars(settings.spark, plan.sources.values()), settings.warehouse)
        if engine is None and spark is None and config.connect_url is None:
            must_start_spark(workers_here=is_local(config))
            fetch_missing_jars(config, told)
        with reporting.ending() as ending:
            ending.report = report = carrier.run(engine or SparkEngine(config, told, spark))
        return report
