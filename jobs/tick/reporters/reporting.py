"""Calls reporters while a tick runs. A reporter that fails or hangs never fails or delays the tick.

Each reporter has a thread of its own and a queue. The tick only puts events into the queues. At its end, the tick waits
for a reporter that is working, but not for a reporter that hangs.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from queue import Empty, Full, Queue
from threading import Event as Flag
from threading import Thread
from typing import Final

import structlog

from checkpointing.failures import CheckpointFailureReason
from checkpointing.identifiers import CheckpointId, TableName
from checkpointing.messages import TickOutcome
from checkpointing.metadata.record import CheckpointRecord, Claim
from jobs.catalogs.known import open_catalog
from jobs.credentials import without_credentials
from jobs.pipeline.job_plan import JobPlan
from jobs.quality.verdict import verdicts_in
from jobs.storage.address import Root
from jobs.suggestions import there_are
from jobs.tick.listener import Progress, SuitesAnswered, TickListener
from jobs.tick.reporters.catalog import CatalogReporter
from jobs.tick.reporters.events import CheckpointFailed, Event, TickEnded, completed_event
from jobs.tick.reporters.port import Reporter, UnusableReporterError
from jobs.tick.tick_settings import ReporterSettings, TickReport
from jobs.user_code import message_of
from jobs.warehouse.refusals import JobHeldError

_log = structlog.get_logger(__name__)

WAIT_S: Final = 1.0
"""At its end, a tick waits this long for a call of a reporter, counted from the call's beginning."""

FLUSH_EVERY_S: Final = 1.0
"""While events follow each other closely, a reporter flushes its events this often."""

QUEUED_MAX: Final = 1_000
"""At most so many events wait for a slow reporter. Further events are not sent to it, but counted."""


@dataclass(slots=True)
class _Desk:
    """One reporter with its queue and its thread."""

    name: str
    reporter: Reporter
    queue: "Queue[Event | None]" = field(default_factory=lambda: Queue(QUEUED_MAX))
    """Events, and None to wake the thread at the end."""
    closing: Flag = field(default_factory=Flag)
    done: Flag = field(default_factory=Flag)
    began: float | None = None
    """When the running call began."""
    left_out: int = 0
    failures: int = 0

    def start(self) -> None:
        """Begin to report. The thread does not keep the process alive."""
        Thread(target=self._run, name=f"reporter-{self.name}", daemon=True).start()

    def put(self, event: Event) -> None:
        """Queue an event, or count it as left out."""
        try:
            self.queue.put_nowait(event)
        except Full:
            self.left_out += 1

    def close(self) -> None:
        """Make the thread end once the queue is empty."""
        self.closing.set()
        with suppress(Full):  # a full queue wakes it too
            self.queue.put_nowait(None)

    def _run(self) -> None:
        waits, flushed = False, 0.0
        while waits or not (self.closing.is_set() and self.queue.empty()):
            left_s = 0.0 if self.closing.is_set() else flushed + FLUSH_EVERY_S - time.monotonic()
            try:
                event = self.queue.get(timeout=max(left_s, 0.001) if waits else None)
            except Empty:
                self._call(self.reporter.flush)
                waits, flushed = False, time.monotonic()
                continue
            if event is not None:
                self._call(partial(self.reporter.report, event))
                waits = True
        self._call(self.reporter.close)
        self.done.set()

    def _call(self, call: Callable[[], None]) -> None:
        self.began = time.monotonic()
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a reporter's error does not fail the tick
            self.failures += 1
            if self.failures == 1:
                _log.warning("a reporter failed", reporter=self.name, error=without_credentials(message_of(error)))
        finally:
            self.began = None

    def wait(self, until: float) -> None:
        """Wait until the thread has ended, at most up to the time `until`.

        Do not wait for a call that runs longer than WAIT_S.
        """
        while not self.done.wait(0.01):
            now, began = time.monotonic(), self.began
            if now >= until or (began is not None and now - began >= WAIT_S):
                break
        lost = self.left_out + sum(event is not None for event in tuple(self.queue.queue))
        if not self.done.is_set():
            _log.warning("a reporter did not end in time, and the tick does not wait for it", reporter=self.name)
        if lost or self.failures:
            _log.warning("a reporter left events out", reporter=self.name, events=lost, failed_calls=self.failures)


@dataclass(slots=True)
class ReportedTick:
    """A running tick: when it began, and after its end its report."""

    began: float
    report: TickReport | None = None


class Reporting(TickListener):
    """Reports one tick to its reporters."""

    def __init__(self, plan: JobPlan, warehouse: str, reporters: Mapping[str, Reporter]) -> None:
        """Start a thread for each reporter. `reporters` maps names to reporters."""
        self._plan, self._warehouse = plan, warehouse
        self._desks = [_Desk(name, reporter) for name, reporter in reporters.items()]
        self._generation = 0
        self._completed = self._failed = 0
        self._answers: dict[CheckpointId, tuple[str, ...]] = {}
        for desk in self._desks:
            desk.start()

    def claimed(self, claim: Claim, why: str) -> None:
        """Record the generation."""
        del why
        self._generation = claim.generation

    def completed(self, record: CheckpointRecord, notes: tuple[str, ...], versions: Mapping[TableName, int]) -> None:
        """Report a completed checkpoint."""
        del notes
        self._completed += 1
        self._answers.pop(record.checkpoint, None)
        self._tell(completed_event(self._plan.graph, self._warehouse, record, versions))

    def failed(
        self, checkpoint: CheckpointId, reason: CheckpointFailureReason, message: str, *, ends_tick: bool
    ) -> None:
        """Report a failed checkpoint."""
        del ends_tick
        self._failed += 1
        answers = self._answers.pop(checkpoint, ())
        self._tell(
            CheckpointFailed(
                job=self._plan.job,
                warehouse=self._warehouse,
                generation=self._generation,
                checkpoint=checkpoint,
                reason=reason.name,
                message=without_credentials(message or reason.message),
                at_ms=_now_ms(),
                suites=verdicts_in(answers),
            )
        )

    def progress(self, progress: Progress) -> None:
        """Keep the verdicts of suites until the checkpoint completes or fails."""
        if isinstance(progress, SuitesAnswered):
            before = self._answers.get(progress.checkpoint, ())
            self._answers[progress.checkpoint] = (*before, progress.report)

    @contextmanager
    def ending(self) -> "Iterator[ReportedTick]":
        """Report how the tick within this block ended, and wait for the reporters that are working.

        The block sets the tick's report in the yielded object. An error in the block is reported as a failed tick. But
        if the tick was refused because another process holds the job, nothing is reported, because nothing is wrong
        with the job.
        """
        ending = ReportedTick(time.monotonic())
        try:
            yield ending
        except JobHeldError:
            raise
        except Exception as error:
            self._ended(ending, TickOutcome.FAILED.value, type(error).__name__, message_of(error))
            raise
        else:
            report = ending.report
            if report is not None:
                reason = "" if report.reason is None else report.reason.name
                self._ended(ending, report.outcome.value, reason, report.message)
        finally:
            self._close()

    def _ended(self, ending: "ReportedTick", outcome: str, reason: str, message: str) -> None:
        self._tell(
            TickEnded(
                job=self._plan.job,
                warehouse=self._warehouse,
                generation=self._generation,
                outcome=outcome,
                reason=reason,
                message=without_credentials(message),
                at_ms=_now_ms(),
                duration_ms=round((time.monotonic() - ending.began) * 1000),
                completed=self._completed,
                failed=self._failed,
                restarts=0 if ending.report is None else ending.report.restarts,
            )
        )

    def _close(self) -> None:
        until = time.monotonic() + WAIT_S
        for desk in self._desks:
            desk.close()
        for desk in self._desks:
            desk.wait(until)

    def _tell(self, event: Event) -> None:
        for desk in self._desks:
            desk.put(event)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# ------------------------------------------------------------------
# Finds reporters by their names.


def _prometheus(settings: ReporterSettings, plan: JobPlan) -> Reporter:
    from jobs.tick.reporters.prometheus import PrometheusReporter  # noqa: PLC0415 - an extra

    return PrometheusReporter(plan.job, settings.prometheus_folder, settings.prometheus_push_url)


def _otlp(settings: ReporterSettings, plan: JobPlan) -> Reporter:
    del settings, plan
    from jobs.tick.reporters.otlp import OtlpReporter  # noqa: PLC0415 - an extra

    return OtlpReporter()


def _open_lineage(settings: ReporterSettings, plan: JobPlan) -> Reporter:
    del settings
    from jobs.tick.reporters.open_lineage import OpenLineageReporter  # noqa: PLC0415 - an extra

    return OpenLineageReporter(plan)


_KNOWN: Final[Mapping[str, Callable[[ReporterSettings, JobPlan], Reporter]]] = {
    "openlineage": _open_lineage,
    "otlp": _otlp,
    "prometheus": _prometheus,
}
_EXTRAS: Final = {"openlineage": "openlineage", "otlp": "otlp", "prometheus": "prometheus"}


def reporters_of(settings: ReporterSettings, plan: JobPlan, warehouse: Root) -> dict[str, Reporter]:
    """Return new reporters for a tick: those that the settings name, and the reporter that keeps a catalog.

    A name with a colon, `module:attribute`, is a class or function of the user's that returns a Reporter. Raises
    UnusableReporterError, UnusableCatalogError.
    """
    found = {name: _reporter(name, settings, plan) for name in settings.names}
    chosen = settings.catalog
    if chosen is not None:
        found[f"catalog {chosen.name}"] = CatalogReporter(plan, warehouse, open_catalog(chosen, plan.job))
    return found


def _reporter(name: str, settings: ReporterSettings, plan: JobPlan) -> Reporter:
    module, colon, attribute = name.partition(":")
    if colon:
        return _of_user(name, module, attribute)
    make = _KNOWN.get(name)
    if make is None:
        raise UnusableReporterError(
            f"there is no reporter {name!r}: {there_are(name, _KNOWN)}; write your own one as module:attribute"
        )
    try:
        return make(settings, plan)
    except ModuleNotFoundError as error:
        raise UnusableReporterError(
            f"the reporter {name} needs {error.name}, which is not installed: "
            f"pip install 'tidemark-spark[{_EXTRAS[name]}]'"
        ) from None


def _of_user(name: str, module: str, attribute: str) -> Reporter:
    try:
        made = getattr(import_module(module), attribute)()
    except Exception as error:
        raise UnusableReporterError(f"the reporter {name} cannot be made: {message_of(error)}") from error
    if not isinstance(made, Reporter):
        raise UnusableReporterError(f"the reporter {name} has no methods report, flush and close")
    return made
