"""Describes this process as a holder, and finds out whether another holder is alive (from /proc, or with `ps`).

A process id alone identifies no process: the system reuses ids, and each container has ids of its own. So a holder's
`started` combines the boot of the machine, the pid namespace and the start time of the process. A process is regarded
as dead only if it ran on this host and has certainly ended: the host was booted again, or the process is missing in
this pid namespace.
"""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import structlog
from pydantic import BaseModel, ConfigDict

from checkpointing.commit.fencing import Lease
from checkpointing.identifiers import Generation
from checkpointing.metadata.record import Claim, Holder
from jobs.storage.json_files import document, read_document
from jobs.warehouse.warehouse import Warehouse

_PROC = Path("/proc")
_SEPARATOR = "|"


def this_process(dagster_run: str | None = None) -> Holder:
    """Return the holder that describes this process."""
    return Holder(host=socket.gethostname(), pid=os.getpid(), started=_started_now(), dagster_run=dagster_run)


def is_alive(holder: Holder, run_ended: Callable[[str], bool | None] | None = None) -> bool | None:
    """Return True if the holder's process is alive, False if it is dead, and None if this process cannot find out.

    In the last case, `run_ended` is asked about the holder's Dagster run.
    """
    seen = _process_alive(holder)
    if seen is None and holder.dagster_run is not None and run_ended is not None and run_ended(holder.dagster_run):
        return False
    return seen


def _process_alive(holder: Holder) -> bool | None:
    if holder.host != socket.gethostname():
        return None
    boot, namespace, started = (*holder.started.split(_SEPARATOR, 2), "", "")[:3]
    if boot != _boot():
        return False if boot and _boot() else None
    return _start_time(holder.pid) == started if namespace == _namespace() else None


def _started_now() -> str:
    return _SEPARATOR.join((_boot(), _namespace(), _start_time(os.getpid()) or ""))


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Return the start time of a process, as an opaque text, or None if it has ended."""
    if not (_PROC / "self/stat").exists():
        return _start_time_by_ps(pid)
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, ticks = fields[0], fields[19]
    return None if state in ("Z", "X") else ticks


def _start_time_by_ps(pid: int) -> str | None:
    command = ["/bin/ps", "-o", "lstart=", "-p", str(pid)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed program
    return shown.stdout.strip() or None


# ------------------------------------------------------------------
# Renews a lease or a reservation from a thread of its own, before it expires.


RENEWALS_PER_LEASE: Final = 3


@contextmanager
def renewed(what: str, renew: Callable[[], bool], lease_ms: int, *, at_once: bool = False) -> Iterator[None]:
    """Call `renew` three times per `lease_ms` until the block ends or `renew` returns False. With `at_once`, begin now.

    If `renew` raises an OSError, the error is logged, and the next call tries again.
    """
    ended = threading.Event()

    def goes_on() -> bool:
        try:
            return renew()
        except OSError as failed:
            _log.warning("%s not renewed", what, error=str(failed))
            return True

    def keep() -> None:
        while not ended.wait(lease_ms / RENEWALS_PER_LEASE / 1000) and goes_on():
            pass

    thread = threading.Thread(target=keep, name=f"{what}-keeper", daemon=True)
    if not at_once or goes_on():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()


# ------------------------------------------------------------------
# Keeps the lease of a job's holder: a small JSON file, which is renewed by atomic replacement.
#
# The lease decides only whether other ticks leave the holder alone. A file that is missing, damaged or of another
# format is treated as no lease. A claim is safe without a lease, because of the compare-and-swap on `checkpoints`.


_log = structlog.get_logger(__name__)


class LeaseFile(BaseModel):
    """The content of the lease file. Times are in ms since the epoch, by the holder's clock."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: Literal[1] = 1
    generation: Generation
    holder: Holder
    renewed_at_ms: int
    expires_ms: int

    def lease(self) -> Lease:
        """Return the part of the lease that the fence needs."""
        return Lease(self.generation, self.expires_ms)


class LeaseStore:
    """The lease file of one job."""

    def __init__(self, warehouse: Warehouse) -> None:
        """Store the file's place. Nothing is read or written yet."""
        self._warehouse = warehouse
        self._place = warehouse.place(warehouse.paths.lease)

    def read(self) -> LeaseFile | None:
        """Return the lease, or None if there is no readable one."""
        return read_document(LeaseFile, self._place)

    def renew(self, generation: Generation, holder: Holder, lease_ms: int) -> bool:
        """Write the lease for `lease_ms` from now. Return False, without writing, if a newer generation has one."""
        there = self.read()
        if there is not None and there.generation > generation:
            return False
        now_ms = self._warehouse.now_ms()
        lease = LeaseFile(generation=generation, holder=holder, renewed_at_ms=now_ms, expires_ms=now_ms + lease_ms)
        self._place.replace(document(lease), durable=False)
        return True

    @contextmanager
    def kept(self, claim: Claim, lease_ms: int) -> Iterator[None]:
        """Write the lease of a claim, renew it until the block ends, and then delete it.

        A newer generation's lease is not touched, and ends the renewal. An OSError is only logged, since safety does
        not depend on the lease.
        """

        def renew() -> bool:
            return self.renew(claim.generation, claim.holder, lease_ms)

        try:
            with renewed("lease", renew, lease_ms, at_once=True):
                yield
        finally:
            try:
                self.release(claim.generation)
            except OSError as failed:
                _log.warning("lease not released", error=str(failed))

    def release(self, generation: Generation) -> None:
        """Delete the lease of this generation or of an older one. The lease of a newer generation is not touched."""
        there = self.read()
        if there is not None and there.generation <= generation:
            self._place.delete()
