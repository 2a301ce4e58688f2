"""What a user sees on the command line when something is wrong: one sentence, the way out and the exit code."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import LongType, StructType
from rich.console import Group
from rich.table import Table
from rich.text import Text
from typer.main import get_command

from checkpointing.identifiers import CheckpointId, Generation, JobName, SplitId, TableName, VertexId
from checkpointing.metadata.paths import ProtocolPaths
from checkpointing.metadata.record import Claim, Holder, Release
from jobs.cli.change_commands import consequences
from jobs.cli.errors import CommandError, ExitCode, naming_pipeline, sentence_of
from jobs.cli.main import app, execute
from jobs.cli.naming import completed
from jobs.cli.options import console, printable
from jobs.project import OWN
from jobs.reading import Cuts
from jobs.reading.cut_sql import view_name
from jobs.showing.cut import recipes
from jobs.sources.files.file_position import FilePosition
from jobs.sources.files.file_source import FileSource
from jobs.sources.port import SourceError
from jobs.sources.position_words import PositionWords
from jobs.tick.rollback_plan import SplitBack
from jobs.warehouse.checkpoints import CheckpointStore
from jobs.warehouse.cuts_table import CutStore
from jobs.warehouse.job_stores import newest_restorable
from jobs.warehouse.warehouse import Warehouse
from tests.scenarios.reading.keyed_job import JOB, KeyedJob
from tests.unit.sources.gaps import Gaps


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
        ("cut 1 --sql mysql", "--sql mysql: write spark or duckdb"),
        ("cut 1 --sql spark --dbt", "write one of them"),
        ("cut 1 --schema then", "--schema is for the views of --sql"),
        ("state --sql spark", "--sql needs an operator: 'tidemark state' lists them"),
        ("state by_key --sql spark --key 7", "leave --key out, and add your condition to the query"),
        ("cut Flights", "such as flights"),
    ],
)
def test_what_was_typed_wrong_is_said_with_the_way_out(typed, said, capsys):
    """The command ends with exit code 2. It prints one line on stderr, nothing on stdout, and no traceback."""
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
    """A report on such a job creates no file, and its message says what to run."""
    warehouse = tmp_path / "warehouse"
    assert ExitCode.NOT_THERE == execute([*command.split(), "--warehouse", str(warehouse)])
    assert f"flights has never run in {warehouse}: start it with 'tidemark run flights'" in capsys.readouterr().err
    assert not warehouse.exists()


def test_debug_shows_the_traceback_wherever_it_stands(capsys):
    """The sentence is still the last line, below the traceback."""
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


# ------------------------------------------------------------------
# What the command line reports if a user's code raises: file and line, the user's lines of the traceback, exit code.


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
    """Both the import of the module and the function that builds the pipeline may raise.

    `--debug` shows the whole traceback.
    """
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
    """The source raises while the command counts the unread rows, before it claims the job."""
    at_once = FAILING.replace("poll(self, poll)", "lag(self, poll)").replace(".poll(", ".lag(")
    file = module("failing_at_once", at_once)
    assert ExitCode.FAILED == execute(["run", "failing_at_once:build", "--warehouse", str(tmp_path / "warehouse")])
    err = capsys.readouterr().err
    assert f"RuntimeError: the network is down (in lag, {file}, line 14)" in err.splitlines()[0]
    assert '    raise RuntimeError("the network is down")' in err


def test_a_failed_tick_shows_the_users_line_and_no_success(module, tmp_path, capsys):
    """A failed tick does not print the summary of a tick that is caught up."""
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


# ------------------------------------------------------------------
# If stdout is closed, full or read by nobody, the work is still done. No traceback is printed, and the exit code is
# right.


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
    """Run a line of bash in the folder. Return its exit code and what it printed on stderr."""
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
    """The tables are complete, and stderr has no traceback. The command fails only if writing to stdout failed."""
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
    """The exit code is 3 for every command, since it follows from the class of the error."""
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
    """Markup in a name is printed as text.

    Control characters in a name never reach the terminal, but our own styles do.
    """
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


# ------------------------------------------------------------------
# How a user names a pipeline in each command, and what the command reports if the pipeline does not exist.


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
    "forget --where key=3",
)
"""Every command that takes a pipeline, with its other required words."""
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
    """Work in a project with one pipeline, `counts`. Its warehouse `lake` holds two checkpoints of that pipeline."""
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
    """The exit code is 4. The message suggests the registered pipeline with the most similar name."""
    words = ["numbers"] if command.startswith(("reset", "forget")) else []
    assert ExitCode.NOT_THERE == execute(typed(command, "count", *words, *(["x"] if command == "state" else [])))
    said = capsys.readouterr().err
    assert "there is no pipeline 'count': did you mean 'counts'? there is only counts; register it under" in said
    assert 1 == len(said.splitlines())


@pytest.mark.parametrize("command", COMMANDS)
def test_outside_a_project_nothing_is_the_default(command, tmp_path, monkeypatch, capsys):
    """No command works on the demo or on another pipeline unless the user names it."""
    monkeypatch.chdir(tmp_path)
    words = ["numbers"] if command.startswith(("reset", "forget")) else []
    assert ExitCode.USAGE == execute(typed(command, *words))
    assert "say which pipeline: no pyproject.toml here or above names a default one" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("reference", [None, "counts", "counting_of_a_test:build"])
@pytest.mark.parametrize("command", ["checkpoints list", "cut", "state", "explain"])
def test_a_pipeline_is_named_alike_everywhere(project, reference, command, capsys):
    """The default, the registered name and the module all lead to the job `counts` in the project's warehouse."""
    assert ExitCode.DONE == execute(typed(command, *([] if reference is None else [reference])))
    said = capsys.readouterr().out
    assert "numbers" in said if command == "explain" else "counts" in said


def test_one_word_may_be_the_operator_the_number_or_the_moment(project, capsys):
    """If the pipeline is left out, the default one is meant.

    A single word may then be an operator, a number or a moment.
    """
    for words in (["state", "by_key"], ["checkpoints", "show", "1"], ["cut", "1"], ["cut", "latest"]):
        assert ExitCode.DONE == execute(words), words
        assert "counts" in capsys.readouterr().out
    assert ExitCode.DONE == execute(["state", "counts", "by_key", "--at", "1"])
    assert "state of by_key at cut 1 of counts" in capsys.readouterr().out


def test_several_pipelines_without_a_default_are_asked_for(project, capsys):
    """The message names the pipelines, and says how to make one the default."""
    (project / "pyproject.toml").write_text('[tool.tidemark.pipelines]\na = "m:a"\nb = "m:b"\n')
    assert ExitCode.USAGE == execute(["cut"])
    assert 'registers a, b, and none as the default ([tool.tidemark] default = "a")' in capsys.readouterr().err


def test_a_job_that_only_the_warehouse_knows_is_found_by_its_name(project, capsys):
    """Reports still work on the job of a pipeline that is no longer registered."""
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
    assert ExitCode.NOT_THERE == execute(words.split())
    shown = capsys.readouterr().err
    assert said in shown
    assert 1 == len(shown.splitlines())


def test_a_broken_project_table_is_one_sentence(project, capsys):
    """Every command reads pyproject.toml, so every command reports an error in it."""
    (project / "pyproject.toml").write_text("[tool.tidemark]\nwarehous = 'x'\n")
    for words in (["cut"], ["run"], ["doctor", "counts"], ["explain", "counting_of_a_test:build"]):
        assert ExitCode.USAGE == execute(words)
        assert "did you mean 'warehouse'?" in capsys.readouterr().err


def test_the_shell_completes_registered_names_and_jobs_of_the_warehouse(project):
    """Completion gives the pipelines that begin with the typed letters.

    Without a readable pyproject.toml, it gives none of the project's.
    """
    assert ["counts"] == completed("co") == completed("")
    assert [] == completed("x")
    (project / "pyproject.toml").write_text("not toml")
    assert [] == completed("")


def test_outside_a_project_the_shell_completes_our_own(tmp_path, monkeypatch):
    """Outside a project, the shell completes the demo and the worked example."""
    monkeypatch.chdir(tmp_path)
    assert list(OWN) == completed("")


def test_the_installed_command_answers_the_shell(project):
    """The test speaks the protocol that `--install-completion` sets up."""
    words = {"_TIDEMARK_COMPLETE": "complete_bash", "COMP_WORDS": "tidemark doctor ", "COMP_CWORD": "2"}
    environment = {"PATH": "/usr/bin:/bin", "TERM": "dumb"} | words
    command = [f"{sys.prefix}/bin/tidemark"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert "counts" == done.stdout.strip(), done.stderr


@pytest.mark.parametrize("words", [[], ["run"], ["checkpoints"], ["checkpoints", "show"], ["state"]])
def test_help_has_a_short_form_everywhere(words, capsys):
    assert ExitCode.DONE == execute([*words, "-h"])
    assert "Usage: tidemark" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    """The version is printed with the name of the distribution, which differs from the command's name."""
    assert ExitCode.DONE == execute(["--version"])
    assert f"tidemark {version('tidemark-spark')} (tidemark-spark)" == capsys.readouterr().out.strip()


# ------------------------------------------------------------------
# The printed lines for reading a cut work as they are, and the reports show what the stores wrote.


SILVER = TableName("silver/flights")
GOLD = TableName("gold/delays_by_route")
STATE = TableName("_tidemark/flights/state/joined")
FLIGHTS = JobName("flights")


@pytest.fixture
def tables(tmp_path):
    for table in (SILVER, GOLD):
        for number in range(3):
            write_deltalake(str(tmp_path / table), pa.table({"number": [number]}), mode="append")
    return tmp_path


def cut_of(root):
    store = CutStore(Warehouse(root, ProtocolPaths(FLIGHTS)))
    store.record(CheckpointId(6), [(SILVER, 0), (GOLD, 2), (STATE, 5)])
    CheckpointStore(Warehouse(root, ProtocolPaths(FLIGHTS)))
    return Cuts(root, FLIGHTS).latest()


@pytest.fixture
def job(tmp_path, record):
    """Return a job whose checkpoint 6 is published and whose checkpoint 7 is only committed.

    A process on another machine holds the job.
    """
    warehouse = Warehouse(tmp_path, ProtocolPaths(FLIGHTS), now_ms=lambda: 1_700_000_002_000)
    holder = Holder(host="elsewhere", pid=9, started="s")
    claim = Claim(
        generation=Generation(2),
        holder=holder,
        first_id=CheckpointId(1),
        last_id=CheckpointId(1000),
        at_ms=0,
        nonce="claim",
    )
    rows = (claim, record(6, 5).model_copy(update={"nonce": "six"}), record(7, 6))
    store = CheckpointStore(warehouse)
    for number, row in enumerate(rows):
        store.append(row, number)
    CutStore(warehouse).record(CheckpointId(6), [(SILVER, 4)])
    return warehouse


@pytest.mark.parametrize("engine", ["Polars", "DuckDB"])
def test_the_lines_read_each_table_at_its_version(tables, engine):
    """Each engine reads one row of the first table at version 0, and three rows of the second table at version 2."""
    recipe = next(each for each in recipes(cut_of(tables)) if each.engine == engine)
    names: dict = {}
    exec("\n".join(recipe.lines), names)  # noqa: S102 - a user would paste them
    read = [names[view_name(table)] for table in (SILVER, GOLD)]
    rows = [each.collect().height if engine == "Polars" else each.num_rows for each in read]
    assert [1, 3] == rows


@pytest.mark.spark
def test_sparks_lines_read_each_table_at_its_version(tables, spark):
    """Spark's lines work in a session that has Delta."""
    recipe = next(each for each in recipes(cut_of(tables)) if each.engine == "Spark")
    names = {"spark": spark}
    exec("\n".join(recipe.lines), names)  # noqa: S102 - a user would paste them
    assert [1, 3] == [names[view_name(table)].count() for table in (SILVER, GOLD)]


def test_the_list_is_what_the_stores_hold(job, capsys):
    """The newest entry comes first. An entry without a recorded cut is not published yet. The list names the holder."""
    assert ExitCode.DONE == execute(["checkpoints", "list", "--warehouse", str(job.root)])
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│ checkpoint " in line]
    assert [("7", "not yet"), ("6", "published")] == [(row[0], row[-1]) for row in rows]
    assert "held by process 9 on elsewhere, generation 2" in shown
    assert 7 == newest_restorable(job).checkpoint
    assert ExitCode.NOT_THERE == execute(["checkpoints", "show", "9", "--warehouse", str(job.root)])
    assert "checkpoint 9 of flights is not retained: there are 7, 6" in capsys.readouterr().err


def test_a_released_job_is_free(job, capsys):
    """After a normal end, nobody holds the job."""
    CheckpointStore(job).append(Release(generation=Generation(2), next_id=CheckpointId(8), at_ms=0, nonce="end"), 3)
    execute(["checkpoints", "list", "--warehouse", str(job.root)])
    assert "nobody holds the job: the last tick ended normally" in capsys.readouterr().out


def test_the_pipelines_name_may_be_left_out(job, capsys):
    """Without a pipeline, `show 6` and `cut 6` are about the demo."""
    for command in (["checkpoints", "show", "6"], ["cut", "6"], ["checkpoints", "list"]):
        assert ExitCode.DONE == execute([*command, "--warehouse", str(job.root)])
    shown = capsys.readouterr().out
    assert "checkpoint 6 of flights" in shown
    assert f"silver_flights = pl.scan_delta('{job.root}/silver/flights', version=4)" in shown
    assert "2 checkpoints retained" in shown


def test_a_cut_that_is_not_published_says_how_to_publish_it(job, capsys):
    """The newest checkpoint is committed, and its cut is not recorded yet. The newest cut is older."""
    assert ExitCode.DONE == execute(["cut", "--warehouse", str(job.root)])
    assert "cut 6 of flights" in capsys.readouterr().out
    assert ExitCode.NOT_THERE == execute(["cut", "7", "--warehouse", str(job.root)])
    assert "'tidemark run flights' rolls it forward" in capsys.readouterr().err


# ------------------------------------------------------------------
# What `tidemark reset` reports about rows that are read again, and which commands its messages name.


NUMBERS, FILES = VertexId("numbers"), VertexId("files")


class Planned:
    """A plan that moves splits of two sources."""

    job = JobName("shop")

    def __init__(self, *splits):
        self.splits = splits


@pytest.fixture
def words(tmp_path):
    (tmp_path / "old").mkdir()
    whole = FileSource(tmp_path, StructType().add("n", LongType()), format="csv")
    return PositionWords({NUMBERS: Gaps({"a": (1, 5, 9)}), FILES: whole})


def said(plan, words):
    return [str(line) for line in consequences(plan, words, "shop.pipeline:build")]


def test_rows_that_nobody_can_count_are_not_said_to_be_none(words):
    counted = SplitBack(NUMBERS, SplitId("a"), "p6", None)
    unknown = SplitBack(FILES, SplitId("old"), FilePosition().text(), None)
    first, second, third = said(Planned(counted, unknown), words)
    assert first.startswith("2 rows will be read AGAIN: ")
    assert second.startswith("it is not known how many rows will be read AGAIN or SKIPPED: ")
    assert "to take the tables back too: tidemark rollback shop.pipeline:build N" == third
    assert [second, third] == said(Planned(unknown), words)
    assert [first, third] == said(Planned(counted), words)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (
            "gone: tidemark reset PIPELINE orders --to start",
            "gone: tidemark reset shop.pipeline:build orders --to start",
        ),
        ("start it with 'tidemark run shop'", "start it with 'tidemark run shop.pipeline:build'"),
        ("tidemark rollback shop 3 --warehouse w", "tidemark rollback shop.pipeline:build 3 --warehouse w"),
        ("tidemark run shop-2, tidemark cut shopping", None),
        ("shop cannot be read", None),
    ],
)
def test_a_command_in_a_message_names_the_pipeline_as_it_was_typed(message, named):
    """Messages without a command, or with a job whose name only begins alike, stay as they are."""
    with pytest.raises((SourceError, CommandError)) as raised, naming_pipeline("shop.pipeline:build", "shop"):
        raise SourceError(message)
    assert (named or message) == str(raised.value)
    assert (SourceError if named is None else CommandError) is type(raised.value)
    if named is not None:
        assert ExitCode.FAILED is raised.value.code
