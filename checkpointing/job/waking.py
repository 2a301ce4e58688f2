"""Finds when the job door has something to do again: at once, or at the earliest of all timers of the job."""

from checkpointing.job.wiring import Wiring
from checkpointing.messages import WakeAt


class Waking:
    """Remembers the time at which the door asked to be woken."""

    def __init__(self, linger_ms: int) -> None:
        """Begin without a timer. A vertex waits `linger_ms` for more segments."""
        self._linger_ms = linger_ms
        self._at_ms: int | None = None
        self.moved = True
        """True if the last pass over the job changed something, or if another fact than the time has come since."""

    def slept(self, job: Wiring, now_ms: int) -> bool:
        """Let time pass if nothing has moved and no timer is due. Otherwise return False: there may be work to do."""
        if self.moved or self.is_due(now_ms) or job.bystanders.restoring or job.readers.barrier_due:
            return False
        job.now_ms = max(job.now_ms, now_ms)
        job.coordinator.pass_time(job.now_ms)
        return True

    def is_due(self, now_ms: int) -> bool:
        """Return True if the earliest timer is due."""
        return self._at_ms is not None and self._at_ms <= now_ms

    def asked(self, job: Wiring) -> tuple[WakeAt, ...]:
        """Return the request to be woken, if its time has changed.

        A wait that is already over no longer depends on time, so it must not hide a later timer.
        """
        now_ms = job.now_ms
        waits = [job.ending.wake_at_ms, job.readers.next_poll_ms(now_ms), job.pause.until_ms]
        timers = [job.coordinator.wake_at_ms, job.bystanders.hooks.wake_at_ms]
        for run in job.runs.values():
            if run.collected:
                waits.append(run.collected_since_ms + self._linger_ms)
            timers.append(run.gate_wake_ms)
        due = [at for at in timers if at is not None]
        due += [at for at in waits if at is not None and at > now_ms]
        before, self._at_ms = self._at_ms, min(due, default=None)
        return () if self._at_ms in (None, before) else (WakeAt(self._at_ms),)
