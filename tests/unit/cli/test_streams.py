"""A stdout that is closed, full or read by nobody: no traceback, the work is done, and the exit code says how."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from jobs.cli.options import console, printable

TIDEMARK = str(Path(sys.executable).with_name("tidemark"))
PIPELINE = """
import sys
from jobs.cli import run as command
from jobs.tick.tick import run_tick
from tests.scenarios.runtime.sequence_job import LocalEngine, as_pipeline as build
command.run_tick = lambda *told: run_tick(*told, engine=LocalEngine())
"""
ROOT = Path(__file__).resolve().parents[3]


def shell(line, folder):
    """Run a line of bash there; return its exit code and what it printed on stderr."""
    (folder / "no_spark.py").write_text(PIPELINE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = ["bash", "-c", "set -o pipefail; " + line.replace("tidemark", TIDEMARK)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        ("| head -c 10 >/dev/null", ExitCode.DONE, ""),
        (">&-", ExitCode.DONE, ""),
        ("2>&-", ExitCode.DONE, ""),
        ("<&- >&- 2>&-", ExitCode.DONE, ""),
        (
            ">/dev/full",
            ExitCode.FAILED,
            (
                "tidemark: stdout could not be written (No space left on device), so a part of the report is lost; "
                "what was committed stays"
            ),
        ),
    ],
)
def test_a_tick_is_done_whatever_becomes_of_its_output(redirected, code, said, tmp_path):
    """The tables are whole, stderr has no traceback, and only a stdout that failed makes the command fail."""
    ended, err = shell(f"tidemark run no_spark:build --warehouse w {redirected}", tmp_path)
    assert code == ended, err
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert said in err
    assert len(list((tmp_path / "w/gold/by_key/_delta_log").glob("*.json"))) > 1


def test_help_into_a_pipe_that_is_closed_is_no_error(tmp_path):
    """The help may be cut off by `head`, like the help of any other program."""
    assert (0, "") == shell("tidemark --help | head -1 >/dev/null", tmp_path)


def test_a_job_that_is_held_is_one_exit_code(tmp_path):
    """The exit code is 3 for every command, since the class of the error decides."""
    from checkpointing.identifiers import Generation, job_name
    from checkpointing.metadata.record import Holder
    from jobs.cli.errors import code_of
    from jobs.warehouse.refusals import JobHeldError

    held = JobHeldError(job_name("numbers"), Holder(host="h", pid=1, started="s"), Generation(1), "it lives")
    assert ExitCode.HELD == code_of(held)


@pytest.mark.parametrize("option", ["--warehouse", "--data"])
def test_an_empty_name_of_a_folder_is_refused(option, capsys):
    """An empty name would mean the current folder, which no user means by it."""
    assert ExitCode.USAGE == execute(["explain" if option == "--data" else "run", "flights", option, ""])
    assert "'' names no folder; '.' is the current one" in capsys.readouterr().err


def test_names_from_data_reach_the_terminal_as_text(capsys):
    """No markup counts in a name, and no control character reaches the terminal. Styles of our own still do."""
    name = "a[red]b[/red]\x1b[2J\x1b]0;title\x07\x9b1m\rc"
    table = Table("[bold]head[/bold]")
    table.add_row(name)
    out = console()
    out.print(name, soft_wrap=True)
    out.print(Group(Text(name), table))
    printed = capsys.readouterr().out
    assert "a[red]b[/red]?[2J?]0;title" in printed
    assert "[bold]head[/bold]" in printed
    assert printable(printed) == printed
    assert ExitCode.NOT_THERE == execute(["run", "no\x1b[2Jsuch"])
    said = capsys.readouterr().err
    assert "such" in said
    assert "\x1b" not in said
