"""Fetches the Delta jar and what it needs beyond Spark's own jars, once, with Ivy, and checks them.

A tick needs none of them, since delta-rs publishes its tables. A Spark session needs them if it reads or writes tables
by Delta's own SQL, as the tests and benchmarks do.

Delta's dependencies also name libraries that Spark has in newer versions (Hadoop, Parquet, Jackson, log4j: 74 MB).
These are left out, so that one version of each is on the class path.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from jobs.spark.environment import spark_environment, spark_home

DELTA_COORDINATE = "io.delta:delta-spark_4.2_2.13:4.4.0"

LOCKED: Mapping[str, str] = {
    "delta-spark_4.2_2.13-4.4.0.jar": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    "delta-kernel-api-4.4.0.jar": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    "delta-kernel-defaults-4.4.0.jar": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    "delta-kernel-unitycatalog-4.4.0.jar": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    "unitycatalog-client-0.6.0.jar": "48257499a86b801a3e2372cec55ac226ca1c1c7eabe5c118e7302f29a1fdbc19",
    "unitycatalog-hadoop-0.6.0.jar": "c47b63c961c87102b9e1d63809a0915ba4c86b7652f57c8d39ca3a05b441a150",
    "jackson-datatype-jdk8-2.13.5.jar": "e58761751fea8a00dc626aae1c5f1be38c5cfd487aeb333d933a4ab5f5a73c55",
}
"""The SHA-256 of every jar. A jar with another one is refused."""

JARS_VARIABLE = "TIDEMARK_JARS"

_CARRIED_BY_SPARK = (
    "com.fasterxml.jackson.core:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "commons-logging:*",
    "commons-pool:*",
    "io.airlift:*",
    "org.apache.hadoop:*",
    "org.apache.logging.log4j:*",
    "org.apache.parquet:*",
    "org.locationtech.jts:*",
    "org.roaringbitmap:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)


class JarsError(Exception):
    """The jars are missing, cannot be fetched or are not the locked ones; the message says what to type."""


def jars_folder() -> Path:
    """Return the folder of the jars: what TIDEMARK_JARS names, else `.jars` of the checkout, else of the environment.

    An installed package has no folder of its own, and may not be writable.
    """
    named = os.environ.get(JARS_VARIABLE)
    above = Path(__file__).resolve().parents[2]
    if named:
        return Path(named)
    return (above if (above / "pyproject.toml").is_file() else Path(sys.prefix)) / ".jars"


def delta_jars() -> tuple[Path, ...]:
    """Return the paths of all jars that a session with Delta needs, absolute.

    Raises JarsError naming the first one that is missing and the command that fetches it.
    """
    paths = tuple((jars_folder() / name).absolute() for name in LOCKED)
    for path in paths:
        if not path.exists():
            raise JarsError(f"{path} is missing: fetch the Delta jars with '{sys.executable} -m jobs.spark.jars'")
    return paths


def fetch(folder: Path, coordinate: str = DELTA_COORDINATE, locked: Mapping[str, str] | None = None) -> int:
    """Fetch what is missing of the locked jars of a package into `folder`, Delta's by default; return how many were.

    Ivy, as Spark has it, resolves them with the user's own Ivy settings (spark-defaults.conf, if any).
    Each jar appears whole, by a rename. Raises JarsError with Ivy's last words if it does not succeed.
    """
    locked = LOCKED if locked is None else locked
    missing = [name for name in locked if not (folder / name).exists()]
    if not missing:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    ivy = Path(tempfile.mkdtemp(prefix=".ivy-", dir=folder))
    try:
        fetched = _resolve(ivy, coordinate)
        for name in missing:
            _checked(name, fetched, locked[name]).replace(folder / name)
    finally:
        shutil.rmtree(ivy, ignore_errors=True)
    return len(missing)


def _resolve(ivy: Path, coordinate: str) -> dict[str, Path]:
    """Let spark-submit resolve the package into `ivy`; return the jars by their name without the group."""
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--packages", coordinate, "--exclude-packages", ",".join(_CARRIED_BY_SPARK)),
        *("--conf", f"spark.jars.ivy={ivy.absolute()}"),
        *("--class", "org.apache.hadoop.util.VersionInfo", "spark-internal"),  # the smallest main that Spark has
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=spark_environment())  # noqa: S603
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise JarsError(f"Ivy could not fetch {coordinate}; is the network reachable? It said last:\n{words}")
    return {path.name.partition("_")[2]: path for path in (ivy / "jars").glob("*.jar")}


def _checked(name: str, fetched: Mapping[str, Path], sha256: str) -> Path:
    path = fetched.get(name)
    if path is None:
        raise JarsError(f"Ivy did not bring {name}, only {sorted(fetched)}: the locked jars and {__file__} disagree")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise JarsError(f"{name} has SHA-256 {found}, not the locked {sha256}: do not trust where it came from")
    return path


def main() -> None:
    """Fetch the jars and say how long it took; on failure say why and exit 1."""
    console = Console(stderr=True)
    folder = jars_folder()
    started = time.monotonic()
    try:
        with console.status("fetching the Delta jars"):
            count = fetch(folder)
    except JarsError as error:
        sys.exit(f"tidemark: {error}")
    how = f"{count} fetched, {time.monotonic() - started:.0f} s" if count else "all there"
    console.print(f"{len(LOCKED)} Delta jars in {folder}: {how}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
