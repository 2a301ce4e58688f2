"""Measures a program with all its child processes: CPU seconds and peak memory, as Linux counts them.

A Spark program is a tree of processes (Python, the JVM, Python workers), so no single process shows the whole cost.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_AFTER_NAME: Final = 2
"""How many fields a line of `/proc/<pid>/stat` has up to the name in brackets, after which the line is split.

So the first field after the split is the third of the line.
"""


@dataclass(frozen=True, slots=True)
class _Process:
    """One process. `cpu_ticks` includes the time of its children that have ended and were waited for."""

    pid: int
    parent: int
    cpu_ticks: int


def cpu_seconds(root: int) -> float:
    """Return the CPU time of a process and its descendants so far, in seconds."""
    return sum(process.cpu_ticks for process in _tree(root)) / _TICKS_A_SECOND


def cpu_seconds_by_kind(root: int) -> dict[str, float]:
    """Return the CPU time so far of the process itself (`driver`), of JVMs (`jvm`) and of the rest (`workers`)."""
    ticks: dict[str, int] = {}
    for process in _tree(root):
        kind = "driver" if process.pid == root else _kind(process.pid)
        ticks[kind] = ticks.get(kind, 0) + process.cpu_ticks
    return {kind: used / _TICKS_A_SECOND for kind, used in ticks.items()}


def _kind(pid: int) -> str:
    try:
        program = Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return "workers"
    return "jvm" if program.endswith(b"java") else "workers"


def peak_memory_bytes(root: int) -> int:
    """Return the sum of the peak resident sizes (VmHWM) of all living processes of the tree.

    The peaks may come at different moments, so this is an upper bound.
    """
    return sum(_peak_bytes(process.pid) for process in _tree(root))


def _tree(root: int) -> list[_Process]:
    seen = {process.pid: process for process in _processes()}
    children: dict[int, list[int]] = {}
    for process in seen.values():
        children.setdefault(process.parent, []).append(process.pid)
    tree, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        waiting.extend(children.get(pid, ()))
        if pid in seen:
            tree.append(seen[pid])
    return tree


def _processes() -> list[_Process]:
    folders = (folder for folder in Path("/proc").iterdir() if folder.name.isdecimal())
    return [process for folder in folders if (process := _process(folder)) is not None]


def _process(folder: Path) -> _Process | None:
    """Return the process of a folder of /proc, or None if the process has ended in the meantime."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    used = [int(fields[field - 1 - _AFTER_NAME]) for field in (14, 15, 16, 17)]
    return _Process(int(folder.name), int(fields[3 - _AFTER_NAME]), sum(used))


def _peak_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
