"""A Spark session that is opened when the first micro-batch asks for it: a tick that finds nothing starts none."""

import threading
import time

from pyspark.sql import SparkSession

from jobs.runtime.listener import SparkStarted, SparkStarting, TickListener
from jobs.runtime.session import SparkConfig, open_session


class SparkOnDemand:
    """The tick's session. One that was given is used and left alone; one opened here is stopped here."""

    def __init__(self, config: SparkConfig, listener: TickListener, given: SparkSession | None = None) -> None:
        """Nothing is started yet."""
        self._config = config
        self._listener = listener
        self._session = given
        self._own = given is None
        self._lock = threading.Lock()

    def session(self) -> SparkSession:
        """Return the session, from any thread; raise what Spark raises if it can't be opened."""
        with self._lock:
            if self._session is None:
                self._listener.progress(SparkStarting())
                started = time.monotonic()
                self._session = open_session(self._config)
                self._listener.progress(SparkStarted(round((time.monotonic() - started) * 1000)))
            return self._session

    def close(self) -> None:
        """Stop the session if it was opened here; what still runs on it fails."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None and self._own:
            session.stop()
