"""Fetches the sets of jars that sessions need beyond Spark's own jars, once, with Ivy, and checks them.

`python -m jobs.spark.jars` fetches Delta's set, and `python -m jobs.spark.jars kafka` another one (`jar_sets`). A tick
itself fetches the sets that its sources need.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rich.console import Console

from jobs.spark.environment import spark_environment, spark_home
from jobs.spark.jar_sets import DELTA, JAR_SETS, JarSet

JARS_VARIABLE = "TIDEMARK_JARS"


class JarsError(Exception):
    """The jars are missing, cannot be fetched, or are not the locked ones. The message says what to type."""


def jars_folder() -> Path:
    """Return the folder of the jars: TIDEMARK_JARS, or `.jars` of the checkout, or a folder in the Python environment.

    An installed package has no folder of its own, and may not be writable.
    """
    named = os.environ.get(JARS_VARIABLE)
    above = Path(__file__).resolve().parents[2]
    if named:
        return Path(named)
    return (above if (above / "pyproject.toml").is_file() else Path(sys.prefix)) / ".jars"


def jar_set(name: str) -> JarSet:
    """Return the set of that name. Raise JarsError with all names if there is none."""
    found = JAR_SETS.get(name)
    if found is None:
        raise JarsError(f"there is no set of jars {name!r}: the sets are {', '.join(sorted(JAR_SETS))}")
    return found


def delta_jars() -> tuple[Path, ...]:
    """Return the paths of all jars that a session with Delta needs; raise JarsError as `jars_of` does."""
    return jars_of(DELTA)


def jars_of(jars: JarSet) -> tuple[Path, ...]:
    """Return the absolute paths of all jars of a set.

    Raises JarsError with the first missing jar and the command that fetches it.
    """
    for path in _paths(jars):
        if not path.exists():
            raise JarsError(f"{path} is missing: fetch the {jars.serves} jars with '{fetch_command(jars)}'")
    return _paths(jars)


def fetch_command(jars: JarSet) -> str:
    """Return the command that fetches a set."""
    return f"{sys.executable} -m jobs.spark.jars" + ("" if jars is DELTA else f" {jars.name}")


def not_fetched(names: Iterable[str]) -> tuple[JarSet, ...]:
    """Return the sets that lack a jar. Raise JarsError for a name of no set."""
    return tuple(each for each in map(jar_set, names) if not all(path.exists() for path in _paths(each)))


def fetch(folder: Path, jars: JarSet = DELTA) -> int:
    """Fetch the missing jars of a set into `folder`. Return how many were fetched.

    Spark's Ivy resolves them with the user's own Ivy settings (spark-defaults.conf, if there is one). Raises JarsError
    with Ivy's last output if it does not succeed.
    """
    return fetch_locked(folder, jars.locked, lambda ivy: _resolve(ivy, jars))


def fetch_locked(folder: Path, locked: Mapping[str, str], resolve: Callable[[Path], Mapping[str, Path]]) -> int:
    """Fetch the missing ones of these jars into `folder`, and check their SHA-256. Return how many were fetched.

    `resolve` brings jars into an empty folder, and returns their paths by name. A rename puts each whole jar into its
    place. Raises JarsError for a jar that did not come, or that is another one.
    """
    missing = [name for name in locked if not (folder / name).exists()]
    if not missing:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    ivy = Path(tempfile.mkdtemp(prefix=".ivy-", dir=folder))
    try:
        fetched = resolve(ivy)
        for name in missing:
            _checked(name, fetched, locked[name]).replace(folder / name)
    finally:
        shutil.rmtree(ivy, ignore_errors=True)
    return len(missing)


def _paths(jars: JarSet) -> tuple[Path, ...]:
    return tuple((jars_folder() / name).absolute() for name in jars.locked)


def _resolve(ivy: Path, jars: JarSet) -> dict[str, Path]:
    """Let spark-submit resolve the packages into `ivy`. Return the jars by their names without the group."""
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--packages", ",".join(jars.coordinates)),
        *(("--exclude-packages", ",".join(jars.left_out)) if jars.left_out else ()),
        *("--conf", f"spark.jars.ivy={ivy.absolute()}"),
        *("--class", "org.apache.hadoop.util.VersionInfo", "spark-internal"),  # the smallest main that Spark has
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=spark_environment())  # noqa: S603
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        what = ", ".join(jars.coordinates)
        raise JarsError(f"Ivy could not fetch {what}; is the network reachable? It said last:\n{words}")
    return {path.name.partition("_")[2]: path for path in (ivy / "jars").glob("*.jar")}


def _checked(name: str, fetched: Mapping[str, Path], sha256: str) -> Path:
    path = fetched.get(name)
    if path is None:
        raise JarsError(f"Ivy did not bring {name}, only {sorted(fetched)}: the locked jars and {__file__} disagree")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise JarsError(f"{name} has SHA-256 {found}, not the locked {sha256}: do not trust where it came from")
    return path


def main(names: list[str]) -> None:
    """Fetch the named sets, or Delta's if none is named, and say how long it took.

    If it fails, say why and exit with 1.
    """
    console = Console(stderr=True, markup=False, emoji=False)
    folder = jars_folder()
    try:
        for jars in map(jar_set, names or [DELTA.name]):
            started = time.monotonic()
            with console.status(f"fetching the {jars.serves} jars"):
                count = fetch(folder, jars)
            how = f"{count} fetched, {time.monotonic() - started:.0f} s" if count else "all there"
            told = f"{len(jars.locked)} {jars.serves} jars in {folder}: {how}"
            console.print(told, highlight=False, soft_wrap=True)
    except JarsError as error:
        sys.exit(f"tidemark: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
