"""A project in a folder with an odd name. The commands that its author is told to type work there."""

import shlex
import subprocess

import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from tests.odd_names import ALL_IN_ONE


@pytest.mark.parametrize("name", ["a b", ALL_IN_ONE])
def test_a_new_project_may_lie_in_a_folder_of_any_name(tmp_path, capsys, name):
    """`cd` is quoted, and `make dev` names the Dagster home of that folder."""
    folder = tmp_path / name
    assert ExitCode.DONE is execute(["init", str(folder), "--name", "shop", "--tidemark", "tidemark-spark==0.1.0"])
    told = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("go on with: "))
    assert ["cd", str(folder), "&&", "make", "run"] == shlex.split(told.removeprefix("go on with: "))[:5]
    recipe = subprocess.run(
        ["make", "--dry-run", "--old-file", ".venv/.complete", "dev"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = next(line for line in recipe.splitlines() if "DAGSTER_HOME" in line)
    home = line.partition("DAGSTER_HOME=")[2].partition(' ".venv')[0]
    said = subprocess.run(["sh", "-c", f"printf %s {home}"], cwd=folder, capture_output=True, text=True, check=True)
    assert str(folder / ".dagster") == said.stdout


def test_a_name_that_no_project_may_have_gets_a_line_to_paste(tmp_path, capsys):
    """The line quotes the folder."""
    assert ExitCode.USAGE is execute(["init", str(tmp_path / "a b")])
    words = capsys.readouterr().err.partition("as in 'tidemark ")[2].strip()
    assert ["init", str(tmp_path / "a b"), "--name", "a_b"] == shlex.split(words.removesuffix("'"))
