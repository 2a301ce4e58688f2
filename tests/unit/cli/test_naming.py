"""How every command names a pipeline, and what each says of one that does not exist."""

import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.main import get_command

from jobs.cli.errors import ExitCode
from jobs.cli.main import app, execute
from jobs.cli.naming import completed
from jobs.project import OWN
from tests.scenarios.reading.keyed_job import JOB, KeyedJob

COMMANDS = (
    "run",
    "package",
    "savepoint",
    "stop --drain",
    "cancel",
    "approve",
    "reject",
    "cleanup",
    "doctor",
    "explain",
    "checkpoints list",
    "checkpoints show",
    "cut",
    "state",
    "rollback",
    "reset --to start",
)
"""Every command that is about a pipeline, with what else it must be given."""
WITHOUT_A_MODULE = [
    each for each in COMMANDS if each.split()[0] not in ("run", "package", "cancel", "explain", "reset")
]
MODULE = """
from tidemark import Pipeline, SequenceSource

def build(data):
    pipeline = Pipeline("counts")
    numbers = pipeline.source("numbers", SequenceSource({"all": 10}))
    numbers.table("bronze/numbers", id="bronze")
    return pipeline
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Work in a project with one pipeline, `counts`; its warehouse `lake` holds two checkpoints of it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delitem(sys.modules, "counting_of_a_test", raising=False)
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.tidemark]\nwarehouse = "lake"\n[tool.tidemark.pipelines]\ncounts = "counting_of_a_test:build"\n'
    )
    (tmp_path / "counting_of_a_test.py").write_text(MODULE)
    job = KeyedJob(tmp_path / "lake")
    job.epoch({("LAX", 1): (1, [7])})
    job.epoch({("SFO", 2): (5, [])})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(command, *words):
    """Return a command line with words in the place of its arguments."""
    names = [word for word in command.split() if not word.startswith("--")]
    names = names[: 1 + (names[0] == "checkpoints")]
    return [*names, *words, *command.split()[len(names) :]]


def test_each_command_takes_the_pipeline_as_its_first_argument():
    """All commands take the pipeline as the first argument, with the same completion. None has an option for it."""
    found = {}
    for name, command in get_command(app).commands.items():
        for inner, each in getattr(command, "commands", {"": command}).items():
            found[f"{name} {inner}".strip()] = each
    assert set(found) - {"init"} == {" ".join(typed(each)[: len(each.split(" --")[0].split())]) for each in COMMANDS}
    for name in set(found) - {"init"}:
        first, *others = found[name].params
        assert ("pipeline", "argument", False) == (first.name, first.param_type_name, first.required), name
        assert "pipeline" not in {each.name for each in others}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipeline_that_does_not_exist_is_one_exit_code_and_a_suggestion(project, command, capsys):
    """The exit code is 4, and the message names the registered pipeline that looks like it."""
    words = ["numbers"] if command.startswith("reset") else []
    assert ExitCode.NOT_THERE == execute(typed(command, "count", *words, *(["x"] if command == "state" else [])))
    said = capsys.readouterr().err
    assert "there is no pipeline 'count': did you mean 'counts'? there is only counts; register it under" in said
    assert 1 == len(said.splitlines())


@pytest.mark.parametrize("command", COMMANDS)
def test_outside_a_project_nothing_is_the_default(command, tmp_path, monkeypatch, capsys):
    """No command works on the demo or on another pipeline unless the user names it."""
    monkeypatch.chdir(tmp_path)
    words = ["numbers"] if command.startswith("reset") else []
    assert ExitCode.USAGE == execute(typed(command, *words))
    assert "say which pipeline: no pyproject.toml here or above names a default one" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("reference", [None, "counts", "counting_of_a_test:build"])
@pytest.mark.parametrize("command", ["checkpoints list", "cut", "state", "explain"])
def test_a_pipeline_is_named_alike_everywhere(project, reference, command, capsys):
    """By default, by its registered name, by its module: always the job `counts` of the project's warehouse."""
    assert ExitCode.DONE == execute(typed(command, *([] if reference is None else [reference])))
    said = capsys.readouterr().out
    assert "numbers" in said if command == "explain" else "counts" in said


def test_one_word_may_be_the_operator_the_number_or_the_moment(project, capsys):
    """The default pipeline is left out."""
    for words in (["state", "by_key"], ["checkpoints", "show", "1"], ["cut", "1"], ["cut", "latest"]):
        assert ExitCode.DONE == execute(words), words
        assert "counts" in capsys.readouterr().out
    assert ExitCode.DONE == execute(["state", "counts", "by_key", "--at", "1"])
    assert "state of by_key at cut 1 of counts" in capsys.readouterr().out


def test_several_pipelines_without_a_default_are_asked_for(project, capsys):
    """The message names them, and how one becomes the default."""
    (project / "pyproject.toml").write_text('[tool.tidemark.pipelines]\na = "m:a"\nb = "m:b"\n')
    assert ExitCode.USAGE == execute(["cut"])
    assert 'registers a, b, and none as the default ([tool.tidemark] default = "a")' in capsys.readouterr().err


def test_a_job_that_only_the_warehouse_knows_is_found_by_its_name(project, capsys):
    """A pipeline that is no longer registered can still be looked at."""
    (project / "pyproject.toml").write_text('[tool.tidemark]\nwarehouse = "lake"\n')
    assert ExitCode.DONE == execute(["cut", JOB])
    assert ExitCode.DONE == execute(["state", JOB])
    assert ExitCode.NOT_THERE == execute(["cut", "count"])
    assert "did you mean 'counts'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rollback 99", "counts has no checkpoint or savepoint 99: it can go back to 1"),
        ("cut 99", "checkpoint 99 of counts is not retained"),
        ("checkpoints show 99", "checkpoint 99 of counts is not retained: there are 2, 1"),
        ("savepoint --dispose 99", "counts has no savepoint 99"),
        ("state nobody", "has no state of an operator 'nobody': there is only by_key"),
        ("state by_kye", "has no state of an operator 'by_kye': did you mean 'by_key'? there is only by_key"),
        ("reset nobody --to start", "counts reads no source 'nobody': there is none"),
        ("run --from 99 --dry-run", "there is no checkpoint or savepoint 99 in"),
        ("run --from nowhere --dry-run", "no such folder"),
        ("run nobody:build", "there is no module 'nobody'"),
        ("run counting_of_a_test:bild", "has no 'bild': did you mean counting_of_a_test:build?"),
        ("cut --warehouse nowhere", "counts has never run in "),
        ("rollback 1 --warehouse nowhere", "counts has never run in "),
    ],
)
def test_whatever_does_not_exist_is_one_exit_code(project, words, said, capsys):
    """The exit code is 4, and one line lists what exists."""
    assert ExitCode.NOT_THERE == execute(words.split())
    shown = capsys.readouterr().err
    assert said in shown
    assert 1 == len(shown.splitlines())


def test_a_broken_project_table_is_one_sentence(project, capsys):
    """Every command reads pyproject.toml, so every command says what is wrong in it."""
    (project / "pyproject.toml").write_text("[tool.tidemark]\nwarehous = 'x'\n")
    for words in (["cut"], ["run"], ["doctor", "counts"], ["explain", "counting_of_a_test:build"]):
        assert ExitCode.USAGE == execute(words)
        assert "did you mean 'warehouse'?" in capsys.readouterr().err


def test_the_shell_completes_registered_names_and_jobs_of_the_warehouse(project):
    """Completion gives the pipelines that begin with the typed letters. Outside a project these are Tidemark's own."""
    assert ["counts"] == completed("co") == completed("")
    assert [] == completed("x")
    (project / "pyproject.toml").write_text("not toml")
    assert [] == completed("")


def test_outside_a_project_the_shell_completes_our_own(tmp_path, monkeypatch):
    """The demo and the worked example."""
    monkeypatch.chdir(tmp_path)
    assert list(OWN) == completed("")


def test_the_installed_command_answers_the_shell(project):
    """The protocol that `--install-completion` sets up."""
    words = {"_TIDEMARK_COMPLETE": "complete_bash", "COMP_WORDS": "tidemark doctor ", "COMP_CWORD": "2"}
    environment = {"PATH": "/usr/bin:/bin", "TERM": "dumb"} | words
    command = [f"{sys.prefix}/bin/tidemark"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert "counts" == done.stdout.strip(), done.stderr


@pytest.mark.parametrize("words", [[], ["run"], ["checkpoints"], ["checkpoints", "show"], ["state"]])
def test_help_has_a_short_form_everywhere(words, capsys):
    """`-h` is `--help`."""
    assert ExitCode.DONE == execute([*words, "-h"])
    assert "Usage: tidemark" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    """With the name of the distribution, which is not the name of the command."""
    assert ExitCode.DONE == execute(["--version"])
    assert f"tidemark {version('tidemark-spark')} (tidemark-spark)" == capsys.readouterr().out.strip()
