"""A user's code that raises, as the command line tells it: file and line, the own lines of the traceback, exit code."""

import sys

import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute

BROKEN = {
    "absent": ("import nothing_such\n", "line 1", "ModuleNotFoundError: No module named 'nothing_such'"),
    "syntax": ("x = 1\ndef f(:\n", "line 2", "SyntaxError: invalid syntax"),
    "raises": ("def build(data):\n    return 1 / 0\n", "line 2", "ZeroDivisionError: division by zero"),
}
FAILING = """
from jobs.pipeline import Pipeline
from jobs.sources.hybrid import SequenceSource

BREAKS_AT = 1


class Shaky(SequenceSource):
    polls = 0

    def poll(self, poll):
        Shaky.polls += 1
        if Shaky.polls >= BREAKS_AT:
            raise RuntimeError("the network is down")
        return super().poll(poll)


def build(data):
    pipeline = Pipeline("failing")
    pipeline.source("numbers", Shaky({"a": 10})).table("bronze/numbers", id="bronze")
    return pipeline
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module that can be imported, and return its file."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return tmp_path / f"{name}.py"

    return write


@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_a_pipeline_whose_module_raises_is_named_with_file_and_line(kind, module, capsys):
    """The import or the function that builds the pipeline may raise. `--debug` shows the whole traceback."""
    text, line, said = BROKEN[kind]
    file = module(f"broken_{kind}", text)
    assert ExitCode.FAILED == execute(["explain", f"broken_{kind}:build"])
    err = capsys.readouterr().err
    assert err.startswith(f"tidemark: pipeline 'broken_{kind}:build' could not be ")
    assert said in err.splitlines()[0]
    assert f"{file}, {line}" in err.splitlines()[0]
    assert ": correct it and run again" in err.splitlines()[0]
    assert "registry.py" not in err
    assert ExitCode.FAILED == execute(["explain", f"broken_{kind}:build", "--debug"])
    assert "registry.py" in capsys.readouterr().err


def test_a_source_that_raises_before_the_tick_begins_is_told_alike(module, tmp_path, capsys):
    """The command counts the unread rows before it claims the job."""
    at_once = FAILING.replace("poll(self, poll)", "lag(self, poll)").replace(".poll(", ".lag(")
    file = module("failing_at_once", at_once)
    assert ExitCode.FAILED == execute(["run", "failing_at_once:build", "--warehouse", str(tmp_path / "warehouse")])
    err = capsys.readouterr().err
    assert f"RuntimeError: the network is down (in lag, {file}, line 14)" in err.splitlines()[0]
    assert '    raise RuntimeError("the network is down")' in err


def test_a_failed_tick_shows_the_users_line_and_no_success(module, tmp_path, capsys):
    """The summary of a tick that is caught up is not shown for a failed tick."""
    file = module("failing_source", FAILING)
    typed = ["run", "failing_source:build", "--warehouse", str(tmp_path / "warehouse")]
    assert ExitCode.FAILED == execute(typed)
    shown = capsys.readouterr()
    assert "" == shown.out
    said = next(line for line in shown.err.splitlines() if line.startswith("tidemark: "))
    assert f"RuntimeError: the network is down (in poll, {file}, line 14)" in said
    assert '    raise RuntimeError("the network is down")' in shown.err
    assert "driver.py" not in shown.err
    traces = (tmp_path / "warehouse").rglob("*.ndjson")
    assert any("raise RuntimeError" in trace.read_text() for trace in traces)
    sys.modules["failing_source"].Shaky.polls = 0
    assert ExitCode.FAILED == execute([*typed, "--debug"])
    assert "jobs/tick/effects.py" in capsys.readouterr().err
