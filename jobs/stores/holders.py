"""Describes this process as a holder, and finds out whether another holder is alive (from /proc, or with `ps`).

A process id alone identifies no process: the system uses it again, and each container has ids of its own. So a holder's
`started` combines the boot of the machine, the pid namespace and the start time of the process. A process counts as
dead only if it belonged to this host and this namespace, and has certainly ended.
"""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from checkpointing.metadata.record import Holder

_PROC = Path("/proc")
_SEPARATOR = "|"


def this_process(dagster_run: str | None = None) -> Holder:
    """Return this process as a holder."""
    return Holder(host=socket.gethostname(), pid=os.getpid(), started=_started_now(), dagster_run=dagster_run)


def is_alive(holder: Holder, run_ended: Callable[[str], bool | None] | None = None) -> bool | None:
    """Return True if the holder's process is alive, False if it is dead, and None if this process cannot tell.

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
