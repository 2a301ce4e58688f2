"""Runs tests on the versions of Spark that `.venv` does not have, each in an environment of its own.

`locks` has a file for each version, with the packages that differ from `requirements.lock`.

Without an argument, this runs the Spark tests of the small share on all versions, one after the other. With `today`, it
runs a few representative tests on one version, which changes daily. The environments lie in `.spark-versions`. Each is
made when it is first needed, and made again when a lock has changed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / ".spark-versions"
PYTHONS = {"4.0": "3.12", "4.1": "3.11", "4.3": "3.13"}
"""The Python for each version of Spark. If this machine lacks it, the Python of `.venv` is used."""
SMALL_SHARE = ["--share", "small", "-m", "(spark or kill) and not dear and not browser"]
TELLING = [
    "tests/scenarios/test_input_formats.py",
    "tests/scenarios/test_jobs_on_spark.py",
    "tests/scenarios/test_trial.py",
    "tests/scenarios/operators/test_keyed_vertex.py",
    "tests/scenarios/runtime/test_tick.py",
    "tests/scenarios/faults/test_epochs_and_races.py",
]
"""Tests of the types of every format, of keyed state, joins, ticks in processes that are killed, and Spark Connect."""


def main(words: list[str]) -> None:
    """Test on one version or on all. If a test fails, name the versions and exit with 1."""
    versions = list(PYTHONS)
    if words == ["today"]:
        versions = [versions[datetime.now(UTC).toordinal() % len(versions)]]
    elif words:
        versions = words
    red = [each for each in versions if not tested(each, TELLING if words == ["today"] else [])]
    if red:
        sys.exit(f"tests are red on Spark {', '.join(red)}: see above")


def tested(version: str, files: list[str]) -> bool:
    """Return whether the tests pass on this version of Spark."""
    python = environment(version)
    say(f"Spark {version} with {shown(python)}")
    own = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", "pytest", "-q", f"--randomly-seed={os.environ.get('SEED', '1')}"]
    spread = ["-n", os.environ.get("SPARKS", "2"), "--dist", "loadfile"]
    return not subprocess.run(  # noqa: S603 - our own tests
        [*command, *spread, *SMALL_SHARE, *files], check=False, cwd=ROOT, env=os.environ | own
    ).returncode


def environment(version: str) -> Path:
    """Return the Python of a version's environment, and make it anew if a lock has changed."""
    lock = ROOT / "locks" / f"spark-{version}.lock"
    if version not in PYTHONS or not lock.exists():
        sys.exit(f"there is no lock for Spark {version}: the versions are {', '.join(PYTHONS)}")
    folder = ENVIRONMENTS / version
    python, note = folder / "bin" / "python", folder / ".complete"
    locked = hashlib.sha256(lock.read_bytes() + (ROOT / "requirements.lock").read_bytes()).hexdigest()
    if not note.exists() or note.read_text() != locked:
        started = time.monotonic()
        subprocess.run([program(PYTHONS[version]), "-m", "venv", folder], check=True)  # noqa: S603 - ours
        maker = ROOT / ".ci" / "make_environment.py"
        subprocess.run([python, maker, lock.relative_to(ROOT)], check=True)  # noqa: S603 - the same
        note.write_text(locked)
        say(f"environment of Spark {version}, {time.monotonic() - started:.0f} s")
    return python


def program(version: str) -> str:
    """Return a Python of this version, or the running one if the machine has none."""
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    found = [shutil.which(f"python{version}"), *map(str, kept)]
    return next((path for path in found if path and shown(Path(path)).startswith(f"Python {version}.")), sys.executable)


def shown(python: Path) -> str:
    """Return the version of a Python, or an empty text if the Python does not start."""
    done = subprocess.run([python, "--version"], check=False, capture_output=True, text=True)  # noqa: S603 - the same
    return done.stdout.strip()


def say(what: str) -> None:
    """Print a message on stderr."""
    print(what, file=sys.stderr, flush=True)  # noqa: T201 - this is a command


if __name__ == "__main__":
    main(sys.argv[1:])
