"""Python environments of their own for tests: made from the project's wheel, at the versions of this environment."""

import hashlib
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from jobs.init.project import constraints
from jobs.spark.jars import jars_folder

ROOT = Path(__file__).resolve().parents[1]
UV = Path(sys.executable).with_name("uv")
INSTALLING = runpy.run_path(str(ROOT / ".ci" / "make_environment.py"))


def run(*words, cwd, environment=None):
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def without_this_checkout():
    mine = ("PYTHONPATH", "VIRTUAL_ENV", "TIDEMARK_", "PYSPARK_", "DAGSTER_")
    return {name: value for name, value in os.environ.items() if not name.startswith(mine)}


def linked(folder, to):
    """Copy a folder. The copy's files are hard links, so nobody may change them in place."""
    shutil.copytree(folder, to, symlinks=True, copy_function=os.link)


def with_wheel(folder, wheel, extras):
    """Make `folder`/env, an environment of the wheel with extras, as in "kafka,suites".

    The wheel's dependencies are installed only once, because that takes one to two minutes. They are kept beside the
    jars, under the hash of all versions.
    """
    versions = constraints() + (ROOT / "pyproject.toml").read_text() + extras
    kept = jars_folder() / f"environment-{hashlib.sha256(versions.encode()).hexdigest()[:12]}"
    if not (kept / "complete").exists():
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        install(kept, f"tidemark-spark[{extras}] @ {wheel.as_uri()}")
        (kept / "complete").touch()
    folder.mkdir(exist_ok=True)
    linked(kept / "env", folder / "env")
    install(folder, "--no-deps", "--reinstall-package", "tidemark-spark", wheel)


def install(folder, *what):
    (folder / "constraints.txt").write_text(constraints())
    if not (folder / "env").exists():
        run(UV, "venv", "--quiet", "--python", sys.executable, folder / "env", cwd=folder)
    environment = INSTALLING["uv_environment"]() | {"VIRTUAL_ENV": str(folder / "env")}
    command = [UV, "pip", "install", "--quiet", "--config-settings-package", INSTALLING["STORED"]]
    run(*command, "--constraint", folder / "constraints.txt", *what, cwd=folder, environment=environment)
