"""The command line as a user meets it when something is wrong: one sentence, the way out, the exit code."""

import subprocess
import sys

import pytest

from jobs.cli.errors import CommandError, ExitCode, sentence_of
from jobs.cli.main import execute


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("rnu", "no such command 'rnu': did you mean 'run'?"),
        (
            "xyzzy",
            "there are init, run, package, savepoint, stop, cancel, approve, reject, cleanup, doctor, rollback, reset",
        ),
        (
            "stop flights",
            "say how to stop: 'tidemark stop flights --suspend' keeps the waiting rows in the state, 'tidemark",
        ),
        ("stop flights --drain --suspend", "say how to stop: 'tidemark stop flights --suspend'"),
        ("savepoint Flights", "such as flights"),
        ("savepoint --dispose x", "'tidemark savepoint --help' shows what can be given"),
        ("savepoint --dispose 3 --to x", "--dispose deletes a savepoint, --to copies a new one: give one of them"),
        ("run --bogus", "no such option: --bogus: 'tidemark run --help' shows what can be given"),
        ("run --warehose x", "no such option: --warehose: did you mean --warehouse?"),
        ("reset", "'tidemark reset --help' shows what can be given"),
        ("reset --to start", "say which source, as in 'tidemark reset SOURCE --to POSITION'"),
        ("run --checkpoints 0", "checkpoints (given on the command line): must be greater than or equal to 1"),
        ("run --set x", "--set x: write it as NAME=VALUE, like --set retained=5"),
        ("cut flights x", "'x' names no cut: write a checkpoint id like 7, 'latest', or a time like 2026-11-21T08:00"),
        ("state by_key --at x", "'x' names no cut: write a checkpoint id like 7, 'latest', or a time like 2026"),
        ("state by_key --sql mysql", "--sql mysql: write spark or duckdb"),
        ("state --sql spark", "--sql needs an operator: 'tidemark state' lists them"),
        ("state by_key --sql spark --key 7", "leave --key out, and add your condition to the query"),
        ("cut Flights", "such as flights"),
    ],
)
def test_what_was_typed_wrong_is_said_with_the_way_out(typed, said, capsys):
    """Exit code 2, one line on stderr, nothing on stdout, no traceback."""
    assert ExitCode.USAGE == execute(typed.split())
    shown = capsys.readouterr()
    assert "" == shown.out
    assert 1 == len(shown.err.splitlines())
    assert said in shown.err


@pytest.mark.parametrize(
    "command",
    [
        "checkpoints list",
        "checkpoints show 7",
        "cut",
        "cut flights 7",
        "state",
        "state silver_flights",
        "savepoint",
        "savepoint --dispose 1",
        "stop --drain",
    ],
)
def test_a_job_that_never_ran_is_no_traceback_and_leaves_no_trace(command, tmp_path, capsys):
    """A report creates nothing, and says what to run."""
    warehouse = tmp_path / "warehouse"
    assert ExitCode.NOT_THERE == execute([*command.split(), "--warehouse", str(warehouse)])
    assert f"flights has never run in {warehouse}: start it with 'tidemark run flights'" in capsys.readouterr().err
    assert not warehouse.exists()


def test_debug_shows_the_traceback_wherever_it_stands(capsys):
    """The sentence stays the last line."""
    assert ExitCode.NOT_THERE == execute(["run", "nope", "--debug"])
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("tidemark: there is no pipeline")


def test_help_costs_no_heavy_import():
    """`--help` must come at once, so no module is loaded that takes long to import."""
    program = (
        "import sys; from jobs.cli.main import execute; execute(['--help']);"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'pyspark','pyarrow','polars','deltalake','pydantic','great_expectations','numpy','rich'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.splitlines()[-1]


def test_a_foreign_error_is_shortened_and_ours_is_told_whole():
    """Tidemark's messages are written for users. A library's message may not be."""
    assert "KeyError: 'x'; add --debug for the traceback" == sentence_of(KeyError("x"))
    assert "a b" == sentence_of(CommandError("a b"))
