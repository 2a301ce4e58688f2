"""Tests that every block of the guides works, in the order of the guide."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute
from tests.scenarios.guides.blocks import blocks, write

ROOT = Path(__file__).resolve().parents[3]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
TO_RUN = [guide for guide in GUIDES if any(blocks(guide))]
"""A guide without blocks has nothing to run."""


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_each_block_is_python_a_file_or_a_command_that_exists(guide):
    for block in blocks(guide):
        where = f"{guide.name}:{block.line}"
        if block.kind == "python":
            compile(block.text, where, "exec")
        elif block.kind == "sh":
            assert [] == [line for line in block.text.splitlines() if not line.startswith(("tidemark ", "pytest "))], (
                where
            )
        else:
            assert block.path is not None, where


def test_each_pipeline_of_the_guide_can_be_planned(tmp_path, monkeypatch, capsys):
    """As soon as its files are complete, `tidemark explain` shows it, without Spark."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    shown = []
    for block in blocks(ROOT / "docs" / "guides" / "pipelines.md"):
        if block.path is None:
            continue
        write(block, tmp_path)
        if block.path == "shop/pipeline.py":
            assert ExitCode.DONE == execute(["explain"]), capsys.readouterr().err
            shown.append(capsys.readouterr().out)
    assert 2 == len(shown)
    assert "by_customer" in shown[0]
    assert "clicks_of_customers" in shown[1]


@pytest.mark.dear
@pytest.mark.spark
@pytest.mark.timeout(590)
@pytest.mark.parametrize("guide", TO_RUN, ids=lambda guide: guide.name)
def test_the_guide_works_as_it_is_written(guide, tmp_path):
    """In a process of its own, on real Spark, the test writes the files and types the commands.

    The guide's asserts hold.
    """
    command = [sys.executable, "-m", "tests.scenarios.guides.blocks", guide, tmp_path]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=580)
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.mark.dear
@pytest.mark.spark
def test_a_renamed_pipeline_on_the_command_line(tmp_path):
    """The section on renaming works by itself: two ticks on real Spark, and a dry run that shows each rename."""
    text = (ROOT / "docs" / "guides" / "pipelines.md").read_text(encoding="utf-8")
    section = text.partition("### Renaming\n")[2].partition("\n## ")[0]
    project = "```toml\n# pyproject.toml\n[tool.tidemark]\n```\n\n```python\nfrom tidemark import Cuts\n```\n"
    (tmp_path / "renaming.md").write_text(project + section, encoding="utf-8")
    command = [sys.executable, "-m", "tests.scenarios.guides.blocks", tmp_path / "renaming.md", tmp_path]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    shown = [" ".join(line.replace("│", " ").split()) for line in done.stdout.splitlines()]
    for kind, was, now in (("vertex", "by_key", "per_customer"), ("table", "gold/by_key", "gold/per_customer")):
        assert any(line.startswith(f"name {kind} {was} {now}") for line in shown), done.stdout
    assert any("table gold/per_customer orders rows orders renamed" in line for line in shown), done.stdout
