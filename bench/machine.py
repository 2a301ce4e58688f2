"""Describes the machine of a measurement, and the versions of the measured software."""

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("pyspark", "deltalake", "polars", "pyarrow", "dagster")


def machine() -> dict[str, str]:
    """Return a description of the machine. Facts that the machine does not reveal are left out."""
    memory_kb = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal:")), None)
    processor = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if "model name" in line), None)
    found = {
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": None if memory_kb is None else f"{int(memory_kb) / 2**20:.0f} GiB",
        "processor": processor,
        "system": f"{platform.system()} {platform.release()}",
        "load at the start": f"{os.getloadavg()[0]:.1f}",
    }
    return {name: value for name, value in found.items() if value}


def versions(peers: Mapping[str, Path]) -> dict[str, str]:
    """Return the versions of all measured software.

    `peers` has the Python of the environment of each peer's package.
    """
    found = {"python": platform.python_version(), "java": _java()} | {name: version(name) for name in _PACKAGES}
    for package, python in peers.items():
        if python.exists():
            asked = f"from importlib.metadata import version; print(version({package!r}))"
            found[package] = _said([str(python), "-c", asked]).strip()
    return found


def _java() -> str:
    words = _said(["java", "-version"]).splitlines()
    return words[0] if words else "none"


def _said(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603 - a fixed command
    return done.stdout or done.stderr


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
