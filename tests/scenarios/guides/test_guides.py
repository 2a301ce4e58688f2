"""Tests that every block of the guides works, in the order of the guide."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.cli.errors import ExitCode
from jobs.cli.main import execute

ROOT = Path(__file__).resolve().parents[3]
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<path>[\w/]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    """One block: its language, its text, its line in the guide, and the file that it names, if any."""

    kind: str
    text: str
    path: str | None
    line: int


def blocks(guide: Path) -> Iterator[Block]:
    text = guide.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        named = _FILE.match(found["text"])
        line = text.count("\n", 0, found.start()) + 2
        yield Block(found["kind"], found["text"], named["path"] if named else None, line)


def write(block: Block, folder: Path) -> None:
    path = folder / block.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".py":
        (path.parent / "__init__.py").touch()
    path.write_text(block.text, encoding="utf-8")
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
            del sys.modules[name]


def python(*words: str) -> int:
    """Run a module of this environment in a new process. Return its exit code."""
    return subprocess.run([sys.executable, "-m", *words], check=False).returncode


def main(guide: Path, folder: Path) -> None:
    from jobs.cli.main import execute

    os.chdir(folder)
    names: dict[str, object] = {}
    for block in blocks(guide):
        print(f"line {block.line}: {block.path or block.kind}", flush=True)
        if block.path is not None:
            write(block, folder)
        elif block.kind == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(guide), "exec"), names)  # noqa: S102 - the guide's own code
        else:
            for command in block.text.splitlines():
                program, *words = command.split()
                if execute(words) if program == "tidemark" else python(program, *words):
                    sys.exit(f"line {block.line}: '{command}' failed")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())


TO_RUN = [guide for guide in GUIDES if any(blocks(guide))]
"""The guides that have blocks to run."""


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
    """As soon as a pipeline's files are complete, `tidemark explain` shows the pipeline, without Spark."""
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
    """A new process writes the guide's files and runs its commands on real Spark. The guide's asserts hold."""
    command = [sys.executable, "-m", "tests.scenarios.guides.test_guides", guide, tmp_path]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=580)
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


@pytest.mark.dear
@pytest.mark.spark
def test_a_renamed_pipeline_on_the_command_line(tmp_path):
    """The section on renaming works by itself, with two ticks on real Spark and a dry run that shows each rename."""
    text = (ROOT / "docs" / "guides" / "pipelines.md").read_text(encoding="utf-8")
    section = text.partition("### Renaming\n")[2].partition("\n## ")[0]
    project = "```toml\n# pyproject.toml\n[tool.tidemark]\n```\n\n```python\nfrom tidemark import Cuts\n```\n"
    (tmp_path / "renaming.md").write_text(project + section, encoding="utf-8")
    command = [sys.executable, "-m", "tests.scenarios.guides.test_guides", tmp_path / "renaming.md", tmp_path]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    shown = [" ".join(line.replace("│", " ").split()) for line in done.stdout.splitlines()]
    for kind, was, now in (("vertex", "by_key", "per_customer"), ("table", "gold/by_key", "gold/per_customer")):
        assert any(line.startswith(f"name {kind} {was} {now}") for line in shown), done.stdout
    assert any("table gold/per_customer orders rows orders renamed" in line for line in shown), done.stdout
