"""Runs micro-batches in a Spark session.

The first micro-batch opens the session, so a tick without new rows has none.
"""

import threading
import time
from typing import Final, Protocol

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from checkpointing.identifiers import JobName
from checkpointing.messages import MicroBatchFinished, RunMicroBatch
from checkpointing.metadata.paths import ProtocolPaths
from jobs.distribution import versions
from jobs.operators.execute import MicroBatchError, run_micro_batch
from jobs.operators.scan.planned_jobs import PlannedJobs
from jobs.operators.spec import VertexPlan
from jobs.spark.jars import fetch, jars_folder, not_fetched
from jobs.spark.programs import UnfitWorkerError, must_agree, must_suit
from jobs.spark.session import (
    SparkConfig,
    SparkNotStartedError,
    abandon,
    finds_open,
    is_alive,
    is_local,
    open_session,
)
from jobs.state.worker_copy import NO_USES, CopyUses
from jobs.storage.address import Root
from jobs.tick.listener import (
    JarsFetching,
    SparkStarted,
    SparkStarting,
    StateLoaded,
    TickListener,
)

_log = structlog.get_logger(__name__)

CLOSE_S: Final = 2.0
"""The longest time that an ending tick waits for a thread that is starting Spark."""

LOST: Final = (
    "Spark died: its JVM or its server was killed, often because the machine's memory ran out. What was committed "
    "stays. See 'dmesg', lower --spark-memory, and run again, or let a tick go on by itself with "
    "--set restart_strategy=fixed_delay"
)


def fetch_missing_jars(config: SparkConfig, listener: TickListener) -> None:
    """Fetch missing sets of jars that a session needs. Raise JarsError if they cannot be fetched."""
    for jars in not_fetched(config.jar_sets):
        listener.progress(JarsFetching(jars.serves))
        fetch(jars_folder(), jars)


class Engine(Protocol):
    """Runs micro-batches, several at a time."""

    def run(self, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName) -> MicroBatchFinished:
        """Run a micro-batch, and return what each subtask wrote. Raise MicroBatchError.

        Any thread may call this method.
        """
        ...

    def close(self) -> None:
        """Close all that was opened. Micro-batches that still run then fail."""
        ...


class SparkEngine:
    """Runs micro-batches in one Spark session. It stops the session at the end, unless the session was `given`.

    An engine serves all attempts of a tick. If a micro-batch fails because the session has died, the next micro-batch
    opens another session.
    """

    def __init__(self, config: SparkConfig, listener: TickListener, given: SparkSession | None = None) -> None:
        """Prepare without starting a session."""
        self._config = config
        self._listener = listener
        self._jobs = None if given is None else PlannedJobs(given)
        self._own = given is None
        self._compared = given is not None
        self._agreed: set[str] = set()
        self._lock = threading.Lock()
        self._refused: tuple[float, SparkNotStartedError] | None = None
        """When Spark last did not start, and why."""
        self.copies = CopyUses()
        """How often a task found its state in its worker's memory (D5)."""

    def run(self, plan: VertexPlan, effect: RunMicroBatch, warehouse: Root, job: JobName) -> MicroBatchFinished:
        """Run a micro-batch as one Spark job. Raise MicroBatchError if it fails, or if no session can be opened."""
        try:
            jobs = self._opened()
        except SparkNotStartedError as error:
            raise MicroBatchError(effect.vertex, effect.micro_batch, str(error)) from error
        self._compare_workers(jobs.session, effect, warehouse, job)
        try:
            done = run_micro_batch(jobs, plan, effect, warehouse, job)
        except MicroBatchError as error:
            if self._drop_if_dead(jobs):
                raise MicroBatchError(effect.vertex, effect.micro_batch, f"{LOST}\n{error}") from error
            raise
        self._compare_reported(done.workers, effect)
        with self._lock:
            self.copies += done.copies
        return done.finished

    def close(self) -> None:
        """Stop the session if this engine opened it. A later micro-batch would open another session.

        A session that the engine found open in this process goes on.
        """
        uses, self.copies = self.copies, NO_USES
        if not is_local(self._config) and uses != NO_USES:
            self._listener.progress(StateLoaded(uses))
        if not self._own or not self._lock.acquire(timeout=CLOSE_S):
            return  # Spark is being started; the thread that waits for it holds the lock
        try:
            jobs, self._jobs = self._jobs, None
        finally:
            self._lock.release()
        if jobs is not None:
            _stop(jobs.session)

    def _drop_if_dead(self, jobs: PlannedJobs) -> bool:
        """Return whether the session of a failed micro-batch has died. Drop a dead session."""
        with self._lock:
            if self._own and jobs is not self._jobs:
                return True
            if is_alive(jobs.session):
                return False
            if self._own:
                self._jobs = None
        _log.info("Spark has died")
        if self._own:
            abandon(jobs.session)
        return True

    def _compare_workers(self, session: SparkSession, effect: RunMicroBatch, warehouse: Root, job: JobName) -> None:
        """Check the workers of a cluster once. Raise MicroBatchError if a worker is unsuitable."""
        with self._lock:
            if self._compared or is_local(self._config):
                return
            try:
                must_suit(session, warehouse, ProtocolPaths(job).checkpoints, self._config.cores, versions())
            except UnfitWorkerError as error:
                raise MicroBatchError(effect.vertex, effect.micro_batch, str(error)) from error
            except Exception as error:
                raise MicroBatchError.of(effect.vertex, effect.micro_batch, error) from error
            self._compared = True

    def _compare_reported(self, workers: frozenset[str], effect: RunMicroBatch) -> None:
        """Compare workers that reported for the first time. Raise MicroBatchError if a worker has other versions."""
        new = workers - self._agreed
        if new:
            try:
                must_agree(new, versions())
            except UnfitWorkerError as error:
                raise MicroBatchError(effect.vertex, effect.micro_batch, str(error)) from error
            self._agreed.update(new)

    def _opened(self) -> PlannedJobs:
        """Return the session, and open it if necessary.

        If that fails, all threads that were waiting get the same error.
        """
        asked = time.monotonic()
        with self._lock:
            if self._refused is not None and asked < self._refused[0]:
                raise self._refused[1]
            if self._jobs is None:
                self._listener.progress(SparkStarting())
                started = time.monotonic()
                self._own = self._own and not finds_open(self._config)
                try:
                    self._jobs = PlannedJobs(open_session(self._config))
                except SparkNotStartedError as error:
                    self._refused = (time.monotonic(), error)
                    raise
                self._listener.progress(SparkStarted(round((time.monotonic() - started) * 1000)))
            return self._jobs


def _stop(session: SparkSession) -> None:
    """Stop a session. Its JVM may have ended already, by the same signal as the tick."""
    try:
        session.stop()
    except (OSError, Py4JError) as error:
        _log.info("Spark had stopped before", error=str(error))
